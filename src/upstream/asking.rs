//! Connections on which a legacy upstream may ask questions. What can be asked is declared when such
//! a connection is opened, so a client that can be asked cannot use the one that all share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Notify, OnceCell, OwnedMutexGuard};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::backoff::Backoff;
use super::connect::Connector;
use super::peer::Peer;
use crate::config::{self, Transport};
use crate::domain::caller::Caller;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::question::Asks;

/// The asking connections of one upstream.
pub struct Asking {
    connector: Arc<Connector>,
    upstream: Arc<config::Upstream>,
    lines: Mutex<HashMap<Key, Arc<Line>>>,
    /// Told when a connection is not used any more.
    freed: Notify,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// Whose connection it is, and what was declared on it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Key {
    /// Absent where all callers share.
    caller: Option<Caller>,
    asks: Asks,
}

struct Line {
    key: Key,
    peer: OnceCell<Arc<Peer>>,
    /// Calls on it, and when the last one ended.
    use_: Mutex<Use>,
    /// Held by a call as long as two at once could mix up their questions.
    turn: Arc<AsyncMutex<()>>,
    /// Cancelled when it is not to be used any more.
    closed: CancellationToken,
}

struct Use {
    calls: usize,
    since: Instant,
}

/// A call's right to a connection.
pub struct Lease {
    pub peer: Arc<Peer>,
    _turn: Option<OwnedMutexGuard<()>>,
    used: Used,
}

/// Asking connections of one upstream at once: each is a session there, and one user's work.
/// Beyond that, callers wait for one that nobody uses.
const LINES: usize = 8;

/// A child process is a whole program: one of it is enough.
const CHILDREN: usize = 1;

/// Users come back within minutes, or not soon.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);

impl Asking {
    pub fn new(
        connector: Arc<Connector>,
        upstream: Arc<config::Upstream>,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let (lines, freed) = (Mutex::default(), Notify::new());
        Arc::new(Self { connector, upstream, lines, freed, tasks, shutdown })
    }

    /// A connection on which `asks` was declared, like the shared one `like`. Waits for its turn.
    pub async fn lease(
        self: &Arc<Self>,
        caller: &Caller,
        asks: Asks,
        like: &Peer,
    ) -> Result<Lease, Kind> {
        let is_child = matches!(self.upstream.transport, Transport::Stdio(_));
        let settings = &self.upstream.settings;
        let key = match is_child {
            true => Key { caller: None, asks: settings.questions },
            false => Key { caller: Some(caller.clone()).filter(|_| !settings.share_asking), asks },
        };
        let most = if is_child { CHILDREN } else { LINES };
        let used = self.place(key, most).await;
        let line = &used.line;
        let open = || async {
            let peer = Arc::new(self.connector.connect_asking(like, line.key.asks).await?);
            self.tasks.spawn(self.clone().keep(line.clone(), peer.clone()));
            Ok(peer)
        };
        let opened = line.peer.get_or_try_init(open).await.cloned();
        let peer = opened.inspect_err(|_| self.discard(line))?;
        let turn = match peer.mixes_questions() {
            true => Some(line.turn.clone().lock_owned().await),
            false => None,
        };
        // It may have been closed while its turn was waited for.
        match line.closed.is_cancelled() {
            true => Err(Kind::SessionLost),
            false => Ok(used.into_lease(peer, turn)),
        }
    }

    /// The entry of this key, in use from now on. One that nobody uses makes room for another.
    async fn place(self: &Arc<Self>, key: Key, most: usize) -> Used {
        loop {
            let freed = self.freed.notified();
            if let Some(line) = self.try_place(&key, most) {
                return Used { asking: self.clone(), line };
            }
            freed.await;
        }
    }

    fn try_place(&self, key: &Key, most: usize) -> Option<Arc<Line>> {
        let mut lines = self.lines();
        if !lines.contains_key(key) && lines.len() >= most {
            let idle = lines.values().filter_map(|line| {
                let use_ = line.usage();
                (use_.calls == 0).then_some((use_.since, line.key.clone()))
            });
            let oldest = idle.min_by_key(|(since, _)| *since)?.1;
            if let Some(line) = lines.remove(&oldest) {
                line.closed.cancel();
            }
        }
        let line = match lines.entry(key.clone()) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => entry.insert(Arc::new(Line::new(key.clone()))).clone(),
        };
        line.usage().calls += 1;
        Some(line)
    }

    /// Takes a connection out, so that the next call opens another one.
    fn discard(&self, line: &Arc<Line>) {
        let mut lines = self.lines();
        if lines.get(&line.key).is_some_and(|known| Arc::ptr_eq(known, line)) {
            lines.remove(&line.key);
        }
        line.closed.cancel();
        self.freed.notify_one();
    }

    /// Keeps a connection as long as it is used: hears what is said between calls, and closes it.
    async fn keep(self: Arc<Self>, line: Arc<Line>, peer: Arc<Peer>) {
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            () = line.closed.cancelled() => {}
            () = peer.gone() => {}
            () = line.idle() => {}
            () = listen(&peer) => {}
        }
        self.discard(&line);
        debug!(upstream = %self.upstream.id, "asking connection closed");
        // Calls that still run on it end with it.
        let _ = timeout(FAREWELL, peer.close()).await;
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Key, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Holds the stream open on which a server asks that does not tie its questions to a call.
async fn listen(peer: &Peer) {
    let mut backoff = Backoff::default();
    loop {
        match peer.hear_questions().await {
            Err(Kind::SessionLost) => return,
            // It has no such stream.
            Err(Kind::Status { .. } | Kind::Error { .. }) => std::future::pending().await,
            Ok(()) | Err(_) => sleep(backoff.next(fastrand::f64())).await,
        }
    }
}

impl Line {
    fn new(key: Key) -> Self {
        Self {
            key,
            peer: OnceCell::new(),
            use_: Mutex::new(Use { calls: 0, since: Instant::now() }),
            turn: Arc::default(),
            closed: CancellationToken::new(),
        }
    }

    fn usage(&self) -> MutexGuard<'_, Use> {
        self.use_.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until nobody has used it for long.
    async fn idle(&self) {
        loop {
            let Use { calls, since } = *self.usage();
            let now = Instant::now();
            match calls {
                0 if now >= since + IDLE => return,
                0 => sleep_until(since + IDLE).await,
                _ => sleep_until(now + IDLE).await,
            }
        }
    }
}

/// A count in the use of a connection.
struct Used {
    asking: Arc<Asking>,
    line: Arc<Line>,
}

impl Used {
    fn into_lease(self, peer: Arc<Peer>, turn: Option<OwnedMutexGuard<()>>) -> Lease {
        Lease { peer, _turn: turn, used: self }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut use_ = self.line.usage();
        use_.calls -= 1;
        use_.since = Instant::now();
        drop(use_);
        self.asking.freed.notify_one();
    }
}

impl Lease {
    /// Says that the session behind the connection is gone.
    pub fn lost(self) {
        self.used.asking.discard(&self.used.line);
    }
}
