//! Reads plain and compressed segments by the same offsets: the offsets of their text.
//!
//! A compressed segment is a row of gzip members (RFC 1952), each with [`BLOCK`] bytes of text but
//! the last. The extra field of a member has its length, so that a place is found without
//! decompressing all before it. `zcat` and `zgrep` read the file like any other.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

use flate2::bufread::GzDecoder;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use crate::record::MAX_LINE;
use crate::segments::folder::{compressed_name, open_stored};
use base::platform::disk::File;

/// A segment that is open for reading.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    file: File,
    /// `None` for a plain segment, whose position is that of the file.
    blocks: Option<Blocks>,
}

/// Bytes of text in each member of a compressed segment but the last.
pub(crate) const BLOCK: usize = 256 << 10;

/// The limit of a member, in bytes: text that cannot be compressed grows by far less.
const MAX_MEMBER: u64 = BLOCK as u64 + (16 << 10);

/// Bytes of a member before its compressed text: the header of gzip, and the extra field.
const HEAD: usize = 20;

/// The begin of each member: deflate with an extra field, no time, an unknown system, and the
/// field `PG` of four bytes, which follow.
const MAGIC: [u8; 16] = [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 8, 0, b'P', b'G', 4, 0];

/// The members of a compressed segment.
#[derive(Debug)]
struct Blocks {
    /// Where the members begin in the file, then where the last one ends.
    starts: Vec<u64>,
    /// Bytes of text in all of them.
    length: u64,
    position: u64,
    /// The text of the member that was read last.
    cached: Option<(usize, Vec<u8>)>,
}

impl SegmentReader {
    /// Opens a segment of a folder.
    pub(crate) fn open(folder: &Path, number: u64) -> io::Result<Self> {
        let (name, file) = open_stored(folder, number)?;
        Self::of(file, name == compressed_name(number))
    }

    /// Reads a file that has the text of a segment.
    pub(crate) fn of(file: File, is_compressed: bool) -> io::Result<Self> {
        let blocks = is_compressed.then(|| Blocks::read(&file)).transpose()?;
        Ok(Self { file, blocks })
    }

    /// Returns the length of the text, in bytes.
    pub(crate) fn length(&self) -> io::Result<u64> {
        match &self.blocks {
            Some(blocks) => Ok(blocks.length),
            None => Ok(self.file.metadata()?.length),
        }
    }

    /// Returns the first line, with its line feed, and goes back to the begin.
    pub(crate) fn first_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        BufReader::new(&mut *self).take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
        self.rewind()?;
        Ok(line)
    }

    /// Whether nothing more is written to the segment.
    pub(crate) fn is_compressed(&self) -> bool {
        self.blocks.is_some()
    }

    /// Returns when the segment was written last.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        self.file.metadata().ok()?.modified
    }
}

impl Read for SegmentReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.blocks {
            Some(blocks) => blocks.copy(&self.file, buffer),
            None => self.file.read(buffer),
        }
    }
}

impl Seek for SegmentReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let Some(blocks) = &mut self.blocks else {
            return self.file.seek(to);
        };
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(by) => blocks.length.checked_add_signed(by),
            SeekFrom::Current(by) => blocks.position.checked_add_signed(by),
        };
        blocks.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(blocks.position)
    }
}

impl Blocks {
    /// Finds the members of a file.
    fn read(mut file: &File) -> io::Result<Self> {
        let end = file.metadata()?.length;
        let mut starts = vec![0];
        let mut at = 0;
        while at < end {
            let mut head = [0; HEAD];
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut head).map_err(|_| damaged())?;
            let (magic, length) = head.split_at(MAGIC.len());
            let length = u64::from(little_endian(length));
            if magic != MAGIC || length <= HEAD as u64 + 8 || length > MAX_MEMBER {
                return Err(damaged());
            }
            at += length;
            starts.push(at);
        }
        if at != end {
            return Err(damaged());
        }
        let mut blocks = Self { length: 0, position: 0, cached: None, starts };
        // Every member but the last has `BLOCK` bytes.
        if let Some(last) = blocks.starts.len().checked_sub(2) {
            let mut size = [0; 4];
            file.seek(SeekFrom::Start(end - 4))?;
            file.read_exact(&mut size)?;
            let whole = last as u64 * BLOCK as u64;
            blocks.length = whole + u64::from(little_endian(&size)).min(BLOCK as u64);
        }
        Ok(blocks)
    }

    fn copy(&mut self, file: &File, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.length {
            return Ok(0);
        }
        let index = usize::try_from(self.position / BLOCK as u64).map_err(|_| damaged())?;
        let offset = usize::try_from(self.position % BLOCK as u64).map_err(|_| damaged())?;
        if self.cached.as_ref().is_none_or(|(cached, _)| *cached != index) {
            self.cached = Some((index, self.text(file, index)?));
        }
        let text = self.cached.as_ref().map_or(&[][..], |(_, text)| text);
        let part = text.get(offset..).unwrap_or_default();
        let length = part.len().min(buffer.len());
        buffer[..length].copy_from_slice(&part[..length]);
        self.position += length as u64;
        Ok(length)
    }

    /// Returns the text of a member.
    fn text(&self, mut file: &File, index: usize) -> io::Result<Vec<u8>> {
        let start = self.starts[index];
        let end = self.starts[index + 1];
        let mut member = vec![0; usize::try_from(end - start).map_err(|_| damaged())?];
        file.seek(SeekFrom::Start(start))?;
        let read = read_full(file, &mut member)?;
        let mut text = Vec::with_capacity(BLOCK);
        let decoder = GzDecoder::new(&member[..read]);
        decoder.take(BLOCK as u64 + 1).read_to_end(&mut text).map_err(|_| damaged())?;
        let expected = (self.length - index as u64 * BLOCK as u64).min(BLOCK as u64);
        (text.len() as u64 == expected).then_some(text).ok_or_else(damaged)
    }
}

