//! The regular verification by the gateway, once every `audit.verify_every`, slowly: reads the
//! records since the last time, and a part of the older segments, a different one each time.

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{TrustAnchors, VerificationReport, verify_part};
use crate::Audit;
use crate::keys::Keys;
use crate::ledger::Ledger;
use crate::record::AuditEvent;
use crate::segments::folder::{segment_modified, segment_numbers};
use crate::segments::recover::read_header;
use base::platform::{Locked, run_blocking, wall_clock};

/// The regular verification of a gateway, and its last outcome.
#[derive(Default)]
pub struct RegularVerification(Mutex<Option<RegularOutcome>>);

/// The outcome of one verification.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RegularOutcome {
    /// When the verification ended.
    pub at: SystemTime,
    /// Records that were read.
    pub records: u64,
    pub segments: usize,
    /// Descriptions of at most [`MAX_PROBLEMS`] violations, or why the log cannot be read; empty if
    /// the log is intact.
    pub problems: Vec<String>,
}

/// The verification before.
#[derive(Clone, Debug)]
struct Before {
    path: PathBuf,
    began: SystemTime,
    /// The first record of the log when it was intact.
    first: Option<u64>,
    /// The segments of the last verification if they were not intact: they stay due.
    suspect: BTreeSet<u64>,
}

/// A log to verify. It does not hold the ledger, so that a replaced log can end meanwhile.
struct VerifiedLog {
    path: PathBuf,
    keys: Arc<Keys>,
    every: Duration,
}

/// The part of the log that one verification has read.
struct Part {
    report: VerificationReport,
    now: Before,
}

/// The longest time from the start to the first verification.
const FIRST: Duration = Duration::from_secs(600);

/// The longest time until a changed interval counts.
const LOOK: Duration = Duration::from_secs(60);

/// The number of turns in which each segment at rest is read once: a month of days.
const SAMPLE: u64 = 30;

/// The limit of stored bytes that are read per second: calls need the disk and the cores.
const RATE: f64 = (4 << 20) as f64;

/// The tolerance for rounded file times.
const ROUNDING: Duration = Duration::from_secs(2);

/// Most violations that are listed; `audit verify` lists all.
const MAX_PROBLEMS: usize = 3;

impl RegularVerification {
    /// Returns the outcome of the last verification; `None` before the first.
    pub fn last(&self) -> Option<RegularOutcome> {
        self.0.locked().clone()
    }

    /// Verifies the current log again and again, until `stop`.
    pub async fn run(self: Arc<Self>, audit: Audit, stop: CancellationToken) {
        let mut before: Option<Before> = None;
        let mut last = Instant::now();
        while stop.run_until_cancelled(sleep(due_in(&audit, &before, last))).await.is_some() {
            if !due_in(&audit, &before, last).is_zero() {
                continue;
            }
            let Some(log) = audit.ledger().map(|ledger| VerifiedLog::of(&ledger)) else { continue };
            last = Instant::now();
            let began = wall_clock();
            let stopping = stop.clone();
            let known = before.clone().filter(|before| before.path == log.path);
            let read = run_blocking(move || verify(&log, known, began, &stopping)).await;
            if stop.is_cancelled() {
                return;
            }
            let read = read.map(|Part { report, now }| {
                before = Some(now);
                report
            });
            let outcome = RegularOutcome::of(read);
            audit.note(outcome.event());
            *self.0.locked() = Some(outcome);
        }
    }
}

/// Returns the time until the log is checked next; zero if a verification is due.
fn due_in(audit: &Audit, before: &Option<Before>, last: Instant) -> Duration {
    let Some(ledger) = audit.ledger() else { return LOOK };
    let every = ledger.verify_every();
    // A log that could not be read is tried again after the initial, shorter interval.
    let interval = if before.is_some() { every } else { every.min(FIRST) };
    interval.saturating_sub(last.elapsed()).min(LOOK)
}

impl VerifiedLog {
    fn of(ledger: &Ledger) -> Self {
        let path = ledger.path().to_owned();
        Self { path, keys: ledger.keys(), every: ledger.verify_every() }
    }
}

impl RegularOutcome {
    /// Returns the record of the outcome.
    fn event(&self) -> AuditEvent {
        let event = AuditEvent::new("verified")
            .number("records", self.records)
            .number("segments", self.segments as u64);
        match self.problems.first() {
            None => event.text("outcome", "intact"),
            Some(why) => event.text("outcome", "not_intact").text("why", why),
        }
    }

