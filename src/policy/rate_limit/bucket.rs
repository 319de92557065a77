//! A rate-limit bucket, by its name and rate.

use std::time::Duration;

use super::gcra::Quota;

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
    /// Index of the bucket in the slice that was passed to `take`.
    pub(crate) index: usize,
    /// Time until the bucket has a cell; with several empty buckets the longest of their times.
    pub(crate) retry_after: Duration,
}
