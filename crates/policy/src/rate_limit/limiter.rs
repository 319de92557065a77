//! Rate limits of one bucket at a time: the crate `governor`, on a bounded number of keys and on
//! tokio's clock, which tests pause. A request that counts in several buckets, in all or in none,
//! takes from [`super::buckets`].

use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use governor::RateLimiter;
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use lru::LruCache;
use tokio::time::Instant;

use super::gcra::{self, Quota};

/// A bucket for each key, with the same quota. Bounded: the bucket that was looked at least
/// recently is dropped first, so that it is full again.
pub struct Limiter<K: Clone + Eq + Hash>(
    RateLimiter<(K, Draw), Arrivals<K>, TokioClock, NoOpMiddleware<Nanos>>,
);

/// The effect of a look at a bucket.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Draw {
    Take,
    Nothing,
}

impl<K: Clone + Eq + Hash> Limiter<K> {
    /// Returns full buckets, of which at most `keys` are kept.
    pub fn new(quota: Quota, keys: usize) -> Self {
        let interval = quota.interval.max(Duration::from_nanos(1));
        let quota = governor::Quota::with_period(interval)
            .expect("the interval is not zero")
            .allow_burst(quota.burst);
        let clock = TokioClock { epoch: Instant::now() };
        Self(RateLimiter::new(quota, Arrivals::new(keys), clock))
    }

    /// Takes one cell.
    ///
    /// # Errors
    /// The time until the bucket has a cell, if it is empty; then no cell was taken.
    pub fn take(&self, key: K) -> Result<(), Duration> {
        self.draw(key, Draw::Take)
    }

    /// Looks whether there is a cell, and takes none.
    ///
    /// # Errors
    /// The time until the bucket has a cell, if it is empty.
    pub fn look(&self, key: K) -> Result<(), Duration> {
        self.draw(key, Draw::Nothing)
    }

    fn draw(&self, key: K, draw: Draw) -> Result<(), Duration> {
        let drawn = self.0.check_key(&(key, draw));
        drawn.map_err(|until| until.wait_time_from(self.0.clock().now()))
    }
}

/// The theoretical arrival time of each bucket.
struct Arrivals<K> {
    arrivals: Mutex<LruCache<K, Nanos>>,
    /// Most buckets.
    capacity: usize,
}

impl<K: Clone + Eq + Hash> Arrivals<K> {
    fn new(capacity: usize) -> Self {
        // Unbounded, so that memory is allocated only for buckets that are used.
        Self { arrivals: Mutex::new(LruCache::unbounded()), capacity: capacity.max(1) }
    }
}

impl<K: Clone + Eq + Hash> StateStore for Arrivals<K> {
    type Key = (K, Draw);

    fn measure_and_replace<T, F, E>(&self, (key, draw): &(K, Draw), measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        // The lookup makes a bucket recently used, so the bucket of a refused key is kept.
        let (measured, next) = measure(arrivals.get(key).copied())?;
        if *draw == Draw::Take {
            arrivals.put(key.clone(), next);
            if arrivals.len() > self.capacity {
                arrivals.pop_lru();
            }
        }
        Ok(measured)
    }
}

/// tokio's clock.
struct TokioClock {
    /// Time 0 of [`Nanos`].
    epoch: Instant,
}

impl Clock for TokioClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        gcra::nanos(self.epoch.elapsed()).into()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;
    use crate::rate_limit::gcra::nanos;

    fn quota(interval: u64, burst: u32) -> Quota {
        let burst = NonZeroU32::new(burst).unwrap();
        Quota { interval: Duration::from_millis(interval), burst }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_tells_what_a_take_would_and_takes_nothing() {
        let limiter = Limiter::new(quota(1000, 2), 10);
        for _ in 0..2 {
            (0..5).for_each(|_| assert_eq!(limiter.look("a"), Ok(())));
            assert_eq!(limiter.take("a"), Ok(()));
        }
        let wait = Err(Duration::from_secs(1));
        assert_eq!((limiter.look("a"), limiter.take("a")), (wait, wait));
        advance(Duration::from_millis(999)).await;
        assert_eq!(limiter.look("a"), Err(Duration::from_millis(1)));
        assert_eq!(limiter.look("b"), Ok(()), "other keys are not limited");
        advance(Duration::from_millis(1)).await;
        assert_eq!((limiter.look("a"), limiter.take("a")), (Ok(()), Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_bounded_and_one_in_use_is_kept() {
        let limiter = Limiter::new(quota(3_600_000, 1), 8);
        assert_eq!(limiter.take(0), Ok(()));
        for other in 1..1000 {
            assert_eq!(limiter.take(other), Ok(()));
            assert!(limiter.take(0).is_err(), "forgotten after {other}");
        }
        let rest = limiter.0.into_state_store();
        assert_eq!(rest.arrivals.lock().unwrap().len(), 8);
    }

    proptest! {
        /// Limits of one bucket and limits of several must not differ for clients.
        #[test]
        fn every_schedule_passes_and_waits_as_in_a_bucket_of_our_own(
            burst in 1..200_u32,
            interval in 1..5_000_u64,
            steps in prop::collection::vec(0..20_000_u64, 1..200),
        ) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let quota = quota(interval, burst);
                let limiter = Limiter::new(quota, 1);
                let start = Instant::now();
                let mut arrival = None;
                for step in steps {
                    advance(Duration::from_millis(step)).await;
                    let expected = gcra::take(quota, arrival, nanos(start.elapsed()));
                    prop_assert_eq!(limiter.take(()), expected.map(drop));
                    arrival = expected.ok().or(arrival);
                }
                Ok(())
            })?;
        }
    }
}
