//! Membership: each replica publishes a heartbeat with the digests of its configuration and
//! catalog.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::store::Push;
use super::{ClusterMember, Relayed, ReplicaId};
use audit::record::AuditEvent;
use base::platform::Locked;
use base::seal::{Sealer, TokenKind};
use domain::calls::fair_share::Holder;
use domain::time::backoff::{Backoff, jittered};
use domain::time::millis::whole_millis;

/// The description of a replica in its heartbeat.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Presence {
    pub name: String,
    pub version: String,
    /// The digest of its configuration file.
    pub config: String,
    /// The digest of its catalog; empty until every upstream has answered.
    pub catalog: String,
    /// Seconds since the Unix epoch.
    pub started: u64,
    /// The version of the messages that the replica reads; without the field, version 1.
    #[serde(default = "first_version")]
    pub relay: u32,
}

fn first_version() -> u32 {
    1
}

/// A replica that lives.
#[derive(Clone, Debug)]
pub struct Replica {
    pub id: ReplicaId,
    pub presence: Presence,
    /// The time of its last heartbeat.
    pub seen: Instant,
}

/// Replicas that were known before the store was reached again, and have sent no heartbeat since:
/// they may be about to reach the store. `seen` is the time at which this replica reached it; time
/// without a store does not count.
#[derive(Debug, Default)]
pub(super) struct Reconnecting {
    replicas: Vec<Replica>,
    /// When the store was lost; `None` while it is available.
    lost: Option<Instant>,
}

impl Reconnecting {
    /// Adds the known replicas. A replica that is expected already keeps its time, so that a store
    /// that comes and goes keeps no dead replica.
    fn begin(&mut self, known: &[Replica], now: Instant) {
        let outage = self.lost.take().map_or(Duration::ZERO, |lost| now.duration_since(lost));
        self.replicas.iter_mut().for_each(|expected| expected.seen += outage);
        for replica in known {
            if self.replicas.iter().all(|expected| expected.id != replica.id) {
                self.replicas.push(Replica { seen: now, ..replica.clone() });
            }
        }
    }

    /// Keeps the replicas that have sent no heartbeat yet, until they are silent for [`FORGOTTEN`].
    fn retain_unheard(&mut self, heard: &[Replica], now: Instant) {
        let is_heard = |id| heard.iter().any(|heard| heard.id == id);
        self.replicas.retain(|replica| {
            !is_heard(replica.id) && now.duration_since(replica.seen) < FORGOTTEN
        });
    }
}

/// Time between two heartbeats. A terminated session is known to all replicas after one heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Time between a heartbeat that failed and the next.
const RETRY: Duration = Duration::from_millis(50);

/// A replica that was silent for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// Longest wait between two attempts to reach the store.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A store that was available for this long is reached again without a longer wait.
const STABLE: Duration = Duration::from_secs(10);

/// Terminated sessions in the answer to one heartbeat: they are opened within a millisecond.
const NEWS: usize = 250;

/// The answer of `beat.lua`: the replicas (id, milliseconds of silence, sealed presence), and the
/// terminated sessions (entry, members). The bytes of others are untrusted.
type Beat = (Vec<(Vec<u8>, u64, Vec<u8>)>, Vec<(String, Vec<Vec<u8>>)>);

impl ClusterMember {
    /// Keeps the store connected and this replica known, until `stop`. `describe` returns the
    /// presence, and `terminated` takes each session that another replica has terminated.
    pub async fn run_membership(
        self: Arc<Self>,
        describe: impl Fn() -> Presence + Send,
        terminated: impl Fn(&Holder, [u8; 16]) + Send,
        stop: CancellationToken,
    ) {
        stop.run_until_cancelled(self.keep_connected(&describe, &terminated)).await;
        self.terminations.publish_pending().await;
        let key = self.link.store.key("replicas");
        let id = self.link.id.to_string();
        let left = self.link.store.run(async |mut connection| {
            cmd("HDEL").arg(key).arg(id).query_async::<Value>(&mut connection).await
        });
        // If this fails, the other replicas forget this replica after a while.
        let _ = left.await;
        self.link.store.disconnect();
    }

