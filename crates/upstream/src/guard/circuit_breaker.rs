//! Circuit breaker: refuses calls for a time after failed calls in a row, as narrowly as the
//! failures allow.
//!
//! Failures of one caller with one prompt are held against calls of that prompt by that caller,
//! failures of several callers with one prompt against that prompt. All calls are refused only when
//! several callers failed with several prompts, or calls fail and the upstream does not answer the
//! gateway itself.

mod failure_row;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use failure_row::FailureRow;

use domain::fair_share::Holder;
use domain::fault::UpstreamFaultKind as Kind;

/// The circuit breaker of one upstream. It reads no clock: the caller passes the time.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    settings: config::Breaker,
    /// Whether the gateway itself probes the upstream; otherwise a call does.
    has_checks: bool,
    /// Keys of callers and prompts: no caller can choose names whose keys are equal.
    keys: RandomState,
    state: Mutex<BreakerState>,
    /// Notified when the next check of the upstream becomes due earlier.
    check_is_due: Notify,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// The circuit of all calls.
    shared: Circuit,
    /// The consecutive failures of all calls.
    row: FailureRow,
    /// Circuits of one prompt, or of one prompt and one caller, after consecutive failures.
    narrow: HashMap<BreakerScope, NarrowCircuit>,
    /// Whether a narrow circuit has opened since the last check.
    is_suspect: bool,
    /// Whether a check has failed since the breaker opened for all.
    has_failed_check: bool,
    /// Number of the latest probe.
    probe: u64,
}

/// One circuit of a breaker, closed by default: decides when to refuse calls.
#[derive(Debug, Default)]
struct Circuit {
    /// Openings since the circuit was last closed; the open time doubles with each opening.
    openings: u32,
    /// When the next probe is admitted; `None` while closed.
    open_until: Option<Instant>,
    /// The number of the probe in flight.
    probe: Option<u64>,
}

/// The calls that one circuit refuses together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum BreakerScope {
    All,
    Prompt(u64),
    /// Calls of one prompt by one caller.
    Call(CallKey),
}

#[derive(Debug, Default)]
struct NarrowCircuit {
    circuit: Circuit,
    /// The failures of a prompt.
    row: FailureRow,
}

/// The caller and the prompt of a call, as keyed hashes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct CallKey {
    caller: u64,
    prompt: u64,
}

/// Most narrow circuits of one upstream; beyond it, the caller with most of them loses circuits.
const MAX_NARROW: usize = 4_096;

/// A change of state that is worth a log line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BreakerTransition {
    /// Closed to open.
    Opened {
        scope: BreakerScope,
        /// Consecutive failures.
        failures: usize,
        /// Time until the next probe.
        probe_in: Duration,
    },
    /// Still open: the probe failed.
    Reopened { scope: BreakerScope, probe_in: Duration },
    /// Open to closed.
    Closed { scope: BreakerScope },
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BreakerRefusal {
    pub scope: BreakerScope,
    /// When the next call may be admitted.
    pub until: Instant,
}

/// Permission to call. Dropped without an outcome, as for a cancelled call, the permit leaves the
/// state unchanged, except that the next call may probe.
#[derive(Debug)]
#[must_use]
pub struct BreakerPermit {
    breaker: Arc<CircuitBreaker>,
    key: CallKey,
    /// The number of the probe, if the call is a probe.
    probe: Option<u64>,
}

impl CircuitBreaker {
    /// Returns a closed breaker. `has_checks` says whether the gateway itself checks the upstream
    /// ([`CircuitBreaker::check_due`]) before calls of all callers are admitted again.
    pub(crate) fn new(settings: config::Breaker, has_checks: bool) -> Arc<Self> {
        Arc::new(Self {
            settings,
            has_checks,
            keys: RandomState::new(),
            state: Mutex::default(),
            check_is_due: Notify::new(),
        })
    }

