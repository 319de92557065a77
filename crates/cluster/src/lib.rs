//! The cluster: the replicas of one gateway, which share rate limits, terminated sessions, sign-ins
//! for upstreams and messages for each other through a store, a Redis or Valkey server. A gateway
//! without `[cluster]` has none of this.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod buckets;
mod logins;
mod membership;
mod relay;
mod rollbacks;
mod scripts;
mod store;
mod terminated;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use audit::Audit;
use base::platform::wall_clock;
use base::seal::hex::{from_hex, hex};
use base::seal::{Sealer, TokenKind, random};
use buckets::StoredBuckets;
use config::{Limits, OnMissing};
use domain::calls::fair_share::Share;
use domain::time::unix_time::UnixSeconds;
use membership::Reconnecting;
use scripts::Scripts;
use shutdown::Supervisor;
use store::RedisBackend;
use telemetry::Telemetry;
use terminated::Terminations;

pub use buckets::{Take, Taken};
pub use logins::{LoginLock, SharedLoginError, SharedLogins};
pub use membership::{Presence, Replica};
pub use relay::{Handling, Receipt, Relay, RelayError, RelayMessage, Relayed};
pub use rollbacks::SharedRollbacks;
pub use store::StoreUnavailable;

/// This replica, and its connection to the others.
pub struct ClusterMember {
    link: Arc<Link>,
    name: String,
    /// Seconds since the Unix epoch.
    started: u64,
    config: config::Cluster,
    logins: Arc<SharedLogins>,
    buckets: StoredBuckets,
    terminations: Terminations,
    relay: Arc<Relay>,
    rollbacks: SharedRollbacks,
    reconnecting: Mutex<Reconnecting>,
    /// Replicas that live and whose presence cannot be read: they have another seal key.
    unreadable: AtomicUsize,
    audit: Audit,
}

/// The link of a replica to the store and so to the other replicas. All parts of a member share it.
struct Link {
    id: ReplicaId,
    store: Arc<RedisBackend>,
    scripts: Scripts,
    /// The sealer of the newest configuration.
    sealer: ArcSwap<Sealer>,
    bounds: ArcSwap<ClusterBounds>,
    /// The replicas that live, this one among them, in the order of their names.
    replicas: ArcSwap<Vec<Replica>>,
}

/// The limits of a configuration that concern the cluster.
struct ClusterBounds {
    /// `server.limits.request`: the longest time for a message to another replica.
    request: Duration,
    /// The share of one caller of the messages that wait for acknowledgements.
    share: Share,
    terminated_sessions: usize,
    session_lifetime: Duration,
}

/// The id of one process, drawn at its start.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct ReplicaId([u8; 8]);

#[cfg(test)]
impl ReplicaId {
    fn of_test(n: u8) -> Self {
        Self([n; 8])
    }
}

/// The parts of the gateway that a cluster uses.
pub struct ClusterDeps {
    pub sealer: Arc<Sealer>,
    pub telemetry: Telemetry,
    pub audit: Audit,
    pub supervisor: Supervisor,
}

/// Messages of other replicas that wait to be handled.
const RELAYED: usize = 256;

impl ClusterMember {
    /// Joins the cluster of a configuration: tries once to reach the store. Also returns the
    /// messages that other replicas hand over.
    ///
    /// # Errors
    /// `cluster.ca` cannot be used; or the store cannot be reached, and `cluster.on_missing` is
    /// `refuse`.
    pub async fn join(
        config: config::Cluster,
        limits: &Limits,
        config_digest: &str,
        deps: ClusterDeps,
    ) -> Result<(Arc<Self>, mpsc::Receiver<Relayed>), String> {
        let ClusterDeps { sealer, telemetry, audit, supervisor } = deps;
        let tasks = supervisor.tasks();
        let stop = supervisor.stop().clone();
        let (store, pushes) = RedisBackend::new(config.clone(), tasks.clone())?;
        let store = Arc::new(store);
        let logins = SharedLogins::of_replica(store.clone());
        let link = Arc::new(Link {
            id: ReplicaId(random()),
            store,
            scripts: Scripts::default(),
            sealer: ArcSwap::new(sealer),
            bounds: ArcSwap::from_pointee(ClusterBounds::of(limits)),
            replicas: ArcSwap::default(),
        });
        let relay =
            Relay::new(link.clone(), config.relay_size, limits.share, telemetry, &supervisor);
        let cluster = Arc::new(Self {
            name: config.replica.clone().unwrap_or_else(random_name),
            started: UnixSeconds::from(wall_clock()).0,
            logins,
            buckets: StoredBuckets::new(link.clone()),
            terminations: Terminations::new(link.clone()),
            relay: Arc::new(relay),
            rollbacks: SharedRollbacks::new(link.store.clone()),
            reconnecting: Mutex::default(),
            unreadable: AtomicUsize::new(0),
            audit,
            link,
            config,
        });
        match cluster.attach(cluster.presence(config_digest, None)).await {
            Ok(()) => cluster.log_store_available(),
            Err(why) if cluster.config.on_missing == OnMissing::Refuse => {
                return Err(format!(
                    "the store of the cluster cannot be used: {why}; check cluster.store, or set \
                     cluster.on_missing = \"alone\" to start without it"
                ));
            }
            Err(why) => {
                cluster.link.store.note_failure(&why);
                cluster.note_down();
            }
        }
        let (sender, relayed) = mpsc::channel(RELAYED);
        let receiving = cluster.clone().take_messages(pushes, sender, stop);
        supervisor.supervise("cluster_messages", receiving);
        Ok((cluster, relayed))
    }

