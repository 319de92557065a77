//! Whether an upstream is asked at all: after a row of failures it is left alone for a while, then
//! one call tries.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::config;
use crate::domain::fault::UpstreamFaultKind as Kind;

/// Counts failures in a row. Pure: the clock is handed in.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: config::Breaker,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Failures in a row, while it is closed.
    failures: usize,
    /// How often it was opened in a row.
    opened: u32,
    /// Until when nobody is let through; from then on one is.
    until: Option<Instant>,
    is_trying: bool,
    /// Number of the last call that was to try: what an earlier one finds counts no more.
    trial: u64,
}

/// What has become of an upstream's standing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Transition {
    /// It is left alone from now on.
    Opened,
    /// It is asked again.
    Closed,
}

/// Leave to ask. Dropped without a word, as when a call is cancelled, it tells nothing.
#[derive(Debug)]
pub(crate) struct BreakerPermit {
    breaker: Arc<Breaker>,
    /// Its number, if it is to try.
    tries: Option<u64>,
}

impl Breaker {
    pub(crate) fn new(settings: config::Breaker) -> Arc<Self> {
        Arc::new(Self { settings, state: Mutex::default() })
    }

    /// Leave to ask, unless the upstream is being left alone.
    ///
    /// # Errors
    /// When it is tried again.
    pub(crate) fn admit(self: &Arc<Self>, now: Instant) -> Result<BreakerPermit, Instant> {
        let mut state = self.lock();
        let tries = match state.until {
            None => None,
            Some(until) if now < until || state.is_trying => return Err(until.max(now)),
            Some(_) => {
                state.is_trying = true;
                state.trial += 1;
                Some(state.trial)
            }
        };
        Ok(BreakerPermit { breaker: self.clone(), tries })
    }

    /// The upstream answers: whatever was before counts no more. Whether it was being left alone.
    pub(crate) fn close(&self) -> Option<Transition> {
        let mut state = self.lock();
        let before = std::mem::take(&mut *state);
        state.trial = before.trial;
        before.until.map(|_| Transition::Closed)
    }

    /// When it is tried again, if it is being left alone.
    pub(crate) fn open_until(&self) -> Option<Instant> {
        self.lock().until
    }

