//! Generic cell rate algorithm (ITU-T I.371, virtual scheduling), as a pure function.

use std::num::NonZeroU32;
use std::time::Duration;

/// Nanoseconds since an epoch that the bucket store has chosen.
pub type Nanos = u64;

/// The rate of a bucket: one cell in each `interval`, and up to `burst` at once after a pause.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quota {
    pub interval: Duration,
    pub burst: NonZeroU32,
}

impl Quota {
    /// Returns the quota with `factor` times the rate and the burst.
    pub fn times(self, factor: u32) -> Self {
        let factor = NonZeroU32::new(factor).unwrap_or(NonZeroU32::MIN);
        Self { interval: self.interval / factor.get(), burst: self.burst.saturating_mul(factor) }
    }
}

/// Takes one cell at `now` from a bucket with the theoretical arrival time `arrival` (`None`: an
/// unused bucket, which is full). Returns the next theoretical arrival time.
///
/// # Errors
/// The time until the bucket has a cell, if it is empty; then no cell was taken.
pub fn take(quota: Quota, arrival: Option<Nanos>, now: Nanos) -> Result<Nanos, Duration> {
    let interval = nanos(quota.interval);
    let tolerance = interval.saturating_mul(u64::from(quota.burst.get()) - 1);
    let arrival = arrival.unwrap_or(now).max(now);
    let earliest = arrival.saturating_sub(tolerance);
    match earliest.checked_sub(now) {
        None | Some(0) => Ok(arrival.saturating_add(interval)),
        Some(wait) => Err(Duration::from_nanos(wait)),
    }
}

/// Returns a duration in nanoseconds; saturates after 584 years.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use governor::clock::{Clock, FakeRelativeClock};
    use governor::{Quota as Reference, RateLimiter};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The crate `governor` implements the same algorithm for one bucket at a time.
        #[test]
        fn every_schedule_passes_and_waits_as_in_the_reference_implementation(
            burst in 1..200_u32,
            interval in 1..5_000_u64,
            steps in prop::collection::vec(0..20_000_u64, 1..200),
        ) {
            let interval = Duration::from_millis(interval);
            let burst = NonZeroU32::new(burst).unwrap();
            let clock = FakeRelativeClock::default();
            let reference = Reference::with_period(interval).unwrap().allow_burst(burst);
            let reference = RateLimiter::direct_with_clock(reference, clock.clone());
            let quota = Quota { interval, burst };
            let mut now = 0;
            let mut arrival = None;
            for step in steps {
                clock.advance(Duration::from_millis(step));
                now += nanos(Duration::from_millis(step));
                let taken = take(quota, arrival, now);
                let expected = reference.check().map_err(|e| e.wait_time_from(clock.now()));
                prop_assert_eq!(taken.map(drop), expected.map(drop));
                arrival = taken.ok().or(arrival);
            }
        }
    }

    #[test]
    fn the_border_is_exact() {
        let quota = Quota { interval: Duration::from_secs(1), burst: NonZeroU32::MIN };
        let second = nanos(quota.interval);
        let arrival = take(quota, None, 0).unwrap();
        assert_eq!(take(quota, Some(arrival), second - 1), Err(Duration::from_nanos(1)));
        assert_eq!(take(quota, Some(arrival), second), Ok(2 * second));
    }
}
