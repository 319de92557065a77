//! The start: where a log that is there ends, and what a crash left half written.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::folder::{Folder, segment_number};
use super::header::Header;
use super::keys::Keys;
use super::record::{Head, Line, MAX_LINE, Writer};
use crate::seal::hex::hex;
use crate::seal::random;

/// Where a log goes on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Recovered {
    pub writer: Writer,
    /// The last whole record.
    pub head: Head,
    /// Number of the last segment, and its length; 0 if there is none.
    pub number: u64,
    pub bytes: u64,
    /// Bytes behind the last whole record, which were put aside.
    pub torn: u64,
}

/// Finds the end of the log in a folder, and puts aside what stands behind its last whole record.
///
/// # Errors
/// When a file cannot be read or written, or the log was written with another key.
pub(crate) fn recover(folder: &Folder, keys: &Keys) -> io::Result<Recovered> {
    let boot = hex(&random::<8>());
    let segments = folder.segments()?;
    let Some(name) = segments.last() else {
        let writer = Writer { instance: hex(&random::<8>()), boot };
        return Ok(Recovered { writer, head: Head::default(), number: 0, bytes: 0, torn: 0 });
    };
    let text = fs::read(folder.path().join(name))?;
    let header = first_line(&text).and_then(|line| Some((Header::read(&line)?, line)));
    let Some((header, line)) = header else {
        return Err(unusable(name, "does not start with a header of a segment"));
    };
    if !header.is_of(&line, keys) {
        let what = "was written with another audit.key: give that key, or set another audit.path";
        return Err(unusable(name, what));
    }
    let end = whole(&text);
    let (kept, torn) = text.split_at(end);
    if !torn.is_empty() {
        let stem = name.trim_end_matches(".jsonl");
        folder.keep(&format!("{stem}-{end}.torn"), torn)?;
        folder.truncate(name, end as u64)?;
    }
    let number = segment_number(name).unwrap_or_default();
    let head = last_record(kept).unwrap_or(header.previous);
    let writer = Writer { instance: header.instance, boot };
    Ok(Recovered { writer, head, number, bytes: end as u64, torn: torn.len() as u64 })
}

/// The header of a segment.
pub(crate) fn read_header(path: &Path) -> io::Result<Header> {
    let mut line = Vec::new();
    BufReader::new(File::open(path)?).take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
    let header = first_line(&line).and_then(|line| Header::read(&line));
    header.ok_or_else(|| unusable(&path.display().to_string(), "has no header"))
}

fn unusable(name: &str, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name} {what}"))
}

fn first_line(text: &[u8]) -> Option<Line<'_>> {
    Line::read(text.split(|&b| b == b'\n').next()?)
}

/// Where the last line ends that is a whole one: a crash of the system may leave more than half a
/// line behind.
fn whole(text: &[u8]) -> usize {
    let mut end = text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    while end > 0 {
        let start = start_of_last_line(&text[..end]);
        if Line::read(&text[start..end - 1]).is_some() {
            break;
        }
        end = start;
    }
    end
}

fn last_record(text: &[u8]) -> Option<Head> {
    let start = start_of_last_line(text);
    let line = Line::read(text[start..].strip_suffix(b"\n")?)?;
    Some(Head { seq: line.seq()?, mac: line.mac })
}

/// Where the last line of a text starts that ends with a line feed.
fn start_of_last_line(text: &[u8]) -> usize {
    let before = &text[..text.len().saturating_sub(1)];
    before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1)
}
