//! Connections on which a legacy upstream may ask questions. What can be asked is declared when such
//! a connection is opened, so a client that can be asked cannot use the one that all share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::Connection;
use super::connect::Connector;
use crate::config;
use crate::config::Transport;
use crate::domain::caller::Caller;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::server_request::ClientCapabilities;
use crate::upstream::guard::backoff::Backoff;

/// The asking connections of one upstream.
pub(crate) struct DedicatedPool {
    connector: Arc<Connector>,
    upstream: Arc<config::Upstream>,
    connections: Mutex<Connections>,
    /// Told when a place may be free.
    freed: Notify,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

#[derive(Default)]
struct Connections {
    open: HashMap<Key, Arc<PooledConnection>>,
    /// Connections that are not used any more, and not gone either.
    closing: usize,
}

/// Whose connection it is, and what was declared on it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Key {
    /// Absent where all callers share.
    caller: Option<Caller>,
    capabilities: ClientCapabilities,
}

struct PooledConnection {
    key: Key,
    state: watch::Sender<PooledState>,
    /// Calls on it, and when the last one ended.
    usage: Mutex<Usage>,
    /// Held by a call as long as two at once could mix up their questions.
    turn: Arc<AsyncMutex<()>>,
    /// Cancelled when it is not to be used any more.
    closed: CancellationToken,
}

#[derive(Clone)]
enum PooledState {
    Connecting,
    Open(Arc<Connection>),
    Failed(Kind),
}

#[derive(Clone, Copy)]
struct Usage {
    calls: usize,
    since: Instant,
}

/// A call's right to a connection.
pub(crate) struct Lease {
    pub connection: Arc<Connection>,
    _turn: Option<OwnedMutexGuard<()>>,
    used: Used,
}

/// Asking connections of one upstream at once: each is a session there, and one user's work.
/// Beyond that, callers wait for one that nobody uses.
const MAX_CONNECTIONS: usize = 8;

/// A child process is a whole program: one of it is enough.
const MAX_CHILDREN: usize = 1;

/// Users come back within minutes, or not soon.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// How long a first call waits for the stream on which it may be asked: a server that asks before
/// anybody listens asks nobody.
const STREAM: Duration = Duration::from_secs(1);

/// How long a child that was left may count; its end takes less unless a call still runs on it.
const ENDING: Duration = Duration::from_secs(10);

/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);

impl DedicatedPool {
    pub(crate) fn new(
        connector: Arc<Connector>,
        upstream: Arc<config::Upstream>,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let (connections, freed) = (Mutex::default(), Notify::new());
        Arc::new(Self { connector, upstream, connections, freed, tasks, shutdown })
    }

