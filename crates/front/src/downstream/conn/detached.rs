//! Event streams over HTTP/1.1 that stay open for hours, detached from hyper.
//!
//! hyper keeps buffers of 24 KiB for each connection, also while its stream is idle. A detached
//! stream keeps none: it writes its own chunks, and its connection ends with it.
//!
//! hyper has no way to give back a connection in the middle of a response: `Connection::into_parts`
//! is permitted once `poll_without_shutdown` has completed, which takes an upgrade or the end of
//! the last response. So hyper never owns the connection: its IO is a handle ([`LentIo`]). The
//! service leaves the response of the stream there and stays pending. Once hyper has flushed all
//! bytes before that response, hyper's connection is dropped, which is permitted at any time, and
//! with it the request that it waits for. Bytes that hyper has read behind that request are dropped
//! with it: by `Connection: close` the client knows that no later request was processed (RFC 9112,
//! section 9.6).

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Buf;
use http::Response;
use http::header::{CONNECTION, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::timeout_io::{TimeoutIo, slow_consumer};
use base::platform::{Locked, wall_clock};

/// The IO of an HTTP/1.1 connection, lent to hyper until a response is detached. Clones are handles
/// of the same connection.
pub(crate) struct LentIo<S, B>(Arc<Mutex<Lent<S, B>>>);

/// The state that all handles share.
struct Lent<S, B> {
    io: TimeoutIo<S>,
    /// The response for which the connection is taken back.
    response: Option<Response<B>>,
    /// Bytes that hyper has written.
    written: u64,
    /// Whether hyper has flushed since the last write and since the response was detached. hyper
    /// flushes its IO only when its own buffer is empty.
    is_flushed: bool,
}

/// A response that is sent without hyper, and the connection that it is sent over.
pub(crate) struct DetachedStream<S, B> {
    io: TimeoutIo<S>,
    response: Response<B>,
}

impl<S, B> LentIo<S, B> {
    pub(crate) fn new(io: TimeoutIo<S>) -> Self {
        Self(Arc::new(Mutex::new(Lent { io, response: None, written: 0, is_flushed: false })))
    }

    /// Detaches a response: leaves it for [`reclaim`](Self::reclaim), and stays pending, so that
    /// hyper sends nothing for its request.
    ///
    /// Returns when no byte before the response was sent for `stall`, as its client reads nothing.
    /// (Behind TLS a flush can stay pending although all bytes are written.)
    pub(crate) async fn detach(&self, response: Response<B>, stall: Duration) -> io::Error {
        {
            let mut lent = self.0.locked();
            lent.response = Some(response);
            lent.is_flushed = false;
        }
        // Wakes the task, so that hyper is polled again and flushes even if it has nothing to do.
        yield_now().await;
        loop {
            let before = self.0.locked().written;
            sleep(stall).await;
            if self.0.locked().written == before {
                return slow_consumer();
            }
        }
    }

    /// Completes when a response is detached and all bytes before it are flushed.
    ///
    /// Registers no waker: `response` and `is_flushed` change only while hyper's connection is
    /// polled. Poll it after that connection, in the same task. Cancel safe: it changes nothing.
    pub(crate) async fn detached(&self) {
        poll_fn(|_| if self.0.locked().is_detached() { Poll::Ready(()) } else { Poll::Pending })
            .await;
    }

    /// Takes the connection back, after hyper's connection was dropped.
    pub(crate) fn reclaim(self) -> io::Result<DetachedStream<S, B>> {
        let lent = Arc::into_inner(self.0)
            .ok_or_else(|| io::Error::other("hyper still holds the connection of a stream"))?;
        let lent = lent.into_inner().unwrap_or_else(PoisonError::into_inner);
        match lent.response {
            Some(response) if lent.is_flushed => Ok(DetachedStream { io: lent.io, response }),
            _ => Err(io::Error::other("bytes before a detached stream are not flushed")),
        }
    }
}

impl<S, B> Lent<S, B> {
    fn is_detached(&self) -> bool {
        self.response.is_some() && self.is_flushed
    }

    fn count(&mut self, written: &Poll<io::Result<usize>>) {
        self.is_flushed = false;
        if let Poll::Ready(Ok(bytes)) = written {
            self.written += *bytes as u64;
        }
    }
}

impl<S, B> Clone for LentIo<S, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: AsyncRead + Unpin, B> AsyncRead for LentIo<S, B> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.locked().io).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, B> AsyncWrite for LentIo<S, B> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut lent = self.0.locked();
        let written = Pin::new(&mut lent.io).poll_write(context, bytes);
        lent.count(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut lent = self.0.locked();
        let written = Pin::new(&mut lent.io).poll_write_vectored(context, slices);
        lent.count(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.0.locked().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut lent = self.0.locked();
        let flushed = Pin::new(&mut lent.io).poll_flush(context);
        lent.is_flushed = matches!(flushed, Poll::Ready(Ok(())));
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.locked().io).poll_shutdown(context)
    }
}

