//! Driver of one upstream: a task that connects, fetches the list, and waits for a reason to fetch
//! it again.
//!
//! Only the driver opens the shared connection. Calls use it, and signal when they find its session
//! lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::client_attributes;
use super::connection::Connection;
use super::connection::connect::{Connector, DriverSignals};
use super::connection::handshake::ListenEvent;
use super::guard::breaker::{CircuitBreaker, log_transition};
use super::held_secrets::HeldSecrets;
use super::prompt_list::{PromptList, emptiness};
use super::walk_pace::{self, WalkPace};
use crate::shutdown::caught;
use crate::telemetry::{ClientOperation, Telemetry};
use audit::Audit;
use audit::record::AuditEvent;
use base::platform::disk::Watch;
use base::platform::heap::rare;
use base::platform::panics;
use config::{Settings, Transport, UpstreamSettings};
use domain::backoff::{Backoff, jittered};
use domain::call::ForwardedMeta;
use domain::fault::UpstreamFaultKind as Kind;
use domain::method::Method;
use domain::revision::Revision;

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
    /// Absent where the gateway notices each change at once.
    pub fresh_for: Option<Duration>,
}

/// State of the shared connection of an upstream.
#[derive(Clone)]
pub(crate) enum ConnectionState {
    /// The first attempt to connect has not ended.
    Connecting,
    /// Calls use this connection.
    Up(Arc<Connection>),
    /// The last attempt to connect has failed.
    Down(Kind),
    /// Each caller has connections of its own, and a private list; there is no shared connection.
    PerCaller,
}

/// The driver of one upstream.
pub(super) struct Driver {
    pub telemetry: Telemetry,
    pub breaker: Arc<CircuitBreaker>,
    pub id: DriverId,
    pub upstream: Arc<UpstreamSettings>,
    /// The error, where the upstream cannot be reached as it is configured.
    pub connector: Result<Arc<Connector>, String>,
    pub connection_state: watch::Sender<ConnectionState>,
    pub signals: DriverSignals,
    pub reports: mpsc::Sender<DriverReport>,
    /// Cancelled when the last handle of the upstream is dropped, or at the gateway's shutdown.
    pub shutdown: CancellationToken,
    /// Whether a notification stream is open, so that polling is not needed.
    pub listening: AtomicBool,
    /// Removed from the texts of reported failures.
    pub held_secrets: Arc<HeldSecrets>,
    pub audit: Audit,
    /// How often it has failed and was started again.
    pub restarts: Arc<AtomicU64>,
    /// The seconds that walks wait because the list changes again and again.
    pub walk_pause: Arc<AtomicU64>,
    /// Signals `logins_changed`; absent where no operator signs in for the upstream, or the sign-in
    /// is in the store of the cluster.
    pub _logins: Option<Watch>,
}

/// Debounce of edits in a library: an editor writes, renames and touches a file, which is one
/// change.
const EDIT_DEBOUNCE: Duration = Duration::from_millis(100);

/// Debounce of `list_changed`: a server that adds several prompts at once sends a notification for
/// each.
const LIST_CHANGED_DEBOUNCE: Duration = Duration::from_millis(50);

/// A connection or stream that lasts longer counts as stable: its backoff starts over.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Shortest time between two walks that `list_changed` causes, so that a flood of notifications
/// costs the upstream and the gateway one walk a second.
const MIN_WALK_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest `ttlMs` that is obeyed, for the same reason.
const MIN_TTL: Duration = Duration::from_secs(1);

/// Time for the DELETE that ends a session; it delays a reconnect and the shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest `Retry-After` that is obeyed: an upstream must not be able to switch itself off.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// State of the attempts to fetch the list.
#[derive(Default)]
struct FetchAttempts {
    backoff: Backoff,
    /// Reason of the last attempt, if it failed.
    failure: Option<&'static str>,
    /// The note that was logged about a list without prompts.
    note: Option<&'static str>,
    pace: WalkPace,
    /// The remarks on the files of a library that were logged.
    remarks: Vec<String>,
}