    /// A connection on which `asks` was declared, like the shared one `like`. Waits for its turn.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        caller: &Caller,
        capabilities: ClientCapabilities,
        like: &Arc<Connection>,
    ) -> Result<Lease, Kind> {
        let settings = &self.upstream.settings;
        let own = || Some(caller.clone()).filter(|_| !settings.share_asking);
        let (key, most) = match self.upstream.transport {
            Transport::Stdio(_) => {
                (Key { caller: None, capabilities: settings.questions }, MAX_CHILDREN)
            }
            _ => (Key { caller: own(), capabilities }, MAX_CONNECTIONS),
        };
        loop {
            let used = self.place(&key, most, like).await;
            let connection = match used.pooled.connection().await {
                // It was left in between: there is another one, or will be.
                Err(Kind::SessionLost) => continue,
                connection => connection?,
            };
            let turn = match connection.needs_exclusive_calls() {
                true => Some(used.pooled.turn.clone().lock_owned().await),
                false => None,
            };
            // A call that ended without its answer may still ask, and nobody could tell that it is not
            // the next one that does.
            if connection.has_abandoned_calls() {
                self.discard(&used.pooled);
            }
            // It may have been closed while its turn was waited for.
            if !used.pooled.closed.is_cancelled() {
                return Ok(Lease { connection, _turn: turn, used });
            }
        }
    }

    /// The entry of this key, in use from now on. One that nobody uses makes room for another.
    async fn place(self: &Arc<Self>, key: &Key, most: usize, like: &Arc<Connection>) -> Used {
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(pooled) = self.try_place(key, most, like) {
                // Others may wait for the same one.
                self.freed.notify_waiters();
                return Used { asking: self.clone(), pooled };
            }
            freed.await;
        }
    }

    fn try_place(
        self: &Arc<Self>,
        key: &Key,
        most: usize,
        like: &Arc<Connection>,
    ) -> Option<Arc<PooledConnection>> {
        let mut connections = self.connections();
        if !connections.open.contains_key(key)
            && connections.open.len() + connections.closing >= most
        {
            let idle = connections.open.values().filter_map(|pooled| {
                let Usage { calls, since } = *pooled.usage();
                (calls == 0).then(|| (since, pooled.clone()))
            });
            if let Some((_, oldest)) = idle.min_by_key(|(since, _)| *since) {
                Self::remove(&mut connections, &oldest);
            }
            // Its place is free once it has gone.
            return None;
        }
        let pooled = match connections.open.entry(key.clone()) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                let pooled = entry.insert(Arc::new(PooledConnection::new(key.clone()))).clone();
                // By itself, so that a caller that goes away leaves nothing half open.
                self.tasks.spawn(self.clone().run(pooled.clone(), like.clone()));
                pooled
            }
        };
        pooled.usage().calls += 1;
        Some(pooled)
    }

    /// Takes a connection out, so that the next call opens another one.
    fn discard(&self, pooled: &Arc<PooledConnection>) {
        Self::remove(&mut self.connections(), pooled);
        self.freed.notify_waiters();
    }

    fn remove(connections: &mut Connections, pooled: &Arc<PooledConnection>) {
        if connections.open.get(&pooled.key).is_some_and(|known| Arc::ptr_eq(known, pooled)) {
            connections.open.remove(&pooled.key);
            connections.closing += 1;
        }
        pooled.closed.cancel();
    }

    /// A connection that was taken out has gone.
    fn is_gone(&self) {
        self.connections().closing -= 1;
        self.freed.notify_waiters();
    }

    /// Opens a connection, keeps it as long as it is used, and closes it.
    async fn run(self: Arc<Self>, pooled: Arc<PooledConnection>, like: Arc<Connection>) {
        let opened = self.connector.connect_dedicated(&like, pooled.key.capabilities);
        let connection = match self.shutdown.run_until_cancelled(opened).await {
            Some(Ok(connection)) => Arc::new(connection),
            failed => {
                let over = Kind::Unavailable("the gateway is shutting down".to_owned());
                let kind = failed.and_then(Result::err).unwrap_or(over);
                self.discard(&pooled);
                pooled.state.send_replace(PooledState::Failed(kind));
                self.is_gone();
                return;
            }
        };
        let (opened, is_open) = oneshot::channel();
        {
            let mut listening = pin!(listen(&connection, opened));
            tokio::select! {
                () = listening.as_mut() => {}
                _ = timeout(STREAM, is_open) => {}
            }
            pooled.state.send_replace(PooledState::Open(connection.clone()));
            tokio::select! {
                () = self.shutdown.cancelled() => {}
                () = pooled.closed.cancelled() => {}
                () = connection.gone() => {}
                () = self.idle(&pooled) => {}
                () = listening => {}
            }
        }
        self.discard(&pooled);
        debug!(upstream = %self.upstream.id, "asking connection closed");
        let _ = timeout(FAREWELL, connection.close()).await;
        // A child that is being ended still counts: one more is what there may be.
        let ended = connection.ended();
        pooled.state.send_replace(PooledState::Failed(Kind::SessionLost));
        drop(connection);
        if let Some(ended) = ended {
            let _ = timeout(ENDING, ended.cancelled()).await;
        }
        self.is_gone();
    }

    /// Waits until nobody has used a connection for long, and takes it out.
    async fn idle(&self, pooled: &Arc<PooledConnection>) {
        loop {
            let Usage { calls, since } = *pooled.usage();
            let ends = if calls == 0 { since + IDLE } else { Instant::now() + IDLE };
            sleep_until(ends).await;
            let mut connections = self.connections();
            let Usage { calls, since } = *pooled.usage();
            if calls == 0 && Instant::now() >= since + IDLE {
                return Self::remove(&mut connections, pooled);
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Holds the stream open on which a server asks that does not tie its questions to a call. `opened`
/// is told when it is there, or when there is none.
async fn listen(connection: &Connection, opened: oneshot::Sender<()>) {
    let (mut backoff, mut opened) = (Backoff::default(), Some(opened));
    loop {
        let mut tell = || {
            if let Some(opened) = opened.take() {
                let _ = opened.send(());
            }
        };
        let ended = connection.receive_server_requests(&mut tell).await;
        tell();
        match ended {
            // It has no such stream.
            Err(Kind::Status { .. } | Kind::Error { .. }) => std::future::pending().await,
            Ok(()) | Err(_) => sleep(backoff.next(fastrand::f64())).await,
        }
    }
}

impl PooledConnection {
    fn new(key: Key) -> Self {
        Self {
            key,
            state: watch::channel(PooledState::Connecting).0,
            usage: Mutex::new(Usage { calls: 0, since: Instant::now() }),
            turn: Arc::default(),
            closed: CancellationToken::new(),
        }
    }

    /// The peer, once the connection is open.
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

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A count in the use of a connection.
struct Used {
    asking: Arc<DedicatedPool>,
    pooled: Arc<PooledConnection>,
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut usage = self.pooled.usage();
        usage.calls -= 1;
        usage.since = Instant::now();
        drop(usage);
        self.asking.freed.notify_waiters();
    }
}

impl Lease {
    /// Says that the session behind the connection is gone.
    pub(crate) fn lost(self) {
        self.used.asking.discard(&self.used.pooled);
    }
}