    /// Admits a call: every call while closed, one probe at a time after the open time.
    pub(crate) fn admit(
        self: &Arc<Self>,
        holder: &Holder,
        prompt: &str,
        now: Instant,
    ) -> Result<BreakerPermit, BreakerRefusal> {
        let key =
            CallKey { caller: self.keys.hash_one(holder), prompt: self.keys.hash_one(prompt) };
        let mut state = self.lock();
        if self.has_checks
            && let Some(until) = state.shared.open_until
        {
            return Err(BreakerRefusal { scope: BreakerScope::All, until: until.max(now) });
        }
        let probe = state.admit(key, now)?;
        Ok(BreakerPermit { breaker: self.clone(), key, probe })
    }

    /// Closes the breaker for all and forgets consecutive failures, because a new connection is
    /// open. The circuits of single prompts and callers stay.
    pub(crate) fn close(&self) -> Option<BreakerTransition> {
        self.lock().close()
    }

    /// Closes all circuits, because the upstream has come back after an outage.
    pub(crate) fn reset(&self) -> Option<BreakerTransition> {
        let mut state = self.lock();
        state.narrow.clear();
        state.close()
    }

    /// When the breaker that is open for all may close; `None` while it is closed.
    pub(crate) fn open_until(&self) -> Option<Instant> {
        self.lock().shared.open_until
    }

    /// Whether the breaker refuses calls of some prompt or caller.
    pub(crate) fn is_partly_open(&self) -> bool {
        self.lock().narrow.values().any(|narrow| narrow.circuit.open_until.is_some())
    }

    /// Waits until the gateway should check whether the upstream answers. Cancel safe.
    pub(crate) async fn check_due(&self) {
        loop {
            let (is_suspect, open_until) = {
                let state = self.lock();
                (state.is_suspect, state.shared.open_until)
            };
            tokio::select! {
                () = std::future::ready(()), if is_suspect => return,
                () = sleep_until(open_until.unwrap_or_else(Instant::now)), if open_until.is_some() => return,
                () = self.check_is_due.notified() => {}
            }
        }
    }

    /// Processes the outcome of a check. An upstream that does not answer is unavailable for all if
    /// calls have failed in a row; an upstream that answers is available.
    pub(crate) fn checked(
        &self,
        failure: Option<&Kind>,
        now: Instant,
    ) -> Option<BreakerTransition> {
        let answers = !failure.is_some_and(counts_as_failure);
        let mut state = self.lock();
        state.is_suspect = false;
        let scope = BreakerScope::All;
        let is_open = state.shared.open_until.is_some();
        if answers {
            // All recent failures happened because the upstream was gone.
            if is_open && state.has_failed_check {
                state.narrow.clear();
            }
            return is_open.then(|| state.close()).flatten();
        }
        let failures = state.row.total;
        if !is_open && failures < self.settings.failures {
            return None;
        }
        state.has_failed_check = true;
        let probe_in = state.shared.open(self.settings, now);
        Some(if is_open {
            BreakerTransition::Reopened { scope, probe_in }
        } else {
            BreakerTransition::Opened { scope, failures, probe_in }
        })
    }

