//! The store: one connection to a Redis or Valkey server, with a bound on the time of each operation, and a
//! circuit breaker before it.

mod connect;
mod locate;
mod push;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::config;
use connect::{Connector, OPEN_TIMEOUT, Opened};
pub(super) use push::Push;
use push::PushSender;

/// The store, as this replica sees it.
pub(super) struct Store {
    config: config::Cluster,
    connector: Connector,
    /// `None` while the circuit breaker is open.
    opened: ArcSwapOption<Opened>,
    /// Failed operations, one after another.
    failures: AtomicU32,
    /// Why the last operation or attempt failed.
    failure: Mutex<String>,
    pushes: PushSender,
}

/// The store did not do what it was asked to, or not in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StoreUnavailable;

/// Operations that time out one after another before the circuit breaker opens. Other failures open it at once.
const TIMEOUTS: u32 = 3;

impl Store {
    /// Returns the store, and the messages of channels.
    ///
    /// # Errors
    /// When `cluster.ca` holds no usable certificate.
    pub(super) fn new(
        config: config::Cluster,
        tasks: TaskTracker,
    ) -> Result<(Self, mpsc::Receiver<Push>), String> {
        let connector = Connector::new(&config, tasks)?;
        let (pushes, received) = push::queue();
        let store = Self {
            config,
            connector,
            opened: ArcSwapOption::empty(),
            failures: AtomicU32::new(0),
            failure: Mutex::default(),
            pushes,
        };
        Ok((store, received))
    }

    /// Returns the key or the channel of this name. All have one hash tag, so that a Cluster holds them on one
    /// shard.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{{{}}}{name}", self.config.prefix)
    }

    /// Whether the circuit breaker is closed.
    pub(super) fn is_up(&self) -> bool {
        self.opened.load().is_some()
    }

    /// Why the last operation or attempt failed.
    pub(super) fn failure(&self) -> String {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finds the store, connects to it, and subscribes to `channels`. The connection is not used before
    /// [`Store::use_it`].
    ///
    /// # Errors
    /// Why no server can be used, in words for operators.
    pub(super) async fn open(&self, channels: &[String]) -> Result<Candidate, String> {
        let key = self.key("");
        let opening = async {
            let located = locate::locate(&self.connector, &self.config, &key, &self.pushes).await;
            let mut opened = located.map_err(|error| error.to_string())?;
            for channel in channels {
                let subscribed = opened.connection.subscribe(channel).await;
                subscribed.map_err(|error| format!("cannot subscribe to {channel}: {error}"))?;
            }
            Ok(Candidate(opened))
        };
        match timeout(OPEN_TIMEOUT, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("no answer within {} s", OPEN_TIMEOUT.as_secs())),
        }
    }

    /// Notes why an attempt to open the store failed.
    pub(super) fn note_failure(&self, why: &str) {
        why.clone_into(&mut self.failure.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Uses a connection for all operations from now on.
    pub(super) fn use_it(&self, Candidate(opened): Candidate) {
        self.failures.store(0, Ordering::Relaxed);
        self.opened.store(Some(Arc::new(opened)));
    }

    /// Resolves when the present connection has ended, or at once while there is none.
    pub(super) async fn lost(&self) {
        let opened = self.opened.load_full();
        if let Some(opened) = opened {
            opened.closed.cancelled().await;
            self.close(&opened, "the connection has ended");
        }
    }

    /// Does one operation on the connection, within `cluster.timeout`.
    ///
    /// # Errors
    /// [`StoreUnavailable`], at once while the circuit breaker is open.
    pub(super) async fn run<T, F>(
        &self,
        operation: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreUnavailable>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let opened = self.opened.load_full().ok_or(StoreUnavailable)?;
        match timeout(self.config.timeout, operation(opened.connection.clone())).await {
            Ok(Ok(value)) => {
                if self.failures.load(Ordering::Relaxed) != 0 {
                    self.failures.store(0, Ordering::Relaxed);
                }
                return Ok(value);
            }
            Ok(Err(error)) if is_lasting(&error) => self.close(&opened, &error.to_string()),
            Ok(Err(error)) => self.note_failure(&error.to_string()),
            Err(_) => {
                let why = format!("no answer within {:?} (cluster.timeout)", self.config.timeout);
                if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS {
                    self.close(&opened, &why);
                }
            }
        }
        Err(StoreUnavailable)
    }

    /// Opens the circuit breaker, unless another connection is in use by now.
    fn close(&self, opened: &Arc<Opened>, why: &str) {
        let current = self.opened.compare_and_swap(opened, None);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, opened)) {
            self.note_failure(why);
        }
        opened.closed.cancel();
    }
}

/// An open connection that is not used yet.
pub(super) struct Candidate(Opened);

impl Candidate {
    /// Does the first operation: it must succeed before the connection is used.
    ///
    /// # Errors
    /// Why it failed, in words for operators.
    pub(super) async fn try_it<T, F>(
        &self,
        within: Duration,
        operation: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, String>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        match timeout(within, operation(self.0.connection.clone())).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {within:?} (cluster.timeout)")),
        }
    }
}

/// Whether the next operation would fail like this one, until another connection is opened: all but an answer
/// that concerns one operation alone.
fn is_lasting(error: &RedisError) -> bool {
    let is_momentary = matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::NoScript)
            | ErrorKind::UnexpectedReturnType
    );
    !is_momentary
}
