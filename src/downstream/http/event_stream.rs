//! Answers as streams of server-sent events (WHATWG HTML, section 9.2).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::http_sse::HttpSseSession;
use crate::downstream::admission::StreamPermit;
use crate::downstream::calls::{CallEvent, PendingCall};
use crate::session::notify::notifications::{NotificationStream, StreamEvent};

/// The next event, and where the one after it comes from; nothing at the end.
type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Option<Rest>)>> + Send>>;

struct Rest(Box<dyn FnOnce() -> Next + Send>);

/// Events as they come, with comments in between. Dropping the stream drops the work behind it.
/// It holds one event at a time: whoever reads slowly slows down only itself.
pub struct EventStream {
    next: Option<Next>,
    keep_alive: Interval,
    /// Whether it stays open for as long as its client wants it.
    lasts: bool,
}

impl EventStream {
    /// What a call says, and its answer; `early` is what it has said already.
    pub fn answering(early: Option<String>, answering: PendingCall, keep_alive: Duration) -> Self {
        let next: Next = match early {
            None => next_part(answering),
            Some(message) => {
                let rest = Rest(Box::new(move || next_part(answering)));
                Box::pin(async move { Some((event(None, &message), Some(rest))) })
            }
        };
        Self::new(next, keep_alive)
    }

    /// The one message of an answer; none if the client asked for no answer any more.
    pub fn answer(
        message: impl Future<Output = Option<String>> + Send + 'static,
        keep_alive: Duration,
    ) -> Self {
        let next = async { message.await.map(|message| (event(None, &message), None)) };
        Self::new(Box::pin(next), keep_alive)
    }

    /// The stream of HTTP+SSE, whose first event names the endpoint for messages.
    pub fn channel(endpoint: &str, channel: HttpSseSession, keep_alive: Duration) -> Self {
        let first = Bytes::from(format!("event: endpoint\ndata: {endpoint}\n\n"));
        let rest = Rest(Box::new(move || next_message(channel)));
        let stream = Self::new(Box::pin(async move { Some((first, Some(rest))) }), keep_alive);
        Self { lasts: true, ..stream }
    }

    /// The notices of a stream, which keeps its place among all streams as long as it lives.
    pub fn notifications(
        notifications: NotificationStream,
        permit: StreamPermit,
        keep_alive: Duration,
    ) -> Self {
        let stream = Self::new(next_notice(Feed { notifications, _place: permit }), keep_alive);
        Self { lasts: true, ..stream }
    }

    /// Whether it stays open for as long as its client wants it: it is no answer to a call.
    pub fn lasts(&self) -> bool {
        self.lasts
    }

    /// A comment goes out every `keep_alive`, since silence looks like a broken line. (A named
    /// `ping` event would end some clients.)
    fn new(next: Next, keep_alive: Duration) -> Self {
        // Streams that are opened at once, as after a restart, are not kept alive at once for ever.
        let first = keep_alive.mul_f64(0.75 + fastrand::f64() / 4.0);
        let mut keep_alive = interval_at(Instant::now() + first, keep_alive);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { next: Some(next), keep_alive, lasts: false }
    }
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
            return Poll::Ready(event.map(|event| Ok(Frame::data(event))));
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

/// Notices, and the place among all streams that they hold.
struct Feed {
    notifications: NotificationStream,
    _place: StreamPermit,
}

fn next_part(mut answering: PendingCall) -> Next {
    Box::pin(async move {
        match answering.next().await {
            CallEvent::Message(message) => {
                let rest = Rest(Box::new(move || next_part(answering)));
                Some((event(None, &message), Some(rest)))
            }
            CallEvent::CallResponse(answer) => Some((event(None, &answer.into_message()?), None)),
        }
    })
}

fn next_message(mut channel: HttpSseSession) -> Next {
    Box::pin(async move {
        let message = channel.next().await?;
        let rest = Rest(Box::new(move || next_message(channel)));
        Some((event(None, &message), Some(rest)))
    })
}

fn next_notice(mut feed: Feed) -> Next {
    Box::pin(async move {
        let StreamEvent { id, message } = feed.notifications.next().await?;
        let rest = Rest(Box::new(move || next_notice(feed)));
        Some((event(id.as_deref(), &message), Some(rest)))
    })
}

/// One event. JSON text may hold line feeds between its tokens, so each line gets its own field.
fn event(id: Option<&str>, message: &str) -> Bytes {
    let mut out = String::with_capacity(message.len() + 64);
    if let Some(id) = id {
        out.extend(["id: ", id, "\n"]);
    }
    if !message.is_empty() {
        out.push_str("event: message\n");
    }
    for channel in message.split(['\n', '\r']) {
        out.extend(["data: ", channel, "\n"]);
    }
    out.push('\n');
    Bytes::from(out)
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
        let stream = EventStream::answer(answer, Duration::from_secs(10));
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
        decoder.feed(&event(Some("1"), ""), &mut events).unwrap();
        assert!(events.is_empty(), "an event that only carries an id");
        decoder.feed(&event(None, message), &mut events).unwrap();
        assert_eq!(events[0].data, message.as_bytes());
    }
}
