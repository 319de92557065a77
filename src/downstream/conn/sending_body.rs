//! A response body while it is sent.

use std::convert::Infallible;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Frame, SizeHint};

use super::state::RequestGuard;
use crate::downstream::Body;
use crate::downstream::chunk_buf::ChunkBuf;

/// A response body that is being sent. Its request ends when the body is sent or dropped.
pub(super) struct SendingBody {
    body: Body,
    /// The rest of an event that is sent in pieces.
    rest: ChunkBuf,
    guard: RequestGuard,
}

/// Bytes of one frame on a connection that carries other responses: h2 buffers a whole frame, however slowly the
/// client reads it.
const MAX_H2_FRAME: usize = 64 << 10;

impl SendingBody {
    pub(super) fn new(body: Body, guard: RequestGuard) -> Self {
        Self { body, rest: ChunkBuf::default(), guard }
    }

    /// Whether the response stays open for as long as its client wants it.
    pub(super) fn is_long_lived(&self) -> bool {
        matches!(&self.body, Body::Events(stream) if stream.is_long_lived())
    }
}

impl http_body::Body for SendingBody {
    type Data = ChunkBuf;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ChunkBuf>, Infallible>>> {
        let Self { body, rest, guard } = &mut *self;
        guard.polled();
        let left = match body {
            Body::Complete(left) => left,
            Body::Events(_) if rest.has_remaining() => rest,
            Body::Events(stream) => {
                let Some(frame) = ready!(Pin::new(stream).poll_frame(context)) else {
                    return Poll::Ready(None);
                };
                *rest = frame?.into_data().unwrap_or_default().into();
                rest
            }
        };
        if !left.has_remaining() {
            return Poll::Ready(None);
        }
        let piece =
            if guard.is_multiplexed() { left.take_piece(MAX_H2_FRAME) } else { mem::take(left) };
        guard.has_data();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Body::Complete(left) => !left.has_remaining(),
            Body::Events(stream) => !self.rest.has_remaining() && stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Body::Complete(left) => SizeHint::with_exact(left.remaining() as u64),
            Body::Events(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;
    use crate::downstream::conn::state::ConnState;

    const MINUTE: Duration = Duration::from_secs(60);

    /// The sizes of the frames of a complete body of two chunks.
    async fn frames(state: &Arc<ConnState>, chunks: [usize; 2]) -> Vec<usize> {
        let chunks = chunks.map(|size| Bytes::from(vec![b'x'; size]));
        let size = chunks.iter().map(Bytes::len).sum::<usize>() as u64;
        let complete = Body::Complete(chunks.into_iter().collect());
        let mut body = SendingBody::new(complete, state.begin());
        assert_eq!(body.size_hint().exact(), Some(size));
        let mut frames = Vec::new();
        while !body.is_end_stream() {
            let frame = body.frame().await.unwrap().unwrap();
            frames.push(frame.into_data().unwrap().remaining());
        }
        frames
    }

    #[tokio::test]
    async fn a_response_over_http_1_is_one_frame() {
        let state = ConnState::sequential(None, MINUTE, MINUTE);
        assert_eq!(frames(&state, [MAX_H2_FRAME + 1, 1]).await, [MAX_H2_FRAME + 2]);
        assert!(frames(&state, [0, 0]).await.is_empty());
    }

    #[tokio::test]
    async fn a_frame_beside_other_responses_has_at_most_64_kib() {
        let state = ConnState::multiplexed(None, MINUTE, MINUTE);
        let frames = frames(&state, [MAX_H2_FRAME + 1, MAX_H2_FRAME]).await;
        assert_eq!(frames, [MAX_H2_FRAME, 1, MAX_H2_FRAME]);
    }
}
