//! Responses as streams of server-sent events (HTML standard, section 9.2).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::downstream::channel::ReadProgress;
use domain::text::chunks;
use upstream::call::result_memory::MessageMemory;

/// One event in wire form.
pub(crate) struct WireEvent {
    bytes: Bytes,
    /// Told of each piece that is sent.
    progress: Option<ReadProgress>,
}

/// Bytes of one frame of an event whose progress is tracked.
const PIECE: usize = 64 << 10;

/// The next event of a source, and the source of the events after it. `None` at the end.
pub(crate) type NextEvent<S> = Option<(WireEvent, Option<S>)>;

/// A source of events. When it is dropped, the work behind it ends.
pub(crate) trait EventSource: Sized + Send + 'static {
    /// Waits for the next event. The source moves into the future, so that an idle stream holds one
    /// allocation. Dropping the future drops the source.
    fn next_event(self) -> impl Future<Output = NextEvent<Self>> + Send;
}

/// [`EventSource::next_event`] of a source whose type is erased.
type NextErased = Pin<Box<dyn Future<Output = Option<(WireEvent, Option<Rest>)>> + Send>>;

/// A source whose type is erased, between two events.
struct Rest(Box<dyn FnOnce() -> NextErased + Send>);

/// How long a stream stays open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lifetime {
    /// Until the response to one call is sent.
    Call,
    /// For as long as its client reads it.
    Connection,
}

/// An event stream as a response body, with keep-alive comments. Dropping it drops its source. It
/// holds one event at a time, so a slow client delays only its own source.
pub struct EventStream {
    /// The unsent rest of the current event.
    unsent: Option<WireEvent>,
    /// Absent after the last event.
    next: Option<NextErased>,
    keep_alive: Interval,
    lifetime: Lifetime,
}

impl WireEvent {
    /// Returns the first event of HTTP+SSE, which names the URL for messages (MCP 2024-11-05,
    /// transports).
    pub(crate) fn endpoint(url: &str) -> Self {
        Self { bytes: format!("event: endpoint\ndata: {url}\n\n").into(), progress: None }
    }

    /// Returns the event of a JSON-RPC message. JSON text may have line feeds between its tokens,
    /// so each line gets its own `data` field. An event with an empty message only sets the
    /// client's last event id.
    pub(crate) fn message(id: Option<&str>, message: &str) -> Self {
        let mut out = String::with_capacity(message.len() + 64);
        if let Some(id) = id {
            out.extend(["id: ", id, "\n"]);
        }
        if !message.is_empty() {
            out.push_str("event: message\n");
        }
        for line in message.split(['\n', '\r']) {
            out.extend(["data: ", line, "\n"]);
        }
        out.push('\n');
        Self { bytes: out.into(), progress: None }
    }

    /// Returns the event, of which each piece that is sent is noted in `progress`.
    pub(crate) fn followed_by(self, progress: ReadProgress) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Returns the event, which holds the memory of its message until its last byte is sent.
    pub(crate) fn holding(self, memory: Arc<dyn MessageMemory>) -> Self {
        Self { bytes: chunks::holding(self.bytes, memory), ..self }
    }

    /// Returns the next bytes to send, and the rest.
    fn split(mut self) -> (Bytes, Option<Self>) {
        let Some(progress) = &self.progress else { return (self.bytes, None) };
        progress.note();
        let piece = self.bytes.split_to(PIECE.min(self.bytes.len()));
        (piece, (!self.bytes.is_empty()).then_some(self))
    }
}

impl EventStream {
    /// Returns the stream that responds to a call: `first`, then the events of `source`. A comment
    /// is sent after `keep_alive` of silence.
    pub(crate) fn of_call(
        first: Option<WireEvent>,
        source: impl EventSource,
        keep_alive: Duration,
    ) -> Self {
        Self::new(first, source, keep_alive, Lifetime::Call)
    }

    /// Returns a stream that stays open until its client or its source ends it.
    pub(crate) fn long_lived(
        first: Option<WireEvent>,
        source: impl EventSource,
        keep_alive: Duration,
    ) -> Self {
        Self::new(first, source, keep_alive, Lifetime::Connection)
    }

    /// Whether the stream stays open for as long as its client reads it.
    pub(crate) fn is_long_lived(&self) -> bool {
        self.lifetime == Lifetime::Connection
    }

