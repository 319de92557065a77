//! `promptgate audit verify`: whether a log is whole and as it was written, without trusting
//! whoever holds it.

mod judge;

use std::fs::File;
use std::io::{self, BufReader};
use std::ops::RangeInclusive;
use std::path::Path;

use super::folder::segments;
use super::keys::{Keys, PublicKey};
use super::record::Head;
use crate::seal::hex::from_hex;
use judge::{Behind, Judge};

/// What is known of a log by somebody who checks it.
#[derive(Debug, Default)]
pub struct Known {
    /// With the secret everything is checked; without it numbers, shape and, with a public key,
    /// checkpoints.
    pub keys: Option<Keys>,
    pub public: Option<PublicKey>,
    /// Checkpoints that were kept elsewhere.
    pub checkpoints: Vec<Kept>,
}

/// A checkpoint that was kept elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kept {
    pub instance: String,
    pub head: Head,
    pub signature: String,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// The numbers of the first and of the last record.
    pub first: u64,
    pub last: u64,
    pub records: u64,
    pub segments: usize,
    /// Everything that should not be; nothing of a log that is whole.
    pub mistakes: Vec<Mistake>,
    /// Records that the log itself says are missing.
    pub missing: Vec<RangeInclusive<u64>>,
    /// Calls that were received and of which no end was recorded, by the numbers of their records:
    /// a crash came between.
    pub unknown: Vec<u64>,
    /// The last record that is covered by a checkpoint of the log.
    pub checkpoint: Option<u64>,
    /// The last record that was removed as configured.
    pub removed: u64,
    /// Bytes of a line at the very end that has no end of its own: the gateway is writing it just
    /// now, or was killed while it did. As long as the power did not fail, nobody was told that it is
    /// on record.
    pub unfinished: u64,
}

/// Something that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    pub segment: String,
    /// Number of the record, where it has one.
    pub seq: Option<u64>,
    pub what: String,
}

/// How many mistakes are told: from the first one on a broken log has many.
const MAX_MISTAKES: usize = 100;

impl Kept {
    /// Reads a line of a log of the gateway, or of an audit log; nothing if it is no checkpoint.
    pub fn read(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value.get(name)?.as_str();
        let seq = value.get("count")?.as_u64()?;
        let mac = from_hex(text("head")?)?;
        let (instance, signature) = (text("instance")?.to_owned(), text("signature")?.to_owned());
        Some(Self { instance, head: Head { seq, mac }, signature })
    }
}

/// Walks a log from its first segment to its last.
///
/// # Errors
/// When a file cannot be read.
pub fn verify(path: &Path, known: Known) -> io::Result<Report> {
    let names = segments(path)?;
    let mut judge = Judge::new(known);
    for (index, name) in names.iter().enumerate() {
        let behind = match names.get(index + 1) {
            Some(next) => Behind::Segment(super::recover::read_header(&path.join(next)).ok()),
            None => Behind::Nothing,
        };
        let text = match File::open(path.join(name)) {
            // The gateway has removed it meanwhile, as configured; the ones behind it say so.
            Err(error) if error.kind() == io::ErrorKind::NotFound && judge.head.is_none() => {
                continue;
            }
            opened => opened?,
        };
        judge.segment(name, BufReader::new(text), behind)?;
    }
    judge.report.segments = names.len();
    Ok(judge.finish())
}
