//! A complete response body in chunks.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::domain::chunks::Chunks;

/// A response body whose length is known.
#[derive(Debug, Default)]
pub(crate) struct ChunkBody {
    chunks: std::vec::IntoIter<Bytes>,
    /// Bytes that are left.
    left: usize,
}

impl From<Chunks> for ChunkBody {
    fn from(chunks: Chunks) -> Self {
        Self { left: chunks.size(), chunks: chunks.into_iter() }
    }
}

impl From<Bytes> for ChunkBody {
    fn from(whole: Bytes) -> Self {
        Self { left: whole.len(), chunks: vec![whole].into_iter() }
    }
}

impl Body for ChunkBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.chunks.next();
        self.left -= chunk.as_ref().map_or(0, Bytes::len);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}
