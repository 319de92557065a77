//! The rate-limit buckets of all replicas together (`[cluster]`).

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::time::Instant;

use super::BucketRefusal;
use super::bucket::{Bucket, Exhausted};
use super::buckets::LocalBuckets;
use super::gcra::Quota;
use super::leases::Leases;
use super::sharded::Sharded;
use cluster::{ClusterMember, StoreUnavailable, Take, Taken};
use config::{OnStoreFailure, SharedLimits};

/// The store of the shared buckets.
pub(super) trait SharedStore: Send + Sync {
    /// See `StoredBuckets::take`.
    fn take(
        &self,
        takes: &[Take<'_>],
    ) -> impl Future<Output = Result<Taken, StoreUnavailable>> + Send;

    /// The number of replicas that were seen last.
    fn replicas(&self) -> NonZeroU32;

    /// See `StoredBuckets::generation`.
    fn generation(&self) -> u64;
}

impl SharedStore for ClusterMember {
    async fn take(&self, takes: &[Take<'_>]) -> Result<Taken, StoreUnavailable> {
        self.buckets().take(takes).await
    }

    fn replicas(&self) -> NonZeroU32 {
        self.count()
    }

    fn generation(&self) -> u64 {
        self.buckets().generation()
    }
}

/// The buckets that the replicas share.
pub(super) struct SharedBuckets<S = ClusterMember> {
    store: Arc<S>,
    on_failure: OnStoreFailure,
    /// `None`: the store counts each request.
    leases: Option<Leases>,
    empty: Sharded<Empty>,
    /// This replica's shares, while the store is not available.
    shares: LocalBuckets,
}

/// The time and generation up to which a bucket is empty.
struct Empty {
    until: Instant,
    /// The generation of the store in which it is empty.
    generation: u64,
}

/// Buckets that are known to be empty.
const EMPTY: usize = 1 << 16;

impl<S: SharedStore> SharedBuckets<S> {
    pub(super) fn new(store: Arc<S>, limits: SharedLimits, on_failure: OnStoreFailure) -> Self {
        let leases = match limits {
            SharedLimits::Exact => None,
            SharedLimits::Leased { lease } => Some(Leases::new(lease)),
        };
        let empty = Sharded::with_capacity(EMPTY);
        let shares = LocalBuckets::default();
        Self { store, on_failure, leases, empty, shares }
    }

    /// Takes one cell from each bucket in one step, or from no bucket.
    pub(super) async fn take(&self, buckets: &[Bucket]) -> Result<(), BucketRefusal> {
        let generation = self.store.generation();
        if let Some(exhausted) = self.known_empty(buckets, generation, Instant::now()) {
            return Err(BucketRefusal::Exhausted(exhausted));
        }
        let taken = match &self.leases {
            None => self.take_exactly(buckets).await,
            Some(leases) => self.take_leased(leases, buckets).await,
        };
        match (taken, self.on_failure) {
            (Ok(Ok(())), _) => Ok(()),
            (Ok(Err(exhausted)), _) => {
                let until = Instant::now() + exhausted.retry_after;
                let bucket = std::slice::from_ref(&buckets[exhausted.index]);
                self.empty.lock(bucket).put(0, Empty { until, generation });
                Err(BucketRefusal::Exhausted(exhausted))
            }
            (Err(StoreUnavailable), OnStoreFailure::Local) => {
                let replicas = self.store.replicas();
                let shares: Vec<_> = buckets.iter().map(|bucket| share(bucket, replicas)).collect();
                self.shares.take(&shares).map_err(BucketRefusal::Exhausted)
            }
            (Err(StoreUnavailable), OnStoreFailure::Refuse) => Err(BucketRefusal::Unavailable),
        }
    }

    /// The bucket that stays empty for longest, among the known empty buckets. No other replica can
    /// have filled one.
    fn known_empty(&self, buckets: &[Bucket], generation: u64, now: Instant) -> Option<Exhausted> {
        let mut locked = self.empty.lock(buckets);
        let wait = |index| {
            let Empty { until, .. } = locked.get(index).filter(|it| it.generation == generation)?;
            let retry_after = until.checked_duration_since(now).filter(|wait| !wait.is_zero())?;
            Some(Exhausted { index, retry_after })
        };
        (0..buckets.len()).filter_map(wait).max_by_key(|exhausted| exhausted.retry_after)
    }

    async fn take_exactly(
        &self,
        buckets: &[Bucket],
    ) -> Result<Result<(), Exhausted>, StoreUnavailable> {
        let takes: Vec<_> = buckets.iter().map(|bucket| bucket.cells(1)).collect();
        Ok(match self.store.take(&takes).await? {
            Taken::Cells(_) => Ok(()),
            Taken::Empty { index, retry_after } => Err(Exhausted { index, retry_after }),
        })
    }

