//! The calls of an upstream in the last hour, to help operators find a slow upstream. Pure: the
//! clock is an argument.

use std::array;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use audit::usage::Histogram;
use domain::fault::UpstreamFaultKind as Kind;

/// Lock-free counters of the last hour. A call that ends while a slot is reset may be missing: the
/// numbers are for people.
#[derive(Debug)]
pub struct RecentCalls {
    began: Instant,
    slots: [RecentSlot; SLOTS],
    /// The last HTTP status, behind the number of its slot; 0 before the first.
    http_status: AtomicU64,
}

/// The calls of five minutes.
#[derive(Debug)]
struct RecentSlot {
    /// The number of these five minutes, from 1 on; 0 before the first call.
    number: AtomicU64,
    /// Calls by the steps of [`Histogram`].
    steps: [AtomicU32; Histogram::STEPS],
    failures: AtomicU32,
}

/// The numbers of the last hour, or of up to five minutes less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecentSummary {
    /// Calls that were sent and have ended, including failures.
    pub calls: u64,
    pub failures: u64,
    /// Exact within a fifth; `None` without calls.
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    /// The last HTTP status that is known.
    pub http_status: Option<u16>,
}

const SLOTS: usize = 12;

/// Seconds of a slot.
const SLOT: u64 = 300;

impl RecentCalls {
    /// Returns counters that begin at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        let slot = |_| RecentSlot {
            number: AtomicU64::new(0),
            steps: array::from_fn(|_| AtomicU32::new(0)),
            failures: AtomicU32::new(0),
        };
        Self { began: now, slots: array::from_fn(slot), http_status: AtomicU64::new(0) }
    }

    /// Counts a call that has ended at `now`; `speaks_http` if a result came with status 200.
    pub(crate) fn add(
        &self,
        took: Duration,
        fault: Option<&Kind>,
        speaks_http: bool,
        now: Instant,
    ) {
        let number = self.number(now);
        let slot = &self.slots[usize::try_from(number).unwrap_or_default() % SLOTS];
        if slot.number.swap(number, Relaxed) != number {
            slot.steps.iter().for_each(|step| step.store(0, Relaxed));
            slot.failures.store(0, Relaxed);
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        slot.steps[Histogram::step(micros)].fetch_add(1, Relaxed);
        slot.failures.fetch_add(u32::from(fault.is_some()), Relaxed);
        if let Some(status) = fault.map_or(speaks_http.then_some(200), Kind::http_status) {
            self.http_status.store(number << 16 | u64::from(status), Relaxed);
        }
    }

    /// Returns the numbers of the hour before `now`.
    pub(crate) fn summary(&self, now: Instant) -> RecentSummary {
        let newest = self.number(now);
        let is_recent = |number: u64| number > 0 && number + SLOTS as u64 > newest;
        let mut histogram = Histogram::default();
        let mut failures = 0;
        for slot in self.slots.iter().filter(|slot| is_recent(slot.number.load(Relaxed))) {
            for (step, calls) in slot.steps.iter().enumerate() {
                histogram.add_step(step, calls.load(Relaxed).into());
            }
            failures += u64::from(slot.failures.load(Relaxed));
        }
        let status = self.http_status.load(Relaxed);
        let http_status = u16::try_from(status & 0xffff).ok().filter(|_| is_recent(status >> 16));
        RecentSummary {
            calls: histogram.count(),
            failures,
            p50_ms: histogram.quantile_ms(0.5),
            p95_ms: histogram.quantile_ms(0.95),
            http_status,
        }
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / SLOT + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_has_its_latencies_failures_and_the_last_status() {
        let begin = Instant::now();
        let recent = RecentCalls::new(begin);
        let at = |minutes: u64| begin + Duration::from_secs(60 * minutes);
        assert_eq!(recent.summary(begin), RecentSummary::default());
        for _ in 0..90 {
            recent.add(Duration::from_millis(10), None, true, at(1));
        }
        let refused = Kind::Status { status: 502, shown: String::new() };
        for _ in 0..10 {
            recent.add(Duration::from_secs(2), Some(&refused), true, at(7));
        }
        let all = recent.summary(at(55));
        assert_eq!((all.calls, all.failures, all.http_status), (100, 10, Some(502)));
        let near = |found: Option<f64>, exact: f64| (found.unwrap() / exact - 1.0).abs() < 0.2;
        assert!(near(all.p50_ms, 10.0) && near(all.p95_ms, 2_000.0), "{all:?}");
        // The first five minutes are over, then all of them.
        assert_eq!(recent.summary(at(60)).calls, 10);
        assert_eq!(recent.summary(at(65)), RecentSummary::default());
        // A slot that is used again begins at nothing, and a call without a status hides no other.
        recent.add(Duration::from_millis(10), Some(&Kind::Timeout), true, at(61));
        let last = recent.summary(at(61));
        assert_eq!((last.calls, last.failures, last.http_status), (11, 11, Some(502)));
        recent.add(Duration::from_millis(10), None, true, at(62));
        assert_eq!(recent.summary(at(62)).http_status, Some(200));
        recent.add(Duration::from_millis(10), None, false, at(130));
        assert_eq!(recent.summary(at(130)).http_status, None, "it is more than an hour old");
    }
}