    fn of(read: io::Result<VerificationReport>) -> Self {
        let at = wall_clock();
        match read {
            Ok(report) => {
                let problems = report.mistakes.iter().map(ToString::to_string);
                let problems: Vec<_> = problems.take(MAX_PROBLEMS).collect();
                let VerificationReport { records, segments, .. } = report;
                match problems.first() {
                    None => info!(records, segments, "the audit log was verified and is intact"),
                    Some(why) => error!(why, "the audit log is not intact"),
                }
                Self { at, records, segments, problems }
            }
            Err(error) => {
                warn!(%error, "the audit log cannot be verified");
                let problems = vec![format!("it cannot be read: {error}")];
                Self { at, records: 0, segments: 0, problems }
            }
        }
    }
}

/// Verifies the segments of a log that are due at `now`.
fn verify(
    log: &VerifiedLog,
    before: Option<Before>,
    now: SystemTime,
    stop: &CancellationToken,
) -> io::Result<Part> {
    let VerifiedLog { path, keys, every } = log;
    let first = first_record(path);
    let since =
        before.as_ref().map_or_else(|| now.checked_sub(*every), |before| Some(before.began));
    let since = since.and_then(|since| since.checked_sub(ROUNDING));
    let modified = |number| (number, segment_modified(path, number));
    let segments: Vec<_> = segment_numbers(path)?.into_iter().map(modified).collect();
    let mut due = due(&segments, since.unwrap_or(SystemTime::UNIX_EPOCH), turn(now, *every));
    let known = before.as_ref().and_then(|before| before.first);
    due.extend(before.into_iter().flat_map(|before| before.suspect));
    let anchors = TrustAnchors { keys: Some(keys.clone()), ..TrustAnchors::default() };
    let mut read = 0;
    let mut report = verify_part(path, &due, anchors, &mut |done| pause(done, &mut read, stop))?;
    if let (Some(known), Some(first)) = (known, first)
        && first > known
        && first > report.removed + 1
        && report.mistakes.is_empty()
    {
        report.missing_at_start(known, first);
    }
    let (first, suspect) = match report.mistakes.is_empty() {
        true => (first, BTreeSet::new()),
        false => (known.or(first), due),
    };
    let now = Before { path: path.clone(), began: now, first, suspect };
    Ok(Part { report, now })
}

fn first_record(path: &Path) -> Option<u64> {
    let oldest = *segment_numbers(path).ok()?.first()?;
    Some(read_header(path, oldest).ok()?.previous.seq + 1)
}

/// Slows the reading down to [`RATE`].
fn pause(done: u64, read: &mut u64, stop: &CancellationToken) -> ControlFlow<()> {
    let bytes = done.saturating_sub(std::mem::replace(read, done));
    base::platform::sleep(Duration::from_secs_f64(bytes as f64 / RATE));
    if stop.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Returns the number of the turn: the days since the Unix epoch, with the interval of a day.
fn turn(now: SystemTime, every: Duration) -> u64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis() / every.as_millis().max(1)).unwrap_or_default()
}

/// Returns the segments that are due: the current one, all written since `since`, and the sample of
/// this `turn`. `segments` gives the modification time of each.
fn due(segments: &[(u64, Option<SystemTime>)], since: SystemTime, turn: u64) -> BTreeSet<u64> {
    let written = segments.last().map(|(number, _)| *number);
    let is_due = |(number, modified): &&(u64, Option<SystemTime>)| {
        Some(*number) == written
            || modified.is_none_or(|modified| modified >= since)
            || number % SAMPLE == turn % SAMPLE
    };
    segments.iter().filter(is_due).map(|(number, _)| *number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400)
    }

    #[test]
    fn what_was_written_since_is_due_and_each_other_segment_once_in_thirty_times() {
        let segments: Vec<_> = (1..=100).map(|number| (number, Some(at(number)))).collect();
        let mut read = vec![0; 101];
        for turn in 500..530 {
            let due = due(&segments, at(98), turn);
            assert!((98..=100).all(|number| due.contains(&number)), "{due:?}");
            assert!(due.len() <= 3 + 4, "{due:?}");
            due.into_iter().for_each(|number| read[number as usize] += 1);
        }
        assert!(read[1..98].iter().all(|times| *times == 1), "{read:?}");
        // The one that is written, though its time is not known or wrong.
        assert!(due(&[(7, None), (8, Some(at(1)))], at(5), 1).iter().eq(&[7, 8]));
        assert!(due(&[], at(5), 1).is_empty());
    }

    #[test]
    fn a_turn_is_an_interval_of_the_clock() {
        let day = Duration::from_secs(86_400);
        assert_eq!([turn(at(3), day), turn(at(4), day)], [3, 4]);
        assert_eq!(turn(at(3), day / 24), 72);
        assert_eq!(turn(at(3), Duration::ZERO), 3 * 86_400_000);
    }
}
