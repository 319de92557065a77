//! Circuit breaker: refuses calls for a time after `breaker.failures` failed calls in a row, then
//! admits one probe.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use domain::fault::UpstreamFaultKind as Kind;

/// The circuit breaker of one upstream. It reads no clock: the caller passes the time.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    settings: config::Breaker,
    state: Mutex<BreakerState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BreakerState {
    /// Failed calls in a row.
    failures: usize,
    /// Openings since the breaker was last closed; the open time doubles with each.
    openings: u32,
    /// When the next probe is admitted; `None` while closed.
    open_until: Option<Instant>,
    /// Whether a probe is in flight.
    is_probing: bool,
    /// Number of the latest probe. The outcome of an earlier probe is ignored.
    probe: u64,
}

/// A change of state that is worth a log line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BreakerTransition {
    /// Closed to open.
    Opened {
        /// Consecutive failures.
        failures: usize,
        /// Time until the next probe is admitted.
        probe_in: Duration,
    },
    /// Still open: the probe failed.
    Reopened { probe_in: Duration },
    /// Open to closed.
    Closed,
}

/// Permission to call. When it is dropped without an outcome, as for a cancelled call, the state
/// stays the same, except that the next call may probe.
#[derive(Debug)]
#[must_use]
pub(crate) struct BreakerPermit {
    breaker: Arc<CircuitBreaker>,
    /// The number of the probe, if the call is a probe.
    probe: Option<u64>,
}

impl CircuitBreaker {
    /// Returns a closed breaker.
    pub(crate) fn new(settings: config::Breaker) -> Arc<Self> {
        Arc::new(Self { settings, state: Mutex::default() })
    }

    /// Admits a call: every call while closed, one probe at a time after the open time.
    ///
    /// # Errors
    /// When the breaker is open or a probe is in flight: the time at which it may admit the next
    /// probe.
    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Result<BreakerPermit, Instant> {
        let mut state = self.lock();
        let probe = match state.open_until {
            None => None,
            Some(until) if now < until || state.is_probing => return Err(until.max(now)),
            Some(_) => {
                state.is_probing = true;
                state.probe += 1;
                Some(state.probe)
            }
        };
        Ok(BreakerPermit { breaker: self.clone(), probe })
    }

    /// Closes the breaker and resets its counters: the upstream has answered. Returns
    /// [`BreakerTransition::Closed`] if it was open.
    pub(crate) fn close(&self) -> Option<BreakerTransition> {
        let mut state = self.lock();
        let before = std::mem::take(&mut *state);
        state.probe = before.probe;
        before.open_until.map(|_| BreakerTransition::Closed)
    }

    /// When the open circuit breaker admits its next probe; `None` while closed.
    pub(crate) fn open_until(&self) -> Option<Instant> {
        self.lock().open_until
    }

