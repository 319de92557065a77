//! The verification of the audit log, started from the console: one at once, beside the calls, with
//! its progress.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use audit::keys::Keys;
use audit::verify::{TrustAnchors, VerificationProgress, VerificationReport, verify_with};
use base::platform::{blocking, wall_clock};
use shutdown::Supervisor;

/// The newest verification.
#[derive(Default)]
pub struct Verification(Mutex<Verified>);

/// The state of a verification.
#[derive(Clone, Debug, Default)]
pub(super) struct Verified {
    /// `none`, `running`, `intact`, `not_intact` or `failed`.
    pub state: VerificationState,
    /// From 0 to 100.
    pub percent: u64,
    pub bytes: u64,
    /// RFC 3339.
    pub ended_at: Option<String>,
    pub first: u64,
    pub last: u64,
    pub records: u64,
    pub segments: usize,
    /// The last record that a checkpoint covers.
    pub checkpoint: Option<u64>,
    /// Violations, one sentence each.
    pub mistakes: Vec<String>,
    /// Calls whose end is not recorded.
    pub unknown: usize,
    /// Records that the log itself declares missing.
    pub missing_records: u64,
    /// The first and the last of those that are missing in a row, at most [`MAX_MISSING`].
    pub missing: Vec<[u64; 2]>,
    /// The last record of the segments that were removed as `audit.keep_size` and `audit.keep_for`
    /// say; 0 if none.
    pub removed: u64,
    /// Why the log could not be verified.
    pub error: Option<String>,
}

/// Rows of missing records that are shown.
const MAX_MISSING: usize = 100;

/// The state of a verification.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum VerificationState {
    #[default]
    None,
    Running,
    Intact,
    NotIntact,
    Failed,
}

impl Verification {
    pub(super) fn state(&self) -> Verified {
        self.lock().clone()
    }

    /// Starts a verification of the log in a folder, unless one runs. It ends without a result when
    /// the gateway stops.
    pub(super) fn start(
        self: &Arc<Self>,
        path: PathBuf,
        audit: config::Audit,
        supervisor: &Supervisor,
    ) {
        {
            let mut verified = self.lock();
            if verified.state == VerificationState::Running {
                return;
            }
            *verified = Verified { state: VerificationState::Running, ..Verified::default() };
        }
        let (verification, stop) = (self.clone(), supervisor.stop().clone());
        let ending = self.clone();
        let verifying = blocking(move || verification.run(&path, &audit, &stop));
        supervisor.supervise_job("audit_verification", async move {
            if let Err(error) = verifying.await {
                // A log that the gateway cannot read must not end it.
                ending.fail(error.to_string());
            }
        });
    }

    fn run(&self, path: &Path, audit: &config::Audit, stop: &CancellationToken) {
        let outcome = audit.key().and_then(|key| {
            let keys = key.as_ref().map(Keys::new).map(Arc::new);
            let anchors = TrustAnchors { keys, ..TrustAnchors::default() };
            verify_with(&[path], anchors, &mut |progress| self.note(progress, stop))
        });
        let mut verified = self.lock();
        verified.ended_at = Some(humantime::format_rfc3339_seconds(wall_clock()).to_string());
        verified.percent = 100;
        match outcome {
            Ok(report) => verified.take(&report),
            Err(error) => {
                verified.state = VerificationState::Failed;
                verified.error = Some(error.to_string());
            }
        }
    }

    fn fail(&self, error: String) {
        let mut verified = self.lock();
        verified.state = VerificationState::Failed;
        verified.error = Some(error);
    }

    fn note(&self, progress: VerificationProgress, stop: &CancellationToken) -> ControlFlow<()> {
        if stop.is_cancelled() {
            return ControlFlow::Break(());
        }
        let mut verified = self.lock();
        verified.bytes = progress.bytes_done;
        verified.percent = (progress.bytes_done * 100 / progress.bytes.max(1)).min(99);
        ControlFlow::Continue(())
    }

    fn lock(&self) -> MutexGuard<'_, Verified> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verified {
    pub(super) fn is_running(&self) -> bool {
        self.state == VerificationState::Running
    }

    /// Missing records beyond those of [`Verified::missing`].
    pub(super) fn missing_beyond(&self) -> u64 {
        self.missing_records.saturating_sub(records(self.missing.iter().copied()))
    }

    fn take(&mut self, report: &VerificationReport) {
        let is_intact = report.mistakes.is_empty();
        self.state =
            if is_intact { VerificationState::Intact } else { VerificationState::NotIntact };
        (self.first, self.last, self.records) = (report.first, report.last, report.records);
        (self.segments, self.checkpoint) = (report.segments, report.checkpoint);
        (self.unknown, self.removed) = (report.unknown.len(), report.removed);
        let rows = || report.missing.iter().map(|row| [*row.start(), *row.end()]);
        self.missing_records = records(rows());
        self.missing = rows().take(MAX_MISSING).collect();
        let mistakes = report.mistakes.iter().map(ToString::to_string);
        self.mistakes = mistakes.collect();
    }
}

/// The records of several rows; of a log that was forged, at most as many as there are numbers.
fn records(rows: impl Iterator<Item = [u64; 2]>) -> u64 {
    let lengths = rows.map(|[first, last]| last.saturating_sub(first).saturating_add(1));
    lengths.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_log_declares_missing_is_told() {
        let mut verified = Verified::default();
        let report = VerificationReport {
            missing: vec![5..=9, 20..=20],
            removed: 3,
            ..VerificationReport::default()
        };
        verified.take(&report);
        assert_eq!(
            (verified.state, verified.missing_records, verified.removed),
            (VerificationState::Intact, 6, 3)
        );
        assert_eq!(
            (verified.missing.as_slice(), verified.missing_beyond()),
            (&[[5, 9], [20, 20]][..], 0)
        );
        let most = MAX_MISSING as u64;
        let missing = (1..=most + 2).map(|n| 10 * n..=10 * n + 1).collect();
        verified.take(&VerificationReport { missing, ..VerificationReport::default() });
        assert_eq!(verified.missing.len(), MAX_MISSING);
        assert_eq!((verified.missing_records, verified.missing_beyond()), (2 * most + 4, 4));
    }

    #[test]
    fn a_forged_log_that_declares_every_number_missing_is_counted() {
        let mut verified = Verified::default();
        // As a forged log may say it.
        let (five, four) = (5, 4);
        for missing in
            [vec![0..=u64::MAX], vec![0..=u64::MAX, 1..=2], vec![five..=four, 0..=u64::MAX]]
        {
            verified.take(&VerificationReport { missing, ..VerificationReport::default() });
            assert_eq!((verified.missing_records, verified.missing_beyond()), (u64::MAX, 0));
        }
    }
}
