//! `promptgate audit prove`: a record with all lines up to the checkpoint that signs it. The public
//! key alone checks it (`examples/audit/check_proof.py`).

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

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

/// Proves the record `seq` of the log in a folder; `None` if the log does not have the record.
/// Reads the segment of the record.
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
    let Some(header) = begin else { return Ok(None) };
    let mut proof = Proof { instance: header.instance, ..Proof::default() };
    // The last record that was read, and the running digest up to it.
    let mut last = header.previous.seq;
    let mut digest = header.previous.lines;
    let mut tail = Tail::new(folder, Position { segment: header.number, offset: 0 });
    tail.read_while(usize::MAX, |text| {
        let read = RecordLine::read(text).and_then(|line| Some((line.seq()?, line)));
        // Lines of an abandoned segment are written again.
        let Some((number, line)) = read.filter(|(number, _)| *number > last) else {
            return ControlFlow::Continue(());
        };
        last = number;
        let shown = || String::from_utf8_lossy(text).into_owned();
        if number < seq {
            digest = next_digest(&digest, &[text, b"\n"].concat());
        } else if number > seq && (proof.lines.is_empty() || line.is("checkpoint")) {
            proof.checkpoint = shown();
            return ControlFlow::Break(());
        } else {
            proof.lines.push(shown());
        }
        ControlFlow::Continue(())
    })?;
    proof.before = hex(&digest);
    Ok((!proof.lines.is_empty()).then_some(proof))
}
