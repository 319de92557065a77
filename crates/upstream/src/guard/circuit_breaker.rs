//! Circuit breaker: refuses the calls of an upstream for a time after failed calls in a row.
//!
//! The circuit opens when several callers failed with several prompts, or when calls fail and the
//! upstream does not answer the gateway itself. The failures of a single caller or prompt do not
//! open the circuit of an upstream that answers.

mod tally;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use base::platform::Locked;
use domain::calls::fair_share::Holder;
use domain::fault::UpstreamFaultKind as Kind;
use tally::FailureTally;

/// The circuit breaker of one upstream. It reads no clock: the caller passes the time.
#[derive(Debug)]
pub struct CircuitBreaker {
    upstream: String,
    settings: config::Breaker,
    /// Whether the gateway itself probes the upstream; otherwise a call does.
    has_checks: bool,
    /// Keys of callers and prompts: no caller can choose names whose keys are equal.
    keys: RandomState,
    state: Mutex<BreakerState>,
    /// Notified when a check of the upstream is due earlier than before.
    check_is_due: Notify,
}

/// State since the upstream last answered. Closed by default.
#[derive(Debug, Default)]
struct BreakerState {
    /// Failed calls in a row.
    failures: usize,
    callers: FailureTally,
    prompts: FailureTally,
    /// Whether enough calls have failed for a check.
    is_suspect: bool,
    /// When the next probe is due; `None` while closed.
    open_until: Option<Instant>,
    /// Waits for a probe, each twice as long as the one before.
    waits: u32,
}

/// Permission to call. A permit that is dropped without an outcome, as for a cancelled call, leaves
/// the state unchanged; the next call probes in the place of a probe.
#[derive(Debug)]
#[must_use]
pub struct BreakerPermit {
    breaker: Arc<CircuitBreaker>,
    /// Keyed hash of the caller.
    caller: u64,
    /// Keyed hash of the prompt.
    prompt: u64,
    admitted_at: Instant,
    /// The end of the wait that began with the call, if the call is a probe without an outcome.
    wait_until: Option<Instant>,
}

impl CircuitBreaker {
    /// Returns a closed breaker. `has_checks` says whether the gateway itself checks the upstream
    /// ([`CircuitBreaker::check_due`]) before calls are admitted again.
    pub fn new(upstream: &str, settings: config::Breaker, has_checks: bool) -> Arc<Self> {
        Arc::new(Self {
            upstream: upstream.to_owned(),
            settings,
            has_checks,
            keys: RandomState::new(),
            state: Mutex::default(),
            check_is_due: Notify::new(),
        })
    }

    /// Admits a call. The closed circuit admits every call; the open circuit admits a probe after
    /// each wait, unless the gateway itself checks the upstream.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] while the circuit is open.
    pub fn admit(
        self: &Arc<Self>,
        holder: &Holder,
        prompt: &str,
        now: Instant,
    ) -> Result<BreakerPermit, Kind> {
        let caller = self.keys.hash_one(holder);
        let prompt = self.keys.hash_one(prompt);
        let mut state = self.state.locked();
        let open_until = state.open_until;
        if let Some(until) = open_until.filter(|until| self.has_checks || now < *until) {
            let wait = until.saturating_duration_since(now).as_millis().max(1);
            return Err(Kind::Unavailable(format!(
                "the circuit breaker is open after failed calls in a row; the next one is admitted \
                 in {wait} ms"
            )));
        }
        if open_until.is_some() {
            // The wait for the next probe begins at once, however long this probe takes.
            state.open(self.settings, now);
        }
        let wait_until = state.open_until;
        Ok(BreakerPermit { breaker: self.clone(), caller, prompt, admitted_at: now, wait_until })
    }

    /// Closes the circuit: the upstream has answered, or there is a new connection.
    pub(crate) fn close(&self) {
        let before = std::mem::take(&mut *self.state.locked());
        if before.open_until.is_some() {
            info!(upstream = self.upstream, "circuit breaker closed");
        }
    }

    /// When the circuit may close; `None` while it is closed.
    pub(crate) fn open_until(&self) -> Option<Instant> {
        self.state.locked().open_until
    }

