//! Wall clock. It is read where a request arrives; other layers get the time as a parameter.

use base::platform::wall_clock;
use domain::time::unix_time::UnixSeconds;

/// Returns the wall-clock time, in seconds since the Unix epoch; 0 for a clock before the epoch.
pub fn now() -> UnixSeconds {
    wall_clock().into()
}