    fn fail(&self, permit: &BreakerPermit, kind: &Kind, now: Instant) -> Option<BreakerTransition> {
        let transition = self.lock().fail(self.settings, permit, kind, now);
        if transition.is_some() {
            self.check_is_due.notify_one();
        }
        transition
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BreakerState {
    fn admit(&mut self, key: CallKey, now: Instant) -> Result<Option<u64>, BreakerRefusal> {
        if self.shared.open_until.is_none() && self.narrow.is_empty() {
            return Ok(None);
        }
        let mut is_probe = false;
        for scope in key.scopes() {
            let Some(circuit) = self.circuit(scope) else { continue };
            if let Some(until) = circuit.refuses(now) {
                return Err(BreakerRefusal { scope, until });
            }
            is_probe |= circuit.open_until.is_some();
        }
        if !is_probe {
            return Ok(None);
        }
        self.probe += 1;
        let probe = Some(self.probe);
        for scope in key.scopes() {
            if let Some(circuit) = self.circuit(scope).filter(|c| c.open_until.is_some()) {
                circuit.probe = probe;
            }
        }
        Ok(probe)
    }

    fn circuit(&mut self, scope: BreakerScope) -> Option<&mut Circuit> {
        match scope {
            BreakerScope::All => Some(&mut self.shared),
            narrow => self.narrow.get_mut(&narrow).map(|narrow| &mut narrow.circuit),
        }
    }

    fn close(&mut self) -> Option<BreakerTransition> {
        (self.row, self.has_failed_check) = Default::default();
        let before = std::mem::take(&mut self.shared);
        before.open_until.map(|_| BreakerTransition::Closed { scope: BreakerScope::All })
    }

    /// Notes a call that the upstream has answered.
    fn succeed(&mut self, key: CallKey) -> Option<BreakerTransition> {
        let mut transition = self.close();
        if !self.narrow.is_empty() {
            for scope in key.scopes() {
                let before = self.narrow.remove(&scope);
                let was_open = before.is_some_and(|before| before.circuit.open_until.is_some());
                transition = transition.or(was_open.then_some(BreakerTransition::Closed { scope }));
            }
        }
        transition
    }

    /// Notes a call without an answer. Returns the change of the widest scope.
    fn fail(
        &mut self,
        settings: config::Breaker,
        permit: &BreakerPermit,
        kind: &Kind,
        now: Instant,
    ) -> Option<BreakerTransition> {
        let key = permit.key;
        let most = settings.failures;
        let is_probe = permit.probe.is_some() && self.shared.probe == permit.probe;
        // Calls that were in flight when the breaker opened for all are outdated.
        if self.shared.open_until.is_some() && !is_probe {
            return None;
        }
        let call = self
            .fail_narrow(settings, BreakerScope::Call(key), permit, now, |row| row.total >= most);
        // The end of a child process shows who may have caused it, but not that other calls would
        // fail: the driver restarts the child.
        if matches!(kind, Kind::ChildExited(_)) {
            return call;
        }
        let prompt = BreakerScope::Prompt(key.prompt);
        let prompt =
            self.fail_narrow(settings, prompt, permit, now, |row| row.is_of_several_callers(most));
        self.row.push(key);
        let scope = BreakerScope::All;
        let all = if is_probe {
            let probe_in = self.shared.open(settings, now);
            Some(BreakerTransition::Reopened { scope, probe_in })
        } else if self.row.has_several_prompts && self.row.is_of_several_callers(most) {
            let probe_in = self.shared.open(settings, now);
            Some(BreakerTransition::Opened { scope, failures: self.row.total, probe_in })
        } else {
            None
        };
        all.or(prompt).or(call)
    }

    fn fail_narrow(
        &mut self,
        settings: config::Breaker,
        scope: BreakerScope,
        permit: &BreakerPermit,
        now: Instant,
        is_enough: impl FnOnce(&FailureRow) -> bool,
    ) -> Option<BreakerTransition> {
        if self.narrow.len() >= MAX_NARROW && !self.narrow.contains_key(&scope) {
            self.forget_most();
        }
        let NarrowCircuit { circuit, row } = self.narrow.entry(scope).or_default();
        let is_probe = permit.probe.is_some() && circuit.probe == permit.probe;
        if circuit.open_until.is_some() && !is_probe {
            return None;
        }
        row.push(permit.key);
        if !is_probe && !is_enough(row) {
            return None;
        }
        let probe_in = circuit.open(settings, now);
        self.is_suspect = true;
        Some(if is_probe {
            BreakerTransition::Reopened { scope, probe_in }
        } else {
            BreakerTransition::Opened { scope, failures: row.total, probe_in }
        })
    }

    /// Forgets the circuits that the caller with most circuits has met alone, so that no caller
    /// takes the places of other callers; all circuits, if several callers have met each circuit.
    fn forget_most(&mut self) {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for caller in self.narrow.values().filter_map(|narrow| narrow.row.only_caller()) {
            *counts.entry(caller).or_default() += 1;
        }
        match counts.into_iter().max_by_key(|(_, count)| *count) {
            Some((most, _)) => {
                self.narrow.retain(|_, narrow| narrow.row.only_caller() != Some(most));
            }
            None => self.narrow.clear(),
        }
    }
}

impl Circuit {
    /// Returns the time of the next probe if the circuit refuses a call now. After its open time,
    /// an open circuit admits one probe.
    fn refuses(&self, now: Instant) -> Option<Instant> {
        let until = self.open_until?;
        (now < until || self.probe.is_some()).then(|| until.max(now))
    }

    /// Opens the circuit, also again after a failed probe. Returns the time until the next probe.
    fn open(&mut self, settings: config::Breaker, now: Instant) -> Duration {
        let doubled = settings.open_min.saturating_mul(1 << self.openings.min(16));
        let probe_in = doubled.min(settings.open_max);
        self.open_until = Some(now + probe_in);
        self.openings += 1;
        self.probe = None;
        probe_in
    }
}

impl BreakerScope {
    fn as_str(self) -> &'static str {
        match self {
            Self::All => "all calls",
            Self::Prompt(_) => "one prompt",
            Self::Call(_) => "one prompt of one caller",
        }
    }
}

impl CallKey {
    /// The circuits that can refuse the call, the widest first.
    fn scopes(self) -> [BreakerScope; 3] {
        [BreakerScope::All, BreakerScope::Prompt(self.prompt), BreakerScope::Call(self)]
    }
}

impl BreakerPermit {
    /// Reports an interim message, which proves that the upstream works. A probe closes the breaker
    /// at once, since the response may depend on a user's answer.
    pub(crate) fn confirm_alive(&mut self) -> Option<BreakerTransition> {
        let probe = self.probe.take()?;
        let mut state = self.breaker.lock();
        let is_current =
            self.key.scopes().into_iter().any(|scope| {
                state.circuit(scope).is_some_and(|circuit| circuit.probe == Some(probe))
            });
        is_current.then(|| state.succeed(self.key)).flatten()
    }

