//! Dedicated connections, on which a legacy upstream may send server requests. Client capabilities
//! are declared at `initialize` for the whole session (MCP 2025-11-25, lifecycle), so a client that
//! accepts server requests cannot use the shared connection, which declares none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::Connection;
use super::connect::Connector;
use super::examiner::Examiner;
use config::Transport;
use domain::calls::caller::Caller;
use domain::fault::UpstreamFaultKind as Kind;
use domain::protocol::server_request::ClientCapabilities;
use domain::time::backoff::Backoff;

/// Pool of the dedicated connections of one upstream.
pub struct DedicatedPool {
    connector: Arc<Connector>,
    upstream: Arc<config::UpstreamSettings>,
    connections: Mutex<Connections>,
    /// Notified when a connection may be idle or closed.
    freed: Notify,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

#[derive(Default)]
struct Connections {
    open: HashMap<ConnectionKey, Arc<PooledConnection>>,
    /// Connections that were removed from `open` and are not closed yet.
    closing: usize,
    /// The number of calls that wait for a connection, by the key of the connection.
    waiting: HashMap<ConnectionKey, usize>,
}

/// A call that looks for a connection.
struct ConnectionWaiter<'a> {
    pool: &'a DedicatedPool,
    key: &'a ConnectionKey,
}

impl<'a> ConnectionWaiter<'a> {
    fn new(pool: &'a DedicatedPool, key: &'a ConnectionKey) -> Self {
        *pool.connections().waiting.entry(key.clone()).or_default() += 1;
        Self { pool, key }
    }
}

impl Drop for ConnectionWaiter<'_> {
    fn drop(&mut self) {
        let mut connections = self.pool.connections();
        if let Some(calls) = connections.waiting.get_mut(self.key) {
            *calls -= 1;
            if *calls == 0 {
                connections.waiting.remove(self.key);
            }
        }
    }
}

/// The caller of a connection and the capabilities that it declared.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct ConnectionKey {
    /// `None` if all callers share the connection.
    caller: Option<Caller>,
    capabilities: ClientCapabilities,
}

struct PooledConnection {
    key: ConnectionKey,
    /// The shared connection whose transport and revision this connection uses.
    like: Weak<Connection>,
    state: watch::Sender<PooledState>,
    usage: Mutex<ConnectionUsage>,
    /// Held by a call if server requests of concurrent calls could not be distinguished.
    exclusive: Arc<AsyncMutex<()>>,
    examiner: Examiner,
    /// Cancelled when the connection was removed from the pool.
    closed: CancellationToken,
}

#[derive(Clone)]
enum PooledState {
    Connecting,
    Open(Arc<Connection>),
    Failed(Kind),
}

#[derive(Clone, Copy)]
struct ConnectionUsage {
    /// Calls that hold a lease.
    calls: usize,
    /// When the number of calls last fell, or the connection was added.
    since: Instant,
}

/// A call's lease of a connection.
pub(crate) struct ConnectionLease {
    pub connection: Arc<Connection>,
    _exclusive: Option<OwnedMutexGuard<()>>,
    usage: UsageGuard,
}

/// Most dedicated connections of one upstream: each is a session that serves one caller. Further
/// calls wait for an idle connection.
const MAX_CONNECTIONS: usize = 8;

/// Most dedicated child processes of one upstream: each is a whole program, shared by all callers.
const MAX_CHILDREN: usize = 1;

/// Longest wait of a call for a place, and then for exclusive use, while other calls hold them: a
/// user may take minutes to answer an elicitation.
const TURN: Duration = Duration::from_secs(2);

