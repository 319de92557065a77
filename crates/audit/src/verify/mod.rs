//! `promptgate audit verify`: checks that a log is complete and unmodified, without trust in the
//! machine that stores it.

mod verifier;

use std::io::{self, BufReader, Read};
use std::ops::{ControlFlow, RangeInclusive};
use std::path::Path;

use super::checkpoint::Checkpoint;
use super::folder::{segment_name, segment_numbers};
use super::keys::{Keys, PublicKey};
use super::recover::read_header;
use super::segment_reader::SegmentReader;
use verifier::{Successor, Verifier};

/// The keys and checkpoints that a log is verified against.
#[derive(Debug, Default)]
pub struct TrustAnchors {
    /// The keys of the log. With them everything is verified; without them the format, the sequence
    /// numbers and, with a public key, the checkpoints and all lines below the last of them.
    pub keys: Option<Keys>,
    /// The public key of the checkpoints; by default that of `keys`.
    pub public: Option<PublicKey>,
    /// Copies of checkpoints that were kept elsewhere.
    pub checkpoints: Vec<KeptCheckpoint>,
}

/// A copy of a checkpoint that was kept elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeptCheckpoint {
    /// The id of its log.
    pub instance: String,
    pub(super) checkpoint: Checkpoint,
}

/// The result of a verification.
#[derive(Debug, Default)]
pub struct VerificationReport {
    /// The sequence number of the first record.
    pub first: u64,
    /// The sequence number of the last record.
    pub last: u64,
    /// The number of records.
    pub records: u64,
    pub segments: usize,
    /// The violations that were found, at most 100; empty for an intact log.
    pub mistakes: Vec<Violation>,
    /// The number of violations beyond those.
    pub more_mistakes: u64,
    /// The sequence numbers that the log itself declares missing (event `gap`).
    pub missing: Vec<RangeInclusive<u64>>,
    /// The calls with `received` but without `completed`, by the sequence numbers of `received`:
    /// the gateway was killed in between, and their outcome is unknown.
    pub unknown: Vec<u64>,
    /// The last record that a checkpoint of the log covers.
    pub checkpoint: Option<u64>,
    /// The records of which every line is the one that was signed; `None` without a key, and in
    /// logs of releases whose checkpoints do not sign the lines. It begins with the first segment
    /// that has digests.
    pub signed: Option<RangeInclusive<u64>>,
    /// The size of the lines in abandoned segments that were written again elsewhere, in bytes:
    /// only the secret verifies them.
    pub abandoned: u64,
    /// The last record of the segments that were removed as configured (`audit.keep`); 0 if none.
    pub removed: u64,
    /// The size of an incomplete line at the very end, in bytes: the gateway is writing it, or was
    /// killed while it did. Unless the power failed, no caller was answered on the strength of that
    /// record.
    pub unfinished: u64,
}

/// A violation that the verification found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The file name of the segment; empty if it concerns the log as a whole.
    pub segment: String,
    /// The sequence number of the record, if it concerns one.
    pub seq: Option<u64>,
    /// The description, for an operator.
    pub what: String,
}

/// The limit of reported violations: behind the first one a broken log has many.
const MAX_MISTAKES: usize = 100;

impl KeptCheckpoint {
    /// Reads a line of the gateway's own log, or of an audit log; `None` if it is not a checkpoint.
    pub fn read(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value.get(name)?.as_str();
        let instance = text("instance")?.to_owned();
        let number = |name: &str| value.get(name)?.as_u64();
        let checkpoint = Checkpoint::read(number, |name| text(name).map(str::to_owned))?;
        Some(Self { instance, checkpoint })
    }
}

/// How far a verification has come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VerificationProgress {
    pub segments_done: usize,
    pub segments: usize,
    pub bytes_done: u64,
    /// The size of the log at the begin; it may grow meanwhile.
    pub bytes: u64,
}

/// Verifies a log from its first segment to its last.
///
/// # Errors
/// When a file cannot be read.
pub fn verify(path: &Path, anchors: TrustAnchors) -> io::Result<VerificationReport> {
    verify_with(path, anchors, &mut |_| ControlFlow::Continue(()))
}