/// Why an upstream cannot be called while its driver is started again.
pub(super) fn driver_has_failed() -> Kind {
    Kind::Unavailable(
        "the gateway has failed to drive it and connects again; try again in a moment".to_owned(),
    )
}

impl Driver {
    /// Runs until `shutdown`, and ends the session. A panic is contained: the upstream is driven
    /// anew, since one upstream must not end the gateway for the others.
    pub(crate) async fn run(self) {
        let shutdown = self.shutdown.clone();
        shutdown.run_until_cancelled(rare(self.drive_again_and_again())).await;
        self.disconnect(Kind::Unavailable("the gateway is shutting down".to_owned())).await;
    }

    async fn drive_again_and_again(&self) {
        let mut restarts = Backoff::default();
        loop {
            let started = Instant::now();
            let Err(panic) = caught(self.drive()).await else {
                // An upstream to which there is nothing to drive stays as it is.
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

    /// Makes the upstream unavailable until it is driven anew.
    async fn note_restart(&self, panic: &str, pause: Duration) {
        let upstream = &self.upstream.id;
        error!(%upstream, panic, retry_in = ?pause, "the driver of the upstream has failed; it is started again");
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.telemetry.metrics().driver_restarted(upstream.as_str());
        self.audit.note(AuditEvent::new("driver_failed").text("upstream", upstream.as_str()));
        self.listening.store(false, Ordering::Relaxed);
        let kind = driver_has_failed();
        self.disconnect(kind.clone()).await;
        self.report(Err(kind)).await;
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
            // Callers share nothing of it.
            let nothing = FetchedList { listed: PromptList::default(), fresh_for: None };
            return self.report(Ok(nothing)).await;
        }
        loop {
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
                            // The negotiation with the token before ends with that token.
                            reconnects.reset();
                            continue;
                        }
                    }
                    self.count_session(connected.elapsed());
                    // A connection that is lost again and again is opened again with backoff,
                    // unless a call may have ended it: others do not wait for what one caller
                    // provokes, against whom the breaker holds it.
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
                    // A library or store that cannot be read keeps the prompts of before.
                    let has_snapshot = self.connection().is_some_and(|c| c.is_snapshot());
                    if !has_snapshot {
                        self.connection_state.send_replace(ConnectionState::Down(kind.clone()));
                    }
                    let pause = self.report_failure(kind, &mut attempts).await;
                    tokio::select! {
                        () = self.sleep_after_failure(pause) => {}
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

    /// Returns the shared connection, if there is one.
    fn connection(&self) -> Option<Arc<Connection>> {
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
        let old = self.connection_state.send_replace(ConnectionState::Up(connection));
        // The failures were those of another connection, or of a time without one.
        let transition = match &old {
            ConnectionState::Up(_) => self.breaker.close(),
            _ => self.breaker.reset(),
        };
        if transition.is_some() {
            info!(upstream = %self.upstream.id, "circuit breaker closed by a new connection");
        }
        // A signal of a call that lost the old session is out of date.
        let _ = timeout(Duration::ZERO, self.signals.session_lost.notified()).await;
        if let ConnectionState::Up(old) = old
            && let Some(old) = Arc::into_inner(old)
        {
            let _ = timeout(CLOSE_TIMEOUT, old.close()).await;
        }
    }

    /// Waits until another sign-in is stored than the one that is used, or none, and forgets the
    /// token of that one. Never returns where no operator signs in.
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
        // A stream of the connection before is gone, and may have ended unseen.
        self.listening.store(false, Ordering::Relaxed);
        keep_open(|| async {
            // The list may have changed before the stream was open, so its opening causes a walk,
            // too.
            let listening = connection.listen(|event| {
                // Once it has ended, polling takes over until it is open again.
                self.listening.store(event != ListenEvent::Closed, Ordering::Relaxed);
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
            let transition = self.breaker.checked(ping.err().as_ref(), Instant::now());
            log_transition(self.upstream.id.as_str(), transition);
        }
    }

    /// Fetches the list and waits for a reason to fetch it again, until a new connection is needed.
    async fn keep_list(&self, attempts: &mut FetchAttempts) {
        let Some(connection) = self.connection() else {
            return;
        };
        let mut has_walked = false;
        loop {
            let started = Instant::now();
            let walking = walk(&self.upstream, &connection, &self.telemetry);
            let (wait, pause) = match walking.await {
                Ok(listed) => {
                    self.note_success(attempts);
                    has_walked = true;
                    let pause = self.pace(&listed, attempts);
                    let wait = self.next_walk(listed.ttl, pause);
                    let fresh_for = listed.ttl.or((!connection.is_watched()).then_some(wait));
                    self.report_list(FetchedList { listed, fresh_for }, attempts).await;
                    (wait, pause)
                }
                // The session has expired, which is no failure: connect again at once.
                Err(Kind::SessionLost) if has_walked => return,
                Err(kind) => {
                    let hangs = kind == Kind::Timeout && connection.breaks_on_timeout();
                    let needs_reconnect = hangs || kind.is_of_connection();
                    let pause = self.report_failure(kind, attempts).await;
                    tokio::select! {
                        () = self.sleep_after_failure(pause) => {}
                        // Calls wait for a new connection meanwhile.
                        () = self.signals.session_lost.notified() => return,
                        // One that ends with each list waits longer each time.
                        () = connection.closed(), if !needs_reconnect => return,
                    }
                    if needs_reconnect {
                        // The new handshake detects the era again.
                        return;
                    }
                    continue;
                }
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = self.signals.list_changed.notified() => {
                    let (debounce, least) = if connection.is_snapshot() {
                        (EDIT_DEBOUNCE, pause)
                    } else {
                        (LIST_CHANGED_DEBOUNCE, pause.max(MIN_WALK_INTERVAL))
                    };
                    tokio::select! {
                        () = sleep_until((Instant::now() + debounce).max(started + least)) => {}
                        // Calls wait for a new connection meanwhile.
                        () = self.signals.session_lost.notified() => return,
                        () = connection.closed() => return,
                    }
                }
                () = self.signals.session_lost.notified() => return,
                () = connection.closed() => return,
            }
            if connection.is_snapshot() {
                return;
            }
        }
    }

    /// Returns the time until the list is walked again, if nothing else causes a walk. One that is
    /// slowed is walked soon, to find it calm.
    fn next_walk(&self, ttl: Option<Duration>, pause: Duration) -> Duration {
        let is_listening = self.listening.load(Ordering::Relaxed);
        let wait = next_walk(&self.upstream.settings, ttl, is_listening);
        if pause.is_zero() { wait } else { wait.clamp(pause, 2 * walk_pace::LONGEST) }
    }

    /// Returns how long the next walk waits because the list changes again and again, for operators
    /// to see.
    fn pace(&self, listed: &PromptList, attempts: &mut FetchAttempts) -> Duration {
        let pause = attempts.pace.walked(listed, Instant::now());
        let before = self.walk_pause.swap(pause.as_secs(), Ordering::Relaxed);
        if before == 0 && !pause.is_zero() {
            warn!(upstream = %self.upstream.id, "the list of the upstream changes again and again; it is fetched less often");
            let event = AuditEvent::new("list_slowed");
            self.audit.note(event.text("upstream", self.upstream.id.as_str()));
        }
        pause
    }

    async fn report_list(&self, walked: FetchedList, attempts: &mut FetchAttempts) {
        let prompts = walked.listed.prompts.len();
        let pages = walked.listed.pages;
        walked.listed.prompts.iter().for_each(|prompt| panics::at("driver", &prompt.name));
        debug!(upstream = %self.upstream.id, prompts, pages, "prompts/list complete");
        let note = emptiness(pages, walked.listed.len());
        if let Some(note) = note.filter(|note| attempts.note.replace(note) != Some(note)) {
            warn!(upstream = %self.upstream.id, "the upstream {note}");
        } else if note.is_none() {
            attempts.note = None;
        }
        let remarks = walked.listed.remarks.clone();
        for remark in remarks.iter().filter(|remark| !attempts.remarks.contains(remark)) {
            info!(upstream = %self.upstream.id, "{remark}");
        }
        attempts.remarks = remarks;
        self.report(Ok(walked)).await;
    }

    fn note_success(&self, attempts: &mut FetchAttempts) {
        attempts.backoff.reset();
        if attempts.failure.take().is_some() {
            info!(upstream = %self.upstream.id, "prompts/list succeeded again");
        }
    }

    /// Reports a failed attempt. Returns the time until the next one is due.
    async fn report_failure(&self, kind: Kind, attempts: &mut FetchAttempts) -> Duration {
        let kind = self.held_secrets.remove_from(kind);
        let backoff = attempts.backoff.next(fastrand::f64());
        let retry_after = match &kind {
            Kind::RateLimited { retry_after_secs } => retry_after_secs.map(Duration::from_secs),
            Kind::Paused { retry_after_secs } => Some(Duration::from_secs(*retry_after_secs)),
            _ => None,
        };
        let wait = backoff.max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER));
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
    async fn sleep_after_failure(&self, pause: Duration) {
        match self.upstream.transport {
            // An edit may correct the library.
            Transport::Library(_) | Transport::Git(_) => {
                let _ = timeout(pause, self.signals.list_changed.notified()).await;
            }
            // Notifications of a failing upstream must not shorten the wait.
            Transport::Http(_) | Transport::Sse(_) | Transport::Stdio(_) | Transport::Store(_) => {
                sleep(pause).await
            }
        }
    }

    /// Reports an upstream that cannot work as it is configured.
    async fn give_up(&self, kind: Kind) {
        let kind = self.held_secrets.remove_from(kind);
        warn!(upstream = %self.upstream.id, error = kind.diagnosis(),
            "the upstream cannot be used and is not retried; correct its table");
        self.connection_state.send_replace(ConnectionState::Down(kind.clone()));
        self.report(Err(kind)).await;
    }

    async fn report(&self, outcome: Result<FetchedList, Kind>) {
        // The receiver is closed only at the gateway's shutdown.
        let _ = self.reports.send(DriverReport { driver: self.id, outcome }).await;
    }
}

/// Opens a notification stream again whenever it has ended, with backoff: proxies close quiet
/// streams every few minutes, which is no reason to wait long. Returns once the session is lost;
/// never where the upstream has no such stream.
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
            // Its list is fetched again by its age.
            Err(kind) if kind.refuses_streams() => std::future::pending::<()>().await,
            Ok(()) | Err(_) => sleep(backoff.next(fastrand::f64())).await,
        }
    }
}

/// Walks a list, in a client span of its own.
pub(super) async fn walk(
    upstream: &UpstreamSettings,
    connection: &Connection,
    telemetry: &Telemetry,
) -> Result<PromptList, Kind> {
    let mut forwarded = ForwardedMeta::default();
    let revision = connection.describe().0.map(Revision::as_str);
    let attributes = client_attributes(upstream, Method::List, revision, None);
    let operation = attributes
        .map(|attributes| ClientOperation::begin(telemetry, attributes, &mut forwarded.trace));
    let walked = connection.walk(&upstream.settings, &forwarded).await;
    if let Some(operation) = operation {
        operation.end(walked.as_ref().err());
    }
    walked
}

/// Returns the time until a list is walked again, if nothing else causes a walk: the least of
/// `poll` (without a notification stream), `ttlMs` and `max_age`.
pub(super) fn next_walk(
    settings: &Settings,
    ttl: Option<Duration>,
    is_listening: bool,
) -> Duration {
    let poll = Some(settings.poll).filter(|p| !p.is_zero() && !is_listening);
    let ttl = ttl.filter(|t| !t.is_zero()).map(|t| t.max(MIN_TTL));
    let waits = [poll, ttl, Some(settings.max_age)];
    let least = waits.into_iter().flatten().min().unwrap_or(settings.max_age);
    jittered(least, fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

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
