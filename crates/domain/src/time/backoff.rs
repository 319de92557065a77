//! Backoff between attempts to connect to a peer.

use std::time::Duration;

/// Exponential backoff with jitter in the upper half: 50 to 100 ms at first, doubling up to a
/// longest wait. The jitter prevents many gateways from retrying at the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    failures: u32,
    longest: Duration,
}

/// Longest first wait.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait by default: a peer that works again is found within a minute.
const LONGEST: Duration = Duration::from_secs(60);

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(LONGEST)
    }
}

impl Backoff {
    /// Returns a backoff whose waits are at most `longest`.
    pub fn up_to(longest: Duration) -> Self {
        Self { failures: 0, longest }
    }

    /// Returns the wait before the next attempt. `random` is uniform in 0..1.
    pub fn next(&mut self, random: f64) -> Duration {
        let ceiling = FIRST.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.failures += 1;
        ceiling.mul_f64(0.5 + 0.5 * random)
    }

    /// Resets the backoff to the shortest wait, after the peer has answered.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Returns `period` shortened by up to a tenth, so that periodic work of many gateways spreads out.
/// `random` is uniform in 0..1.
pub fn jittered(period: Duration, random: f64) -> Duration {
    period.mul_f64(1.0 - 0.1 * random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_stay_within_half_and_whole_of_their_ceiling(
            randoms in prop::collection::vec(0.0..1.0_f64, 1..80),
        ) {
            let mut backoff = Backoff::default();
            let mut ceiling = FIRST;
            for random in randoms {
                let wait = backoff.next(random);
                prop_assert!(wait >= ceiling / 2 && wait <= ceiling, "{wait:?} of {ceiling:?}");
                ceiling = (ceiling * 2).min(LONGEST);
            }
        }
    }

    #[test]
    fn waits_double_up_to_a_minute_and_start_over() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(0.0), Duration::from_millis(50));
        assert_eq!(backoff.next(1.0), Duration::from_millis(200));
        assert_eq!(backoff.next(0.5), Duration::from_millis(300));
        for _ in 0..100 {
            let wait = backoff.next(1.0);
            assert!(wait <= LONGEST);
        }
        assert_eq!(backoff.next(1.0), LONGEST);
        assert_eq!(backoff.next(0.0), LONGEST / 2);
        backoff.reset();
        assert_eq!(backoff.next(1.0), FIRST);
    }
}
