//! Leases (`cluster.limits = "leased"`): cells that this replica has taken ahead, so that most
//! requests need no round trip to the store.
//!
//! A cell is used within `lease` of its take. So the requests that pass in any time W, on all
//! replicas together, are cells that were taken within W + lease: at most
//! `burst + (W + lease) / interval`, which is `lease / interval` more than without leases, however
//! many replicas there are.

use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;
use super::buckets::BUCKETS;
use super::gcra::Quota;
use super::sharded::Sharded;
use cluster::Take;

/// The leases of this replica.
pub(super) struct Leases {
    leases: Sharded<BucketLease>,
    lease: Duration,
}

/// The cells of one bucket that were taken ahead.
#[derive(Clone, Copy, Debug)]
struct BucketLease {
    left: u32,
    /// Cells of this lease that were used.
    used: u32,
    /// The cells are not used from then on.
    until: Instant,
    /// Whether a request asks for the next lease already.
    is_asking: bool,
}

/// A request for cells of the store. Dropping it without an answer gives its leased cells back.
pub(super) struct LeaseRequest<'a> {
    leases: &'a Leases,
    buckets: &'a [Bucket],
    wanted: Vec<BucketRequest>,
    /// The buckets of which a leased cell was used, and the ends of those leases.
    used: Vec<(usize, Instant)>,
    at: Instant,
    is_answered: bool,
}

/// A request for cells of one bucket.
#[derive(Clone, Copy)]
struct BucketRequest {
    /// The index of the bucket.
    index: usize,
    cells: u32,
    /// Whether the request asks for a lease; concurrent requests ask for one cell only.
    is_lease: bool,
}

impl Leases {
    pub(super) fn new(lease: Duration) -> Self {
        Self { leases: Sharded::with_capacity(BUCKETS), lease }
    }

    /// Uses a leased cell of each bucket that has one. Returns the request to the store for the
    /// other buckets; `None` if all have a leased cell.
    pub(super) fn take<'a>(
        &'a self,
        buckets: &'a [Bucket],
        now: Instant,
    ) -> Option<LeaseRequest<'a>> {
        let mut locked = self.leases.lock(buckets);
        let mut wanted = Vec::new();
        let mut used = Vec::new();
        for (index, bucket) in buckets.iter().enumerate() {
            let cells = match locked.get(index) {
                Some(lease) if lease.until > now && lease.left > 0 => {
                    (lease.left, lease.used) = (lease.left - 1, lease.used + 1);
                    used.push((index, lease.until));
                    continue;
                }
                Some(lease) if lease.is_asking => None,
                Some(lease) => {
                    lease.is_asking = true;
                    // Twice the used cells if the lease was used up before its end, else once.
                    let factor = if lease.until > now { 2 } else { 1 };
                    let most = self.most(bucket.quota);
                    Some(lease.used.saturating_mul(factor).clamp(1, most))
                }
                None => {
                    locked
                        .put(index, BucketLease { left: 0, used: 0, until: now, is_asking: true });
                    Some(1)
                }
            };
            let is_lease = cells.is_some();
            wanted.push(BucketRequest { index, cells: cells.unwrap_or(1), is_lease });
        }
        drop(locked);
        let is_answered = false;
        let request = LeaseRequest { leases: self, buckets, wanted, used, at: now, is_answered };
        if request.wanted.is_empty() {
            request.answered();
            return None;
        }
        Some(request)
    }

    /// The most cells of one lease: as many as become free during the lease.
    fn most(&self, quota: Quota) -> u32 {
        let cells = self.lease.as_nanos().div_ceil(quota.interval.as_nanos().max(1));
        u32::try_from(cells).unwrap_or(u32::MAX).clamp(1, quota.burst.get())
    }
}

impl LeaseRequest<'_> {
    /// The cells to take from the store.
    pub(super) fn takes(&self) -> Vec<Take<'_>> {
        let take = |wanted: &BucketRequest| self.buckets[wanted.index].cells(wanted.cells);
        self.wanted.iter().map(take).collect()
    }

    /// The index of the bucket of a take.
    pub(super) fn bucket(&self, take: usize) -> usize {
        self.wanted[take].index
    }

    /// Keeps the cells that the store granted. This request uses one cell of each bucket.
    pub(super) fn grant(self, cells: &[u32]) {
        let until = self.at + self.leases.lease;
        let mut locked = self.leases.leases.lock(self.buckets);
        for (wanted, cells) in self.wanted.iter().zip(cells) {
            let Some(lease) = locked.get(wanted.index) else {
                continue;
            };
            if wanted.is_lease {
                *lease = BucketLease { left: cells - 1, used: 1, until, is_asking: false };
            } else {
                lease.used += 1;
            }
        }
        drop(locked);
        self.answered();
    }

    fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for LeaseRequest<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let mut locked = self.leases.leases.lock(self.buckets);
        for (index, until) in &self.used {
            if let Some(lease) = locked.get(*index).filter(|lease| lease.until == *until) {
                (lease.left, lease.used) = (lease.left + 1, lease.used.saturating_sub(1));
            }
        }
        for wanted in self.wanted.iter().filter(|wanted| wanted.is_lease) {
            if let Some(lease) = locked.get(wanted.index) {
                lease.is_asking = false;
            }
        }
    }
}
