//! One connection: finds out which HTTP it speaks, within time, and serves it.

pub(crate) mod listener;
pub(crate) mod tls;
pub(crate) mod timeout_io;
pub(crate) mod state;
pub(crate) mod detached;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::conn::detached::{Detached, DetachedStream, Handoff};
use super::conn::state::{ConnState, RequestGuard};
use super::conn::timeout_io::TimeoutIo;
use super::http::respond::Body;
use super::{Serve, TlsServer};
use crate::config::Limits;

/// The other end of a connection.
pub(crate) struct Peer {
    pub address: IpAddr,
    pub shown: Option<Shown>,
    /// Whether HTTP/2 was agreed on before the first byte (ALPN); else it shows.
    pub agreed_on_http2: bool,
}

/// A certificate that the other end has shown.
pub(crate) struct Shown {
    pub subject: String,
    /// Who has checked it. With other authorities it would have to be shown again.
    pub to: Arc<TlsServer>,
}

/// Why a connection ended early; of interest to a log at most.
type Early = Box<dyn std::error::Error + Send + Sync>;

/// Serves a connection until it ends, its client dawdles, or `drain` asks it to finish.
///
/// # Errors
/// Why it ended early.
pub(crate) async fn serve<E, S>(
    stream: S,
    peer: Peer,
    endpoint: Arc<ArcSwap<E>>,
    limits: Limits,
    tasks: TaskTracker,
    drain: CancellationToken,
) -> Result<(), Early>
where
    E: Serve,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // On the heap, and gone once nothing but one long answer is left to be sent.
    let conversing = Box::pin(converse(stream, peer, endpoint, limits, tasks, drain));
    if let Some(taken) = conversing.await? {
        taken.run().await?;
    }
    Ok(())
}

/// Serves requests, up to one whose answer is sent by whoever gets it from here.
async fn converse<E, S>(
    stream: S,
    peer: Peer,
    endpoint: Arc<ArcSwap<E>>,
    limits: Limits,
    tasks: TaskTracker,
    drain: CancellationToken,
) -> Result<Option<DetachedStream<S, Sending>>, Early>
where
    E: Serve,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut stream, peer) = (stream, Arc::new(peer));
    let sniffing = sniff(&mut stream, &limits);
    let Some((version, prefix)) = drain.run_until_cancelled(sniffing).await.transpose()? else {
        return Ok(None);
    };
    let version = if peer.agreed_on_http2 { Version::Http2 } else { version };
    let phase = match version {
        Version::Http1 => ConnState::sequential(limits.idle, limits.head),
        Version::Http2 => ConnState::multiplexed(limits.idle, limits.reader_patience()),
    };
    let io = TokioIo::new(TimeoutIo::new(stream, prefix, phase.clone(), limits.reader_patience()));
    let handoff = Handoff::new();
    let left = handoff.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        // One request sees one configuration.
        answer(request, endpoint.load_full(), peer.clone(), phase.begin(), left.clone())
    });
    match version {
        Version::Http1 => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new());
            builder.max_buf_size(limits.head_size).max_headers(limits.headers);
            // The deadline of the head is kept by `TimeoutIo`, apart from that of an idle line.
            builder.header_read_timeout(None);
            let mut connection = builder.serve_connection(io, service);
            let served = drive(Pin::new(&mut connection), drain).await;
            if let Some(answer) = handoff.take() {
                // The library has ended with the word that an answer was left, in the same breath.
                debug_assert!(served.is_err());
                let stream = connection.into_parts().io.into_inner();
                return Ok(Some(DetachedStream::new(stream, answer)));
            }
            served?;
        }
        Version::Http2 => {
            let mut builder = http2::Builder::new(Tracked(tasks));
            builder.timer(TokioTimer::new());
            builder.max_header_list_size(u32::try_from(limits.head_size).unwrap_or(u32::MAX));
            builder.max_concurrent_streams(u32::try_from(limits.h2_streams).unwrap_or(u32::MAX));
            builder.keep_alive_interval(limits.head).keep_alive_timeout(limits.head);
            drive(pin!(builder.serve_connection(io, service)), drain).await?;
        }
    }
    Ok(None)
}

