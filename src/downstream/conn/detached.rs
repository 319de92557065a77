//! A stream that lasts for hours over HTTP/1.1, taken over from the HTTP library, which keeps buffers of 24 KiB
//! for each connection, whether anything is said or not. Here it costs what it has to say.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use http::Response;
use http::header::{CONNECTION, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use super::timeout_io::TimeoutIo;

/// An answer that is to be sent here, and the connection that it is sent over. That ends with it.
pub(crate) struct DetachedStream<S, B> {
    stream: TimeoutIo<S>,
    answer: Response<B>,
}

/// Where an answer is left for whoever takes over.
pub(crate) struct Handoff<B>(Arc<Mutex<Option<Response<B>>>>);

/// Tells the library that it has nothing more to do.
#[derive(Debug, thiserror::Error)]
#[error("the stream is taken over")]
pub(crate) struct Detached;

impl<B> Handoff<B> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Leaves an answer, of which the library must not send anything.
    pub(crate) fn leave(&self, answer: Response<B>) -> Detached {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        Detached
    }

    /// What was left, if anything was.
    pub(crate) fn take(&self) -> Option<Response<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<B> Clone for Handoff<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S, B> DetachedStream<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Unpin,
{
    /// `stream` has carried all answers that were sent before.
    pub(crate) fn new(stream: TimeoutIo<S>, answer: Response<B>) -> Self {
        Self { stream, answer }
    }

    /// Sends the answer to its end, or until its client goes away.
    ///
    /// # Errors
    /// When the connection breaks, or its client takes nothing of what is sent for too long, or says what nobody
    /// asked for.
    pub(crate) async fn run(self) -> io::Result<()> {
        let Self { mut stream, answer } = self;
        let (head, mut body) = answer.into_parts();
        stream.write_all(&text(&head, SystemTime::now())).await?;
        drop(head);
        let mut budget = BEHIND;
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                gone = hung_up(&mut stream, &mut budget) => return gone,
            };
            let Some(Ok(frame)) = frame else {
                break;
            };
            // An empty chunk would be the last (RFC 9112, section 7.1).
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                let size = format!("{:x}\r\n", data.len());
                let mut chunk = size.as_bytes().chain(data).chain(&b"\r\n"[..]);
                stream.write_all_buf(&mut chunk).await?;
            }
        }
        stream.write_all(b"0\r\n\r\n").await?;
        timeout(LAST_BYTES, stream.shutdown()).await?
    }
}

/// Bytes that a client may send behind its last request before it is left: they are for nobody.
const BEHIND: usize = 16 << 10;

/// How long the end may take to be on its way.
const LAST_BYTES: Duration = Duration::from_secs(30);

/// Waits until the client goes away. What was written and waits in buffers below is sent meanwhile.
async fn hung_up<S>(stream: &mut S, budget: &mut usize) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let mut ignored = [0; 256];
        let mut buffer = ReadBuf::new(&mut ignored);
        poll_fn(|context| {
            if let Poll::Ready(flushed) = Pin::new(&mut *stream).poll_flush(context) {
                flushed?;
            }
            Pin::new(&mut *stream).poll_read(context, &mut buffer)
        })
        .await?;
        let length = buffer.filled().len();
        if length == 0 {
            return Ok(());
        }
        *budget = budget.checked_sub(length).ok_or(io::ErrorKind::InvalidData)?;
    }
}

/// The head of an answer that is sent in chunks and ends its connection (RFC 9112, sections 4, 7.1 and 9.6).
fn text(head: &Parts, now: SystemTime) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {}\r\n", head.status).into_bytes();
    let mut line = |name: &str, value: &[u8]| {
        out.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    };
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != CONNECTION) {
        line(name.as_str(), value.as_bytes());
    }
    line(DATE.as_str(), httpdate::fmt_http_date(now).as_bytes());
    line(TRANSFER_ENCODING.as_str(), b"chunked");
    line(CONNECTION.as_str(), b"close");
    out.extend(b"\r\n");
    out
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use http_body::Frame;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;
    use crate::downstream::conn::state::ConnState;

    const SECOND: Duration = Duration::from_secs(1);

    struct Said(mpsc::Receiver<&'static str>);

    impl http_body::Body for Said {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let said = self.0.poll_recv(context);
            said.map(|said| said.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }

    /// An answer that is sent: what it says, its client, and its end.
    fn sent(
        budget: usize,
    ) -> (mpsc::Sender<&'static str>, DuplexStream, JoinHandle<io::Result<()>>) {
        let ((client, server), (says, said)) = (duplex(budget), mpsc::channel(8));
        let phase = ConnState::sequential(75 * SECOND, 10 * SECOND);
        let busy = phase.begin();
        let stream = TimeoutIo::new(server, Bytes::new(), phase, 30 * SECOND);
        let answer = Response::builder().header("x", "y").body(Said(said)).unwrap();
        let running = tokio::spawn(async move {
            let _busy = busy;
            DetachedStream::new(stream, answer).run().await
        });
        (says, client, running)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_has_a_head_chunks_and_an_end() {
        let (says, mut client, running) = sent(1024);
        // What is said behind the request is nobody's.
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        for part in ["data: one\n\n", "", "data: é\n\n"] {
            says.send(part).await.unwrap();
        }
        drop(says);
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        assert_eq!((lines.next(), lines.next()), (Some("HTTP/1.1 200 OK"), Some("x: y")));
        assert!(lines.next().is_some_and(|l| l.starts_with("date: ") && l.ends_with(" GMT")));
        let rest_of_head: Vec<_> = lines.collect();
        assert_eq!(rest_of_head, ["transfer-encoding: chunked", "connection: close"]);
        assert_eq!(rest, "b\r\ndata: one\n\n\r\na\r\ndata: é\n\n\r\n0\r\n\r\n");
        running.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn l5_a_client_that_goes_away_ends_it_at_once() {
        let (says, client, running) = sent(1024);
        tokio::task::yield_now().await;
        let start = Instant::now();
        drop(client);
        running.await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(says.is_closed(), "nothing goes on behind it");
    }

    #[tokio::test]
    async fn a_client_that_goes_on_talking_is_left() {
        let (_says, mut client, running) = sent(1024);
        client.write_all(&[b'x'; BEHIND]).await.unwrap();
        tokio::task::yield_now().await;
        assert!(!running.is_finished());
        client.write_all(b"x").await.unwrap();
        assert_eq!(running.await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test(start_paused = true)]
    async fn w16_a_client_that_takes_nothing_is_left() {
        let (says, _client, running) = sent(16);
        says.send("data: it waits for its head already\n\n").await.unwrap();
        let start = Instant::now();
        let error = running.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, 30 * SECOND));
    }
}
