//! The wall-clock time in tokens and credentials.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch (1970-01-01T00:00:00Z), without leap seconds.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UnixSeconds(pub u64);

impl UnixSeconds {
    /// Returns the time since `earlier`; zero if `earlier` is in the future, as after the clock was
    /// set back.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time, or the last second of the year 9999 if later, the limit of RFC 3339.
    pub fn writable(self) -> Self {
        Self(self.0.min(253_402_300_799))
    }

    pub fn to_be_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    pub fn from_be_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

/// A time before the epoch becomes the epoch.
impl From<SystemTime> for UnixSeconds {
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}

/// A time that the system cannot represent becomes the epoch.
impl From<UnixSeconds> for SystemTime {
    fn from(time: UnixSeconds) -> Self {
        UNIX_EPOCH.checked_add(Duration::from_secs(time.0)).unwrap_or(UNIX_EPOCH)
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