/// Answers one request; an answer that lasts is left to whoever takes over.
async fn answer<E: Serve>(
    request: Request<Incoming>,
    endpoint: Arc<E>,
    peer: Arc<Peer>,
    busy: RequestGuard,
    left: Handoff<Sending>,
) -> Result<Response<Sending>, Detached> {
    // With a length of its own beside it, which is not seen here, what follows might be part of this body for
    // whoever stands in front (RFC 9112, section 6.3).
    let is_last = request.headers().contains_key(TRANSFER_ENCODING);
    let has_chunks = request.version() == http::Version::HTTP_11;
    // On the heap, and gone once it has answered: a stream that is open for hours does not keep it.
    let serving = Box::pin(async { endpoint.serve(request, &peer).await });
    let mut response: Response<Body> = serving.await;
    if is_last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    busy.offers();
    let lasts = matches!(response.body(), Either::Right(stream) if stream.lasts());
    // What was sent before has to be on its way: it lies in buffers of the library otherwise, as the head of an answer
    // may that was given before its request had ended.
    let is_left = lasts && has_chunks && !busy.is_stalled();
    let response = response.map(|body| Sending { body, rest: Bytes::new(), busy });
    if is_left { Err(left.leave(response)) } else { Ok(response) }
}

/// Runs a connection to its end; from `drain` on it takes no further request.
async fn drive<C: GracefulConnection>(
    mut connection: Pin<&mut C>,
    drain: CancellationToken,
) -> Result<(), C::Error> {
    tokio::select! {
        served = connection.as_mut() => served,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    Http1,
    Http2,
}

const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads as much as tells HTTP/1.1 from HTTP/2: the first byte within `first_byte`, the rest of a
/// preface within `head`.
async fn sniff<S: AsyncRead + Unpin>(
    stream: &mut S,
    limits: &Limits,
) -> io::Result<(Version, Bytes)> {
    let mut bytes = BytesMut::with_capacity(H2_PREFACE.len());
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut read =
        timeout(limits.first_byte, stream.read_buf(&mut bytes)).await.map_err(late)??;
    let deadline = Instant::now() + limits.head;
    loop {
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = bytes.len().min(H2_PREFACE.len());
        if bytes[..length] != H2_PREFACE[..length] {
            return Ok((Version::Http1, bytes.freeze()));
        }
        if length == H2_PREFACE.len() {
            return Ok((Version::Http2, bytes.freeze()));
        }
        read = timeout_at(deadline, stream.read_buf(&mut bytes)).await.map_err(late)??;
    }
}

/// Spawns what HTTP/2 needs tasks for, so that they are waited for at the end like all others.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

/// A body on its way out; the connection is busy until it is sent or dropped.
struct Sending {
    body: Body,
    /// What is left of a part that is given bit by bit.
    rest: Bytes,
    busy: RequestGuard,
}

/// Given at once where answers share a connection: what was given waits in its buffers, however long the client
/// takes.
const GIVEN: usize = 64 << 10;

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.busy.resumed();
        if self.rest.is_empty() {
            // Both kinds of body fail with `Infallible`; `Either` boxes that all the same.
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(_)) | None => return Poll::Ready(None),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let whole = self.rest.len();
        let length = if self.busy.is_multiplexed() { whole.min(GIVEN) } else { whole };
        let given = self.rest.split_to(length);
        self.busy.offers();
        Poll::Ready(Some(Ok(Frame::data(given))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, hint) = (self.rest.len() as u64, self.body.size_hint());
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + rest),
            None => hint,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;
    use crate::config::Config;

    fn limits() -> Limits {
        Config::parse("g", "", Path::new(""), &[]).unwrap().server.limits
    }

    #[tokio::test(start_paused = true)]
    async fn w12_silence_and_half_a_preface_end_in_time() {
        for (said, seconds) in [("", 5), ("PRI * HT", 10)] {
            let (mut client, mut server) = duplex(64);
            client.write_all(said.as_bytes()).await.unwrap();
            let start = Instant::now();
            let error = sniff(&mut server, &limits()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(start.elapsed(), Duration::from_secs(seconds));
        }
    }

    #[tokio::test]
    async fn the_versions_are_told_apart_by_their_first_bytes() {
        for (said, version) in [
            (&b"P"[..], None),
            (b"POST /mcp HTTP/1.1\r\n", Some(Version::Http1)),
            (b"PRI * HTTP/1.1", Some(Version::Http1)),
            (H2_PREFACE, Some(Version::Http2)),
        ] {
            let (mut client, mut server) = duplex(64);
            client.write_all(said).await.unwrap();
            drop(client);
            let sniffed = sniff(&mut server, &limits()).await.ok();
            assert_eq!(sniffed.as_ref().map(|(v, _)| *v), version);
            if let Some((_, prefix)) = sniffed {
                assert_eq!(prefix, said);
            }
        }
    }
}
