//! The wall clock, read where a request begins and handed in from there.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch; a clock before it counts as there.
pub(crate) fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
