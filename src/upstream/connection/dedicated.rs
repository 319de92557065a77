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

use super::Peer;
use super::connect::Connector;
use crate::config;
use crate::config::Transport;
use crate::domain::caller::Caller;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::server_request::ClientCapabilities;
use crate::upstream::guard::backoff::Backoff;

/// The asking connections of one upstream.
pub struct DedicatedPool {
    connector: Arc<Connector>,
    upstream: Arc<config::Upstream>,
    lines: Mutex<Lines>,
    /// Told when a place may be free.
    freed: Notify,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

#[derive(Default)]
struct Lines {
    open: HashMap<Key, Arc<Line>>,
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

struct Line {
    key: Key,
    opening: watch::Sender<Opening>,
    /// Calls on it, and when the last one ended.
    usage: Mutex<Usage>,
    /// Held by a call as long as two at once could mix up their questions.
    turn: Arc<AsyncMutex<()>>,
    /// Cancelled when it is not to be used any more.
    closed: CancellationToken,
}

#[derive(Clone)]
enum Opening {
    Connecting,
    Open(Arc<Peer>),
    Failed(Kind),
}

#[derive(Clone, Copy)]
struct Usage {
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

/// How long a first call waits for the stream on which it may be asked: a server that asks before
/// anybody listens asks nobody.
const STREAM: Duration = Duration::from_secs(1);

/// How long a child that was left may count; its end takes less unless a call still runs on it.
const ENDING: Duration = Duration::from_secs(10);

/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);

impl DedicatedPool {
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
        capabilities: ClientCapabilities,
        like: &Arc<Peer>,
    ) -> Result<Lease, Kind> {
        let settings = &self.upstream.settings;
        let own = || Some(caller.clone()).filter(|_| !settings.share_asking);
        let (key, most) = match self.upstream.transport {
            Transport::Stdio(_) => {
                (Key { caller: None, capabilities: settings.questions }, CHILDREN)
            }
            _ => (Key { caller: own(), capabilities }, LINES),
        };
        loop {
            let used = self.place(&key, most, like).await;
            let peer = match used.line.peer().await {
                // It was left in between: there is another one, or will be.
                Err(Kind::SessionLost) => continue,
                peer => peer?,
            };
            let turn = match peer.mixes_questions() {
                true => Some(used.line.turn.clone().lock_owned().await),
                false => None,
            };
            // A call that ended without its answer may still ask, and nobody could tell that it is not
            // the next one that does.
            if peer.has_orphans() {
                self.discard(&used.line);
            }
            // It may have been closed while its turn was waited for.
            if !used.line.closed.is_cancelled() {
                return Ok(Lease { peer, _turn: turn, used });
            }
        }
    }

    /// The entry of this key, in use from now on. One that nobody uses makes room for another.
    async fn place(self: &Arc<Self>, key: &Key, most: usize, like: &Arc<Peer>) -> Used {
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(line) = self.try_place(key, most, like) {
                // Others may wait for the same one.
                self.freed.notify_waiters();
                return Used { asking: self.clone(), line };
            }
            freed.await;
        }
    }

