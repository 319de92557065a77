//! Driver of one upstream: a task that connects, fetches the list, and waits for a reason to fetch
//! it again.
//!
//! Only the driver opens the shared connection. Calls use it, and signal when they find its session
//! lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::connection::Connection;
use super::connection::connect::{Connector, DriverSignals};
use super::connection::handshake::ListenEvent;
use super::guard::circuit_breaker::CircuitBreaker;
use super::upstream_secrets::UpstreamSecrets;
use super::walk_pace::WalkPace;
use audit::Audit;
use audit::record::AuditEvent;
use base::platform::disk::Watch;
use base::platform::heap::boxed;
use config::{Transport, UpstreamSettings};
use domain::fault::UpstreamFaultKind as Kind;
use domain::protocol::revision::Revision;
use domain::protocol::via::Via;
use domain::time::backoff::Backoff;
use library::prompt_list::PromptList;
use shutdown::caught;
use telemetry::Telemetry;

/// Outcome of one attempt to fetch the list, for the catalog.
#[derive(Debug)]
pub struct DriverReport {
    pub driver: DriverId,
    pub outcome: Result<FetchedList, Kind>,
}

/// Identity of a driver, unique in the process: an upstream whose configuration has changed has
/// another driver.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DriverId(u64);

impl DriverId {
    /// Returns an id that no other driver has.
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A list and the time for which it is fresh.
#[derive(Clone, Debug)]
pub struct FetchedList {
    pub listed: PromptList,
    /// The time for which the list is fresh; `None` if the gateway notices each change at once.
    pub fresh_for: Option<Duration>,
}

/// State of the shared connection of an upstream.
#[derive(Clone)]
pub enum ConnectionState {
    /// The first attempt to connect has not ended.
    Connecting,
    /// Calls use this connection.
    Up(Arc<Connection>),
    /// The last attempt to connect has failed.
    Down(Kind),
    /// Each caller has separate connections and a private list; a shared connection does not exist.
    PerCaller,
}

/// The time in which an upstream cannot be reached.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub since: Instant,
    /// When the next attempt begins; `None` if the table of the upstream must be corrected first.
    pub next_try: Option<Instant>,
}

/// The driver of one upstream.
pub(super) struct Driver {
    pub telemetry: Telemetry,
    pub breaker: Arc<CircuitBreaker>,
    pub id: DriverId,
    pub upstream: Arc<UpstreamSettings>,
    /// The identity of this gateway.
    pub own: Via,
    /// The connector, or why the configuration permits no connection.
    pub connector: Result<Arc<Connector>, String>,
    pub connection_state: watch::Sender<ConnectionState>,
    pub signals: DriverSignals,
    pub reports: mpsc::Sender<DriverReport>,
    /// Cancelled when the last handle of the upstream is dropped, or at the gateway's shutdown.
    pub shutdown: CancellationToken,
    /// Whether a notification stream is open, so that polling is not needed.
    pub listening: AtomicBool,
    /// Secrets to remove from the texts of reported failures.
    pub secrets: Arc<UpstreamSecrets>,
    pub audit: Audit,
    /// How often the driver failed and was restarted.
    pub restarts: Arc<AtomicU64>,
    /// `None` while attempts to connect succeed.
    pub outage: Arc<Mutex<Option<Outage>>>,
    /// The seconds by which walks are delayed because the list changes again and again.
    pub walk_pause: Arc<AtomicU64>,
    /// Signals `logins_changed`; `None` if no operator signs in for the upstream, or if the
    /// cluster's store holds the sign-in.
    pub _logins: Option<Watch>,
}

/// A connection or stream that lasts longer counts as stable: its backoff starts over.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Shortest time between two walks that `list_changed` causes, so that a flood of notifications
/// costs the upstream and the gateway one walk a second.
pub(super) const MIN_WALK_INTERVAL: Duration = Duration::from_secs(1);

/// Time for the DELETE that ends a session; it delays a reconnect and the shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest `Retry-After` that is obeyed: an upstream must not be able to switch itself off.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A failed attempt on a git repository that took longer is slow.
const SLOW: Duration = Duration::from_secs(1);

/// Longest pause after a slow attempt.
const MAX_REST: Duration = Duration::from_mins(10);

/// State of the attempts to fetch the list.
#[derive(Default)]
pub(super) struct FetchAttempts {
    pub backoff: Backoff,
    /// Slow attempts on a git repository since the last success.
    pub slow: u32,
    /// Reason of the last attempt, if it failed.
    pub failure: Option<&'static str>,
    /// The note that was logged about a list without prompts.
    pub note: Option<&'static str>,
    pub pace: WalkPace,
    /// The remarks on the files of a library that were logged.
    pub remarks: Vec<String>,
}