/// Compresses a text of at most [`BLOCK`] bytes to a member.
pub(crate) fn compress_block(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut member = MAGIC.to_vec();
    member.extend([0; HEAD - MAGIC.len()]);
    let mut encoder = DeflateEncoder::new(member, Compression::default());
    io::Write::write_all(&mut encoder, text)?;
    let mut member = encoder.finish()?;
    let mut crc = Crc::new();
    crc.update(text);
    member.extend(crc.sum().to_le_bytes());
    member.extend(crc.amount().to_le_bytes());
    let length = u32::try_from(member.len()).map_err(io::Error::other)?;
    member[MAGIC.len()..HEAD].copy_from_slice(&length.to_le_bytes());
    Ok(member)
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_full(mut file: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the compressed segment is damaged")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::segments::compressor::compress;
    use crate::segments::folder::segment_name;

    fn compressed(text: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(segment_name(1)), text).unwrap();
        compress(folder.path(), 1, &|| false).unwrap();
        assert!(!folder.path().join(segment_name(1)).exists());
        folder
    }

    #[test]
    fn a_compressed_segment_is_smaller_and_a_usual_tool_reads_it() {
        let text = b"{\"seq\":1,\"event\":\"received\",\"caller\":\"ci\"}\n".repeat(20_000);
        let folder = compressed(&text);
        let file = fs::read(folder.path().join(compressed_name(1))).unwrap();
        assert!(file.len() * 5 < text.len());
        let mut read = Vec::new();
        flate2::read::MultiGzDecoder::new(&*file).read_to_end(&mut read).unwrap();
        assert!(read == text);
    }

    #[test]
    fn a_damaged_compressed_segment_is_an_error_and_no_other_text() {
        let folder = compressed(&b"a line of the log\n".repeat(40_000));
        let path = folder.path().join(compressed_name(1));
        let whole = fs::read(&path).unwrap();
        let read = || {
            let mut text = Vec::new();
            SegmentReader::open(folder.path(), 1)?.read_to_end(&mut text).map(|_| text)
        };
        let text = read().unwrap();
        for at in (0..whole.len()).step_by(7) {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x40;
            fs::write(&path, flipped).unwrap();
            let found = read();
            assert!(found.as_ref().is_err() || found.unwrap() == text, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            // Whole blocks are left: the chain of records tells that the rest is missing.
            let has_blocks =
                |left: Vec<u8>| left.len().is_multiple_of(BLOCK) && text.starts_with(&left);
            assert!(read().map_or(true, has_blocks), "{at} bytes are left");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn a_compressed_segment_reads_like_the_plain_one_from_any_place(
            length in 0..3 * BLOCK,
            places in prop::collection::vec((0..3 * BLOCK, 1..BLOCK), 1..8),
        ) {
            let text: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let folder = compressed(&text);
            let mut reader = SegmentReader::open(folder.path(), 1).unwrap();
            prop_assert_eq!(reader.length().unwrap(), length as u64);
            for (place, size) in places {
                reader.seek(SeekFrom::Start(place as u64)).unwrap();
                let mut part = vec![0; size];
                let read = read_full(&mut reader, &mut part).unwrap();
                let from = place.min(length);
                prop_assert_eq!(&part[..read], &text[from..(from + size).min(length)]);
            }
        }
    }
}
