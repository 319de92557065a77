//! `promptgate audit verify`: checks that a log is complete and unmodified, without trust in the
//! machine that stores it.

pub mod exported;
pub mod regular;
mod verifier;

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::ops::{ControlFlow, RangeInclusive};
use std::path::Path;
use std::sync::Arc;

use super::checkpoint::Checkpoint;
use super::keys::{Keys, PublicKey};
use super::record::RecordLine;
use crate::segments::folder::{segment_metadata, segment_name, segment_numbers};
use crate::segments::header::SegmentHeader;
use crate::segments::segment_reader::SegmentReader;
use verifier::{Successor, Verifier};

/// The keys and checkpoints that a log is verified against.
#[derive(Clone, Debug, Default)]
pub struct TrustAnchors {
    /// The keys of the log. They verify everything. Without them, the format, the sequence numbers
    /// and, with a public key, the checkpoints and all lines below the last of them are verified.
    pub keys: Option<Arc<Keys>>,
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
    /// The number of violations beyond `mistakes`.
    pub more_mistakes: u64,
    /// The sequence numbers that the log itself declares missing (event `gap`).
    pub missing: Vec<RangeInclusive<u64>>,
    /// The sequence numbers of exported records that the collector has refused, as a log says.
    pub refused: Vec<u64>,
    /// The calls with `received` but without `completed`, by the sequence numbers of `received`:
    /// the gateway was killed in between, and their outcome is unknown.
    pub unknown: Vec<u64>,
    /// The last record that a checkpoint of the log covers.
    pub checkpoint: Option<u64>,
    /// The records whose every line is the signed one; `None` without a key. The range begins with
    /// the first segment.
    pub signed: Option<RangeInclusive<u64>>,
    /// The size of the lines in abandoned segments that were written again elsewhere, in bytes:
    /// only the secret verifies them.
    pub abandoned: u64,
    /// The last record of the segments that were removed as configured; 0 if none.
    pub removed: u64,
    /// The size of an incomplete line at the very end, in bytes: the gateway is writing the line,
    /// or was killed meanwhile. Unless the power failed, no caller was answered before that record
    /// was complete.
    pub unfinished: u64,
}

/// A violation that the verification found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The file name of the segment; empty if the violation concerns the log as a whole.
    pub segment: String,
    /// The sequence number of the record, if the violation concerns one.
    pub seq: Option<u64>,
    /// The description, for an operator.
    pub what: String,
}

impl VerificationReport {
    /// Reports missing first records: the log began with `known`, and begins with `first` now.
    fn missing_at_start(&mut self, known: u64, first: u64) {
        let what = format!("the records {known} to {} are missing", first - 1);
        self.mistakes.push(Violation { segment: String::new(), seq: Some(known), what });
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, seq, what } = self;
        if !segment.is_empty() {
            write!(f, "{segment}: ")?;
        }
        if let Some(seq) = seq {
            write!(f, "record {seq}: ")?;
        }
        f.write_str(what)
    }
}

/// The limit of reported violations: a broken log has many after the first.
const MAX_MISTAKES: usize = 100;

impl KeptCheckpoint {
    /// Reads a line of an audit log, or of the file of copies; `None` if it is not a checkpoint.
    pub fn read(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value.get(name)?.as_str();
        let instance = text("instance")?.to_owned();
        let number = |name: &str| value.get(name)?.as_u64();
        let checkpoint = Checkpoint::read(number, |name| text(name).map(str::to_owned))?;
        Some(Self { instance, checkpoint })
    }
}

/// Verifies a log from its first segment to its last.
///
/// # Errors
/// When a file cannot be read.
pub fn verify(path: &Path, anchors: TrustAnchors) -> io::Result<VerificationReport> {
    verify_selected(path, None, anchors, &mut |_| ControlFlow::Continue(()))
}

