//! Periods on the command line: `--since` and `--until`.

use std::time::SystemTime;

use super::args::Period;
use super::failure::Failure;

impl Period {
    /// Returns the begin, `default` before now if none is given, and the end, which is now if none
    /// is given.
    pub(crate) fn range(
        &self,
        default: &str,
        now: SystemTime,
    ) -> Result<(SystemTime, SystemTime), Failure> {
        let since = self.since.as_deref().unwrap_or(default);
        let from = time(since, now).ok_or_else(|| unreadable("--since", since))?;
        let to = match &self.until {
            Some(until) => time(until, now).ok_or_else(|| unreadable("--until", until))?,
            None => now,
        };
        if to < from {
            return Err(Failure::usage("--until is before --since: exchange them"));
        }
        Ok((from, to))
    }
}

fn unreadable(option: &str, text: &str) -> Failure {
    let rule = "give a time ago, such as 24h or 7d, a UTC date, such as 2026-11-20, or a time as in RFC 3339";
    Failure::usage(format!("{option} {text:?} is no time: {rule}"))
}

/// Reads a duration before `now`, a date, which stands for its midnight (UTC), or a time as in RFC
/// 3339.
fn time(text: &str, now: SystemTime) -> Option<SystemTime> {
    if let Ok(ago) = humantime::parse_duration(text) {
        // Nothing was recorded before the epoch.
        let time = now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH);
        return Some(time.max(SystemTime::UNIX_EPOCH));
    }
    let midnight = format!("{text}T00:00:00Z");
    let parse = |text: &str| humantime::parse_rfc3339_weak(text).ok();
    parse(text).or_else(|| parse(&midnight))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_time_is_a_duration_ago_a_date_or_a_timestamp() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10 * 86_400);
        let secs = |text| {
            let time = time(text, now)?;
            Some(time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 3600)
        };
        assert_eq!(secs("1d"), Some(9 * 24));
        assert_eq!(secs("90m"), Some(10 * 24 - 2));
        assert_eq!(secs("100y"), Some(0));
        assert_eq!(secs("1970-01-03"), Some(48));
        assert_eq!(secs("1970-01-03T02:00:00Z"), Some(50));
        assert_eq!(secs("yesterday"), None);
    }
}
