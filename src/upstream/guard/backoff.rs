//! How long to wait before an upstream is tried again.

use std::time::Duration;

/// Exponential backoff with full jitter on the upper half: 50 to 100 ms at first, doubling, never
/// more than a minute. The jitter keeps many gateways from knocking at the same moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

impl Backoff {
    /// The next wait; `dice` is uniform in 0..1.
    pub(crate) fn next(&mut self, dice: f64) -> Duration {
        let ceiling = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        ceiling.mul_f64(0.5 + 0.5 * dice)
    }

    /// The upstream has answered well.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `period` made up to a tenth shorter, so that periodic work spreads out.
pub(crate) fn jittered(period: Duration, dice: f64) -> Duration {
    period.mul_f64(1.0 - 0.1 * dice)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_stay_within_half_and_whole_of_their_ceiling(
            dice in prop::collection::vec(0.0..1.0_f64, 1..80),
        ) {
            let mut backoff = Backoff::default();
            let mut ceiling = FIRST;
            for dice in dice {
                let wait = backoff.next(dice);
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