/// Verifies some segments of a log; the content of the others stays unknown.
fn verify_part(
    path: &Path,
    selected: &BTreeSet<u64>,
    anchors: TrustAnchors,
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> io::Result<VerificationReport> {
    verify_selected(path, Some(selected), anchors, watch)
}

/// Reports the stored bytes that were read to `watch` every few megabytes, which can break off.
fn verify_selected(
    path: &Path,
    selected: Option<&BTreeSet<u64>>,
    mut anchors: TrustAnchors,
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> io::Result<VerificationReport> {
    loop {
        let segments = segment_numbers(path)?;
        let part = SegmentsInOrder { path, segments: &segments, selected };
        match part.verify(anchors, watch)? {
            VerificationPass::Done(report) => return Ok(*report),
            VerificationPass::SegmentRemoved(again) => anchors = *again,
        }
    }
}

/// The segments that a pass goes through.
struct SegmentsInOrder<'a> {
    /// The folder of the log.
    path: &'a Path,
    /// The numbers of all listed segments, oldest first.
    segments: &'a [u64],
    /// The segments to read; `None` for all.
    selected: Option<&'a BTreeSet<u64>>,
}

/// The outcome of one pass over the segments that a folder lists.
enum VerificationPass {
    Done(Box<VerificationReport>),
    /// The gateway removed a segment during the pass, as configured. The record of the removal may
    /// be in a segment newer than the list.
    SegmentRemoved(Box<TrustAnchors>),
}

impl SegmentsInOrder<'_> {
    fn is_selected(&self, number: u64) -> bool {
        self.selected.is_none_or(|selected| selected.contains(&number))
    }

    fn verify(
        &self,
        anchors: TrustAnchors,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> io::Result<VerificationPass> {
        let numbers = self.segments;
        let mut done = 0;
        let mut verifier = Verifier::new(anchors);
        // Each segment is opened once: for its header, which gives the end of the segment before.
        let mut ahead = None;
        for (index, &number) in numbers.iter().enumerate() {
            let opened = ahead.take();
            if !self.is_selected(number) {
                continue;
            }
            // A header gives the plain name of the segment before, even if compressed.
            let name = segment_name(number);
            let opened = opened.unwrap_or_else(|| self.open(number));
            ahead = numbers.get(index + 1).map(|next| self.open(*next));
            let header = |next: &mut io::Result<SegmentReader>| header_of(next.as_mut().ok()?);
            let successor = match &mut ahead {
                Some(next) => Successor::Segment(header(next)),
                None => Successor::None,
            };
            let text = match opened {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tell(watch, done)?;
                    // A listed name may be a dangling link.
                    let is_removed = !segment_numbers(self.path)?.contains(&number);
                    if is_removed && self.selected.is_some() {
                        continue;
                    }
                    let again =
                        || VerificationPass::SegmentRemoved(Box::new(verifier.into_anchors()));
                    return is_removed.then(again).ok_or(error);
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    verifier.damaged_segment(&name, &error);
                    continue;
                }
                opened => opened?,
            };
            self.read(number, text, successor, &mut verifier, done, watch)?;
            done += self.stored(number);
            tell(watch, done)?;
        }
        verifier.report.segments =
            numbers.iter().filter(|number| self.is_selected(**number)).count();
        let report = match self.selected {
            None => verifier.finish(),
            Some(_) => verifier.finish_part(self.segments),
        };
        Ok(VerificationPass::Done(Box::new(report)))
    }

    /// Reads one segment.
    fn read(
        &self,
        number: u64,
        file: SegmentReader,
        successor: Successor,
        verifier: &mut Verifier,
        before: u64,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let name = segment_name(number);
        let stored = self.stored(number);
        let length = file.length()?;
        let text = WatchedSegment { file, before, stored, length, read: 0, told: 0, watch };
        match verifier.segment(&name, BufReader::with_capacity(READ, text), successor) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                verifier.damaged_segment(&name, &error);
            }
            read => read?,
        }
        Ok(())
    }

    fn open(&self, number: u64) -> io::Result<SegmentReader> {
        SegmentReader::open(self.path, number)
    }

    /// Returns the size of a segment as it is stored, in bytes.
    fn stored(&self, number: u64) -> u64 {
        let metadata = segment_metadata(self.path, number);
        metadata.map_or(0, |metadata| metadata.length)
    }
}

fn header_of(segment: &mut SegmentReader) -> Option<SegmentHeader> {
    let line = segment.first_line().ok()?;
    SegmentHeader::read(&RecordLine::read(line.strip_suffix(b"\n")?)?)
}

/// A segment whose reading is watched.
struct WatchedSegment<'a> {
    file: SegmentReader,
    /// Bytes of the segments before, as they are stored, and of this one.
    before: u64,
    stored: u64,
    /// The length of the text, and the bytes of it that were read.
    length: u64,
    read: u64,
    /// Bytes since the last report to `watch`.
    told: u64,
    watch: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// Bytes after which `watch` is called: some hundredths of a second.
const TELL_EVERY: u64 = 4 << 20;

impl Read for WatchedSegment<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read += read as u64;
        self.told += read as u64;
        if self.told >= TELL_EVERY {
            self.told = 0;
            let part = u128::from(self.stored) * u128::from(self.read.min(self.length));
            let part = part / u128::from(self.length.max(1));
            tell(self.watch, self.before + u64::try_from(part).unwrap_or(self.stored))?;
        }
        Ok(read)
    }
}

fn tell(watch: &mut dyn FnMut(u64) -> ControlFlow<()>, done: u64) -> io::Result<()> {
    match watch(done) {
        ControlFlow::Continue(()) => Ok(()),
        // The reader retries errors of kind `Interrupted`, so this error has another kind.
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
            let name = crate::segments::folder::segment_name(number);
            fs::write(folder.path().join(name), "x\n".repeat(5_000_000)).unwrap();
        }
        let mut told = Vec::new();
        let watch = &mut |done: u64| {
            told.push(done);
            ControlFlow::Continue(())
        };
        verify_selected(folder.path(), None, TrustAnchors::default(), watch).unwrap();
        assert_eq!(told.last(), Some(&30_000_000));
        assert!(told.len() > 5 && told.is_sorted());
        let mut asked = 0;
        let stop = &mut |_| {
            asked += 1;
            ControlFlow::Break(())
        };
        assert!(verify_selected(folder.path(), None, TrustAnchors::default(), stop).is_err());
        assert_eq!(asked, 1);
    }
}
