//! A rate-limit bucket, by its name and rate.

use std::time::Duration;

use super::gcra::Quota;
use cluster::Take;

/// One bucket, with its rate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Bucket {
    /// The identity of the limit, and the values by which the limit counts.
    pub key: String,
    pub(crate) quota: Quota,
}

impl Bucket {
    /// A take of up to this many cells from the bucket that all replicas share.
    pub(super) fn cells(&self, cells: u32) -> Take<'_> {
        let Quota { interval, burst } = self.quota;
        Take { key: &self.key, interval, burst, cells }
    }
}

/// A bucket without a free cell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Exhausted {
    /// Index of the bucket in the slice that was passed to `take`.
    pub index: usize,
    /// Time until the bucket has a cell; with several empty buckets the longest of their times.
    pub retry_after: Duration,
}