/// As [`verify`]; reports the progress to `watch` every few megabytes.
///
/// # Errors
/// When a file cannot be read; and once `watch` has broken off.
pub fn verify_with(
    path: &Path,
    mut anchors: TrustAnchors,
    watch: &mut dyn FnMut(VerificationProgress) -> ControlFlow<()>,
) -> io::Result<VerificationReport> {
    loop {
        match verify_listed(path, anchors, watch)? {
            VerificationPass::Done(report) => return Ok(*report),
            VerificationPass::SegmentRemoved(again) => anchors = *again,
        }
    }
}

/// The outcome of one pass over the segments that a folder lists.
enum VerificationPass {
    Done(Box<VerificationReport>),
    /// The gateway has removed a segment meanwhile, as configured, and recorded that in one that
    /// may be newer than the list.
    SegmentRemoved(Box<TrustAnchors>),
}

fn verify_listed(
    path: &Path,
    anchors: TrustAnchors,
    watch: &mut dyn FnMut(VerificationProgress) -> ControlFlow<()>,
) -> io::Result<VerificationPass> {
    let numbers = segment_numbers(path)?;
    let length = |number| SegmentReader::open(path, number)?.length();
    let bytes = numbers.iter().map(|number| length(*number).unwrap_or_default()).sum();
    let mut progress =
        VerificationProgress { segments: numbers.len(), bytes, ..VerificationProgress::default() };
    let mut verifier = Verifier::new(anchors);
    for (index, &number) in numbers.iter().enumerate() {
        // A header names the segment before it as it was written: plain.
        let name = segment_name(number);
        let successor = match numbers.get(index + 1) {
            Some(next) => Successor::Segment(read_header(path, *next).ok()),
            None => Successor::None,
        };
        let text = match SegmentReader::open(path, number) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tell(watch, progress)?;
                // A name that is still listed leads nowhere.
                let is_removed = !segment_numbers(path)?.contains(&number);
                return is_removed
                    .then(|| VerificationPass::SegmentRemoved(Box::new(verifier.into_anchors())))
                    .ok_or(error);
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                verifier.damaged_segment(&name, &error);
                continue;
            }
            opened => opened?,
        };
        let text =
            WatchedSegment { file: text, progress: &mut progress, told: 0, watch: &mut *watch };
        match verifier.segment(&name, BufReader::with_capacity(READ, text), successor) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                verifier.damaged_segment(&name, &error);
            }
            read => read?,
        }
        progress.segments_done += 1;
        tell(watch, progress)?;
    }
    verifier.report.segments = numbers.len();
    Ok(VerificationPass::Done(Box::new(verifier.finish())))
}

/// A segment whose reading is watched.
struct WatchedSegment<'a> {
    file: SegmentReader,
    progress: &'a mut VerificationProgress,
    /// Bytes since the last report to `watch`.
    told: u64,
    watch: &'a mut dyn FnMut(VerificationProgress) -> ControlFlow<()>,
}

/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// Bytes after which `watch` is called: some hundredths of a second.
const TELL_EVERY: u64 = 4 << 20;

impl Read for WatchedSegment<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.progress.bytes_done += read as u64;
        self.told += read as u64;
        if self.told >= TELL_EVERY {
            self.told = 0;
            tell(self.watch, *self.progress)?;
        }
        Ok(read)
    }
}

fn tell(
    watch: &mut dyn FnMut(VerificationProgress) -> ControlFlow<()>,
    progress: VerificationProgress,
) -> io::Result<()> {
    match watch(progress) {
        ControlFlow::Continue(()) => Ok(()),
        // Of another kind the reader would try again.
        ControlFlow::Break(()) => Err(io::Error::other("the verification was stopped")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_verification_tells_how_far_it_has_come_and_can_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=3 {
            let name = super::super::folder::segment_name(number);
            fs::write(folder.path().join(name), "x\n".repeat(5_000_000)).unwrap();
        }
        let mut told = Vec::new();
        let watch = &mut |progress: VerificationProgress| {
            told.push(progress);
            ControlFlow::Continue(())
        };
        verify_with(folder.path(), TrustAnchors::default(), watch).unwrap();
        let last = VerificationProgress {
            segments_done: 3,
            segments: 3,
            bytes_done: 30_000_000,
            bytes: 30_000_000,
        };
        assert_eq!(told.last(), Some(&last));
        assert!(told.len() > 5 && told.is_sorted_by_key(|progress| progress.bytes_done));
        let mut asked = 0;
        let stop = &mut |_| {
            asked += 1;
            ControlFlow::Break(())
        };
        assert!(verify_with(folder.path(), TrustAnchors::default(), stop).is_err());
        assert_eq!(asked, 1);
    }
}