    async fn keep_connected(
        &self,
        describe: &(impl Fn() -> Presence + Send),
        terminated: &(impl Fn(&Holder, [u8; 16]) + Send),
    ) {
        let mut backoff = Backoff::up_to(LONGEST_WAIT);
        loop {
            if self.link.store.is_up() {
                let since = Instant::now();
                self.keep_beating(describe, terminated).await;
                self.note_down();
                if since.elapsed() >= STABLE {
                    backoff.reset();
                }
            }
            loop {
                sleep(backoff.next(fastrand::f64())).await;
                match self.attach(describe()).await {
                    Ok(()) => break,
                    Err(why) => self.link.store.note_failure(&why),
                }
            }
            self.log_store_available();
        }
    }

    /// Sends heartbeats until the store is no longer available.
    async fn keep_beating(
        &self,
        describe: &(impl Fn() -> Presence + Send),
        terminated: &(impl Fn(&Holder, [u8; 16]) + Send),
    ) {
        let mut next = Instant::now();
        while self.link.store.is_up() {
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.link.store.lost() => return,
            }
            self.terminations.publish_pending().await;
            let presence = describe();
            let beat = self
                .link
                .store
                .run(async |connection| self.beat(connection, &presence, NEWS).await);
            let Ok((replicas, news)) = beat.await else {
                // Retries soon, so that a lost store is noticed early.
                next = Instant::now() + RETRY;
                continue;
            };
            self.apply_heartbeat(&replicas);
            let is_more = news.len() >= NEWS;
            self.terminations.apply(&news, terminated);
            next = Instant::now();
            if !is_more {
                self.terminations.note_complete();
                next += jittered(HEARTBEAT, fastrand::f64());
            }
        }
    }

    /// Connects to the store, and uses it once a heartbeat was written.
    pub(super) async fn attach(&self, presence: Presence) -> Result<(), String> {
        let [own, all] = self.relay.channels();
        let candidate = self.link.store.open(&[own, all, self.logins.channel()]).await?;
        let beat = candidate.probe(self.config.timeout, async |connection| {
            self.beat(connection, &presence, 1).await
        });
        let (replicas, _) = beat.await?;
        self.reconnecting.locked().begin(&self.link.replicas.load(), Instant::now());
        self.apply_heartbeat(&replicas);
        self.terminations.read_again();
        self.link.store.adopt(candidate);
        self.logins.note_connected();
        self.rollbacks.note_connected();
        self.buckets.note_refilled();
        Ok(())
    }

    async fn beat(
        &self,
        mut connection: MultiplexedConnection,
        presence: &Presence,
        news: usize,
    ) -> Result<Beat, RedisError> {
        let presence = serde_json::to_vec(presence).unwrap_or_default();
        let sealed =
            self.link.sealer.load().seal(TokenKind::Replica, &self.link.id.to_string(), &presence);
        let last = self.terminations.last();
        let mut beat = self.link.scripts.beat.key(self.link.store.key("replicas"));
        beat.key(self.link.store.key("terminated")).arg(self.link.id.to_string()).arg(sealed);
        beat.arg(whole_millis(FORGOTTEN)).arg(last.as_str()).arg(news);
        beat.invoke_async(&mut connection).await
    }

    /// Updates the set of live replicas.
    fn apply_heartbeat(&self, replicas: &[(Vec<u8>, u64, Vec<u8>)]) {
        let sealer = self.link.sealer.load();
        let now = Instant::now();
        let replica = |(id, silent, sealed): &(Vec<u8>, u64, Vec<u8>)| {
            let seen = now.checked_sub(Duration::from_millis(*silent)).unwrap_or(now);
            read(&sealer, id, sealed).map(|(id, presence)| Replica { id, presence, seen })
        };
        let mut known: Vec<_> = replicas.iter().filter_map(replica).collect();
        let unreadable = replicas.len() - known.len();
        {
            let mut reconnecting = self.reconnecting.locked();
            reconnecting.retain_unheard(&known, now);
            known.extend(reconnecting.replicas.iter().cloned());
        }
        known.sort_by(|a, b| (&a.presence.name, a.id).cmp(&(&b.presence.name, b.id)));
        if self.unreadable.swap(unreadable, Ordering::Relaxed) < unreadable {
            warn!(
                unreadable,
                "other replicas use another server.seal_key, or a release whose heartbeat this one cannot read: \
                 sessions, messages and rate limits are not shared with them"
            );
        }
        self.warn_of_other_relays(&known);
        self.link.replicas.store(Arc::new(known));
    }

    /// Warns of new replicas that read another version of the messages.
    fn warn_of_other_relays(&self, known: &[Replica]) {
        let before = self.link.replicas.load();
        let own = TokenKind::Relay.version();
        for Replica { id, presence, .. } in known {
            let is_new = before.iter().all(|replica| replica.id != *id);
            if is_new && presence.relay != own {
                warn!(
                    replica = presence.name,
                    version = presence.version,
                    "messages between this replica and another release are not handed over: finish the upgrade, or \
                     keep clients at one replica until then"
                );
            }
        }
    }

    /// Takes the messages of the channels, until `stop`.
    pub(super) async fn take_messages(
        self: Arc<Self>,
        mut pushes: mpsc::Receiver<Push>,
        relayed: mpsc::Sender<Relayed>,
        stop: CancellationToken,
    ) {
        while let Some(Some(push)) = stop.run_until_cancelled(pushes.recv()).await {
            if !self.logins.receive(&push) {
                self.relay.receive(push, &relayed);
            }
        }
    }

    pub(super) fn note_down(&self) {
        self.reconnecting.locked().lost.get_or_insert_with(Instant::now);
        let why = self.link.store.failure();
        warn!(
            why,
            "the store of the cluster is not available; rate limits are counted as cluster.on_failure says, \
             until it is back"
        );
        self.audit.note(AuditEvent::new("cluster_store_lost").text("error", &why));
    }

    pub(super) fn log_store_available(&self) {
        let replicas = self.link.replicas.load().len();
        info!(replicas, name = self.name, "the store of the cluster is available");
        self.audit
            .note(AuditEvent::new("cluster_store_available").number("replicas", replicas as u64));
    }
}

