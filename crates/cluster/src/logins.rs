//! The operator's sign-ins for upstreams, in the store: one sealed text for each upstream, which is
//! changed by the one process that holds its lock. Each change is published, so that all replicas
//! notice it at once.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd};
use tokio::sync::{Mutex as AsyncMutex, Notify, broadcast, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::scripts::LoginScripts;
use super::store::{Push, RedisBackend};
use base::platform::heap::boxed;
use base::seal::hex::hex;
use base::seal::random;
use domain::time::backoff::{Backoff, jittered};
use domain::time::millis::whole_millis;
use shutdown::Supervisor;

/// The sign-ins in the store of a cluster.
pub struct SharedLogins {
    store: Arc<RedisBackend>,
    scripts: LoginScripts,
    connection: StoreConnection,
    /// The upstreams whose sign-ins are watched, and the handles that changes notify.
    watches: Mutex<Vec<(String, Weak<Notify>)>>,
    /// The names of the sign-ins of callers that have changed; `None`: any may have changed.
    changes: broadcast::Sender<Option<String>>,
}

/// Which task keeps the connection to the store.
enum StoreConnection {
    /// The heartbeat of the replica.
    OfReplica,
    /// A separate connection, which an operation opens if it is not open.
    Own {
        /// Held while the connection is opened.
        opening: AsyncMutex<()>,
        /// Notified once a sign-in is watched: from then on the connection is kept open.
        is_watched: Notify,
    },
}

/// The lock of one sign-in. Dropping it without [`LoginLock::release`] leaves it locked until the
/// lock expires.
pub struct LoginLock {
    logins: Arc<SharedLogins>,
    upstream: String,
    /// The random value of the lock in the store while this process holds it.
    token: String,
}

/// Why a sign-in in the store cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum SharedLoginError {
    #[error("the store of the cluster is not available ({0}); check cluster.store")]
    Unavailable(String),
    #[error("the sign-in is locked in the store of the cluster by another process for too long")]
    Busy,
    /// Another process may have changed the sign-in since.
    #[error("the lock of the sign-in in the store of the cluster has expired")]
    LockExpired,
}

/// The time between two attempts to take a lock.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Changes that wait for a slow reader. A reader that misses some looks at all sign-ins.
const CHANGES: usize = 256;

/// Longest wait between two attempts to open the separate connection.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

impl SharedLogins {
    /// The sign-ins over the connection of a replica.
    pub(super) fn of_replica(store: Arc<RedisBackend>) -> Arc<Self> {
        Arc::new(Self::new(store, StoreConnection::OfReplica))
    }

    /// The sign-ins over a separate connection, for a process that is no replica. The connection is
    /// opened when it is needed, and ends with the shutdown.
    ///
    /// # Errors
    /// When `cluster.ca` holds no usable certificate.
    pub fn alone(config: config::Cluster, supervisor: &Supervisor) -> Result<Arc<Self>, String> {
        let (store, pushes) = RedisBackend::new(config, supervisor.tasks().clone())?;
        let own =
            StoreConnection::Own { opening: AsyncMutex::default(), is_watched: Notify::new() };
        let logins = Arc::new(Self::new(Arc::new(store), own));
        let keeping = logins.clone().keep(pushes, supervisor.stop().clone());
        supervisor.supervise("cluster_sign_ins", keeping);
        Ok(logins)
    }

    fn new(store: Arc<RedisBackend>, connection: StoreConnection) -> Self {
        let scripts = LoginScripts::default();
        let changes = broadcast::Sender::new(CHANGES);
        Self { store, scripts, connection, watches: Mutex::default(), changes }
    }

