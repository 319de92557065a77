//! Recovery at the start: finds the end of an existing log, and moves an incomplete line of a crash
//! aside. It reads the last segment, a piece at a time.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

use crate::keys::{Digest, Keys};
use crate::record::{Head, MAX_LINE, RecordLine, WriterId, next_digest};
use crate::segments::folder::{LogFolder, segment_name, segment_number};
use crate::segments::header::SegmentHeader;
use crate::segments::segment_reader::SegmentReader;
use base::platform::disk;
use base::seal::hex::hex;
use base::seal::random;

/// The position where a log continues.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Recovered {
    pub writer: WriterId,
    /// The last complete record.
    pub head: Head,
    /// The number of the last segment; 0 if there is none.
    pub number: u64,
    /// The length of the last segment, in bytes.
    pub bytes: u64,
    /// Whether the last segment is closed, because the one after it was taken away.
    pub is_closed: bool,
    /// The running digest of the headers.
    pub headers: Digest,
    /// Bytes after the last complete record, which were moved to a `.torn` file.
    pub torn: u64,
    /// Files with names of segments that are not segments, which were renamed.
    pub aside: Vec<SetAside>,
}

/// A file that had the name of a segment, such as one that was truncated while it was written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SetAside {
    /// The new name of the file.
    pub name: String,
    /// The length of the file, in bytes.
    pub bytes: u64,
    /// The number of the last record in the file; 0 if it has no record.
    pub last_seq: u64,
}

/// Finds the end of the log in a folder. Files that are not segments are set aside, and all bytes
/// after the last complete record are moved to a `.torn` file.
pub(crate) fn recover(folder: &LogFolder, keys: &Keys) -> io::Result<Recovered> {
    let boot = hex(&random::<8>());
    let aside = set_aside_strangers(folder)?;
    // The numbers of lost records are not used again: a copy of a checkpoint may name them.
    let lost = aside.iter().map(|aside| aside.last_seq).max().unwrap_or_default();
    let segments = folder.segments()?;
    let Some(name) = segments.last() else {
        let writer = WriterId { instance: hex(&random::<8>()), boot };
        let head = Head { seq: lost, ..Head::default() };
        return Ok(Recovered {
            writer,
            head,
            number: 0,
            bytes: 0,
            is_closed: false,
            headers: Digest::default(),
            torn: 0,
            aside,
        });
    };
    let number = segment_number(name).unwrap_or_default();
    let line = first_line_of(folder.path(), number)?;
    let header = first_line(&line).and_then(|line| Some((SegmentHeader::read(&line)?, line)));
    let Some((header, line)) = header else {
        return Err(invalid_segment(name, "does not start with a segment header"));
    };
    if !header.is_authentic(&line, keys) {
        let what = "was written with another audit.key: set that key, or another audit.path";
        return Err(invalid_segment(name, what));
    }
    let mut file = SegmentReader::open(folder.path(), number)?;
    let SegmentEnd { offset: end, last } = find_end(&mut file)?;
    let mut torn = Vec::new();
    file.seek(SeekFrom::Start(end))?;
    file.read_to_end(&mut torn)?;
    let is_closed = file.is_compressed();
    if !torn.is_empty() && !is_closed {
        let stem = name.trim_end_matches(".jsonl");
        folder.save_torn(&format!("{stem}-{end}.torn"), &torn)?;
        folder.truncate(name, end)?;
    }
    file.seek(SeekFrom::Start(0))?;
    let mut lines =
        SegmentLines { reader: BufReader::with_capacity(READ, file.take(end)), line: Vec::new() };
    let first = lines.next()?.unwrap_or_default();
    let headers = next_digest(&header.headers, first);
    let mut digest = header.previous.lines;
    while let Some(line) = lines.next()? {
        digest = next_digest(&digest, line);
    }
    let head = last.unwrap_or(header.previous);
    Ok(Recovered {
        writer: WriterId { instance: header.instance, boot },
        head: Head { seq: head.seq.max(lost), lines: digest, ..head },
        number,
        bytes: end,
        is_closed,
        headers,
        torn: torn.len() as u64,
        aside,
    })
}

