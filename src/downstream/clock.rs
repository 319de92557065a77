//! The wall clock. It is read where a request arrives; other layers get the time as a parameter.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns seconds since the Unix epoch; 0 when the clock is set before it.
pub(crate) fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