/// Why an upstream cannot be called while its driver is started again.
pub(super) fn driver_has_failed() -> Kind {
    Kind::Unavailable(
        "the gateway has failed to drive it and connects again; try again in a moment".to_owned(),
    )
}

impl Driver {
    /// Runs until `shutdown`, and ends the session. A panic is contained and the driver restarted,
    /// because one upstream must not end the gateway for the others.
    pub(crate) async fn run(self) {
        let shutdown = self.shutdown.clone();
        shutdown.run_until_cancelled(boxed(self.drive_again_and_again())).await;
        self.disconnect(Kind::Unavailable("the gateway is shutting down".to_owned())).await;
    }

    async fn drive_again_and_again(&self) {
        let mut restarts = Backoff::default();
        loop {
            let started = Instant::now();
            let Err(panic) = caught(boxed(self.drive())).await else {
                // The driver has nothing left to do; the state of the upstream stays.
                return std::future::pending().await;
            };
            if started.elapsed() > STABLE_AFTER {
                restarts.reset();
            }
            let pause = restarts.next(fastrand::f64());
            self.note_restart(&panic, pause).await;
            sleep(pause).await;
        }
    }

    /// Makes the upstream unavailable until the driver is restarted.
    async fn note_restart(&self, panic: &str, pause: Duration) {
        let upstream = &self.upstream.id;
        error!(%upstream, panic, retry_in = ?pause, "the driver of the upstream has failed; it is started again");
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.telemetry.metrics().driver_restarted(upstream.as_str());
        self.audit.note(AuditEvent::new("driver_failed").text("upstream", upstream.as_str()));
        self.listening.store(false, Ordering::Relaxed);
        let kind = driver_has_failed();
        self.disconnect(kind.clone()).await;
        self.note_outage(Some(pause));
        self.report(Err(kind)).await;
    }

    /// Keeps the begin of an outage, and when the next attempt is due.
    fn note_outage(&self, pause: Option<Duration>) {
        let now = Instant::now();
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let since = outage.map_or(now, |outage| outage.since);
        *outage = Some(Outage { since, next_try: pause.map(|pause| now + pause) });
    }

    /// Closes the shared connection; calls fail with `kind` from now on.
    async fn disconnect(&self, kind: Kind) {
        let down = ConnectionState::Down(kind);
        if let ConnectionState::Up(connection) = self.connection_state.send_replace(down) {
            let _ = timeout(CLOSE_TIMEOUT, connection.close()).await;
        }
    }

    async fn drive(&self) {
        let mut attempts = FetchAttempts::default();
        let mut reconnects = Backoff::default();
        let connector = match &self.connector {
            Ok(connector) => connector,
            Err(error) => return self.give_up(Kind::Unavailable(error.clone())).await,
        };
        if self.upstream.lists_per_caller() {
            self.connection_state.send_replace(ConnectionState::PerCaller);
            // Callers share no list of this upstream.
            let nothing = FetchedList { listed: PromptList::default(), fresh_for: None };
            return self.report(Ok(nothing)).await;
        }
        loop {
            let started = Instant::now();
            match connector.connect().await {
                Ok(connection) => {
                    let connected = Instant::now();
                    let is_snapshot = connection.is_snapshot();
                    self.replace(Arc::new(connection)).await;
                    tokio::select! {
                        () = Box::pin(self.keep_list(&mut attempts)) => {}
                        () = self.keep_listening() => {}
                        () = self.keep_checking() => {}
                        () = self.login_changed() => {
                            // The session ended with its token: reset the backoff.
                            reconnects.reset();
                            continue;
                        }
                    }
                    self.count_session(connected.elapsed());
                    // A connection that is lost again and again is reopened with backoff, unless a
                    // call may have ended it: no other caller waits for that.
                    let is_by_call = attempts.failure.is_none()
                        && self.connection().is_some_and(|c| c.was_in_use());
                    if connected.elapsed() > STABLE_AFTER || is_by_call {
                        reconnects.reset();
                    }
                    if !is_snapshot {
                        sleep(reconnects.next(fastrand::f64())).await;
                    }
                }
                Err(kind) => {
                    // A library or store that cannot be read keeps its previous prompts.
                    let has_snapshot = self.connection().is_some_and(|c| c.is_snapshot());
                    if !has_snapshot {
                        self.connection_state.send_replace(ConnectionState::Down(kind.clone()));
                    }
                    let rest = match self.upstream.transport {
                        Transport::Git(_) => attempts.rest(started.elapsed(), &kind),
                        _ => Duration::ZERO,
                    };
                    let pause = self.report_failure(kind, &mut attempts).await;
                    self.note_outage(Some(rest + pause));
                    tokio::select! {
                        () = async {
                            sleep(rest).await;
                            self.sleep_after_failure(pause).await;
                        } => {}
                        () = self.login_changed() => attempts = FetchAttempts::default(),
                    }
                }
            }
        }
    }