impl<S, B> DetachedStream<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: http_body::Body<Data: Buf + Default, Error = Infallible> + Unpin,
{
    /// Sends the response until its body ends or its client disconnects, then closes the
    /// connection.
    pub(crate) fn run(self) -> impl Future<Output = io::Result<()>> {
        let Self { mut io, response } = self;
        let (head, mut body) = response.into_parts();
        let head = response_head(&head, wall_clock());
        // The block captures three parts, which stay in place. An `async fn` would hold `self`
        // beside them for hours.
        async move {
            io.write_all(&head).await?;
            drop(head);
            let mut ignored = 0;
            loop {
                let data = tokio::select! {
                    // Trailers have no place in a stream of events.
                    frame = body.frame() => frame.map(|Ok(frame)| frame.into_data().unwrap_or_default()),
                    closed = closed(&mut io, &mut ignored) => return closed,
                };
                match data {
                    // An empty chunk would be the last (RFC 9112, section 7.1).
                    Some(data) if !data.has_remaining() => {}
                    Some(data) => write_chunk(&mut io, data).await?,
                    None => break,
                }
            }
            io.write_all(b"0\r\n\r\n").await?;
            timeout(SHUTDOWN_TIMEOUT, io.shutdown()).await?
        }
    }
}

/// Writes one chunk (RFC 9112, section 7.1).
async fn write_chunk<S: AsyncWrite + Unpin>(io: &mut S, data: impl Buf) -> io::Result<()> {
    let size = format!("{:x}\r\n", data.remaining());
    let mut chunk = size.as_bytes().chain(data).chain(&b"\r\n"[..]);
    io.write_all_buf(&mut chunk).await
}

/// Bytes that a client may send behind its last request before it is disconnected: they are read to
/// notice its end, and belong to no request that is processed.
const IGNORED_BYTES: usize = 16 << 10;

/// Limit for closing the write side: time enough for a client that reads slowly to take the last
/// bytes in the buffers below (TLS, the socket).
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Completes when the client has closed its side. Bytes in the buffers below are flushed meanwhile.
///
/// Cancel safe: `ignored` counts the bytes that were read before.
async fn closed<S>(io: &mut S, ignored: &mut usize) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let length = poll_fn(|context| {
            if let Poll::Ready(flushed) = Pin::new(&mut *io).poll_flush(context) {
                flushed?;
            }
            // Not a part of the future, which lasts for hours.
            let mut bytes = [0; 256];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut *io).poll_read(context, &mut buffer);
            read.map_ok(|()| buffer.filled().len())
        })
        .await?;
        if length == 0 {
            return Ok(());
        }
        *ignored += length;
        if *ignored > IGNORED_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// The head of a response that is sent in chunks and closes its connection (RFC 9112, sections 4,