    /// Notifies `changed` whenever the sign-in of an upstream may have changed, until the caller
    /// drops `changed`.
    pub fn watch(&self, upstream: &str, changed: &Arc<Notify>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|(_, changed)| changed.strong_count() > 0);
        watches.push((upstream.to_owned(), Arc::downgrade(changed)));
        self.keep_open();
    }

    /// Returns the names of sign-ins as any replica changes them; `None`: any may have changed.
    pub fn changes(&self) -> broadcast::Receiver<Option<String>> {
        self.keep_open();
        self.changes.subscribe()
    }

    fn keep_open(&self) {
        if let StoreConnection::Own { is_watched, .. } = &self.connection {
            is_watched.notify_one();
        }
    }

    /// The channel on which the ids of upstreams are published whose sign-ins have changed.
    pub(super) fn channel(&self) -> String {
        self.store.channel("logins")
    }

    /// Takes a message of the channel of sign-ins. Returns whether the message is of this channel.
    pub(super) fn receive(&self, push: &Push) -> bool {
        let is_meant = self.channel().as_bytes() == push.channel;
        if is_meant {
            self.notify(|upstream| upstream.as_bytes() == push.payload);
            // Fails where no caller signs in.
            let _ = self.changes.send(String::from_utf8(push.payload.clone()).ok());
        }
        is_meant
    }

    /// Notifies all watches: any sign-in may have changed while there was no connection.
    pub(super) fn note_connected(&self) {
        self.notify(|_| true);
        let _ = self.changes.send(None);
    }

    fn notify(&self, is_meant: impl Fn(&str) -> bool) {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let meant = watches.iter().filter(|(upstream, _)| is_meant(upstream));
        meant.filter_map(|(_, changed)| changed.upgrade()).for_each(|changed| changed.notify_one());
    }

    /// Returns the sealed text of an upstream's sign-in; `None` if there is none.
    ///
    /// # Errors
    /// [`SharedLoginError::Unavailable`].
    pub async fn read(&self, upstream: &str) -> Result<Option<String>, SharedLoginError> {
        let key = self.key(upstream);
        let reading = async |mut connection| cmd("GET").arg(key).query_async(&mut connection).await;
        self.run(reading).await
    }

    /// Returns the names of the sign-ins that begin with `prefix`.
    ///
    /// # Errors
    /// [`SharedLoginError::Unavailable`].
    pub async fn names(&self, prefix: &str) -> Result<Vec<String>, SharedLoginError> {
        let begin = self.key("");
        let mut found = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{begin}{prefix}*")).arg("COUNT").arg(1000);
            let scanning = async |mut connection| scan.query_async(&mut connection).await;
            let (next, keys): (u64, Vec<String>) = self.run(scanning).await?;
            found.extend(keys.iter().filter_map(|key| Some(key.strip_prefix(&begin)?.to_owned())));
            if next == 0 {
                return Ok(found);
            }
            cursor = next;
        }
    }

    /// Keeps the sign-in of an upstream for another `idle`, if there is one.
    ///
    /// # Errors
    /// [`SharedLoginError::Unavailable`].
    pub async fn mark_used(&self, upstream: &str, idle: Duration) -> Result<(), SharedLoginError> {
        let key = self.key(upstream);
        let marking = async |mut connection| {
            let mut expire = cmd("PEXPIRE");
            expire.arg(key).arg(whole_millis(idle));
            expire.query_async::<Value>(&mut connection).await
        };
        self.run(marking).await.map(drop)
    }

    /// Locks the sign-in of an upstream for `lifetime`. Waits that long for another process, whose
    /// lock has expired by then.
    ///
    /// # Errors
    /// [`SharedLoginError::Unavailable`], or [`SharedLoginError::Busy`] when several processes
    /// wait.
    pub async fn lock(
        self: &Arc<Self>,
        upstream: &str,
        lifetime: Duration,
    ) -> Result<LoginLock, SharedLoginError> {
        let token = hex(&random::<16>());
        let lock = LoginLock { logins: self.clone(), upstream: upstream.to_owned(), token };
        let last_attempt = Instant::now() + lifetime + LOCK_POLL;
        loop {
            match lock.take(lifetime).await {
                Ok(true) => return Ok(lock),
                Ok(false) if Instant::now() >= last_attempt => return Err(SharedLoginError::Busy),
                Ok(false) => sleep(jittered(LOCK_POLL, fastrand::f64())).await,
                Err(error) => {
                    // Without an answer the lock may have been taken.
                    lock.release().await;
                    return Err(error);
                }
            }
        }
    }

    fn key(&self, upstream: &str) -> String {
        self.store.key(&format!("login:{upstream}"))
    }

    fn lock_key(&self, upstream: &str) -> String {
        self.store.key(&format!("login-lock:{upstream}"))
    }

    /// Does one operation within `cluster.timeout`, after opening the separate connection if it is
    /// not open.
    async fn run<T, F>(
        &self,
        operation: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, SharedLoginError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        self.connect().await?;
        self.store.run(operation).await.map_err(|_| self.unavailable())
    }

    async fn connect(&self) -> Result<(), SharedLoginError> {
        let StoreConnection::Own { opening, .. } = &self.connection else {
            return Ok(());
        };
        let _one = opening.lock().await;
        if self.store.is_up() {
            return Ok(());
        }
        let channels = [self.channel()];
        let opened = boxed(self.store.open(&channels)).await;
        let candidate = opened.map_err(|why| {
            self.store.note_failure(&why);
            SharedLoginError::Unavailable(why)
        })?;
        self.store.adopt(candidate);
        self.note_connected();
        Ok(())
    }

    /// Takes the messages of the separate connection, and keeps it open once a sign-in is watched,
    /// until `stop`.
    async fn keep(self: Arc<Self>, mut pushes: mpsc::Receiver<Push>, stop: CancellationToken) {
        let receiving = async {
            while let Some(push) = pushes.recv().await {
                self.receive(&push);
            }
        };
        let connecting = async {
            if let StoreConnection::Own { is_watched, .. } = &self.connection {
                is_watched.notified().await;
            }
            let mut backoff = Backoff::up_to(LONGEST_WAIT);
            loop {
                if self.connect().await.is_ok() {
                    self.store.lost().await;
                    backoff.reset();
                }
                sleep(backoff.next(fastrand::f64())).await;
            }
        };
        stop.run_until_cancelled(async { tokio::join!(receiving, connecting) }).await;
        self.store.disconnect();
    }

    fn unavailable(&self) -> SharedLoginError {
        SharedLoginError::Unavailable(self.store.failure())
    }
}

