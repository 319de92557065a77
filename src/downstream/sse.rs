//! An answer that takes long, as a stream of server-sent events (WHATWG HTML, section 9.2).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// The message that ends the stream; none if the client asked for no answer any more.
pub type Last = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// Comments until the message is there, then the message, then the end. Dropping the stream drops
/// the work behind it.
pub struct EventStream {
    last: Option<Last>,
    keep_alive: Interval,
}

impl EventStream {
    /// A comment goes out every `keep_alive`, since silence looks like a broken line. (A named
    /// `ping` event would end some clients.)
    pub fn new(last: Last, keep_alive: Duration) -> Self {
        let mut keep_alive = interval_at(Instant::now() + keep_alive, keep_alive);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { last: Some(last), keep_alive }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(last) = &mut self.last else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(message) = last.as_mut().poll(context) {
            self.last = None;
            return Poll::Ready(message.map(|message| Ok(Frame::data(event(&message)))));
        }
        self.keep_alive
            .poll_tick(context)
            .map(|_| Some(Ok(Frame::data(Bytes::from_static(b": keep-alive\n\n")))))
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// One event. JSON text may hold line feeds between its tokens, so each line gets its own field.
fn event(message: &str) -> Bytes {
    let mut out = String::with_capacity(message.len() + 32);
    out.push_str("event: message\n");
    for line in message.split(['\n', '\r']) {
        out.push_str("data: ");
        out.push_str(line);
        out.push('\n');
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
        let stream = EventStream::new(Box::pin(answer), Duration::from_secs(10));
        let bytes = stream.collect().await.unwrap().to_bytes();
        let expected =
            ": keep-alive\n\n: keep-alive\n\nevent: message\ndata: {\"a\":\ndata: \ndata: 1}\n\n";
        assert_eq!(bytes, expected);
    }

    #[tokio::test]
    async fn what_we_write_our_own_decoder_reads() {
        let message = "{\"text\":\"a\\nb\\r\",\"x\":\n[1]}";
        let mut decoder = crate::upstream::sse::Decoder::new(1024);
        let mut events = Vec::new();
        decoder.feed(&event(message), &mut events).unwrap();
        assert_eq!(events[0].data, message.as_bytes());
    }
}
