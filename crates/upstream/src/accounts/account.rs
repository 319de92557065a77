//! The account of one caller at one upstream: an access token, and the connections opened with this
//! token.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::{Mutex as AsyncMutex, Notify, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::auth::caller_tokens::CallerTokens;
use crate::connection::Connection;
use crate::connection::connect::Connector;
use crate::connection::dedicated::DedicatedPool;
use crate::connection::examiner::Examiner;
use crate::guard::concurrency::Permit;
use crate::upstream_secrets::UpstreamSecrets;
use domain::calls::caller::Caller;
use domain::calls::subject_token::SubjectToken;
use domain::fault::UpstreamFaultKind as Kind;

/// A caller's own access to one upstream. Its connections are closed when the last reference is
/// dropped.
pub struct Account {
    /// Id of the upstream.
    pub upstream: Arc<str>,
    pub caller: Caller,
    pub connector: Arc<Connector>,
    /// `None` for a child process of this caller, which needs no token.
    pub tokens: Option<Arc<CallerTokens>>,
    pub dedicated: Arc<DedicatedPool>,
    /// Notified when the upstream says that the list of this caller has changed.
    pub list_changed: Arc<Notify>,
    /// Held by the one task that listens for `list_changed`.
    pub listening: Arc<AsyncMutex<()>>,
    /// Secrets to remove from the texts of reported failures.
    pub secrets: UpstreamSecrets,
    /// Cancelled when the account has ended; then the account's connections are closed.
    pub ended: CancellationToken,
    /// Cancelled when an operator ends the account, but not when it makes room for another.
    pub revoked: CancellationToken,
    pub tasks: TaskTracker,
    pub connection: Arc<AsyncMutex<SharedConnection>>,
    pub examiner: Examiner,
    pub used: Mutex<Instant>,
    /// The place among the child processes of callers.
    pub _place: Option<Permit>,
}

/// The connection that the calls of a caller share.
#[derive(Default)]
pub enum SharedConnection {
    /// The connection is not yet open, or was lost.
    #[default]
    None,
    Open {
        connection: Arc<Connection>,
        /// Cancelled when this connection is replaced.
        lost: CancellationToken,
        /// Ends the task of the connection when it is replaced.
        _task: DropGuard,
    },
    /// Opening the connection failed at this time.
    Failed(Instant, Kind),
}

