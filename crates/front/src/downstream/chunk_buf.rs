//! The bytes of a response body in chunks.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use domain::text::chunks::Chunks;

/// Bytes in chunks. hyper writes up to 64 of them with one system call and, without TLS, copies
/// none.
#[derive(Debug, Default)]
pub struct ChunkBuf {
    /// Each is non-empty.
    chunks: VecDeque<Bytes>,
    /// Bytes in all of them.
    size: usize,
}

impl ChunkBuf {
    /// Takes the first bytes, `most` at most and no more than one chunk has.
    pub(crate) fn take_piece(&mut self, most: usize) -> Self {
        let mut piece = self.chunks.pop_front().unwrap_or_default();
        if piece.len() > most {
            self.chunks.push_front(piece.split_off(most));
        }
        self.size -= piece.len();
        piece.into()
    }
}

impl From<Bytes> for ChunkBuf {
    fn from(bytes: Bytes) -> Self {
        let size = bytes.len();
        let chunks = if size > 0 { [bytes].into() } else { VecDeque::new() };
        Self { chunks, size }
    }
}

impl From<Chunks> for ChunkBuf {
    fn from(chunks: Chunks) -> Self {
        chunks.into_iter().collect()
    }
}

impl FromIterator<Bytes> for ChunkBuf {
    fn from_iter<I: IntoIterator<Item = Bytes>>(chunks: I) -> Self {
        let mut chunks: VecDeque<_> = chunks.into_iter().collect();
        chunks.retain(|chunk| !chunk.is_empty());
        let size = chunks.iter().map(Bytes::len).sum();
        Self { chunks, size }
    }
}

impl Buf for ChunkBuf {
    fn remaining(&self) -> usize {
        self.size
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let count = slices.len().min(self.chunks.len());
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(chunk);
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.size, "{count} bytes of {}", self.size);
        self.size -= count;
        while count > 0 {
            let Some(first) = self.chunks.front_mut() else { return };
            if count < first.len() {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunks() -> impl Strategy<Value = Vec<Bytes>> {
        let chunk = prop::collection::vec(any::<u8>(), 0..4).prop_map(Bytes::from);
        prop::collection::vec(chunk, 0..6)
    }

    proptest! {
        #[test]
        fn slices_and_what_follows_an_advance_are_the_bytes_in_order(
            chunks in chunks(),
            count in 0usize..24,
            room in 0usize..8,
        ) {
            let expected = chunks.concat();
            let mut buf: ChunkBuf = chunks.iter().cloned().collect();
            prop_assert_eq!(buf.remaining(), expected.len());
            let mut slices = vec![IoSlice::new(&[]); room];
            let filled = buf.chunks_vectored(&mut slices);
            let listed: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
            prop_assert!(expected.starts_with(&listed));
            prop_assert_eq!(filled, room.min(chunks.iter().filter(|chunk| !chunk.is_empty()).count()));
            let count = count.min(expected.len());
            buf.advance(count);
            prop_assert_eq!(buf.chunk().is_empty(), count == expected.len());
            prop_assert_eq!(&buf.copy_to_bytes(expected.len() - count), &expected[count..]);
        }

        #[test]
        fn pieces_are_the_bytes_in_order_and_none_is_longer_than_allowed(
            chunks in chunks(),
            most in 1usize..5,
        ) {
            let mut buf: ChunkBuf = chunks.iter().cloned().collect();
            let mut taken = Vec::new();
            while buf.has_remaining() {
                let piece = buf.take_piece(most);
                prop_assert!((1..=most).contains(&piece.remaining()));
                taken.extend_from_slice(piece.chunk());
            }
            prop_assert_eq!(taken, chunks.concat());
        }
    }
}
