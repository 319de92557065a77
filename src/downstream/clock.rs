//! Wall clock. It is read where a request arrives; other layers get the time as a parameter.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::domain::unix_time::UnixSeconds;

/// Returns the wall-clock time, in seconds since the Unix epoch; 0 for a clock before the epoch.
pub(crate) fn now() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixSeconds(since.map_or(0, |since| since.as_secs()))
}