    fn fail(&self, tried: Option<u64>, now: Instant) -> Option<Transition> {
        let mut state = self.lock();
        // One that tried on a connection that was left since tells nothing of the new one.
        let tried = state.is_trying && tried == Some(state.trial);
        // What was under way before it opened tells nothing new.
        if state.until.is_some() && !tried {
            return None;
        }
        state.failures += 1;
        if tried || state.failures >= self.settings.failures {
            let doubled = self.settings.open_min.saturating_mul(1 << state.opened.min(16));
            state.until = Some(now + doubled.min(self.settings.open_max));
            state.opened += 1;
            state.is_trying = false;
        }
        (state.opened == 1 && state.until.is_some() && !tried).then_some(Transition::Opened)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BreakerPermit {
    /// The upstream says something before its answer: it is well enough, and nobody else needs to
    /// wait for the end, which may be a user's to bring.
    pub(crate) fn heard(&mut self) -> Option<Transition> {
        let is_trial = {
            let state = self.breaker.lock();
            state.is_trying && self.tries == Some(state.trial)
        };
        self.tries = None;
        is_trial.then(|| self.breaker.close()).flatten()
    }

    /// How the call has ended; what that changes.
    pub(crate) fn end(self, failure: Option<&Kind>, now: Instant) -> Option<Transition> {
        match failure {
            // It was not asked.
            Some(Kind::Busy) => None,
            Some(kind) if speaks_against(kind) => self.breaker.fail(self.tries, now),
            _ => self.breaker.close(),
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        let mut state = self.breaker.lock();
        if self.tries == Some(state.trial) {
            state.is_trying = false;
        }
    }
}

/// Whether a failure tells that the upstream is not well; one that answers, be it with an error, is.
fn speaks_against(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Unavailable(_) | Kind::Reset | Kind::Timeout | Kind::Status { status: 500.. }
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn breaker() -> Arc<Breaker> {
        let (open_min, open_max) = (Duration::from_secs(1), Duration::from_secs(5));
        Breaker::new(config::Breaker { failures: 3, open_min, open_max })
    }

    fn fail(breaker: &Arc<Breaker>, now: Instant) {
        breaker.admit(now).unwrap().end(Some(&Kind::Reset), now);
    }

    #[tokio::test]
    async fn u16_it_opens_after_a_row_of_failures_and_lets_one_call_try() {
        let (breaker, start) = (breaker(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        for _ in 0..2 {
            fail(&breaker, start);
        }
        // One good answer, even an error of its own, and the row is broken.
        let refused = Kind::AuthFailed { status: 401 };
        breaker.admit(start).unwrap().end(Some(&refused), start);
        for _ in 0..3 {
            fail(&breaker, start);
        }
        assert_eq!(breaker.admit(after(999)).unwrap_err(), after(1000));
        let tries = breaker.admit(after(1000)).unwrap();
        assert!(breaker.admit(after(1000)).is_err(), "one at a time");
        drop(tries);
        // The one that tried was given up: the next one tries.
        fail(&breaker, after(1500));
        assert_eq!(breaker.open_until(), Some(after(3500)), "twice as long");
        fail(&breaker, after(3500));
        fail(&breaker, after(7500));
        assert_eq!(breaker.open_until(), Some(after(12_500)), "never longer than open_max");
        breaker.admit(after(12_500)).unwrap().end(None, after(12_500));
        assert_eq!(breaker.open_until(), None);
        fail(&breaker, after(12_600));
        assert!(breaker.admit(after(12_600)).is_ok(), "it counts anew");
    }

    /// What may happen next to a breaker with calls under way.
    #[derive(Clone, Debug)]
    enum Next {
        RpcRequest,
        Wait(u64),
        /// How the call at this place ends, of those under way.
        Ends(usize, Option<Kind>),
        Left(usize),
    }

    fn next() -> impl Strategy<Value = Next> {
        let ends = prop_oneof![
            Just(None),
            Just(Some(Kind::Timeout)),
            Just(Some(Kind::Busy)),
            Just(Some(Kind::AuthFailed { status: 401 })),
        ];
        prop_oneof![
            4 => Just(Next::RpcRequest),
            2 => (0..3_000_u64).prop_map(Next::Wait),
            4 => (0..8_usize, ends).prop_map(|(at, kind)| Next::Ends(at, kind)),
            1 => (0..8_usize).prop_map(Next::Left),
        ]
    }

    proptest! {
        #[test]
        fn one_call_tries_at_a_time_and_waits_stay_within_their_bounds(
            steps in prop::collection::vec(next(), 1..200),
        ) {
            let (breaker, mut now, mut leaves) = (breaker(), Instant::now(), Vec::<BreakerPermit>::new());
            for step in steps {
                let before = breaker.open_until();
                match step {
                    Next::Wait(ms) => now += Duration::from_millis(ms),
                    Next::RpcRequest => match breaker.admit(now) {
                        Ok(permit) => leaves.push(permit),
                        Err(until) => prop_assert!(until >= now && before.is_some()),
                    },
                    Next::Ends(at, kind) if at < leaves.len() => {
                        leaves.swap_remove(at).end(kind.as_ref(), now);
                    }
                    Next::Left(at) if at < leaves.len() => drop(leaves.swap_remove(at)),
                    Next::Ends(..) | Next::Left(_) => {}
                }
                let trial = Some(breaker.lock().trial).filter(|trial| *trial > 0);
                let trying = leaves.iter().filter(|permit| trial.is_some() && permit.tries == trial);
                prop_assert!(trying.count() <= 1);
                if let Some(until) = breaker.open_until().filter(|until| before != Some(*until)) {
                    let wait = until - now;
                    prop_assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&wait));
                }
            }
        }
    }

    #[tokio::test]
    async fn what_was_under_way_when_it_opened_opens_it_no_longer() {
        let (breaker, now) = (breaker(), Instant::now());
        let under_way: Vec<_> = (0..10).map(|_| breaker.admit(now).unwrap()).collect();
        for permit in under_way {
            permit.end(Some(&Kind::Timeout), now);
        }
        assert_eq!(breaker.open_until(), Some(now + Duration::from_secs(1)));
        breaker.close();
        assert!(breaker.admit(now).is_ok(), "its driver has found it well");
        // One that tries and is asked something in between lets the others in.
        for _ in 0..3 {
            fail(&breaker, now);
        }
        let later = now + Duration::from_secs(1);
        let mut tries = breaker.admit(later).unwrap();
        assert!(breaker.admit(later).is_err());
        tries.heard();
        assert!(breaker.admit(later).is_ok());
    }
}
