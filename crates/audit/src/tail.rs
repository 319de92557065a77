//! Reads the lines of a log in their order, also while they are written. The reader locks nothing,
//! and checks no keys: [`verify`](super::verify) does that.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::MAX_LINE;
use super::segments::folder::segment_numbers;
use super::segments::recover::read_header;
use super::segments::segment_reader::{SegmentReader, read_full};

/// A place in a log, between two lines.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct Position {
    /// The number of the segment; the first one has 1, and 0 stands for the begin of the log.
    pub segment: u64,
    /// Bytes from the start of the segment.
    pub offset: u64,
}

/// A reader of the lines behind a position.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    position: Position,
    /// The segment that is read, by its number.
    file: Option<(u64, SegmentReader)>,
}

/// Bytes that are read at once.
const READ: usize = 256 << 10;

impl Tail {
    /// Creates a reader of the log in a folder.
    pub(crate) fn new(path: &Path, position: Position) -> Self {
        Self { path: path.to_owned(), position, file: None }
    }

    /// Creates a reader of lines that are written from now on.
    pub(crate) fn at_end(path: &Path) -> io::Result<Self> {
        let Some(segment) = segment_numbers(path)?.pop() else {
            return Ok(Self::new(path, Position::default()));
        };
        let offset = end_of_lines(&mut SegmentReader::open(path, segment)?)?;
        Ok(Self::new(path, Position { segment, offset }))
    }

    /// Returns the folder of the log.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the position behind the last line that was read.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Calls `each` with the next complete lines, without their line feeds, until about `limit`
    /// bytes are read. Returns whether the end was reached. An incomplete line at the end is read
    /// once it is complete. A segment that was removed or truncated meanwhile is skipped.
    pub(crate) fn read(&mut self, limit: usize, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        self.read_while(limit, |line| {
            each(line);
            ControlFlow::Continue(())
        })
    }

    /// Like [`Tail::read`], until `each` breaks off: that line is the next one then.
    pub(crate) fn read_while(
        &mut self,
        limit: usize,
        mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> io::Result<bool> {
        let mut left = limit;
        while left > 0 {
            let ControlFlow::Continue(read) = self.read_part(&mut each)? else { return Ok(false) };
            if read > 0 {
                left = left.saturating_sub(read);
                continue;
            }
            let Some(next) = self.next_segment()? else {
                return Ok(true);
            };
            // The writer has finished a segment before the next one exists, so the rest of the
            // present segment is read first.
            let ControlFlow::Continue(read) = self.read_part(&mut each)? else { return Ok(false) };
            if read == 0 {
                self.position = Position { segment: next, offset: 0 };
            }
        }
        Ok(false)
    }

    /// Reads lines of the present segment; returns their bytes, 0 at its end.
    fn read_part(
        &mut self,
        each: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<(), usize>> {
        let Position { segment, offset } = self.position;
        let Some(file) = self.open(segment)? else {
            return Ok(ControlFlow::Continue(0));
        };
        let mut part = vec![0; READ];
        file.seek(SeekFrom::Start(offset))?;
        let length = read_full(file, &mut part)?;
        let part = &part[..length];
        let complete = match part.iter().rposition(|&byte| byte == b'\n') {
            Some(last) => last + 1,
            // No line is that long: the text is the rest of an abandoned segment, or no segment.
            None if length > MAX_LINE => length,
            None => 0,
        };
        let mut read = 0;
        for line in part[..complete].split_inclusive(|&byte| byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            if !text.is_empty() && each(text).is_break() {
                self.position.offset += read as u64;
                return Ok(ControlFlow::Break(()));
            }
            read += line.len();
        }
        self.position.offset += complete as u64;
        Ok(ControlFlow::Continue(complete))
    }

    fn open(&mut self, segment: u64) -> io::Result<Option<&mut SegmentReader>> {
        if self.file.as_ref().is_none_or(|(number, _)| *number != segment) {
            self.file = match SegmentReader::open(&self.path, segment) {
                Ok(file) => Some((segment, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
        }
        Ok(self.file.as_mut().map(|(_, file)| file))
    }

    fn next_segment(&self) -> io::Result<Option<u64>> {
        let numbers = match segment_numbers(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            numbers => numbers?,
        };
        Ok(numbers.into_iter().find(|number| *number > self.position.segment))
    }
}

/// Returns the id of the log in a folder; `None` if there is no segment.
pub(crate) fn instance(path: &Path) -> io::Result<Option<String>> {
    let numbers = match segment_numbers(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        numbers => numbers?,
    };
    let headers = numbers.into_iter().rev().filter_map(|number| read_header(path, number).ok());
    Ok(headers.map(|header| header.instance).next())
}

/// Returns where the last complete line of a segment ends, in bytes.
fn end_of_lines(file: &mut SegmentReader) -> io::Result<u64> {
    let length = file.length()?;
    let start = length.saturating_sub(2 * MAX_LINE as u64);
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    file.take(length - start).read_to_end(&mut text)?;
    let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    Ok(start + end as u64)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;
    use crate::segments::folder::segment_name;

    fn append(path: &Path, segment: u64, text: &str) {
        let file = path.join(segment_name(segment));
        let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn lines(tail: &mut Tail) -> Vec<String> {
        let mut lines = Vec::new();
        let take = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
        assert!(tail.read(usize::MAX, take).unwrap());
        lines
    }

    #[test]
    fn lines_are_read_once_they_are_complete_across_segments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let mut tail = Tail::new(path, Position::default());
        assert!(lines(&mut tail).is_empty());
        append(path, 1, "a\nb\nhal");
        assert_eq!(lines(&mut tail), ["a", "b"]);
        let mut end = Tail::at_end(path).unwrap();
        assert_eq!(end.position(), tail.position());
        append(path, 1, "f\nc\ntorn");
        append(path, 2, "d\n");
        assert_eq!(lines(&mut tail), ["half", "c", "d"]);
        assert_eq!(lines(&mut end), ["half", "c", "d"]);
        fs::remove_file(path.join(segment_name(2))).unwrap();
        append(path, 3, "e\n");
        assert_eq!(lines(&mut tail), ["e"]);
        assert!(lines(&mut tail).is_empty());
    }
}