    /// Reports the outcome of the call, and returns the change of state that it causes.
    pub(crate) fn end(self, failure: Option<&Kind>, now: Instant) -> Option<BreakerTransition> {
        match failure {
            // The upstream was not called, or did not end the call.
            Some(Kind::Busy | Kind::NoToken { .. } | Kind::AccessEnded) => None,
            Some(kind) if counts_as_failure(kind) => self.breaker.fail(&self, kind, now),
            _ => self.breaker.lock().succeed(self.key),
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        let Some(probe) = self.probe else { return };
        let mut state = self.breaker.lock();
        for scope in self.key.scopes() {
            if let Some(circuit) = state.circuit(scope).filter(|c| c.probe == Some(probe)) {
                circuit.probe = None;
            }
        }
    }
}

impl BreakerRefusal {
    /// The fault of the refused call.
    pub(crate) fn fault(self, now: Instant) -> Kind {
        let calls = match self.scope {
            BreakerScope::All => "the circuit breaker is open after failed calls in a row",
            BreakerScope::Prompt(_) => "calls of this prompt have failed in a row",
            BreakerScope::Call(_) => "the caller's calls of this prompt have failed in a row",
        };
        let wait = self.until.saturating_duration_since(now).as_millis().max(1);
        Kind::Unavailable(format!("{calls}; the next one is admitted in {wait} ms"))
    }
}

/// Logs a change of state, if there is a change.
pub(crate) fn log_transition(upstream: &str, transition: Option<BreakerTransition>) {
    match transition {
        Some(BreakerTransition::Opened { scope, failures, probe_in }) => {
            let scope = scope.as_str();
            let next_probe_ms = probe_in.as_millis();
            warn!(
                upstream,
                next_probe_ms,
                "circuit breaker opened for {scope} after {failures} failed calls in a row"
            );
        }
        Some(BreakerTransition::Reopened { scope, probe_in }) => {
            let scope = scope.as_str();
            let next_probe_ms = probe_in.as_millis();
            debug!(
                upstream,
                next_probe_ms, "circuit breaker stays open for {scope}: the probe failed"
            );
        }
        Some(BreakerTransition::Closed { scope }) => {
            info!(upstream, "circuit breaker closed for {}", scope.as_str());
        }
        None => {}
    }
}

/// Returns whether a failure means that the upstream did not answer. A response counts as success,
/// even an error response, except an HTTP status of 500 or more.
fn counts_as_failure(kind: &Kind) -> bool {
    kind.is_no_answer() || matches!(kind, Kind::Status { status: 500.., .. } | Kind::Paused { .. })
}

#[cfg(test)]
mod tests;