/// Time for which calls get the last failure instead of opening a connection again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Time until an idle connection is closed: users return within minutes, or not soon.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Time that the first call waits until the GET stream for server requests is open: a server
/// request before that would be lost.
const STREAM_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which a child process that is being ended counts as open. Its end takes less, unless a
/// call still runs on it.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the DELETE that ends a session.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl DedicatedPool {
    pub(crate) fn new(
        connector: Arc<Connector>,
        upstream: Arc<config::UpstreamSettings>,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let connections = Mutex::default();
        let freed = Notify::new();
        Arc::new(Self { connector, upstream, connections, freed, tasks, shutdown })
    }

    /// Leases a connection that declares `capabilities`, with the transport and revision of the
    /// shared connection `like`. Waits for a place, and for exclusive use if needed. `None` if
    /// other calls use the connections longer than [`TURN`], or if opening takes too long. Cancel
    /// safe.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        caller: &Caller,
        capabilities: ClientCapabilities,
        like: &Arc<Connection>,
    ) -> Result<Option<ConnectionLease>, Kind> {
        let settings = &self.upstream.settings;
        let (key, max) = if let Transport::Stdio(_) = self.upstream.transport {
            (ConnectionKey { caller: None, capabilities: settings.server_requests }, MAX_CHILDREN)
        } else {
            let caller = Some(caller.clone()).filter(|_| !settings.share_interactive_session);
            (ConnectionKey { caller, capabilities }, MAX_CONNECTIONS)
        };
        loop {
            let Ok(usage) = timeout(TURN, self.acquire(&key, max, like)).await else {
                return Ok(None);
            };
            // Half of the time of a call is left for the shared connection, which may be open.
            let connection = match timeout(settings.timeout / 2, usage.pooled.connection()).await {
                Err(_) => return Ok(None),
                // The connection was closed meanwhile: the next round opens a new connection.
                Ok(Err(Kind::SessionLost)) => continue,
                Ok(connection) => connection?,
            };
            let exclusive = if connection.needs_exclusive_calls() {
                match timeout(TURN, usage.pooled.exclusive.clone().lock_owned()).await {
                    Ok(exclusive) => Some(exclusive),
                    Err(_) => return Ok(None),
                }
            } else {
                None
            };
            // A server request of an abandoned call would be correlated with the next call.
            if connection.has_abandoned_calls() {
                self.discard(&usage.pooled);
            }
            // The pool may have removed the connection during the wait for exclusive use.
            if !usage.pooled.closed.is_cancelled() {
                return Ok(Some(ConnectionLease { connection, _exclusive: exclusive, usage }));
            }
        }
    }

    /// Returns the connection of a key and marks it as used; opens it if it is missing. Waits while
    /// `max` other connections are in use. Cancel safe.
    async fn acquire(
        self: &Arc<Self>,
        key: &ConnectionKey,
        max: usize,
        like: &Arc<Connection>,
    ) -> UsageGuard {
        let _waiter = ConnectionWaiter::new(self, key);
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(pooled) = self.try_acquire(key, max, like) {
                // Other calls may wait for the same key.
                self.freed.notify_waiters();
                return UsageGuard { pool: self.clone(), pooled };
            }
            freed.await;
        }
    }

    /// Returns `None` if the pool is full; then closes a connection that could not be opened, or
    /// the connection that has been idle longest.
    fn try_acquire(
        self: &Arc<Self>,
        key: &ConnectionKey,
        max: usize,
        like: &Arc<Connection>,
    ) -> Option<Arc<PooledConnection>> {
        let mut connections = self.connections();
        // A dedicated connection is outdated once its shared connection is gone, after another
        // sign-in or a restart.
        let outdated = connections.open.get(key).filter(|pooled| pooled.like.strong_count() == 0);
        if let Some(pooled) = outdated.cloned() {
            Self::remove(&mut connections, &pooled);
        }
        if !connections.open.contains_key(key)
            && connections.open.len() + connections.closing >= max
        {
            let idle = connections.open.values().filter_map(|pooled| {
                let ConnectionUsage { calls, since } = *pooled.usage();
                (calls == 0).then(|| ((!pooled.has_failed(), since), pooled.clone()))
            });
            // Close one connection for each key that calls wait for; these calls check again at
            // each change. The other idle connections may stay.
            if connections.closing < connections.waiting.len()
                && let Some((_, oldest)) = idle.min_by_key(|(rank, _)| *rank)
            {
                Self::remove(&mut connections, &oldest);
            }
            // The place becomes free once the removed connection is closed.
            return None;
        }
        let pooled = match connections.open.entry(key.clone()) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                let pooled =
                    entry.insert(Arc::new(PooledConnection::new(key.clone(), like))).clone();
                // A spawned task: a caller that disconnects must not leave a half-open session.
                self.tasks.spawn(self.clone().run(pooled.clone(), like.clone()));
                pooled
            }
        };
        pooled.usage().calls += 1;
        Some(pooled)
    }

    /// Removes a connection, so that the next call opens a new one.
    fn discard(&self, pooled: &Arc<PooledConnection>) {
        Self::remove(&mut self.connections(), pooled);
        self.freed.notify_waiters();
    }

    /// Removes a connection and has its task close it.
    fn remove(connections: &mut Connections, pooled: &Arc<PooledConnection>) {
        if connections.open.get(&pooled.key).is_some_and(|known| Arc::ptr_eq(known, pooled)) {
            connections.open.remove(&pooled.key);
            connections.closing += 1;
        }
        pooled.closed.cancel();
    }

    /// Counts the end of a removed connection.
    fn count_closed(&self) {
        self.connections().closing -= 1;
        self.freed.notify_waiters();
    }

    /// Opens a connection, keeps it open until it is idle or removed, and closes it once no call
    /// uses it.
    async fn run(self: Arc<Self>, pooled: Arc<PooledConnection>, like: Arc<Connection>) {
        let opened = self.connector.connect_dedicated(&like, pooled.key.capabilities);
        let opened = self.shutdown.run_until_cancelled(opened).await;
        // The shared connection would not end while this task holds it.
        drop(like);
        let connection = match opened {
            Some(Ok(connection)) => Arc::new(connection),
            failed => {
                let shutdown = Kind::Unavailable("the gateway is shutting down".to_owned());
                let kind = match failed.and_then(Result::err).unwrap_or(shutdown) {
                    // Calls would reopen the connection at once.
                    Kind::SessionLost => {
                        Kind::Reset("the session was lost while it was opened".to_owned())
                    }
                    kind => kind,
                };
                // The call retries with another token.
                let is_of_token = matches!(kind, Kind::AuthFailed { .. } | Kind::NoToken { .. });
                if is_of_token {
                    self.discard(&pooled);
                }
                pooled.state.send_replace(PooledState::Failed(kind));
                // Until the pause ends, calls get this failure instead of opening connections.
                tokio::select! {
                    () = sleep(RETRY_PAUSE) => {}
                    () = pooled.closed.cancelled() => {}
                    () = self.shutdown.cancelled() => {}
                }
                self.discard(&pooled);
                self.count_closed();
                return;
            }
        };
        let (ready, is_ready) = oneshot::channel();
        {
            let mut listening = pin!(receive_server_requests(&connection, ready));
            tokio::select! {
                () = listening.as_mut() => {}
                _ = timeout(STREAM_TIMEOUT, is_ready) => {}
            }
            pooled.state.send_replace(PooledState::Open(connection.clone()));
            let used = async {
                tokio::select! {
                    () = pooled.closed.cancelled() => {}
                    () = self.idle(&pooled) => {}
                }
                // Ending the session would end the calls on it.
                self.unused(&pooled).await;
            };
            tokio::select! {
                () = self.shutdown.cancelled() => {}
                () = connection.closed() => {}
                () = used => {}
                () = listening => {}
            }
        }
        self.discard(&pooled);
        debug!(upstream = %self.upstream.id, "dedicated connection closed");
        let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        // A child process that is being ended still counts against `MAX_CHILDREN`.
        let terminated = connection.terminated();
        pooled.state.send_replace(PooledState::Failed(Kind::SessionLost));
        drop(connection);
        if let Some(terminated) = terminated {
            let _ = timeout(TERMINATION_TIMEOUT, terminated.cancelled()).await;
        }
        self.count_closed();
    }

    /// Waits until a connection is idle for [`IDLE_TIMEOUT`], and removes it. Cancel safe.
    async fn idle(&self, pooled: &Arc<PooledConnection>) {
        loop {
            let ConnectionUsage { calls, since } = *pooled.usage();
            let ends =
                if calls == 0 { since + IDLE_TIMEOUT } else { Instant::now() + IDLE_TIMEOUT };
            sleep_until(ends).await;
            let mut connections = self.connections();
            let ConnectionUsage { calls, since } = *pooled.usage();
            if calls == 0 && Instant::now() >= since + IDLE_TIMEOUT {
                return Self::remove(&mut connections, pooled);
            }
        }
    }

    /// Waits until no call uses a connection that was removed. Cancel safe.
    async fn unused(&self, pooled: &PooledConnection) {
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if pooled.usage().calls == 0 {
                return;
            }
            freed.await;
        }
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Keeps the GET stream open, on which some servers send server requests outside of the streams of
/// calls. `ready` is sent once the stream is open, or the upstream has no such stream.
async fn receive_server_requests(connection: &Connection, ready: oneshot::Sender<()>) {
    let mut backoff = Backoff::default();
    let mut ready = Some(ready);
    loop {
        let mut signal = || {
            if let Some(ready) = ready.take() {
                let _ = ready.send(());
            }
        };
        let ended = connection.receive_server_requests(&mut signal).await;
        signal();
        match ended {
            // The upstream has no such stream.
            Err(kind) if kind.refuses_streams() => std::future::pending().await,
            Ok(()) | Err(_) => sleep(backoff.next(fastrand::f64())).await,
        }
    }
}