    /// Records the duration of a session that has ended.
    fn count_session(&self, lasted: Duration) {
        if let Some(connection) = self.connection()
            && !connection.is_snapshot()
        {
            let revision = connection.describe().0.map(Revision::as_str);
            self.telemetry.metrics().upstream_session(self.upstream.id.as_str(), revision, lasted);
        }
    }

    /// Returns the shared connection, if open.
    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        match &*self.connection_state.borrow() {
            ConnectionState::Up(connection) => Some(connection.clone()),
            ConnectionState::Connecting | ConnectionState::Down(_) | ConnectionState::PerCaller => {
                None
            }
        }
    }

    /// Makes a new connection the shared one, and closes the old one unless a call still uses it.
    async fn replace(&self, connection: Arc<Connection>) {
        let (revision, transport) = connection.describe();
        debug!(upstream = %self.upstream.id, ?revision, transport, "connected");
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let old = self.connection_state.send_replace(ConnectionState::Up(connection));
        // The counted failures belong to another connection, or to a time without a connection.
        self.breaker.close();
        if self.upstream.is_passthrough {
            self.signals.passthrough.reconnected();
        }
        // A signal of a call that lost the old session is out of date.
        let _ = timeout(Duration::ZERO, self.signals.session_lost.notified()).await;
        if let ConnectionState::Up(old) = old
            && let Some(old) = Arc::into_inner(old)
        {
            let _ = timeout(CLOSE_TIMEOUT, old.close()).await;
        }
    }

    /// Waits until the stored sign-in differs from the used sign-in or is removed, and forgets the
    /// old token. Never returns if no operator signs in.
    async fn login_changed(&self) {
        let Ok(connector) = &self.connector else { return std::future::pending().await };
        let Some(tokens) = connector.tokens().filter(|_| self.upstream.login().is_some()) else {
            return std::future::pending().await;
        };
        loop {
            if tokens.has_other_login().await {
                tokens.forget().await;
                info!(upstream = %self.upstream.id, "the sign-in for the upstream has changed");
                let event = AuditEvent::new("login_changed");
                self.audit.note(event.text("upstream", self.upstream.id.as_str()));
                return;
            }
            self.signals.logins_changed.notified().await;
        }
    }

    /// Receives `list_changed` until the session is lost; never returns where the upstream has no
    /// notification stream.
    async fn keep_listening(&self) {
        let Some(connection) = self.connection() else {
            return;
        };
        // The stream of the previous connection is gone, and may have ended unnoticed.
        self.listening.store(false, Ordering::Relaxed);
        keep_open(|| async {
            // The list may have changed before the stream was open, so its opening causes a walk,
            // too.
            let listening = connection.listen(|event| {
                // After its end, polling takes over until the stream is open again. Skills have no
                // notification, so skills are always polled.
                let is_open = event != ListenEvent::Closed
                    && connection.notifies()
                    && !connection.has_skills();
                self.listening.store(is_open, Ordering::Relaxed);
                self.signals.list_changed.notify_one();
                if event == ListenEvent::ListChanged {
                    self.telemetry.metrics().list_changed_received(self.upstream.id.as_str());
                }
            });
            let ended = listening.await;
            if self.listening.swap(false, Ordering::Relaxed) {
                // Polling takes over until the stream is open again.
                self.signals.list_changed.notify_one();
            }
            ended
        })
        .await;
    }

    /// Checks whether the upstream answers whenever calls have failed in a row. Never returns.
    async fn keep_checking(&self) {
        let Some(connection) = self.connection() else {
            return std::future::pending().await;
        };
        loop {
            self.breaker.check_due().await;
            let ping = connection.ping(self.upstream.settings.page_timeout).await;
            self.breaker.checked(ping.err().as_ref(), Instant::now());
        }
    }

    /// Reports a failed attempt. Returns the time until the next attempt is due.
    pub(super) async fn report_failure(
        &self,
        kind: Kind,
        attempts: &mut FetchAttempts,
    ) -> Duration {
        let kind = self.secrets.remove_from(kind);
        let backoff = attempts.backoff.next(fastrand::f64());
        let wait = backoff.max(kind.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER));
        let upstream = &self.upstream.id;
        let reason = kind.reason();
        let is_known = attempts.failure.replace(reason) == Some(reason);
        if let (false, Kind::NoToken { fault, .. }) = (is_known, &kind)
            && self.upstream.login().is_some()
        {
            let event = AuditEvent::new("login_failed").text("upstream", upstream.as_str());
            self.audit.note(event.text("reason", fault.reason()));
        }
        if is_known {
            let error = kind.diagnosis();
            debug!(%upstream, error, retry_in = ?wait, "prompts/list failed; retrying");
        } else {
            let error = kind.diagnosis();
            warn!(%upstream, error, retry_in = ?wait, "prompts/list failed; retrying");
        }
        self.report(Err(kind)).await;
        wait
    }

    /// Waits until the attempt after a failed one is due.
    pub(super) async fn sleep_after_failure(&self, pause: Duration) {
        match self.upstream.transport {
            // An edit may correct the library.
            Transport::Library(_) => {
                let _ = timeout(pause, self.signals.list_changed.notified()).await;
            }
            // A push, which a webhook reports, may correct the repository.
            Transport::Git(_) => {
                sleep(pause.min(MIN_WALK_INTERVAL)).await;
                let pause = pause.saturating_sub(MIN_WALK_INTERVAL);
                let _ = timeout(pause, self.signals.list_changed.notified()).await;
            }
            // Notifications of a failing upstream must not shorten the wait.
            Transport::Http(_) | Transport::Sse(_) | Transport::Stdio(_) | Transport::Store(_) => {
                sleep(pause).await
            }
        }
    }

    /// Reports an upstream whose configuration permits no connection.
    async fn give_up(&self, kind: Kind) {
        let kind = self.secrets.remove_from(kind);
        warn!(upstream = %self.upstream.id, error = kind.diagnosis(),
            "the upstream cannot be used and is not retried; correct its table");
        self.note_outage(None);
        self.connection_state.send_replace(ConnectionState::Down(kind.clone()));
        self.report(Err(kind)).await;
    }

    pub(super) async fn report(&self, outcome: Result<FetchedList, Kind>) {
        // The receiver is closed only at the gateway's shutdown.
        let _ = self.reports.send(DriverReport { driver: self.id, outcome }).await;
    }
}

