//! A response body while it is sent.

use std::convert::Infallible;
use std::io::IoSlice;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Body as _, Frame, SizeHint};

use super::state::RequestGuard;
use crate::downstream::Body;
use crate::downstream::chunk_buf::ChunkBuf;

/// A response body that is being sent.
pub(super) struct SendingBody {
    body: Body,
    /// The rest of an event that is sent in pieces.
    rest: ChunkBuf,
    /// The request, which ends when this is dropped. `None` once the last bytes hold it.
    guard: Option<RequestGuard>,
}

/// Bytes of a response body that are being sent.
#[derive(Default)]
pub(super) struct SendingBytes {
    bytes: ChunkBuf,
    /// Ends the request when the last byte is written: hyper and h2 drop a body as soon as they
    /// have all of its bytes, and a connection without a request counts as idle.
    _guard: Option<RequestGuard>,
}

/// Bytes of one frame on a connection that carries other responses: h2 buffers a whole frame,
/// however slowly the client reads it.
const MAX_H2_FRAME: usize = 64 << 10;

impl SendingBody {
    pub(super) fn new(body: Body, guard: RequestGuard) -> Self {
        Self { body, rest: ChunkBuf::default(), guard: Some(guard) }
    }

    /// Whether the response stays open for as long as its client wants it.
    pub(super) fn is_long_lived(&self) -> bool {
        matches!(&self.body, Body::Events(stream) if stream.is_long_lived())
    }

    /// Whether the connection carries other responses at the same time.
    fn is_multiplexed(&self) -> bool {
        self.guard.as_ref().is_some_and(RequestGuard::is_multiplexed)
    }

    /// Returns the next bytes to send; none at the end.
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<&mut ChunkBuf> {
        let Self { body, rest, .. } = self;
        match body {
            Body::Complete(left) => Poll::Ready(left),
            Body::Events(stream) => {
                if !rest.has_remaining() {
                    let event = match ready!(Pin::new(stream).poll_frame(context)) {
                        Some(Ok(frame)) => frame.into_data().ok(),
                        None => None,
                    };
                    *rest = event.unwrap_or_default().into();
                }
                Poll::Ready(rest)
            }
        }
    }
}

impl http_body::Body for SendingBody {
    type Data = SendingBytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<SendingBytes>, Infallible>>> {
        self.guard.iter().for_each(RequestGuard::polled);
        let is_multiplexed = self.is_multiplexed();
        let left = ready!(self.poll_bytes(context));
        if !left.has_remaining() {
            return Poll::Ready(None);
        }
        let bytes = if is_multiplexed { left.take_piece(MAX_H2_FRAME) } else { mem::take(left) };
        self.guard.iter().for_each(RequestGuard::has_data);
        let guard = if self.is_end_stream() { self.guard.take() } else { None };
        Poll::Ready(Some(Ok(Frame::data(SendingBytes { bytes, _guard: guard }))))
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

impl Buf for SendingBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::*;
    use crate::downstream::conn::state::ConnState;
    use crate::downstream::pool::{NoRoom, Pool, Revokes, RoomBounds};
    use domain::calls::caller::Caller;
    use domain::calls::fair_share::Holder;

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
            frames.push(frame.into_data().ok().unwrap().remaining());
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

    #[tokio::test]
    async fn a_request_ends_when_its_last_byte_is_written() {
        let pool = Pool::new(1, 1, Revokes::Idle);
        let lease = |id: &str| {
            let bounds = RoomBounds { ceiling: 1, share: 1, per_holder: 1 };
            pool.lease(&Holder::Caller(Caller::new(id)), 1, bounds)
        };
        for version in ["1.1", "2"] {
            let place = Some(Arc::new(lease(version).unwrap()));
            let state = match version {
                "1.1" => ConnState::sequential(place, MINUTE, MINUTE),
                _ => ConnState::multiplexed(place, MINUTE, MINUTE),
            };
            let complete = Body::Complete(Bytes::from("ab").into());
            let mut body = SendingBody::new(complete, state.begin());
            let mut bytes = body.frame().await.unwrap().unwrap().into_data().ok().unwrap();
            assert!(body.is_end_stream());
            // As hyper does.
            drop(body);
            bytes.advance(1);
            assert_eq!(lease("newcomer").err(), Some(NoRoom::Full), "HTTP/{version}");
            drop(bytes);
            assert!(lease("newcomer").is_ok(), "HTTP/{version}");
        }
    }
}
