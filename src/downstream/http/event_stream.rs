//! Responses as streams of server-sent events (WHATWG HTML, section 9.2).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// One event, as it is written.
pub(crate) struct Event(Bytes);

/// The next event, and the source of the one after it; `None` at the end.
pub(crate) type NextEvent<S> = Option<(Event, Option<S>)>;

/// Where the events of a stream come from. Dropping a source drops the work behind it.
pub(crate) trait EventSource: Sized + Send + 'static {
    /// Waits for the next event. The source moves into the future, so that a stream that waits holds
    /// nothing but that.
    fn next_event(self) -> impl Future<Output = NextEvent<Self>> + Send;
}

type Next = Pin<Box<dyn Future<Output = Option<(Event, Option<Rest>)>> + Send>>;

struct Rest(Box<dyn FnOnce() -> Next + Send>);

/// Whether a stream is the response to one call, or stays open for as long as its client wants it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Lifetime {
    Call,
    Connection,
}

/// An event stream with comments in between. Dropping the stream drops its source. It holds one event
/// at a time, so a slow reader slows down only itself.
pub(crate) struct EventStream {
    next: Option<Next>,
    keep_alive: Interval,
    lifetime: Lifetime,
}

impl Event {
    /// The first event of HTTP+SSE, which names the endpoint for messages (2024-11-05, transports).
    pub(crate) fn endpoint(url: &str) -> Self {
        Self(Bytes::from(format!("event: endpoint\ndata: {url}\n\n")))
    }

    /// A JSON-RPC message. JSON text may hold line feeds between its tokens, so each line gets its own
    /// field. An event with an empty message only carries an id.
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
        Self(Bytes::from(out))
    }
}

impl EventStream {
    /// The response to a call. `first` comes before the events of the source.
    pub(crate) fn of_call(
        first: Option<Event>,
        source: impl EventSource,
        keep_alive: Duration,
    ) -> Self {
        Self::new(first, source, keep_alive, Lifetime::Call)
    }

    /// A stream that stays open until its client or its source ends it.
    pub(crate) fn lasting(
        first: Option<Event>,
        source: impl EventSource,
        keep_alive: Duration,
    ) -> Self {
        Self::new(first, source, keep_alive, Lifetime::Connection)
    }

    /// Whether the stream stays open for as long as its client wants it.
    pub(crate) fn lasts(&self) -> bool {
        self.lifetime == Lifetime::Connection
    }

    /// A comment goes out every `keep_alive`, since silence looks like a broken connection. (A named
    /// `ping` event would end some clients.)
    fn new(
        first: Option<Event>,
        source: impl EventSource,
        keep_alive: Duration,
        lifetime: Lifetime,
    ) -> Self {
        let next: Next = match first {
            None => start(source),
            Some(event) => {
                let rest = Rest(Box::new(move || start(source)));
                Box::pin(async move { Some((event, Some(rest))) })
            }
        };
        // Streams that are opened at once, as after a restart, do not send their comments at once.
        let first_comment = keep_alive.mul_f64(0.75 + fastrand::f64() / 4.0);
        let mut keep_alive = interval_at(Instant::now() + first_comment, keep_alive);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { next: Some(next), keep_alive, lifetime }
    }
}

fn start<S: EventSource>(source: S) -> Next {
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
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(event) = next.as_mut().poll(context) {
            let (event, rest) = event.unzip();
            self.next = rest.flatten().map(|Rest(start)| start());
            return Poll::Ready(event.map(|Event(bytes)| Ok(Frame::data(bytes))));
        }
        let comment = Bytes::from_static(b": keep-alive\n\n");
        self.keep_alive.poll_tick(context).map(|_| Some(Ok(Frame::data(comment))))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The one message of a response that is awaited; no event where it turns out to have none.
pub(crate) struct OneMessage<F>(pub F);

impl<F> EventSource for OneMessage<F>
where
    F: Future<Output = Option<String>> + Send + 'static,
{
    async fn next_event(self) -> NextEvent<Self> {
        let message = self.0.await?;
        Some((Event::message(None, &message), None))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn comments_keep_the_line_open_until_the_message() {
        let answer = async {
            sleep(Duration::from_secs(25)).await;
            Some("{\"a\":\r\n1}".to_owned())
        };
        let stream = EventStream::of_call(None, OneMessage(answer), Duration::from_secs(10));
        let bytes = stream.collect().await.unwrap().to_bytes();
        let expected =
            ": keep-alive\n\n: keep-alive\n\nevent: message\ndata: {\"a\":\ndata: \ndata: 1}\n\n";
        assert_eq!(bytes, expected);
    }

    #[tokio::test]
    async fn what_we_write_our_own_decoder_reads() {
        let message = "{\"text\":\"a\\nb\\r\",\"x\":\n[1]}";
        let mut decoder = crate::domain::sse_decoder::Decoder::new(1024);
        let mut events = Vec::new();
        decoder.feed(&Event::message(Some("1"), "").0, &mut events).unwrap();
        assert!(events.is_empty(), "an event that only carries an id");
        decoder.feed(&Event::message(None, message).0, &mut events).unwrap();
        assert_eq!(events[0].data, message.as_bytes());
    }
}
