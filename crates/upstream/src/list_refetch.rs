//! Schedules fetches of an upstream's list: at most once a second after `list_changed`, by the
//! list's age, and less often while the list changes again and again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, info, warn};

use super::client_attributes;
use super::connection::Connection;
use super::driver::{Driver, FetchAttempts, FetchedList, MAX_RETRY_AFTER, MIN_WALK_INTERVAL};
use super::walk_pace;
use audit::record::AuditEvent;
use base::platform::panics;
use config::{Settings, UpstreamSettings};
use domain::calls::call::ForwardedMeta;
use domain::fault::UpstreamFaultKind as Kind;
use domain::protocol::method::Method;
use domain::protocol::revision::Revision;
use domain::protocol::via::Via;
use domain::time::backoff::jittered;
use library::prompt_list::{PromptList, emptiness};
use telemetry::{ClientOperation, Telemetry};

/// Quiet time after edits in a library: an editor writes, renames and touches a file, and rsync
/// writes it in parts, which is one change.
const EDIT_DEBOUNCE: Duration = Duration::from_millis(200);

/// Longest wait for the end of edits.
const LONGEST_EDIT: Duration = Duration::from_secs(1);

/// Debounce of `list_changed`: a server that adds several prompts at once sends a notification for
/// each.
const LIST_CHANGED_DEBOUNCE: Duration = Duration::from_millis(50);

/// Shortest `ttlMs` that is obeyed, for the same reason as [`MIN_WALK_INTERVAL`].
const MIN_TTL: Duration = Duration::from_secs(1);

impl Driver {
    /// Fetches the list and waits for a reason to fetch it again, until a new connection is needed.
    pub(super) async fn keep_list(&self, attempts: &mut FetchAttempts) {
        let Some(connection) = self.connection() else {
            return;
        };
        let mut has_walked = false;
        loop {
            let started = Instant::now();
            let walking = walk(&self.upstream, &connection, &self.own, &self.telemetry);
            let (wait, pause) = match walking.await {
                Ok(listed) => {
                    self.note_success(attempts);
                    self.list_tools(&connection).await;
                    has_walked = true;
                    let pause = self.pause_after(&connection, &listed, started, attempts);
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
                    if !needs_reconnect {
                        // A server that cannot list its prompts may still list its tools.
                        self.list_tools(&connection).await;
                    }
                    let pause = self.report_failure(kind, attempts).await;
                    tokio::select! {
                        () = self.sleep_after_failure(pause) => {}
                        // Calls wait for a new connection meanwhile.
                        () = self.signals.session_lost.notified() => return,
                        // A connection that fails at each list waits for the growing pause.
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
                    let (debounce, least) = if connection.is_watched() {
                        self.until_quiet().await;
                        (Duration::ZERO, pause)
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

    /// Waits until the files of a library are left alone: a half-written file is not read.
    async fn until_quiet(&self) {
        let last = Instant::now() + LONGEST_EDIT;
        let quiet = || last.min(Instant::now() + EDIT_DEBOUNCE);
        while timeout_at(quiet(), self.signals.list_changed.notified()).await.is_ok()
            && Instant::now() < last
        {}
    }

    /// Lists the tools of the upstream of `[passthrough]`, whose names prompts must not take and
    /// whose arguments headers repeat. If the list fails, the previous list is kept.
    async fn list_tools(&self, connection: &Connection) {
        if !self.upstream.is_passthrough {
            return;
        }
        match connection.known_tools(&self.upstream.settings).await {
            Ok(tools) => self.signals.passthrough.tools.store(Arc::new(tools)),
            Err(kind) => {
                debug!(upstream = %self.upstream.id, reason = kind.reason(), "tools/list failed");
            }
        }
    }

    /// Returns the time until the list is walked again, if nothing else causes a walk. A delayed
    /// list is walked soon after its pause, to detect calm.
    fn next_walk(&self, ttl: Option<Duration>, pause: Duration) -> Duration {
        let is_listening = self.listening.load(Ordering::Relaxed);
        let wait = next_walk(&self.upstream.settings, ttl, is_listening);
        if pause.is_zero() { wait } else { wait.clamp(pause, pause.max(2 * walk_pace::LONGEST)) }
    }

    /// Returns the least time until the next walk: that of a list that changes often, or the pause
    /// that the source has asked for.
    fn pause_after(
        &self,
        connection: &Connection,
        listed: &PromptList,
        started: Instant,
        attempts: &mut FetchAttempts,
    ) -> Duration {
        let pause = match connection.is_snapshot() {
            // People save files, push commits and move labels one after the other.
            true => attempts.pace.walked(listed, started).min(MIN_WALK_INTERVAL),
            false => self.pace(listed, attempts),
        };
        pause.max(listed.pause.unwrap_or_default().min(MAX_RETRY_AFTER))
    }

    /// Returns the delay of the next walk of a list that changes again and again, which operators
    /// see.
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
        attempts.slow = 0;
        if attempts.failure.take().is_some() {
            info!(upstream = %self.upstream.id, "prompts/list succeeded again");
        }
    }
}

/// Walks a list in a separate client span, on behalf of this gateway (`own`).
pub(super) async fn walk(
    upstream: &UpstreamSettings,
    connection: &Connection,
    own: &Via,
    telemetry: &Telemetry,
) -> Result<PromptList, Kind> {
    let mut forwarded = ForwardedMeta { via: own.clone(), ..ForwardedMeta::default() };
    let revision = connection.describe().0.map(Revision::as_str);
    let attributes = client_attributes(upstream, Method::List.as_str(), revision, None);
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