impl FetchAttempts {
    /// Returns the minimum pause after a failed attempt on a git repository. The pause grows with
    /// the slow attempts, in proportion to the last one: a slow commit must not occupy a core
    /// forever. A remote that is silent or refuses occupies no core.
    fn rest(&mut self, took: Duration, kind: &Kind) -> Duration {
        if took < SLOW || *kind == Kind::Timeout {
            return Duration::ZERO;
        }
        self.slow = self.slow.saturating_add(1);
        took.saturating_mul(1 << self.slow.min(5)).min(MAX_REST)
    }
}

/// Reopens a notification stream after each end, with backoff: proxies close quiet streams every
/// few minutes, which does not justify a long wait. Returns once the session is lost; never returns
/// if the upstream has no such stream.
pub(super) async fn keep_open<F>(mut listen: impl FnMut() -> F)
where
    F: Future<Output = Result<(), Kind>>,
{
    let mut backoff = Backoff::default();
    loop {
        let started = Instant::now();
        let ended = listen().await;
        if started.elapsed() > STABLE_AFTER {
            backoff.reset();
        }
        match ended {
            Err(Kind::SessionLost) => return,
            // Without a stream, the age of the list causes fetches.
            Err(kind) if kind.refuses_streams() => std::future::pending::<()>().await,
            Ok(()) | Err(_) => sleep(backoff.next(fastrand::f64())).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn the_rest_after_slow_commits_grows_up_to_ten_minutes_and_is_none_after_an_outage() {
        let mut attempts = FetchAttempts::default();
        let refused = Kind::Unavailable("refused".to_owned());
        let mut rest = |took, kind| attempts.rest(Duration::from_secs(took), kind).as_secs();
        let outage: Vec<_> =
            (0..50).map(|_| rest(0, &refused) + rest(60, &Kind::Timeout)).collect();
        assert_eq!(outage, [0; 50], "attempts are repeated with backoff");
        let grown: Vec<_> = (1..=7).map(|_| rest(30, &refused)).collect();
        assert_eq!(grown, [60, 120, 240, 480, 600, 600, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_a_proxy_closes_every_few_minutes_is_open_again_at_once() {
        let opened = AtomicU32::new(0);
        let began = Instant::now();
        let lasted = Duration::from_secs(300);
        keep_open(|| async {
            let is_last = opened.fetch_add(1, Ordering::Relaxed) == 20;
            if is_last {
                return Err(Kind::SessionLost);
            }
            sleep(lasted).await;
            Ok(())
        })
        .await;
        let gaps = began.elapsed() - 20 * lasted;
        assert!(gaps <= 20 * Duration::from_millis(101), "{gaps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_at_once_is_opened_with_backoff() {
        let opened = AtomicU32::new(0);
        let keeping = keep_open(|| async {
            opened.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        assert!(timeout(Duration::from_secs(60), keeping).await.is_err());
        let opened = opened.into_inner();
        assert!((9..=13).contains(&opened), "{opened}");
    }
}
