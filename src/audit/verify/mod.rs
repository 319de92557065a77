//! `promptgate audit verify`: checks that a log is complete and unmodified, without trust in the
//! machine that stores it.

mod verifier;

use std::fs::File;
use std::io::{self, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;

use super::checkpoint::Checkpoint;
use super::folder::segments;
use super::keys::{Keys, PublicKey};
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
pub struct Report {
    /// The sequence number of the first record.
    pub first: u64,
    /// The sequence number of the last record.
    pub last: u64,
    /// The number of records.
    pub records: u64,
    pub segments: usize,
    /// The violations that were found, at most 100; empty for an intact log.
    pub mistakes: Vec<Mistake>,
    /// The sequence numbers that the log itself declares missing (event `gap`).
    pub missing: Vec<RangeInclusive<u64>>,
    /// The calls with `received` but without `completed`, by the sequence numbers of `received`: the
    /// gateway was killed in between, and their outcome is unknown.
    pub unknown: Vec<u64>,
    /// The last record that a checkpoint of the log covers.
    pub checkpoint: Option<u64>,
    /// The records of which every line is the one that was signed; `None` without a key, and in logs of releases
    /// whose checkpoints do not sign the lines. It begins with the first segment that has digests.
    pub signed: Option<RangeInclusive<u64>>,
    /// The size of the lines in abandoned segments that were written again elsewhere, in bytes: only the secret
    /// verifies them.
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
pub struct Mistake {
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

/// Verifies a log from its first segment to its last.
///
/// # Errors
/// When a file cannot be read.
pub fn verify(path: &Path, anchors: TrustAnchors) -> io::Result<Report> {
    let names = segments(path)?;
    let mut verifier = Verifier::new(anchors);
    for (index, name) in names.iter().enumerate() {
        let successor = match names.get(index + 1) {
            Some(next) => Successor::Segment(super::recover::read_header(&path.join(next)).ok()),
            None => Successor::None,
        };
        let text = match File::open(path.join(name)) {
            // The gateway has removed it meanwhile, as configured; the later segments record that.
            Err(error) if error.kind() == io::ErrorKind::NotFound && verifier.head.is_none() => {
                continue;
            }
            opened => opened?,
        };
        verifier.segment(name, BufReader::new(text), successor)?;
    }
    verifier.report.segments = names.len();
    Ok(verifier.finish())
}