    /// Waits until the gateway should check whether the upstream answers. Cancel safe.
    pub(crate) async fn check_due(&self) {
        loop {
            let BreakerState { is_suspect, open_until, .. } = *self.state.locked();
            tokio::select! {
                () = std::future::ready(()), if is_suspect => return,
                () = sleep_until(open_until.unwrap_or_else(Instant::now)), if open_until.is_some() => return,
                () = self.check_is_due.notified() => {}
            }
        }
    }

    /// Processes the outcome of a check. An upstream that does not answer is unavailable if calls
    /// have failed in a row; an upstream that answers is available.
    pub(crate) fn checked(&self, failure: Option<&Kind>, now: Instant) {
        let mut state = self.state.locked();
        state.is_suspect = false;
        let is_open = state.open_until.is_some();
        let answers = !failure.is_some_and(counts_as_failure);
        if answers && is_open {
            drop(state);
            self.close();
        } else if !answers && (is_open || state.failures >= self.settings.failures) {
            self.open(state, now);
        }
    }

    /// Counts the failure of a call.
    fn fail(&self, permit: &BreakerPermit, now: Instant) {
        let needed = self.settings.failures;
        let mut state = self.state.locked();
        // The wait after a probe has begun with it, and calls from before the opening are outdated.
        if state.open_until.is_some() {
            return;
        }
        state.failures += 1;
        state.is_suspect |= state.failures.is_multiple_of(needed);
        let has_callers = state.callers.add(permit.caller, needed);
        let has_prompts = state.prompts.add(permit.prompt, needed);
        if has_callers && has_prompts {
            self.open(state, now);
        }
        self.check_is_due.notify_one();
    }

    /// Opens the circuit, or keeps it open after a failed check.
    fn open(&self, mut state: MutexGuard<'_, BreakerState>, now: Instant) {
        let failures = state.failures;
        let was_closed = state.open_until.is_none();
        let next_probe_ms = state.open(self.settings, now).as_millis();
        drop(state);
        if was_closed {
            warn!(
                upstream = self.upstream,
                next_probe_ms, "circuit breaker opened after {failures} failed calls in a row"
            );
        }
    }
}

impl BreakerState {
    /// Begins a wait for the next probe, and returns its length.
    fn open(&mut self, settings: config::Breaker, now: Instant) -> Duration {
        let doubled = settings.open_min.saturating_mul(1 << self.waits.min(16));
        let wait = doubled.min(settings.open_max);
        self.open_until = Some(now + wait);
        self.waits += 1;
        self.is_suspect = false;
        wait
    }
}

impl BreakerPermit {
    /// Reports the outcome of the call.
    pub fn end(mut self, failure: Option<&Kind>, now: Instant) {
        // The upstream was not called, or did not end the call.
        if matches!(
            failure,
            Some(Kind::Busy | Kind::NoToken { .. } | Kind::SignInNeeded { .. } | Kind::AccessEnded)
        ) {
            return;
        }
        self.wait_until = None;
        match failure {
            // A call that ends the child process says nothing about the calls of others: the driver
            // restarts the child.
            Some(Kind::ChildExited(_)) => {}
            Some(kind) if counts_as_failure(kind) => self.breaker.fail(&self, now),
            _ => self.breaker.close(),
        }
    }
}

impl Drop for BreakerPermit {
    /// Lets the next call probe in the place of a probe without an outcome.
    fn drop(&mut self) {
        let Some(wait_until) = self.wait_until else { return };
        let mut state = self.breaker.state.locked();
        // Otherwise the circuit was closed or opened again meanwhile.
        if state.open_until == Some(wait_until) {
            state.open_until = Some(self.admitted_at);
            state.waits = state.waits.saturating_sub(1);
        }
    }
}

/// Returns whether a failure means that the upstream did not answer. A response counts as success,
/// even an error response, except an HTTP status of 500 or more.
fn counts_as_failure(kind: &Kind) -> bool {
    kind.is_no_answer() || matches!(kind, Kind::Status { status: 500.., .. } | Kind::Paused { .. })
}

#[cfg(test)]
mod tests;