/// Renames the files that have names of segments and do not start with a header.
fn set_aside_strangers(folder: &LogFolder) -> io::Result<Vec<SetAside>> {
    let mut aside = Vec::new();
    for name in folder.segments()? {
        let number = segment_number(&name).unwrap_or_default();
        match read_header(folder.path(), number) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let text = disk::read(&folder.path().join(&name))?;
                let lines = text.split(|&byte| byte == b'\n').filter_map(RecordLine::read);
                // The file is not authenticated: a number beyond any real log is ignored.
                let seqs = lines.filter_map(|line| line.seq()).filter(|seq| *seq < MAX_LOST);
                let last_seq = seqs.max().unwrap_or_default();
                let name = folder.set_aside(&name)?;
                aside.push(SetAside { name, bytes: text.len() as u64, last_seq });
            }
            header => drop(header?),
        }
    }
    Ok(aside)
}

/// The limit of sequence numbers that are believed of a file that was set aside: a million records
/// a second for thirty years come to less.
const MAX_LOST: u64 = 1 << 50;

/// Reads the header of a segment.
pub(crate) fn read_header(folder: &Path, number: u64) -> io::Result<SegmentHeader> {
    let line = first_line_of(folder, number)?;
    let header = first_line(&line).and_then(|line| SegmentHeader::read(&line));
    header.ok_or_else(|| invalid_segment(&segment_name(number), "has no header"))
}

/// Returns the time in the header of a segment, at which the segment before was closed.
pub(crate) fn header_time(folder: &Path, number: u64) -> io::Result<SystemTime> {
    let line = first_line_of(folder, number)?;
    let time = first_line(&line).and_then(|line| line.string("time"));
    let time = time.and_then(|time| humantime::parse_rfc3339(&time).ok());
    time.ok_or_else(|| invalid_segment(&segment_name(number), "has no time in its header"))
}

/// Returns the first line of a segment, with its line feed.
pub(crate) fn first_line_of(folder: &Path, number: u64) -> io::Result<Vec<u8>> {
    SegmentReader::open(folder, number)?.first_line()
}

fn invalid_segment(name: &str, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{name} {what}"))
}

fn first_line(text: &[u8]) -> Option<RecordLine<'_>> {
    RecordLine::read(text.split(|&b| b == b'\n').next()?)
}

/// The end of a segment: the position behind its last complete line.
struct SegmentEnd {
    /// The offset from the start of the file, in bytes.
    offset: u64,
    /// The record of that line; `None` if the line is not a record.
    last: Option<Head>,
}

/// Finds the last complete line, searching from the end: a system crash may leave more than one
/// incomplete line. Reads beyond [`TAIL`] bytes only if they have no complete line.
fn find_end(file: &mut SegmentReader) -> io::Result<SegmentEnd> {
    let length = file.length()?;
    let mut tail = TAIL;
    loop {
        let start = length.saturating_sub(tail);
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.by_ref().take(tail).read_to_end(&mut text)?;
        let mut end = text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        while end > 0 {
            let last = start_of_last_line(&text[..end]);
            // The line may begin before the part that was read.
            let is_whole = last > 0 || start == 0;
            if let Some(line) = RecordLine::read(&text[last..end - 1]).filter(|_| is_whole) {
                let head = line.seq().map(|seq| Head { seq, mac: line.mac, ..Head::default() });
                return Ok(SegmentEnd { offset: start + end as u64, last: head });
            }
            end = last;
        }
        if start == 0 {
            return Ok(SegmentEnd { offset: 0, last: None });
        }
        tail *= 2;
    }
}

/// Bytes at the end of a segment that are read first: several of the longest lines.
const TAIL: u64 = 4 * MAX_LINE as u64;

/// Bytes of a segment that are read at once.
const READ: usize = 256 << 10;

/// The lines of a segment, one at a time: a segment may be larger than the memory.
struct SegmentLines<R> {
    reader: R,
    line: Vec<u8>,
}

impl<R: BufRead> SegmentLines<R> {
    /// The next line with its line feed; `None` at the end.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line)?;
        Ok((!self.line.is_empty()).then_some(&*self.line))
    }
}

/// Returns the offset of the last line of a text that ends with a line feed.
fn start_of_last_line(text: &[u8]) -> usize {
    let before = &text[..text.len().saturating_sub(1)];
    before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1)
}