    /// Connects to the store of a configuration as a replica would, and takes a cell of a bucket of
    /// its own.
    ///
    /// # Errors
    /// Why the store cannot be used, in words for operators.
    pub async fn dial(config: &config::Cluster) -> Result<(), String> {
        let (store, _) = RedisBackend::new(config.clone(), TaskTracker::new())?;
        let candidate = store.open(&[store.channel("check")]).await?;
        let scripts = Scripts::default();
        let mut take = scripts.take.key(store.key("check"));
        take.arg(1).arg(1).arg(1);
        let taken = candidate.probe(config.timeout, async |mut connection| {
            take.invoke_async::<Vec<i64>>(&mut connection).await
        });
        taken.await.map(drop)
    }

    /// Applies another configuration. The keys of `[cluster]` need a restart.
    pub fn renew(&self, limits: &Limits, sealer: Arc<Sealer>) {
        self.link.bounds.store(Arc::new(ClusterBounds::of(limits)));
        self.relay.resize(limits.share);
        self.link.sealer.store(sealer);
        self.buckets.note_refilled();
    }

    /// The rate-limit buckets of all replicas.
    pub fn buckets(&self) -> &StoredBuckets {
        &self.buckets
    }

    /// The terminated sessions of all replicas.
    pub fn terminations(&self) -> &Terminations {
        &self.terminations
    }

    /// The messages to and from other replicas.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// The rollbacks of rollouts of all replicas.
    pub fn rollbacks(&self) -> &SharedRollbacks {
        &self.rollbacks
    }

    /// The description of this replica for its heartbeat.
    pub fn presence(&self, config: &str, catalog: Option<String>) -> Presence {
        Presence {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: config.to_owned(),
            catalog: catalog.unwrap_or_default(),
            started: self.started,
            relay: TokenKind::Relay.version(),
        }
    }

    /// The id of this replica.
    pub fn id(&self) -> ReplicaId {
        self.link.id
    }

    /// The operator's sign-ins for upstreams.
    pub fn logins(&self) -> &Arc<SharedLogins> {
        &self.logins
    }

    /// `[cluster]`, as it was at the start.
    pub fn config(&self) -> &config::Cluster {
        &self.config
    }

    /// The replicas that lived at the last heartbeat, this one among them.
    pub fn replicas(&self) -> Arc<Vec<Replica>> {
        self.link.replicas.load_full()
    }

    /// The number of replicas that were seen last, at least 1.
    pub fn count(&self) -> NonZeroU32 {
        let count = self.link.replicas.load().len() + self.unreadable();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
    }

    /// The number of other replicas with another configuration file, or another catalog.
    pub fn differing(&self) -> usize {
        let replicas = self.link.replicas.load();
        let Some(own) = replicas.iter().find(|replica| replica.id == self.link.id) else {
            return 0;
        };
        let differ = |one: &str, other: &str| one != other && !one.is_empty() && !other.is_empty();
        let differs = |other: &&Replica| {
            let other = &other.presence;
            let own = &own.presence;
            other.config != own.config || differ(&other.catalog, &own.catalog)
        };
        replicas.iter().filter(differs).count()
    }

    /// The number of other replicas that have another seal key.
    pub fn unreadable(&self) -> usize {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Whether sessions that were terminated before this replica started may still be accepted
    /// here.
    pub fn is_learning(&self) -> bool {
        self.link.store.is_up() && !self.terminations.is_complete()
    }

    /// Why the store is not available; `None` while it is.
    pub fn failure(&self) -> Option<String> {
        (!self.link.store.is_up()).then(|| self.link.store.failure())
    }
}

impl ClusterBounds {
    fn of(limits: &Limits) -> Self {
        Self {
            request: limits.request,
            share: limits.share,
            terminated_sessions: limits.terminated_sessions,
            session_lifetime: limits.session_lifetime,
        }
    }
}

impl ReplicaId {
    /// The number of characters of an id.
    pub const LEN: usize = 16;

    /// Reads 16 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        from_hex(text).map(Self)
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// Returns the host name and a random part.
fn random_name() -> String {
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    #[cfg(not(unix))]
    let host = std::env::var("COMPUTERNAME").ok();
    let host = host.unwrap_or_else(|| "replica".to_owned());
    format!("{host}-{}", hex(&random::<3>()))
}
