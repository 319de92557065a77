//! Membership: each replica tells the others that it lives, and what it serves.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, Value, aio::MultiplexedConnection, cmd};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::store::Push;
use super::{Cluster, Delivery, ReplicaId, terminated};
use crate::audit::record::Event;
use crate::domain::backoff::{Backoff, jittered};
use crate::seal::{Kind, Sealer};

/// What a replica tells the others about itself.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Presence {
    pub name: String,
    pub version: String,
    /// The digest of its configuration file.
    pub config: String,
    /// The digest of its catalog; empty until every upstream has answered.
    pub catalog: String,
    /// Seconds since the Unix epoch.
    pub started: u64,
}

/// A replica that lives.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub id: ReplicaId,
    pub presence: Presence,
    /// When it was heard last.
    pub seen: Instant,
}

/// Time between two heartbeats. A terminated session is known everywhere after one of them.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// A replica that was silent for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// Longest wait between two attempts to reach the store.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Terminated sessions that one heartbeat brings.
const NEWS: usize = 1_000;

/// The answer of `beat.lua`: the replicas (id, milliseconds of silence, what it told), and the terminated sessions
/// (entry, members).
type Beat = (Vec<(String, u64, String)>, Vec<(String, Vec<String>)>);

/// What a heartbeat has brought.
struct News {
    terminated: Vec<Delivery>,
    /// Whether there is more of it.
    is_more: bool,
}

impl Cluster {
    /// Keeps the store connected and this replica known, until `stop`; `describe` returns what it serves.
    pub(crate) async fn keep(
        self: Arc<Self>,
        describe: impl Fn() -> Presence + Send,
        deliveries: mpsc::Sender<Delivery>,
        stop: CancellationToken,
    ) {
        stop.run_until_cancelled(self.keep_connected(&describe, &deliveries)).await;
        let (key, id) = (self.store.key("replicas"), self.id.to_string());
        let left = self.store.run(async |mut connection| {
            cmd("HDEL").arg(key).arg(id).query_async::<Value>(&mut connection).await
        });
        // Without it the others forget this replica by themselves.
        let _ = left.await;
    }

    async fn keep_connected(
        &self,
        describe: &(impl Fn() -> Presence + Send),
        deliveries: &mpsc::Sender<Delivery>,
    ) {
        loop {
            self.keep_beating(describe, deliveries).await;
            self.note_down();
            let mut backoff = Backoff::up_to(LONGEST_WAIT);
            loop {
                sleep(backoff.next(fastrand::f64())).await;
                match self.attach(describe()).await {
                    Ok(()) => break,
                    Err(why) => self.store.note_failure(&why),
                }
            }
            self.note_up();
        }
    }

    /// Sends heartbeats until the store is no longer available.
    async fn keep_beating(
        &self,
        describe: &(impl Fn() -> Presence + Send),
        deliveries: &mpsc::Sender<Delivery>,
    ) {
        let mut next = Instant::now();
        while self.store.is_up() {
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.store.lost() => return,
            }
            self.tell_untold().await;
            let presence = describe();
            let beat = self.store.run(async |connection| self.beat(connection, &presence).await);
            next = Instant::now();
            // A failed heartbeat is repeated at once: a store that is lost is known soon.
            let Ok(beat) = beat.await else {
                continue;
            };
            let News { terminated, is_more } = self.learn(beat);
            for delivery in terminated {
                let _ = deliveries.send(delivery).await;
            }
            if !is_more {
                next += jittered(HEARTBEAT, fastrand::f64());
            }
        }
    }

    /// Connects to the store, and uses it once a heartbeat was written.
    ///
    /// # Errors
    /// Why the store cannot be used, in words for operators.
    pub(super) async fn attach(&self, presence: Presence) -> Result<(), String> {
        let candidate = self.store.open(&self.channels()).await?;
        let beat = candidate
            .try_it(self.config.timeout, async |connection| self.beat(connection, &presence).await);
        let (replicas, _) = beat.await?;
        // The sessions are learnt with the first heartbeat of many.
        self.learn((replicas, Vec::new()));
        self.store.use_it(candidate);
        Ok(())
    }

    async fn beat(
        &self,
        mut connection: MultiplexedConnection,
        presence: &Presence,
    ) -> Result<Beat, RedisError> {
        let told = serde_json::to_vec(presence).unwrap_or_default();
        let told = self.sealer.load().seal(Kind::Replica, &self.id.to_string(), &told);
        let last = self.last_terminated.load_full();
        let mut beat = self.scripts.beat.key(self.store.key("replicas"));
        beat.key(self.store.key("terminated")).arg(self.id.to_string()).arg(told);
        beat.arg(FORGOTTEN.as_millis() as u64).arg(last.as_str()).arg(NEWS);
        beat.invoke_async(&mut connection).await
    }

    /// Learns what a heartbeat has brought. What is not sealed with the shared key is ignored.
    fn learn(&self, (replicas, terminated): Beat) -> News {
        let sealer = self.sealer.load();
        let now = Instant::now();
        let replica = |(id, silent, told): &(String, u64, String)| {
            let seen = now.checked_sub(Duration::from_millis(*silent)).unwrap_or(now);
            read(&sealer, id, told).map(|(id, presence)| Replica { id, presence, seen })
        };
        let mut replicas: Vec<_> = replicas.iter().filter_map(replica).collect();
        replicas.sort_by(|a, b| (&a.presence.name, a.id).cmp(&(&b.presence.name, b.id)));
        self.replicas.store(Arc::new(replicas));
        if let Some((last, _)) = terminated.last() {
            self.last_terminated.store(Arc::new(last.clone()));
        }
        let is_more = terminated.len() >= NEWS;
        let sealed = terminated.iter().filter_map(|(_, members)| members.get(1));
        let terminated = sealed
            .filter_map(|sealed| terminated::open(&sealer, sealed))
            .map(|(holder, session)| Delivery::Terminated { holder, session })
            .collect();
        News { terminated, is_more }
    }

    /// Takes the messages of the channels, until the store is dropped.
    pub(super) async fn take_messages(
        self: Arc<Self>,
        mut pushes: mpsc::Receiver<Push>,
        deliveries: mpsc::Sender<Delivery>,
        stop: CancellationToken,
    ) {
        while let Some(Some(push)) = stop.run_until_cancelled(pushes.recv()).await {
            self.receive(&push, &deliveries);
        }
    }

    fn note_down(&self) {
        let why = self.store.failure();
        warn!(
            why,
            "the store of the cluster is not available; rate limits are counted as cluster.on_failure says, \
             until it is back"
        );
        self.audit.note(Event::new("cluster_store_lost").text("error", &why));
    }

    pub(super) fn note_up(&self) {
        let replicas = self.replicas.load().len();
        info!(replicas, name = self.name, "the store of the cluster is available");
        self.audit.note(Event::new("cluster_store_available").number("replicas", replicas as u64));
    }
}

/// Opens what a replica told about itself.
fn read(sealer: &Sealer, id: &str, told: &str) -> Option<(ReplicaId, Presence)> {
    let plain = sealer.open(Kind::Replica, id, told)?;
    Some((ReplicaId::parse(id)?, serde_json::from_slice(&plain).ok()?))
}