    /// Silence looks like a broken connection to clients and proxies, so a comment is sent every
    /// `keep_alive`. (Some clients fail on an event named `ping`.)
    fn new(
        first: Option<WireEvent>,
        source: impl EventSource,
        keep_alive: Duration,
        lifetime: Lifetime,
    ) -> Self {
        let next: NextErased = match first {
            None => start(source),
            Some(event) => {
                let rest = Rest(Box::new(move || start(source)));
                Box::pin(async move { Some((event, Some(rest))) })
            }
        };
        // Jitter: streams that are opened together, as after a restart, send their comments apart.
        let first_comment = keep_alive.mul_f64(0.75 + fastrand::f64() / 4.0);
        let mut keep_alive = interval_at(Instant::now() + first_comment, keep_alive);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { unsent: None, next: Some(next), keep_alive, lifetime }
    }
}

fn start<S: EventSource>(source: S) -> NextErased {
    Box::pin(async move {
        let (event, rest) = source.next_event().await?;
        Some((event, rest.map(|source| Rest(Box::new(move || start(source))))))
    })
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(event) = self.unsent.take() {
            let (piece, rest) = event.split();
            self.unsent = rest;
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(event) = next.as_mut().poll(context) {
            let (event, rest) = event.unzip();
            self.next = rest.flatten().map(|Rest(start)| start());
            let (piece, unsent) = event.map(WireEvent::split).unzip();
            self.unsent = unsent.flatten();
            return Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))));
        }
        let comment = Bytes::from_static(b": keep-alive\n\n");
        self.keep_alive.poll_tick(context).map(|_| Some(Ok(Frame::data(comment))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_none() && self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The source of one message that a future returns; no event where it returns `None`. The event
/// holds the memory of the message.
pub(crate) struct OneMessage<F> {
    pub message: F,
    pub memory: Arc<dyn MessageMemory>,
}

impl<F> EventSource for OneMessage<F>
where
    F: Future<Output = Option<String>> + Send + 'static,
{
    async fn next_event(self) -> NextEvent<Self> {
        let message = self.message.await?;
        Some((WireEvent::message(None, &message).holding(self.memory), None))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::*;
    use upstream::call::result_memory::Unbounded;

    #[tokio::test(start_paused = true)]
    async fn keep_alive_comments_are_sent_until_the_message() {
        let response = async {
            sleep(Duration::from_secs(25)).await;
            Some("{\"a\":\r\n1}".to_owned())
        };
        let source = OneMessage { message: response, memory: Arc::new(Unbounded) };
        let stream = EventStream::of_call(None, source, Duration::from_secs(10));
        let bytes = stream.collect().await.unwrap().to_bytes();
        let expected =
            ": keep-alive\n\n: keep-alive\n\nevent: message\ndata: {\"a\":\ndata: \ndata: 1}\n\n";
        assert_eq!(bytes, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_event_is_sent_in_pieces_that_are_progress() {
        struct Large(ReadProgress);
        impl EventSource for Large {
            async fn next_event(self) -> NextEvent<Self> {
                let event = WireEvent::message(None, &"x".repeat(2 * PIECE));
                Some((event.followed_by(self.0), None))
            }
        }
        let progress = ReadProgress::begin();
        let keep_alive = Duration::from_secs(10);
        let mut stream = EventStream::long_lived(None, Large(progress.clone()), keep_alive);
        let mut sizes = Vec::new();
        while let Some(frame) = stream.frame().await {
            assert_eq!(progress.last(), Instant::now());
            sizes.push(frame.unwrap().into_data().unwrap().len());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((sizes.len(), sizes[0], sizes[1]), (3, PIECE, PIECE));
        assert!(stream.is_end_stream());
    }

    #[tokio::test]
    async fn the_decoder_reads_what_is_written() {
        let message = "{\"text\":\"a\\nb\\r\",\"x\":\n[1]}";
        let mut decoder = domain::text::sse_decoder::SseDecoder::new(1024);
        let mut events = Vec::new();
        decoder.feed(&WireEvent::message(Some("1"), "").bytes, &mut events).unwrap();
        assert!(events.is_empty(), "an event that only carries an id");
        decoder.feed(&WireEvent::message(None, message).bytes, &mut events).unwrap();
        assert_eq!(events[0].data, message.as_bytes());
    }
}
