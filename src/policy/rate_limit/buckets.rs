//! Store of the rate-limit buckets: a request takes a cell from several buckets in one step.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

use super::gcra::{self, Nanos, Quota};

/// One bucket, with its rate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Bucket {
    /// The identity of the limit, and the values by which the limit counts.
    pub(crate) key: String,
    pub(crate) quota: Quota,
}

/// A bucket without a free cell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Exhausted {
    /// Index of the bucket in the slice that was passed to [`BucketStore::take_all`].
    pub(crate) index: usize,
    /// Time until the bucket has a cell; with several empty buckets the longest of their times.
    pub(crate) retry_after: Duration,
}

/// A store of bucket states. Asynchronous, since replicas may share a store.
pub(crate) trait BucketStore: Send + Sync {
    /// Takes one cell from each bucket in one step, or from no bucket.
    ///
    /// # Errors
    /// The empty bucket with the longest wait; then no cell was taken.
    fn take_all(&self, buckets: &[Bucket]) -> impl Future<Output = Result<(), Exhausted>> + Send;
}

/// The buckets of this process. Bounded: the least recently used bucket is dropped first, so that it is
/// full again.
pub(crate) struct LocalBuckets {
    shards: Vec<Mutex<LruCache<String, Nanos>>>,
    hasher: RandomState,
    /// Time 0 of [`Nanos`].
    epoch: Instant,
    /// Most buckets of one shard.
    capacity: usize,
}

/// Most buckets of all limits together: more than there are callers, prompts and addresses within the
/// time in which a bucket fills. About 150 bytes each, allocated at the first use.
const BUCKETS: usize = 1 << 18;

/// Number of shards of the store, each with a lock of its own. A request locks the shards of its buckets
/// in ascending order, which rules out a deadlock.
const SHARDS: usize = 16;

impl Default for LocalBuckets {
    fn default() -> Self {
        Self::with_capacity(BUCKETS)
    }
}

impl BucketStore for LocalBuckets {
    async fn take_all(&self, buckets: &[Bucket]) -> Result<(), Exhausted> {
        self.take(buckets)
    }
}

impl LocalBuckets {
    fn with_capacity(buckets: usize) -> Self {
        let shard = |_| Mutex::new(LruCache::unbounded());
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: RandomState::new(),
            epoch: Instant::now(),
            capacity: (buckets / SHARDS).max(1),
        }
    }

    /// Does the same as [`BucketStore::take_all`], synchronously.
    ///
    /// # Errors
    /// The empty bucket with the longest wait; then no cell was taken.
    pub(crate) fn take(&self, buckets: &[Bucket]) -> Result<(), Exhausted> {
        self.take_at(buckets, gcra::nanos(self.epoch.elapsed()))
    }

    fn take_at(&self, buckets: &[Bucket], now: Nanos) -> Result<(), Exhausted> {
        let homes: Vec<usize> = buckets.iter().map(|bucket| self.shard_of(&bucket.key)).collect();
        let mut locked = self.lock(&homes);
        let mut arrivals = Vec::with_capacity(buckets.len());
        let mut exhausted: Option<Exhausted> = None;
        for (index, (bucket, home)) in buckets.iter().zip(&homes).enumerate() {
            // The lookup makes a bucket recently used, so the bucket of a refused caller is kept.
            let arrival = locked.shard(*home).get(&bucket.key).copied();
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
        for ((bucket, home), arrival) in buckets.iter().zip(homes).zip(arrivals) {
            let shard = locked.shard(home);
            match shard.get_mut(&bucket.key) {
                Some(state) => *state = arrival,
                None => {
                    if shard.len() >= self.capacity {
                        shard.pop_lru();
                    }
                    shard.put(bucket.key.clone(), arrival);
                }
            }
        }
        Ok(())
    }

    fn shard_of(&self, key: &str) -> usize {
        self.hasher.hash_one(key) as usize % self.shards.len()
    }

    fn lock(&self, homes: &[usize]) -> Locked<'_> {
        let mut indexes = homes.to_vec();
        indexes.sort_unstable();
        indexes.dedup();
        let lock = |index: usize| {
            (index, self.shards[index].lock().unwrap_or_else(PoisonError::into_inner))
        };
        Locked(indexes.into_iter().map(lock).collect())
    }
}

/// The locked shards of one request, in ascending order of their indexes.
struct Locked<'a>(Vec<(usize, MutexGuard<'a, LruCache<String, Nanos>>)>);

impl Locked<'_> {
    /// Returns the shard with this index, which must be locked.
    fn shard(&mut self, index: usize) -> &mut LruCache<String, Nanos> {
        let at = self.0.partition_point(|(locked, _)| *locked < index);
        &mut self.0[at].1
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

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
        let kept: usize = store.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
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