impl PooledConnection {
    fn new(key: ConnectionKey, like: &Arc<Connection>) -> Self {
        Self {
            key,
            like: Arc::downgrade(like),
            state: watch::channel(PooledState::Connecting).0,
            usage: Mutex::new(ConnectionUsage { calls: 0, since: Instant::now() }),
            exclusive: Arc::default(),
            examiner: Examiner::default(),
            closed: CancellationToken::new(),
        }
    }

    fn has_failed(&self) -> bool {
        matches!(&*self.state.borrow(), PooledState::Failed(_))
    }

    /// Waits until the connection is open. Cancel safe.
    async fn connection(&self) -> Result<Arc<Connection>, Kind> {
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                PooledState::Open(connection) => return Ok(connection.clone()),
                PooledState::Failed(kind) => return Err(kind.clone()),
                PooledState::Connecting => {}
            }
            // The sender is a field of `self`: it lives as long as this borrow.
            let _ = state.changed().await;
        }
    }

    fn usage(&self) -> MutexGuard<'_, ConnectionUsage> {
        self.usage.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Counts a call on a connection until it is dropped.
struct UsageGuard {
    pool: Arc<DedicatedPool>,
    pooled: Arc<PooledConnection>,
}

impl Drop for UsageGuard {
    fn drop(&mut self) {
        let mut usage = self.pooled.usage();
        usage.calls -= 1;
        usage.since = Instant::now();
        drop(usage);
        self.pool.freed.notify_waiters();
    }
}

impl ConnectionLease {
    /// Ends the lease of a call. If the call has failed and an examination finds the connection
    /// lost, the next call opens another connection.
    pub(crate) fn end<T>(self, outcome: &Result<T, Kind>) {
        let UsageGuard { pool, pooled } = &self.usage;
        let is_suspect = |kind: &Kind| self.connection.is_suspect_after(kind);
        if !outcome.as_ref().err().is_some_and(is_suspect) {
            return;
        }
        let connection = self.connection.clone();
        let ended = pool.shutdown.clone();
        let patience = pool.upstream.settings.patience();
        let own_pool = pool.clone();
        let own = pooled.clone();
        pooled.examiner.examine(&pool.tasks, connection, patience, ended, || async move {
            own_pool.discard(&own);
        });
    }

    /// Removes the connection from the pool: the upstream has ended its session.
    pub(crate) fn discard(self) {
        self.usage.pool.discard(&self.usage.pooled);
    }
}
