//! `promptgate audit prove`: a record with all lines up to the checkpoint that signs it. The public
//! key alone checks it (`examples/audit/check_proof.py`).

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use crate::keys::Digest;
use crate::record::{RecordLine, next_digest};
use crate::segments::folder::segment_numbers;
use crate::segments::recover::read_header;
use crate::tail::{Position, Tail};
use base::seal::hex::hex;

/// A record, and the proof that a checkpoint has signed it.
#[derive(Debug, Default, Serialize)]
pub struct Proof {
    /// The id of the log.
    pub instance: String,
    /// The running digest of all lines before the record, in hexadecimal.
    pub before: String,
    /// The line of the record, and those after it up to the record that the checkpoint signs.
    pub lines: Vec<String>,
    /// The line of the checkpoint; empty while no checkpoint has signed the record.
    pub checkpoint: String,
}

/// Bytes that are read at once.
const READ: usize = 1 << 20;

/// Proves the record `seq` of the log in a folder; `None` if the log does not have the record, or
/// was written by a release without digests. Reads the segment of the record.
///
/// # Errors
/// When a segment cannot be read.
pub fn prove(folder: &Path, seq: u64) -> io::Result<Option<Proof>> {
    let mut begin = None;
    for number in segment_numbers(folder)? {
        let header = read_header(folder, number)?;
        if header.previous.seq >= seq {
            break;
        }
        begin = Some(header);
    }
    let Some(header) = begin.filter(|header| header.headers.is_some()) else { return Ok(None) };
    let mut tail = Tail::new(folder, Position { segment: header.number, offset: 0 });
    let mut proving = Proving {
        proof: Proof { instance: header.instance, ..Proof::default() },
        seq,
        last: header.previous.seq,
        digest: header.previous.lines,
    };
    while proving.proof.checkpoint.is_empty()
        && !tail.read_while(READ, |line| proving.line(line))?
    {}
    Ok((!proving.proof.lines.is_empty()).then_some(proving.proof))
}

/// A proof in the making.
struct Proving {
    proof: Proof,
    /// The record that is proved.
    seq: u64,
    /// The last record that was read, and the running digest up to it.
    last: u64,
    digest: Digest,
}

impl Proving {
    /// Takes the next line of the log, without its line feed.
    fn line(&mut self, text: &[u8]) -> ControlFlow<()> {
        let Some(line) = RecordLine::read(text) else { return ControlFlow::Continue(()) };
        // Lines of an abandoned segment are written again.
        let Some(seq) = line.seq().filter(|seq| *seq > self.last) else {
            return ControlFlow::Continue(());
        };
        self.last = seq;
        if seq < self.seq {
            self.digest = next_digest(&self.digest, &[text, b"\n"].concat());
            return ControlFlow::Continue(());
        }
        let text = String::from_utf8_lossy(text).into_owned();
        if seq > self.seq && line.is("checkpoint") {
            self.proof.checkpoint = text;
            return ControlFlow::Break(());
        }
        if self.proof.lines.is_empty() {
            self.proof.before = hex(&self.digest);
        }
        self.proof.lines.push(text);
        ControlFlow::Continue(())
    }
}
