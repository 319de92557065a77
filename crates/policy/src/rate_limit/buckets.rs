//! The rate-limit buckets of this process: a request takes a cell from several buckets in one step.

use std::time::Duration;

use tokio::time::Instant;

use super::bucket::{Bucket, Exhausted};
use super::gcra::{self, Nanos};
use super::sharded::Sharded;

/// The buckets of this process. Bounded: the least recently used bucket is dropped first, so that
/// it is full again.
pub(crate) struct LocalBuckets {
    /// The theoretical arrival time of each bucket.
    arrivals: Sharded<Nanos>,
    /// Time 0 of [`Nanos`].
    epoch: Instant,
}

/// Most buckets of all limits together: more than there are callers, prompts and addresses within
/// the time in which a bucket fills. About 150 bytes each, allocated at the first use.
pub(super) const BUCKETS: usize = 1 << 18;

impl Default for LocalBuckets {
    fn default() -> Self {
        Self::with_capacity(BUCKETS)
    }
}

impl LocalBuckets {
    fn with_capacity(buckets: usize) -> Self {
        Self { arrivals: Sharded::with_capacity(buckets), epoch: Instant::now() }
    }

    /// Takes one cell from each bucket in one step, or from no bucket.
    pub(crate) fn take(&self, buckets: &[Bucket]) -> Result<(), Exhausted> {
        self.take_at(buckets, gcra::nanos(self.epoch.elapsed()))
    }

    fn take_at(&self, buckets: &[Bucket], now: Nanos) -> Result<(), Exhausted> {
        let mut locked = self.arrivals.lock(buckets);
        let mut arrivals = Vec::with_capacity(buckets.len());
        let mut exhausted: Option<Exhausted> = None;
        for (index, bucket) in buckets.iter().enumerate() {
            // The lookup makes a bucket recently used, so the bucket of a refused caller is kept.
            let arrival = locked.get(index).copied();
            match gcra::take(bucket.quota, arrival, now) {
                Ok(next) => arrivals.push(next),
                Err(retry_after) => {
                    let longest = exhausted.map_or(Duration::ZERO, |longest| longest.retry_after);
                    if retry_after > longest {
                        exhausted = Some(Exhausted { index, retry_after });
                    }
                }
            }
        }
        if let Some(exhausted) = exhausted {
            return Err(exhausted);
        }
        for (index, arrival) in arrivals.into_iter().enumerate() {
            locked.put(index, arrival);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::rate_limit::gcra::Quota;
    use crate::rate_limit::sharded::SHARDS;

    fn bucket(key: &str, burst: u32) -> Bucket {
        let burst = NonZeroU32::new(burst).unwrap();
        Bucket { key: key.to_owned(), quota: Quota { interval: Duration::from_secs(3600), burst } }
    }

    #[test]
    fn an_empty_bucket_leaves_the_others_as_they_were() {
        let store = LocalBuckets::default();
        let full = bucket("full", 2);
        let empty = bucket("empty", 1);
        assert_eq!(store.take(std::slice::from_ref(&empty)), Ok(()));
        for _ in 0..10 {
            let refused = store.take(&[full.clone(), empty.clone()]).unwrap_err();
            assert_eq!(refused.index, 1);
        }
        assert_eq!(store.take(std::slice::from_ref(&full)), Ok(()));
        assert_eq!(store.take(std::slice::from_ref(&full)), Ok(()));
        assert!(store.take(&[full]).is_err());
    }

    #[test]
    fn of_several_empty_buckets_the_one_that_fills_last_is_named() {
        let store = LocalBuckets::default();
        let mut soon = bucket("soon", 1);
        soon.quota.interval = Duration::from_secs(1);
        let late = bucket("late", 1);
        assert_eq!(store.take(&[soon.clone(), late.clone()]), Ok(()));
        let refused = store.take(&[soon, late]).unwrap_err();
        assert_eq!(refused.index, 1);
        assert!(refused.retry_after > Duration::from_secs(3000));
    }

    #[test]
    fn p5_buckets_are_bounded_and_one_in_use_is_kept() {
        let store = LocalBuckets::with_capacity(SHARDS * 8);
        let hot = bucket("hot", 1);
        assert_eq!(store.take(std::slice::from_ref(&hot)), Ok(()));
        for n in 0..20_000 {
            assert_eq!(store.take(&[bucket(&n.to_string(), 1)]), Ok(()));
            assert!(
                store.take(std::slice::from_ref(&hot)).is_err(),
                "the hot bucket was forgotten"
            );
        }
        let kept = store.arrivals.len();
        assert!(kept <= SHARDS * 8, "{kept}");
    }

    #[test]
    fn calls_that_share_buckets_in_any_order_neither_block_nor_overdraw() {
        let store = Arc::new(LocalBuckets::default());
        let names: Vec<_> = (0..8).map(|n| n.to_string()).collect();
        let taken: usize = std::thread::scope(|scope| {
            let take = |reverse: bool| {
                let store = store.clone();
                let names = names.clone();
                scope.spawn(move || {
                    let mut buckets: Vec<_> = names.iter().map(|n| bucket(n, 1000)).collect();
                    if reverse {
                        buckets.reverse();
                    }
                    (0..1000).filter(|_| store.take(&buckets).is_ok()).count()
                })
            };
            let threads: Vec<_> = (0..4).map(|n| take(n % 2 == 0)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 1000);
    }

    proptest! {
        #[test]
        fn a_call_takes_from_all_of_its_buckets_or_from_none(
            calls in prop::collection::vec(prop::collection::btree_set(0..6_usize, 1..6), 1..100),
        ) {
            let store = LocalBuckets::default();
            let bursts = [3, 5, 8, 2, 13, 1];
            let mut left = bursts;
            for call in calls {
                let call: Vec<_> = call.into_iter().collect();
                let buckets: Vec<_> =
                    call.iter().map(|n| bucket(&n.to_string(), bursts[*n])).collect();
                let passes = call.iter().all(|n| left[*n] > 0);
                prop_assert_eq!(store.take_at(&buckets, 0).is_ok(), passes);
                if passes {
                    call.iter().for_each(|n| left[*n] -= 1);
                }
            }
        }
    }
}