impl LoginLock {
    /// Takes the lock, unless another process holds it. Returns whether it was taken.
    async fn take(&self, lifetime: Duration) -> Result<bool, SharedLoginError> {
        let key = self.key();
        let token = &self.token;
        let taking = async |mut connection| {
            let mut set = cmd("SET");
            set.arg(key).arg(token).arg("NX").arg("PX").arg(whole_millis(lifetime));
            set.query_async::<Option<String>>(&mut connection).await
        };
        self.logins.run(taking).await.map(|taken| taken.is_some())
    }

    /// Writes the sign-in in place of the one before; it is kept for `idle`.
    ///
    /// # Errors
    /// [`SharedLoginError::Unavailable`]: the sign-in may have been written.
    /// [`SharedLoginError::LockExpired`]: it was not written.
    pub async fn write(&self, sealed: &str, idle: Duration) -> Result<(), SharedLoginError> {
        self.change(Some((sealed, idle))).await
    }

    /// Removes the sign-in.
    ///
    /// # Errors
    /// As [`LoginLock::write`].
    pub async fn remove(&self) -> Result<(), SharedLoginError> {
        self.change(None).await
    }

    async fn change(&self, to: Option<(&str, Duration)>) -> Result<(), SharedLoginError> {
        let SharedLogins { scripts, .. } = &*self.logins;
        let mut change = scripts.change.key(self.key());
        change.key(self.logins.key(&self.upstream));
        change.arg(&self.token).arg(self.logins.channel()).arg(&self.upstream);
        if let Some((sealed, idle)) = to {
            change.arg(sealed).arg(whole_millis(idle));
        }
        let changing = async |mut connection| change.invoke_async::<bool>(&mut connection).await;
        if self.logins.run(changing).await? { Ok(()) } else { Err(SharedLoginError::LockExpired) }
    }

    /// Lets other processes take the lock.
    pub async fn release(self) {
        let mut release = self.logins.scripts.release.key(self.key());
        release.arg(&self.token);
        let releasing = async |mut connection| release.invoke_async::<Value>(&mut connection).await;
        // A lock that cannot be released expires.
        let _ = self.logins.run(releasing).await;
    }

    fn key(&self) -> String {
        self.logins.lock_key(&self.upstream)
    }
}