/// 7.1 and 9.6).
fn response_head(head: &Parts, now: SystemTime) -> Vec<u8> {
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
    use std::pin::pin;
    use std::task::Waker;

    use bytes::Bytes;
    use http_body::Frame;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::downstream::conn::state::ConnState;

    const SECOND: Duration = Duration::from_secs(1);

    /// A body of the chunks that a test sends.
    struct ChannelBody(mpsc::Receiver<&'static str>);

    impl http_body::Body for ChannelBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let chunk = self.0.poll_recv(context);
            chunk
                .map(|chunk| chunk.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }

    /// A response that is being sent: its body, its client, and its end.
    struct Sending {
        body: mpsc::Sender<&'static str>,
        client: DuplexStream,
        task: JoinHandle<io::Result<()>>,
    }

    /// Sends a response over a connection that holds `capacity` bytes in each direction.
    fn send(capacity: usize) -> Sending {
        let (client, server) = duplex(capacity);
        let (body, chunks) = mpsc::channel(8);
        let state = ConnState::sequential(None, 75 * SECOND, 10 * SECOND);
        let guard = state.begin();
        let io = TimeoutIo::new(server, Bytes::new(), state, 30 * SECOND);
        let response = Response::builder().header("x", "y").body(ChannelBody(chunks)).unwrap();
        let task = tokio::spawn(async move {
            let _guard = guard;
            DetachedStream { io, response }.run().await
        });
        Sending { body, client, task }
    }

    fn is_pending(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    type Lending = LentIo<DuplexStream, ()>;

    fn lend() -> (DuplexStream, Lending) {
        let (client, server) = duplex(1024);
        let state = ConnState::sequential(None, 75 * SECOND, 10 * SECOND);
        (client, LentIo::new(TimeoutIo::new(server, Bytes::new(), state, 30 * SECOND)))
    }

    /// Detaches a response; the future that the service would wait for is dropped.
    fn detach(lent: &Lending) {
        assert!(is_pending(lent.detach(Response::new(()), SECOND)));
    }

    #[tokio::test]
    async fn a_detached_stream_holds_its_connection_and_its_body_once() {
        let (client, lent) = lend();
        drop(client);
        let Lent { io, .. } = Arc::into_inner(lent.0).unwrap().into_inner().unwrap();
        let (_body, chunks) = mpsc::channel(1);
        let stream = DetachedStream { io, response: Response::new(ChannelBody(chunks)) };
        let parts = size_of_val(&stream.io) + size_of::<ChannelBody>();
        let size = size_of_val(&stream.run());
        // Beside them: the chunk that is written, and the deadline of the end.
        assert!(size <= parts + 256, "{size} bytes, and {parts} of its parts");
    }

    #[tokio::test]
    async fn a_connection_is_taken_back_only_when_hyper_has_flushed_and_dropped_it() {
        let (_client, mut lent) = lend();
        lent.flush().await.unwrap();
        assert!(lent.reclaim().is_err(), "no response is detached");

        let (_client, mut lent) = lend();
        detach(&lent);
        lent.write_all(b"a response before").await.unwrap();
        assert!(is_pending(lent.detached()));
        assert!(lent.reclaim().is_err(), "not flushed");

        let (_client, mut lent) = lend();
        lent.flush().await.unwrap();
        detach(&lent);
        assert!(is_pending(lent.detached()), "flushed before, not since");
        lent.flush().await.unwrap();
        lent.detached().await;
        assert!(lent.clone().reclaim().is_err(), "hyper holds it");
        assert!(lent.reclaim().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn w16_a_detached_response_waits_for_bytes_before_it_while_the_client_reads() {
        let (_client, mut lent) = lend();
        let start = Instant::now();
        let detaching = lent.clone();
        let detaching =
            tokio::spawn(async move { detaching.detach(Response::new(()), 30 * SECOND).await });
        // Twice: the response is detached, then the limit starts.
        yield_now().await;
        yield_now().await;
        advance(20 * SECOND).await;
        lent.write_all(b"progress").await.unwrap();
        let error = detaching.await.unwrap();
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, 60 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_has_a_head_chunks_and_a_last_chunk() {
        let Sending { body, mut client, task } = send(1024);
        // Bytes behind the request are ignored.
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        for chunk in ["data: one\n\n", "", "data: é\n\n"] {
            body.send(chunk).await.unwrap();
        }
        drop(body);
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        assert_eq!((lines.next(), lines.next()), (Some("HTTP/1.1 200 OK"), Some("x: y")));
        assert!(lines.next().is_some_and(|l| l.starts_with("date: ") && l.ends_with(" GMT")));
        let rest_of_head: Vec<_> = lines.collect();
        assert_eq!(rest_of_head, ["transfer-encoding: chunked", "connection: close"]);
        assert_eq!(rest, "b\r\ndata: one\n\n\r\na\r\ndata: é\n\n\r\n0\r\n\r\n");
        task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn l5_a_client_that_disconnects_ends_its_stream_at_once() {
        let Sending { body, client, task } = send(1024);
        yield_now().await;
        let start = Instant::now();
        drop(client);
        task.await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert!(body.is_closed(), "the source of the stream is dropped");
    }

    #[tokio::test]
    async fn a_client_that_sends_too_much_behind_its_request_is_disconnected() {
        let Sending { body: _body, mut client, task } = send(1024);
        client.write_all(&[b'x'; IGNORED_BYTES]).await.unwrap();
        yield_now().await;
        assert!(!task.is_finished());
        client.write_all(b"x").await.unwrap();
        assert_eq!(task.await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test(start_paused = true)]
    async fn w16_a_client_that_reads_nothing_is_disconnected() {
        let Sending { body, client: _client, task } = send(16);
        body.send("data: it waits for its head already\n\n").await.unwrap();
        let start = Instant::now();
        let error = task.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), start.elapsed()), (io::ErrorKind::TimedOut, 30 * SECOND));
    }
}