    async fn take_leased(
        &self,
        leases: &Leases,
        buckets: &[Bucket],
    ) -> Result<Result<(), Exhausted>, StoreUnavailable> {
        let Some(request) = leases.take(buckets, Instant::now()) else {
            return Ok(Ok(()));
        };
        let taken = self.store.take(&request.takes()).await?;
        match taken {
            Taken::Cells(cells) => {
                request.grant(&cells);
                Ok(Ok(()))
            }
            Taken::Empty { index, retry_after } => {
                Ok(Err(Exhausted { index: request.bucket(index), retry_after }))
            }
        }
    }
}

/// The part of a bucket that one of several replicas has by itself: at least one cell at once.
fn share(bucket: &Bucket, replicas: NonZeroU32) -> Bucket {
    let Quota { interval, burst } = bucket.quota;
    let burst = NonZeroU32::new(burst.get() / replicas).unwrap_or(NonZeroU32::MIN);
    let quota = Quota { interval: interval.saturating_mul(replicas.get()), burst };
    Bucket { key: bucket.key.clone(), quota }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;
    use crate::rate_limit::gcra::{self, Nanos};

    /// A store in memory, which does what `take.lua` does, on the paused clock.
    struct Model {
        arrivals: Mutex<HashMap<String, Nanos>>,
        epoch: Instant,
        asked: AtomicU32,
        is_down: AtomicBool,
        replicas: u32,
        generation: AtomicU64,
    }

    impl Model {
        fn new(replicas: u32) -> Arc<Self> {
            Arc::new(Self {
                arrivals: Mutex::default(),
                epoch: Instant::now(),
                asked: AtomicU32::new(0),
                is_down: AtomicBool::new(false),
                replicas,
                generation: AtomicU64::new(1),
            })
        }

        fn asked(&self) -> u32 {
            self.asked.load(Ordering::Relaxed)
        }
    }

    impl SharedStore for Model {
        async fn take(&self, takes: &[Take<'_>]) -> Result<Taken, StoreUnavailable> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.is_down.load(Ordering::Relaxed) {
                return Err(StoreUnavailable);
            }
            let now = gcra::nanos(self.epoch.elapsed());
            let mut arrivals = self.arrivals.lock().unwrap();
            let mut next = Vec::new();
            let mut cells = Vec::new();
            let mut empty = None;
            for (index, take) in takes.iter().enumerate() {
                let quota = Quota { interval: take.interval, burst: take.burst };
                let mut arrival = arrivals.get(take.key).copied();
                let mut taken = 0;
                while taken < take.cells {
                    match gcra::take(quota, arrival, now) {
                        Ok(later) => arrival = Some(later),
                        Err(wait) if taken == 0 => {
                            empty = empty.max(Some((wait, index)));
                            break;
                        }
                        Err(_) => break,
                    }
                    taken += 1;
                }
                next.extend(arrival);
                cells.push(taken);
            }
            if let Some((retry_after, index)) = empty {
                return Ok(Taken::Empty { index, retry_after });
            }
            for (take, arrival) in takes.iter().zip(next) {
                arrivals.insert(take.key.to_owned(), arrival);
            }
            Ok(Taken::Cells(cells))
        }

        fn replicas(&self) -> NonZeroU32 {
            NonZeroU32::new(self.replicas).unwrap()
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }
    }

    const LEASE: Duration = Duration::from_millis(100);
    const LEASED: SharedLimits = SharedLimits::Leased { lease: LEASE };

    fn bucket(key: &str, interval: Duration, burst: u32) -> Bucket {
        let burst = NonZeroU32::new(burst).unwrap();
        Bucket { key: key.to_owned(), quota: Quota { interval, burst } }
    }

    fn replica(store: &Arc<Model>, limits: SharedLimits) -> SharedBuckets<Model> {
        SharedBuckets::new(store.clone(), limits, OnStoreFailure::Local)
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_bucket_is_refused_from_memory_until_its_retry_after() {
        let store = Model::new(2);
        let replica = replica(&store, SharedLimits::Exact);
        let second = Duration::from_secs(1);
        let buckets = [bucket("a", second, 5), bucket("b", second, 1)];
        assert_eq!(replica.take(&buckets).await, Ok(()));
        let refused =
            |retry_after| Err(BucketRefusal::Exhausted(Exhausted { index: 1, retry_after }));
        assert_eq!(replica.take(&buckets).await, refused(second));
        assert_eq!(store.asked(), 2);
        advance(second - Duration::from_nanos(1)).await;
        assert_eq!(replica.take(&buckets).await, refused(Duration::from_nanos(1)));
        assert_eq!(store.asked(), 2, "the store was not asked");
        advance(Duration::from_nanos(1)).await;
        assert_eq!(replica.take(&buckets).await, Ok(()));
        assert_eq!(store.asked(), 3);
        // A store that is found again may have lost its buckets.
        assert_eq!(replica.take(&buckets).await, refused(second));
        store.arrivals.lock().unwrap().clear();
        store.generation.store(2, Ordering::Relaxed);
        assert_eq!(replica.take(&buckets).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_store_each_replica_has_its_share_and_at_least_one() {
        let store = Model::new(3);
        store.is_down.store(true, Ordering::Relaxed);
        let replicas = [SharedLimits::Exact, LEASED].map(|limits| replica(&store, limits));
        for replica in replicas {
            for (burst, share) in [(30, 10), (31, 10), (2, 1)] {
                let bucket = [bucket(&burst.to_string(), Duration::from_secs(10), burst)];
                let mut passed = 0;
                while replica.take(&bucket).await.is_ok() {
                    passed += 1;
                }
                assert_eq!(passed, share, "of {burst}");
                advance(Duration::from_secs(30) - Duration::from_nanos(1)).await;
                assert!(replica.take(&bucket).await.is_err(), "a third of the rate");
                advance(Duration::from_nanos(1)).await;
                assert_eq!(replica.take(&bucket).await, Ok(()));
            }
        }
        let strict = SharedBuckets::new(store, SharedLimits::Exact, OnStoreFailure::Refuse);
        let bucket = [bucket("a", Duration::from_secs(1), 9)];
        assert_eq!(strict.take(&bucket).await, Err(BucketRefusal::Unavailable));
    }

    #[tokio::test(start_paused = true)]
    async fn most_requests_of_a_busy_caller_use_leased_cells() {
        let store = Model::new(1);
        let replica = replica(&store, LEASED);
        // 1,000 requests per second, of 2,000 that are allowed.
        let bucket = [bucket("a", Duration::from_micros(500), 2_000)];
        for _ in 0..5_000 {
            assert_eq!(replica.take(&bucket).await, Ok(()));
            advance(Duration::from_millis(1)).await;
        }
        assert!(store.asked() < 5_000 / 20, "asked {} times", store.asked());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_gives_its_leased_cells_back() {
        let store = Model::new(1);
        let replica = replica(&store, LEASED);
        let fast = bucket("fast", Duration::from_millis(1), 100);
        for _ in 0..2 {
            assert_eq!(replica.take(std::slice::from_ref(&fast)).await, Ok(()));
        }
        // A lease of two cells, of which one is left.
        let one = bucket("one", Duration::from_secs(9), 1);
        assert_eq!(replica.take(std::slice::from_ref(&one)).await, Ok(()));
        let asked = store.asked();
        assert!(replica.take(&[fast.clone(), one]).await.is_err());
        assert_eq!(replica.take(std::slice::from_ref(&fast)).await, Ok(()));
        assert_eq!(store.asked(), asked + 1, "only for the empty bucket");
    }

    proptest! {
        /// The formula of `leases.rs` and docs/scaling.md.
        #[test]
        fn leases_pass_no_more_than_burst_and_rate_over_the_time_and_one_lease(
            burst in 1..60_u32,
            interval in 1..200_u64,
            steps in prop::collection::vec((0..3_usize, 0..150_u64, 1..30_usize), 1..80),
        ) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let store = Model::new(3);
                let replicas = [0; 3].map(|_| replica(&store, LEASED));
                let interval = Duration::from_millis(interval);
                let bucket = [bucket("a", interval, burst)];
                let start = Instant::now();
                let mut passed = Vec::new();
                for (at, wait, calls) in steps {
                    for _ in 0..calls {
                        if replicas[at].take(&bucket).await.is_ok() {
                            passed.push(start.elapsed());
                        }
                    }
                    advance(Duration::from_millis(wait)).await;
                }
                for (first, from) in passed.iter().enumerate() {
                    for (last, to) in passed.iter().enumerate().skip(first) {
                        let time = *to - *from + LEASE;
                        let free = time.as_nanos() / interval.as_nanos();
                        let most = u128::from(burst) + free;
                        prop_assert!((last - first + 1) as u128 <= most, "{from:?} to {to:?}");
                    }
                }
                Ok(())
            })?;
        }
    }
}
