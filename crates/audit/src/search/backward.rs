//! The lines of a segment from its end to its begin, in bounded memory.

use std::io::{self, Seek, SeekFrom};

use crate::record::MAX_LINE;
use crate::segments::segment_reader::{BLOCK, SegmentReader, read_full};

/// A reader of complete lines, last to first.
pub(super) struct Backward<'a> {
    file: &'a mut SegmentReader,
    /// Bytes of the segment from `start` on.
    part: Vec<u8>,
    start: u64,
    /// The end of the text that is not returned yet, in `part`.
    end: usize,
    scanned: u64,
    has_just_read: bool,
}

/// The size and alignment of reads in bytes, so that each block of a compressed segment is
/// decompressed once.
const READ: u64 = BLOCK as u64;

impl<'a> Backward<'a> {
    /// Creates a reader of the lines that end at most at `end`, in bytes from the start.
    pub(super) fn new(file: &'a mut SegmentReader, end: u64) -> Self {
        Self { file, part: Vec::new(), start: end, end: 0, scanned: 0, has_just_read: false }
    }

    /// Returns the bytes that were read.
    pub(super) fn scanned(&self) -> u64 {
        self.scanned
    }

    /// Whether the last call of [`Self::next`] read from the file.
    pub(super) fn has_just_read(&self) -> bool {
        self.has_just_read
    }

    /// Returns the next line, without its line feed, with its offset; `None` in front of the first.
    /// Text behind the last line feed is not a line yet.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.has_just_read = false;
        loop {
            let part = &self.part[..self.end];
            let (begin, is_whole) = match part.strip_suffix(b"\n") {
                Some(line) => match memchr::memrchr(b'\n', line) {
                    Some(at) => (at + 1, true),
                    None => (0, self.start == 0),
                },
                // Text behind the last line feed.
                None => match memchr::memrchr(b'\n', part) {
                    Some(at) => {
                        self.end = at + 1;
                        continue;
                    }
                    None => (0, false),
                },
            };
            if is_whole && self.end > 0 {
                let line = begin..self.end - 1;
                self.end = begin;
                return Ok(Some((self.start + begin as u64, &self.part[line])));
            }
            if self.start == 0 {
                return Ok(None);
            }
            self.read()?;
        }
    }

    /// Reads the part in front of the present one.
    fn read(&mut self) -> io::Result<()> {
        self.has_just_read = true;
        // No line is that long: the text is a leftover of a crash.
        if self.end > 2 * MAX_LINE {
            self.end = 0;
        }
        let start = (self.start.saturating_sub(1)) / READ * READ;
        let length = usize::try_from(self.start - start).unwrap_or_default();
        let mut part = vec![0; length];
        self.file.seek(SeekFrom::Start(start))?;
        let read = read_full(&mut *self.file, &mut part)?;
        self.scanned += read as u64;
        if read == length {
            part.extend_from_slice(&self.part[..self.end]);
        } else {
            // The file was truncated meanwhile.
            part.truncate(read);
        }
        (self.start, self.end, self.part) = (start, part.len(), part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::segments::folder::segment_name;

    fn lines(text: &[u8], end: u64) -> Vec<(u64, Vec<u8>)> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(segment_name(1)), text).unwrap();
        let mut file = SegmentReader::open(folder.path(), 1).unwrap();
        let mut lines = Backward::new(&mut file, end);
        let mut all = Vec::new();
        while let Some((offset, line)) = lines.next().unwrap() {
            all.push((offset, line.to_vec()));
        }
        all
    }

    #[test]
    fn an_incomplete_line_at_the_end_is_none() {
        let first = (0, b"a".to_vec());
        let second = (2, b"bc".to_vec());
        assert_eq!(lines(b"a\nbc\nto", 7), [second, first.clone()]);
        assert_eq!(lines(b"a\nbc\nto", 4), [first]);
        assert!(lines(b"torn", 4).is_empty());
        assert!(lines(b"", 0).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn lines_backward_are_the_lines_forward(lengths in prop::collection::vec(1..9_000_usize, 0..200)) {
            let mut text = Vec::new();
            let mut expected = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                let line = vec![b'a' + (number % 26) as u8; *length];
                expected.push((text.len() as u64, line.clone()));
                text.extend(line);
                text.push(b'\n');
            }
            expected.reverse();
            prop_assert_eq!(lines(&text, text.len() as u64), expected);
        }
    }
}