/// Time for which calls get the failure of the last opening instead of opening a connection.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Time for the DELETE that ends a session.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl Account {
    /// Makes sure that there is an access token.
    pub(crate) async fn obtain_token(&self, subject: Option<&SubjectToken>) -> Result<(), Kind> {
        match &self.tokens {
            Some(tokens) => tokens.obtain(subject).await,
            None => Ok(()),
        }
    }

    /// Whether a call that was refused may try again with another token.
    pub(crate) fn is_without_token(&self) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| tokens.is_without_token())
    }

    /// Returns the value of `Authorization` of the next request; `None` without a token.
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.tokens.as_ref()?.header().ok()
    }

    /// Whether requests have an access token, or the upstream needs no token.
    pub fn has_access(&self) -> bool {
        !self.is_without_token()
    }

    /// Returns the tokens of its caller, if the caller's sign-in is kept under this name.
    pub(crate) fn with_login(&self, name: &str) -> Option<&Arc<CallerTokens>> {
        self.tokens.as_ref().filter(|tokens| tokens.login_name() == Some(name))
    }

    /// Returns the shared connection of the caller's calls; opens it if it is missing. Cancel safe:
    /// the opening continues for the next call.
    ///
    /// # Errors
    /// The connection cannot be opened.
    pub async fn connected(&self) -> Result<Arc<Connection>, Kind> {
        let mut shared = self.connection.clone().lock_owned().await;
        match &*shared {
            SharedConnection::Open { connection, .. } => return Ok(connection.clone()),
            SharedConnection::Failed(at, kind) if at.elapsed() < RETRY_PAUSE => {
                return Err(kind.clone());
            }
            SharedConnection::Failed(..) | SharedConnection::None => {}
        }
        let (opened, opening) = oneshot::channel();
        let connector = self.connector.clone();
        let ended = self.ended.clone();
        let slot = self.connection.clone();
        // A spawned task: a caller that disconnects must not leave a half-open session.
        self.tasks.spawn(async move {
            let connecting = ended.run_until_cancelled(connector.connect()).await;
            let outcome = connecting.unwrap_or_else(|| Err(Kind::AccessEnded)).map(Arc::new);
            let lost = CancellationToken::new();
            *shared = match &outcome {
                Ok(connection) => SharedConnection::Open {
                    connection: connection.clone(),
                    lost: lost.clone(),
                    _task: lost.clone().drop_guard(),
                },
                // The call retries with another token.
                Err(Kind::AuthFailed { .. } | Kind::NoToken { .. }) => SharedConnection::None,
                Err(kind) => SharedConnection::Failed(Instant::now(), kind.clone()),
            };
            drop(shared);
            let kept = outcome.as_ref().ok().cloned();
            let _ = opened.send(outcome);
            if let Some(connection) = kept {
                keep(connection, &slot, &lost, &ended).await;
            }
        });
        // The task ends without an outcome only if it panics.
        opening.await.unwrap_or_else(|_| Err(Kind::AccessEnded))
    }

    /// Returns the shared connection with a token that is cancelled once another connection takes
    /// its place.
    pub(crate) async fn connected_until(
        &self,
    ) -> Result<(Arc<Connection>, CancellationToken), Kind> {
        let connected = self.connected().await?;
        match &*self.connection.lock().await {
            SharedConnection::Open { connection, lost, .. }
                if Arc::ptr_eq(connection, &connected) =>
            {
                Ok((connected, lost.clone()))
            }
            _ => Err(Kind::AccessEnded),
        }
    }

    /// Forgets a connection whose session the upstream has ended.
    pub async fn lose(&self, lost: &Arc<Connection>) {
        forget(&self.connection, &Arc::downgrade(lost)).await;
    }

    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Begins a request on a connection. The connection is examined unless the request succeeds.
    pub fn watch<'a>(
        &'a self,
        connection: &'a Arc<Connection>,
        patience: Duration,
    ) -> WatchedRequest<'a> {
        WatchedRequest { account: self, connection, patience, is_pending: true }
    }

    /// Examines outside the calls whether the upstream still serves a connection, and forgets the
    /// connection if not.
    fn examine(&self, connection: &Arc<Connection>, patience: Duration) {
        let examined = Arc::downgrade(connection);
        let shared = self.connection.clone();
        let connection = connection.clone();
        let ended = self.ended.clone();
        self.examiner.examine(&self.tasks, connection, patience, ended, || async move {
            forget(&shared, &examined).await;
        });
    }

    /// When the last call was made.
    pub fn last_use(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request on the connection of an account. If it is dropped before a response, a child process
/// may hang.
#[must_use]
pub struct WatchedRequest<'a> {
    account: &'a Account,
    connection: &'a Arc<Connection>,
    patience: Duration,
    is_pending: bool,
}

impl WatchedRequest<'_> {
    /// Notes the outcome of the request. The connection may have caused a failure.
    pub(crate) fn end<T>(mut self, outcome: &Result<T, Kind>) {
        self.is_pending = false;
        if outcome.as_ref().err().is_some_and(|kind| self.connection.is_suspect_after(kind)) {
            self.account.examine(self.connection, self.patience);
        }
    }
}

impl Drop for WatchedRequest<'_> {
    fn drop(&mut self) {
        if self.is_pending && self.connection.breaks_on_timeout() {
            self.account.examine(self.connection, self.patience);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// Keeps a connection until it is closed, `lost` or its account ends, and ends the session unless a
/// call still uses it.
async fn keep(
    connection: Arc<Connection>,
    shared: &AsyncMutex<SharedConnection>,
    lost: &CancellationToken,
    ended: &CancellationToken,
) {
    tokio::select! {
        () = connection.closed() => return forget(shared, &Arc::downgrade(&connection)).await,
        () = lost.cancelled() => {
            let Some(connection) = Arc::into_inner(connection) else { return };
            let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        }
        () = ended.cancelled() => {
            let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        }
    }
}

async fn forget(shared: &AsyncMutex<SharedConnection>, lost: &Weak<Connection>) {
    let mut shared = shared.lock().await;
    if matches!(&*shared, SharedConnection::Open { connection, .. } if Weak::ptr_eq(&Arc::downgrade(connection), lost))
    {
        *shared = SharedConnection::None;
    }
}