    fn fail(&self, probe: Option<u64>, now: Instant) -> Option<BreakerTransition> {
        let mut state = self.lock();
        // A probe that began before the breaker was closed in between is outdated.
        let is_probe = state.is_probing && probe == Some(state.probe);
        // Calls that were in flight when the breaker opened are outdated, too.
        if state.open_until.is_some() && !is_probe {
            return None;
        }
        state.failures += 1;
        if !is_probe && state.failures < self.settings.failures {
            return None;
        }
        let doubled = self.settings.open_min.saturating_mul(1 << state.openings.min(16));
        let probe_in = doubled.min(self.settings.open_max);
        state.open_until = Some(now + probe_in);
        state.openings += 1;
        state.is_probing = false;
        Some(if is_probe {
            BreakerTransition::Reopened { probe_in }
        } else {
            BreakerTransition::Opened { failures: state.failures, probe_in }
        })
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BreakerPermit {
    /// Reports an interim message, which proves that the upstream works. A probe closes the breaker
    /// at once, since the response may depend on a user's answer. Returns
    /// [`BreakerTransition::Closed`] then.
    pub(crate) fn confirm_alive(&mut self) -> Option<BreakerTransition> {
        let is_probe = {
            let state = self.breaker.lock();
            state.is_probing && self.probe == Some(state.probe)
        };
        self.probe = None;
        is_probe.then(|| self.breaker.close()).flatten()
    }

    /// Reports the outcome of the call, and returns the change of state that it causes.
    pub(crate) fn end(self, failure: Option<&Kind>, now: Instant) -> Option<BreakerTransition> {
        match failure {
            // The upstream was not called, or did not end the call.
            Some(Kind::Busy | Kind::NoToken { .. } | Kind::AccessEnded) => None,
            Some(kind) if counts_as_failure(kind) => self.breaker.fail(self.probe, now),
            _ => self.breaker.close(),
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        let mut state = self.breaker.lock();
        if self.probe == Some(state.probe) {
            state.is_probing = false;
        }
    }
}

/// Returns whether a failure means that the upstream did not answer. A response counts as success,
/// even an error response, except an HTTP status of 500 or more.
fn counts_as_failure(kind: &Kind) -> bool {
    kind.is_no_answer() || matches!(kind, Kind::Status { status: 500.. })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use domain::fault::TokenFault;

    fn breaker() -> Arc<CircuitBreaker> {
        let open_min = Duration::from_secs(1);
        let open_max = Duration::from_secs(5);
        CircuitBreaker::new(config::Breaker { failures: 3, open_min, open_max })
    }

    fn fail(breaker: &Arc<CircuitBreaker>, now: Instant) -> Option<BreakerTransition> {
        breaker.admit(now).unwrap().end(Some(&Kind::ChildExited(Arc::default())), now)
    }

    #[tokio::test]
    async fn u16_it_opens_after_failures_in_a_row_and_admits_one_probe() {
        let breaker = breaker();
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        for _ in 0..2 {
            fail(&breaker, start);
        }
        // One answer, even an error, resets the count.
        let refused = Kind::AuthFailed { status: 401 };
        breaker.admit(start).unwrap().end(Some(&refused), start);
        assert_eq!(fail(&breaker, start), None);
        assert_eq!(fail(&breaker, start), None);
        let probe_in = Duration::from_secs(1);
        let opened = BreakerTransition::Opened { failures: 3, probe_in };
        assert_eq!(fail(&breaker, start), Some(opened));
        assert_eq!(breaker.admit(after(999)).unwrap_err(), after(1000));
        let probe = breaker.admit(after(1000)).unwrap();
        assert!(breaker.admit(after(1000)).is_err(), "one at a time");
        drop(probe);
        // The probe was cancelled: the next call probes.
        let reopened = BreakerTransition::Reopened { probe_in: Duration::from_secs(2) };
        assert_eq!(fail(&breaker, after(1500)), Some(reopened));
        assert_eq!(breaker.open_until(), Some(after(3500)), "twice as long");
        fail(&breaker, after(3500));
        fail(&breaker, after(7500));
        assert_eq!(breaker.open_until(), Some(after(12_500)), "never longer than open_max");
        let closed = breaker.admit(after(12_500)).unwrap().end(None, after(12_500));
        assert_eq!(closed, Some(BreakerTransition::Closed));
        assert_eq!(breaker.open_until(), None);
        fail(&breaker, after(12_600));
        assert!(breaker.admit(after(12_600)).is_ok(), "the count starts at zero");
    }

    #[test]
    fn u16_a_call_that_is_not_sent_changes_nothing() {
        let breaker = breaker();
        let start = Instant::now();
        let no_token = Kind::NoToken { fault: TokenFault::NoSubjectToken, detail: String::new() };
        fail(&breaker, start);
        fail(&breaker, start);
        for unsent in [&no_token, &Kind::AccessEnded, &Kind::Busy] {
            assert_eq!(breaker.admit(start).unwrap().end(Some(unsent), start), None);
        }
        fail(&breaker, start);
        let until = breaker.open_until().expect("three failures in a row");
        assert_eq!(breaker.admit(until).unwrap().end(Some(&no_token), until), None);
        assert_eq!(breaker.open_until(), Some(until), "nothing was probed");
        assert!(breaker.admit(until).is_ok(), "the next call is the probe");
    }

    /// An event of a breaker with calls in flight.
    #[derive(Clone, Debug)]
    enum Step {
        Admit,
        Wait(u64),
        /// The outcome of the call at this index.
        End(usize, Option<Kind>),
        Cancel(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let outcomes = prop_oneof![
            Just(None),
            Just(Some(Kind::Timeout)),
            Just(Some(Kind::Busy)),
            Just(Some(Kind::AuthFailed { status: 401 })),
        ];
        prop_oneof![
            4 => Just(Step::Admit),
            2 => (0..3_000_u64).prop_map(Step::Wait),
            4 => (0..8_usize, outcomes).prop_map(|(at, kind)| Step::End(at, kind)),
            1 => (0..8_usize).prop_map(Step::Cancel),
        ]
    }

    proptest! {
        #[test]
        fn one_call_probes_at_a_time_and_open_times_stay_within_their_bounds(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let breaker = breaker();
            let mut now = Instant::now();
            let mut permits = Vec::<BreakerPermit>::new();
            for step in steps {
                let before = breaker.open_until();
                match step {
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                    Step::Admit => match breaker.admit(now) {
                        Ok(permit) => permits.push(permit),
                        Err(until) => prop_assert!(until >= now && before.is_some()),
                    },
                    Step::End(at, kind) if at < permits.len() => {
                        permits.swap_remove(at).end(kind.as_ref(), now);
                    }
                    Step::Cancel(at) if at < permits.len() => drop(permits.swap_remove(at)),
                    Step::End(..) | Step::Cancel(_) => {}
                }
                let probe = Some(breaker.lock().probe).filter(|probe| *probe > 0);
                let probing = permits.iter().filter(|permit| probe.is_some() && permit.probe == probe);
                prop_assert!(probing.count() <= 1);
                if let Some(until) = breaker.open_until().filter(|until| before != Some(*until)) {
                    let wait = until - now;
                    prop_assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&wait));
                }
            }
        }
    }

    #[tokio::test]
    async fn calls_in_flight_when_it_opens_extend_nothing() {
        let breaker = breaker();
        let now = Instant::now();
        let in_flight: Vec<_> = (0..10).map(|_| breaker.admit(now).unwrap()).collect();
        for permit in in_flight {
            permit.end(Some(&Kind::Timeout), now);
        }
        assert_eq!(breaker.open_until(), Some(now + Duration::from_secs(1)));
        breaker.close();
        assert!(breaker.admit(now).is_ok(), "a new connection has closed it");
        // A probe that receives an interim message closes the breaker.
        for _ in 0..3 {
            fail(&breaker, now);
        }
        let later = now + Duration::from_secs(1);
        let mut probe = breaker.admit(later).unwrap();
        assert!(breaker.admit(later).is_err());
        probe.confirm_alive();
        assert!(breaker.admit(later).is_ok());
    }
}
