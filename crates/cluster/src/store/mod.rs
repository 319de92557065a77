//! The store: one connection to a Redis or Valkey server, with a bound on the time of each
//! operation, and a circuit breaker before it.

mod connect;
mod locate;
mod push;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use connect::{OPEN_TIMEOUT, Opened, StoreConnector};
pub(super) use push::Push;
use push::PushSender;

/// The store, as this replica sees it.
pub(super) struct RedisBackend {
    config: config::Cluster,
    connector: StoreConnector,
    /// `None` while the circuit breaker is open.
    opened: ArcSwapOption<Opened>,
    /// Why the last operation or attempt failed.
    failure: Mutex<String>,
    pushes: PushSender,
}

/// The store failed an operation, or did not complete it in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoreUnavailable;

/// Operations in a row that time out before the circuit breaker opens. Other failures open it at
/// once.
const TIMEOUTS: u32 = 3;

impl RedisBackend {
    /// Returns the store, and the messages of channels.
    pub(super) fn new(
        config: config::Cluster,
        tasks: TaskTracker,
    ) -> Result<(Self, mpsc::Receiver<Push>), String> {
        let connector = StoreConnector::new(&config, tasks)?;
        let (pushes, received) = push::queue(config.relay_size);
        let opened = ArcSwapOption::empty();
        let store = Self { config, connector, opened, failure: Mutex::default(), pushes };
        Ok((store, received))
    }

    /// Returns the key of this name. All keys have one hash tag, so that a Cluster holds them on
    /// one shard.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{{{}}}{name}", self.config.prefix)
    }

    /// Returns the channel of this name. Unlike keys, channels are the same for all databases of a
    /// server.
    pub(super) fn channel(&self, name: &str) -> String {
        let database = self.config.servers.first().map_or(0, |server| server.database);
        self.key(&format!("{database}:{name}"))
    }

    /// Whether the circuit breaker is closed.
    pub(super) fn is_up(&self) -> bool {
        self.opened.load().is_some()
    }

    /// Why the last operation or attempt failed.
    pub(super) fn failure(&self) -> String {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes why an operation or attempt failed.
    pub(super) fn note_failure(&self, why: &str) {
        why.clone_into(&mut self.failure.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Finds the store, connects to it, and subscribes to `channels`. The connection is not used
    /// before [`RedisBackend::adopt`].
    pub(super) async fn open(&self, channels: &[String]) -> Result<Candidate, String> {
        let key = self.key("");
        let located = locate::locate(&self.connector, &self.config, &key, &self.pushes).await;
        let mut opened = located.map_err(|error| error.to_string())?;
        for channel in channels {
            let subscribing = timeout(OPEN_TIMEOUT, opened.connection.subscribe(channel)).await;
            let subscribed = subscribing.map_err(|_| "no answer".to_owned())?;
            subscribed.map_err(|error| format!("cannot subscribe to {channel}: {error}"))?;
        }
        Ok(Candidate(opened))
    }

    /// Uses a connection for all operations from now on.
    pub(super) fn adopt(&self, Candidate(opened): Candidate) {
        self.opened.store(Some(Arc::new(opened)));
    }

    /// Ends the connection, at the end of the shutdown.
    pub(super) fn disconnect(&self) {
        if let Some(opened) = self.opened.swap(None) {
            opened.end();
        }
    }

    /// Resolves when the present connection has ended, or at once while there is none.
    pub(super) async fn lost(&self) {
        let opened = self.opened.load_full();
        if let Some(opened) = opened {
            opened.ended().await;
            self.trip(&opened, "the connection has ended");
        }
    }

    /// Does one operation within `cluster.timeout`. [`TIMEOUTS`] in a row open the circuit breaker.
    pub(super) async fn run<T, F>(
        &self,
        operation: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreUnavailable>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let opened = self.opened.load_full().ok_or(StoreUnavailable)?;
        match timeout(self.config.timeout, operation(opened.connection.clone())).await {
            Ok(answer) => self.judge(&opened, answer),
            Err(_) => {
                let why = no_answer(self.config.timeout);
                if opened.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS {
                    self.trip(&opened, &why);
                } else {
                    self.note_failure(&why);
                }
                Err(StoreUnavailable)
            }
        }
    }

    /// Does one operation that may take longer, because it sends a large message.
    pub(super) async fn run_within<T, F>(
        &self,
        time: Duration,
        operation: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreUnavailable>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let opened = self.opened.load_full().ok_or(StoreUnavailable)?;
        let answer = timeout(time, operation(opened.connection.clone())).await;
        self.judge(&opened, answer.map_err(|_| StoreUnavailable)?)
    }

    /// Opens the circuit breaker after an error that every other operation would get, too.
    fn judge<T>(
        &self,
        opened: &Arc<Opened>,
        answer: Result<T, RedisError>,
    ) -> Result<T, StoreUnavailable> {
        match answer {
            Ok(value) => {
                if opened.timeouts.load(Ordering::Relaxed) != 0 {
                    opened.timeouts.store(0, Ordering::Relaxed);
                }
                return Ok(value);
            }
            Err(error) if is_momentary(&error) => self.note_failure(&error.to_string()),
            Err(error) => self.trip(opened, &error.to_string()),
        }
        Err(StoreUnavailable)
    }

    /// Opens the circuit breaker, unless another connection is in use by now.
    fn trip(&self, opened: &Arc<Opened>, why: &str) {
        if self.opened.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, opened)) {
            self.note_failure(why);
        }
        self.opened.compare_and_swap(opened, None);
        opened.end();
    }
}

/// An open connection that is not used yet.
pub(super) struct Candidate(Opened);

impl Candidate {
    /// Does the first operation: it must succeed before the connection is used.
    pub(super) async fn probe<T, F>(
        &self,
        within: Duration,
        operation: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, String>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        match timeout(within, operation(self.0.connection.clone())).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(no_answer(within)),
        }
    }
}

fn no_answer(within: Duration) -> String {
    format!("no answer within {within:?} (cluster.timeout)")
}

/// Whether an error concerns one operation alone: the next operation may succeed.
/// succeed.
fn is_momentary(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::TryAgain | ServerErrorKind::NoScript | ServerErrorKind::NoPerm
        ) | ErrorKind::Parse
            | ErrorKind::UnexpectedReturnType
    )
}
