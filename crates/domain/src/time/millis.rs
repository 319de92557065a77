//! Durations in whole milliseconds, as wire formats and configuration write them.

use std::time::Duration;

/// Returns a duration in whole milliseconds, rounded down; saturates after 584 million years.
pub fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