/// Opens the sealed presence of a replica.
fn read(sealer: &Sealer, id: &[u8], sealed: &[u8]) -> Option<(ReplicaId, Presence)> {
    let id = std::str::from_utf8(id).ok()?;
    let sealed = std::str::from_utf8(sealed).ok()?;
    let plain = sealer.open(TokenKind::Replica, id, sealed)?;
    Some((ReplicaId::parse(id)?, serde_json::from_slice(&plain).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::seal::SealKeys;

    #[test]
    fn a_replica_that_has_not_reached_the_store_again_lives_on_until_it_is_forgotten() {
        let start = Instant::now();
        let replica =
            |id| Replica { id: ReplicaId(id), presence: Presence::default(), seen: start };
        let known = [replica([1; 8]), replica([2; 8]), replica([3; 8])];
        let mut expected = Reconnecting::default();
        let ids = |expected: &Reconnecting| -> Vec<_> {
            expected.replicas.iter().map(|own| own.id.0).collect()
        };
        expected.begin(&known, start);
        expected.retain_unheard(&known[..1], start);
        assert_eq!(ids(&expected), [[2; 8], [3; 8]]);
        let almost = start + FORGOTTEN - Duration::from_millis(1);
        expected.retain_unheard(&[replica([1; 8]), replica([3; 8])], almost);
        assert_eq!(ids(&expected), [[2; 8]]);
        // The time without a store does not count, and it is the same replica as before.
        expected.lost = Some(almost);
        let again = almost + 9 * FORGOTTEN;
        expected.begin(&known[1..2], again);
        expected.retain_unheard(&[], again);
        assert_eq!(ids(&expected), [[2; 8]]);
        expected.retain_unheard(&[], again + Duration::from_millis(1));
        assert_eq!(ids(&expected), [[0; 8]; 0]);
    }

    #[test]
    fn heartbeats_of_earlier_releases_are_read() {
        let sealer = Sealer::new(&SealKeys::new(vec![[7; 32]]).unwrap());
        let id = ReplicaId([7; 8]);
        let presence = Presence {
            name: "one".to_owned(),
            version: "0.1.0".to_owned(),
            config: "sha256:01".to_owned(),
            catalog: "sha256:02".to_owned(),
            started: 7,
            relay: 1,
        };
        let sealed = include_bytes!("../../../tests/formats/replica-1");
        assert_eq!(read(&sealer, id.to_string().as_bytes(), sealed), Some((id, presence)));
    }
}
