//! The lines of the gateway's log about failed calls. One caller must not flood the log, so calls
//! of one upstream that fail for one reason have one line in ten seconds; the audit log has each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The failures by upstream and reason, of which there are few.
#[derive(Default)]
pub(crate) struct FailureLines(Mutex<HashMap<(String, &'static str), Failures>>);

struct Failures {
    logged: Instant,
    /// Calls since then.
    count: u64,
}

/// The interval of lines about one upstream and reason.
const INTERVAL: Duration = Duration::from_secs(10);

impl FailureLines {
    /// Counts a failed call. If a line is due now, returns the number of calls that it stands for:
    /// this call, and the failures since the previous line.
    pub(crate) fn due(&self, upstream: &str, reason: &'static str, now: Instant) -> Option<u64> {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = failures.get_mut(&(upstream.to_owned(), reason)) else {
            let first = Failures { logged: now, count: 0 };
            failures.insert((upstream.to_owned(), reason), first);
            return Some(1);
        };
        seen.count += 1;
        if now.saturating_duration_since(seen.logged) < INTERVAL {
            return None;
        }
        seen.logged = now;
        Some(std::mem::take(&mut seen.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_upstream_and_reason_have_one_line_in_ten_seconds_with_their_count() {
        let lines = FailureLines::default();
        let begin = Instant::now();
        let due = |millis, upstream, reason| {
            lines.due(upstream, reason, begin + Duration::from_millis(millis))
        };
        assert_eq!(due(0, "a", "upstream_timeout"), Some(1));
        assert!((1..1_000).all(|millis| due(millis, "a", "upstream_timeout").is_none()));
        assert_eq!(due(1_000, "b", "upstream_timeout"), Some(1));
        assert_eq!(due(1_000, "a", "upstream_unavailable"), Some(1));
        assert_eq!(due(10_000, "a", "upstream_timeout"), Some(1_000));
        assert_eq!(due(10_001, "a", "upstream_timeout"), None);
    }
}