    fn try_place(self: &Arc<Self>, key: &Key, most: usize, like: &Arc<Peer>) -> Option<Arc<Line>> {
        let mut lines = self.lines();
        if !lines.open.contains_key(key) && lines.open.len() + lines.closing >= most {
            let idle = lines.open.values().filter_map(|line| {
                let Usage { calls, since } = *line.usage();
                (calls == 0).then(|| (since, line.clone()))
            });
            if let Some((_, oldest)) = idle.min_by_key(|(since, _)| *since) {
                Self::remove(&mut lines, &oldest);
            }
            // Its place is free once it has gone.
            return None;
        }
        let line = match lines.open.entry(key.clone()) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                let line = entry.insert(Arc::new(Line::new(key.clone()))).clone();
                // By itself, so that a caller that goes away leaves nothing half open.
                self.tasks.spawn(self.clone().run(line.clone(), like.clone()));
                line
            }
        };
        line.usage().calls += 1;
        Some(line)
    }

    /// Takes a connection out, so that the next call opens another one.
    fn discard(&self, line: &Arc<Line>) {
        Self::remove(&mut self.lines(), line);
        self.freed.notify_waiters();
    }

    fn remove(lines: &mut Lines, line: &Arc<Line>) {
        if lines.open.get(&line.key).is_some_and(|known| Arc::ptr_eq(known, line)) {
            lines.open.remove(&line.key);
            lines.closing += 1;
        }
        line.closed.cancel();
    }

    /// A connection that was taken out has gone.
    fn is_gone(&self) {
        self.lines().closing -= 1;
        self.freed.notify_waiters();
    }

    /// Opens a connection, keeps it as long as it is used, and closes it.
    async fn run(self: Arc<Self>, line: Arc<Line>, like: Arc<Peer>) {
        let opened = self.connector.connect_dedicated(&like, line.key.capabilities);
        let peer = match self.shutdown.run_until_cancelled(opened).await {
            Some(Ok(peer)) => Arc::new(peer),
            failed => {
                let over = Kind::Unavailable("the gateway is shutting down".to_owned());
                let kind = failed.and_then(Result::err).unwrap_or(over);
                self.discard(&line);
                line.opening.send_replace(Opening::Failed(kind));
                self.is_gone();
                return;
            }
        };
        let (opened, is_open) = oneshot::channel();
        {
            let mut listening = pin!(listen(&peer, opened));
            tokio::select! {
                () = listening.as_mut() => {}
                _ = timeout(STREAM, is_open) => {}
            }
            line.opening.send_replace(Opening::Open(peer.clone()));
            tokio::select! {
                () = self.shutdown.cancelled() => {}
                () = line.closed.cancelled() => {}
                () = peer.gone() => {}
                () = self.idle(&line) => {}
                () = listening => {}
            }
        }
        self.discard(&line);
        debug!(upstream = %self.upstream.id, "asking connection closed");
        let _ = timeout(FAREWELL, peer.close()).await;
        // A child that is being ended still counts: one more is what there may be.
        let ended = peer.ended();
        line.opening.send_replace(Opening::Failed(Kind::SessionLost));
        drop(peer);
        if let Some(ended) = ended {
            let _ = timeout(ENDING, ended.cancelled()).await;
        }
        self.is_gone();
    }

    /// Waits until nobody has used a connection for long, and takes it out.
    async fn idle(&self, line: &Arc<Line>) {
        loop {
            let Usage { calls, since } = *line.usage();
            let ends = if calls == 0 { since + IDLE } else { Instant::now() + IDLE };
            sleep_until(ends).await;
            let mut lines = self.lines();
            let Usage { calls, since } = *line.usage();
            if calls == 0 && Instant::now() >= since + IDLE {
                return Self::remove(&mut lines, line);
            }
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Holds the stream open on which a server asks that does not tie its questions to a call. `opened`
/// is told when it is there, or when there is none.
async fn listen(peer: &Peer, opened: oneshot::Sender<()>) {
    let (mut backoff, mut opened) = (Backoff::default(), Some(opened));
    loop {
        let mut tell = || {
            if let Some(opened) = opened.take() {
                let _ = opened.send(());
            }
        };
        let ended = peer.hear_questions(&mut tell).await;
        tell();
        match ended {
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
            opening: watch::channel(Opening::Connecting).0,
            usage: Mutex::new(Usage { calls: 0, since: Instant::now() }),
            turn: Arc::default(),
            closed: CancellationToken::new(),
        }
    }

    /// The peer, once the connection is open.
    async fn peer(&self) -> Result<Arc<Peer>, Kind> {
        let mut opening = self.opening.subscribe();
        let opened = opening.wait_for(|opening| !matches!(opening, Opening::Connecting)).await;
        match opened.map(|opening| opening.clone()) {
            Ok(Opening::Open(peer)) => Ok(peer),
            Ok(Opening::Failed(kind)) => Err(kind),
            Ok(Opening::Connecting) | Err(_) => Err(Kind::Reset),
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A count in the use of a connection.
struct Used {
    asking: Arc<DedicatedPool>,
    line: Arc<Line>,
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut usage = self.line.usage();
        usage.calls -= 1;
        usage.since = Instant::now();
        drop(usage);
        self.asking.freed.notify_waiters();
    }
}

impl Lease {
    /// Says that the session behind the connection is gone.
    pub fn lost(self) {
        self.used.asking.discard(&self.used.line);
    }
}
