//! One client connection: detects its HTTP version within a deadline, and serves its requests.

pub(crate) mod listener;
pub(crate) mod tls;
pub(crate) mod timeout_io;
pub(crate) mod state;
pub(crate) mod control_frames;
pub(crate) mod detached;
pub(crate) mod sending_body;

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::conn::control_frames::ControlFrames;
use super::conn::detached::LentIo;
use super::conn::sending_body::SendingBody;
use super::conn::state::{ConnState, RequestGuard};
use super::conn::timeout_io::TimeoutIo;
use super::pool::PoolLease;
use super::{Serve, TlsServer};
use crate::downstream::Body;
use base::platform::heap::pin_in_place;
use config::Limits;

/// The client at the other end of a connection.
pub struct Peer {
    /// The address, which is a proxy's where the gateway is behind one.
    pub address: IpAddr,
    pub certificate: Option<ClientCertificate>,
    /// Whether TLS negotiated HTTP/2 (ALPN). Otherwise the first bytes decide.
    pub negotiated_http2: bool,
}

/// A client certificate that was verified in the TLS handshake.
pub struct ClientCertificate {
    /// The subject, as RFC 4514 writes it.
    pub subject: String,
    /// The TLS configuration that verified the certificate. A configuration with other authorities
    /// ignores the certificate.
    pub verified_by: Arc<TlsServer>,
}

/// Why a connection ended early: for debug logs only.
type ConnError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a detached response ([`detached`]). The task of a connection holds no more of it than the
/// pointer.
type SendingDetached = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A connection whose HTTP version is known, with all that its requests need.
struct Conn<E, S> {
    io: TimeoutIo<S>,
    state: Arc<ConnState>,
    peer: Arc<Peer>,
    endpoint: Arc<ArcSwap<E>>,
    limits: Arc<Limits>,
    drain: CancellationToken,
}

/// The context in which all connections of a listener are served.
#[derive(Clone)]
pub(crate) struct ConnContext<E> {
    /// The endpoint of the current configuration.
    pub endpoint: Arc<ArcSwap<E>>,
    /// The limits of the configuration under which the connection was accepted.
    pub limits: Arc<Limits>,
    /// Tracks the tasks that HTTP/2 needs.
    pub tasks: TaskTracker,
    pub drain: CancellationToken,
}

/// Serves a connection until it ends, a deadline passes, or `drain` is cancelled and the requests
/// in flight are answered. `place` is that of the connection among all connections.
pub(crate) async fn serve<E, S>(
    stream: S,
    peer: Peer,
    place: Option<Arc<PoolLease>>,
    context: ConnContext<E>,
) -> Result<(), ConnError>
where
    E: Serve,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // On the heap, and dropped when only a detached stream is left: it may last for hours.
    let detached = Box::pin(serve_requests(stream, peer, place, context)).await?;
    match detached {
        Some(sending) => Ok(sending.await?),
        None => Ok(()),
    }
}

/// Serves requests, up to one whose response is detached. Returns what sends that response.
async fn serve_requests<E, S>(
    mut stream: S,
    peer: Peer,
    place: Option<Arc<PoolLease>>,
    context: ConnContext<E>,
) -> Result<Option<SendingDetached>, ConnError>
where
    E: Serve,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let ConnContext { endpoint, limits, tasks, drain } = context;
    let detecting = detect_version(&mut stream, &limits);
    let Some((detected, prefix)) = drain.run_until_cancelled(detecting).await.transpose()? else {
        return Ok(None);
    };
    let version = if peer.negotiated_http2 { HttpVersion::Http2 } else { detected };
    let stall = limits.reader_patience();
    let state = match version {
        HttpVersion::Http1 => ConnState::sequential(place, limits.idle, limits.head),
        HttpVersion::Http2 => ConnState::multiplexed(place, limits.idle, stall),
    };
    let mut io = TimeoutIo::new(stream, prefix, state.clone(), stall);
    if version == HttpVersion::Http2 {
        io = io.counting(ControlFrames::new(MAX_CONTROL_FRAMES, Instant::now()));
    }
    let conn = Conn { io, state, peer: Arc::new(peer), endpoint, limits, drain };
    match version {
        HttpVersion::Http1 => conn.serve_http1().await,
        HttpVersion::Http2 => conn.serve_http2(tasks).await.map(|()| None),
    }
}

impl<E, S> Conn<E, S>
where
    E: Serve,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    async fn serve_http1(self) -> Result<Option<SendingDetached>, ConnError> {
        let Self { io, state, peer, endpoint, limits, drain } = self;
        let lent = LentIo::new(io);
        let stall = limits.reader_patience();
        let service = service_fn(|request: Request<Incoming>| {
            let lent = lent.clone();
            let has_chunks = request.version() == http::Version::HTTP_11;
            // One request sees one configuration.
            let responding = respond(request, endpoint.load_full(), peer.clone(), state.begin());
            async move {
                let response = responding.await;
                if has_chunks && response.body().is_long_lived() {
                    return Err(lent.detach(response, stall).await);
                }
                Ok(response)
            }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new());
        // Beside the size, hyper's default holds: at most 100 header fields.
        builder.max_buf_size(MAX_HEAD_SIZE as usize);
        // `TimeoutIo` limits the head, apart from the idle time before it.
        builder.header_read_timeout(None);
        let mut connection = builder.serve_connection(TokioIo::new(lent.clone()), service);
        tokio::select! {
            // `detached` must be polled after the connection.
            biased;
            served = drive(Pin::new(&mut connection), drain) => {
                served?;
                return Ok(None);
            }
            () = lent.detached() => {}
        }
        drop(connection);
        Ok(Some(Box::pin(lent.reclaim()?.run())))
    }

    async fn serve_http2(self, tasks: TaskTracker) -> Result<(), ConnError> {
        let Self { io, state, peer, endpoint, limits, drain } = self;
        let conn_state = state.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            // One request sees one configuration.
            let responding = respond(request, endpoint.load_full(), peer.clone(), state.begin());
            async { Ok::<_, Infallible>(responding.await) }
        });
        let mut builder = http2::Builder::new(TrackedExecutor(tasks));
        builder.timer(TokioTimer::new());
        builder.max_header_list_size(MAX_HEAD_SIZE);
        builder.max_concurrent_streams(u32::try_from(limits.h2_streams).unwrap_or(u32::MAX));
        builder.keep_alive_interval(limits.head).keep_alive_timeout(limits.head);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
        tokio::select! {
            served = drive(connection.as_mut(), drain) => return Ok(served?),
            () = conn_state.flooded() => {}
        }
        info!(reason = "h2_control_frames", "client sends too many control frames; disconnecting");
        connection.as_mut().graceful_shutdown();
        // GOAWAY is sent, and nothing more is read.
        timeout(GOAWAY_TIMEOUT, connection).await.map_err(|_| "too many control frames")??;
        Ok(())
    }
}

/// Bytes of a request head: four times what common servers accept, since tokens are large.
const MAX_HEAD_SIZE: u32 = 32 << 10;

/// Control frames of an HTTP/2 connection per second (see [`ControlFrames`]): far more than a
/// client with as many streams as it may have needs.
const MAX_CONTROL_FRAMES: usize = 1_000;

/// The time to send GOAWAY to a client that floods the connection.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the response to one request.
async fn respond<E: Serve>(
    request: Request<Incoming>,
    endpoint: Arc<E>,
    peer: Arc<Peer>,
    guard: RequestGuard,
) -> Response<SendingBody> {
    // hyper removes a Content-Length next to Transfer-Encoding. A proxy before the gateway may have
    // used it, and take the rest of the connection for a part of this body: close it (RFC 9112,
    // section 6.3).
    let closes = request.headers().contains_key(TRANSFER_ENCODING);
    guard.unless_revoked().await;
    // On the heap, and dropped with the response: a stream that is open for hours does not keep it.
    let serving = pin_in_place(|| endpoint.serve(request, &peer, &guard));
    let mut response: Response<Body> = serving.await;
    if closes {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    guard.has_data();
    response.map(|body| SendingBody::new(body, guard))
}

/// Drives a connection to its end. From `drain` on it accepts no further request.
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
enum HttpVersion {
    Http1,
    Http2,
}

const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads as many bytes as distinguish HTTP/1.1 from HTTP/2 (RFC 9113, section 3.4): the first
/// within `first_byte`, the rest of a preface within `head`. Returns them with the version.
async fn detect_version<S: AsyncRead + Unpin>(
    stream: &mut S,
    limits: &Limits,
) -> io::Result<(HttpVersion, Bytes)> {
    let mut bytes = BytesMut::with_capacity(H2_PREFACE.len());
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut read =
        timeout(limits.first_byte, stream.read_buf(&mut bytes)).await.map_err(timed_out)??;
    let deadline = Instant::now() + limits.head;
    loop {
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = bytes.len().min(H2_PREFACE.len());
        if bytes[..length] != H2_PREFACE[..length] {
            return Ok((HttpVersion::Http1, bytes.freeze()));
        }
        if length == H2_PREFACE.len() {
            return Ok((HttpVersion::Http2, bytes.freeze()));
        }
        read = timeout_at(deadline, stream.read_buf(&mut bytes)).await.map_err(timed_out)??;
    }
}

/// Spawns the tasks of HTTP/2 so that the shutdown waits for them.
#[derive(Clone)]
struct TrackedExecutor(TaskTracker);

impl<F> hyper::rt::Executor<F> for TrackedExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http_body_util::BodyExt;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::downstream::http::event_stream::{EventStream, OneMessage, WireEvent};
    use crate::downstream::http::respond;
    use crate::downstream::pool::{NoRoom, Pool, Revokes, RoomBounds};
    use config::Config;
    use domain::calls::caller::Caller;
    use domain::calls::fair_share::Holder;
    use domain::text::chunks::Chunks;
    use upstream::call::result_memory::Unbounded;

    fn limits() -> Arc<Limits> {
        Config::parse("g", "", Path::new(""), &[]).unwrap().server.limits.into()
    }

    /// Answers each GET with an event stream that stays open, all else with `LONG`.
    struct Endpoint {
        limits: Arc<Limits>,
    }

    /// Longer than the in-memory connection holds.
    const LONG: &str = "0123456789abcdef0123456789abcdef";

    impl Serve for Endpoint {
        fn limits(&self) -> &Arc<Limits> {
            &self.limits
        }

        fn tls(&self) -> Option<&Arc<TlsServer>> {
            None
        }

        async fn serve(
            &self,
            request: Request<Incoming>,
            _: &Peer,
            _: &RequestGuard,
        ) -> Response<Body> {
            let is_get = request.method() == http::Method::GET;
            let _ = request.into_body().collect().await;
            if is_get {
                let first = Some(WireEvent::message(None, "{}"));
                let message = std::future::pending();
                let source = OneMessage { message, memory: Arc::new(Unbounded) };
                respond::events(EventStream::long_lived(first, source, Duration::from_secs(15)))
            } else {
                Response::new(Body::Complete(Chunks::from(LONG).into()))
            }
        }
    }

    /// A connection that holds `capacity` bytes in each direction, and the future that serves it.
    fn connection(
        capacity: usize,
        place: Option<Arc<PoolLease>>,
    ) -> (DuplexStream, impl Future<Output = Result<(), ConnError>> + Send) {
        let (client, server) = duplex(capacity);
        let peer =
            Peer { address: [127, 0, 0, 1].into(), certificate: None, negotiated_http2: false };
        let endpoint = Arc::new(ArcSwap::from_pointee(Endpoint { limits: limits() }));
        let tasks = TaskTracker::new();
        let drain = CancellationToken::new();
        let context = ConnContext { endpoint, limits: limits(), tasks, drain };
        (client, serve(server, peer, place, context))
    }

    /// Serves a connection that holds `capacity` bytes in each direction.
    fn connect(capacity: usize) -> DuplexStream {
        let (client, serving) = connection(capacity, None);
        tokio::spawn(serving);
        client
    }

    /// Reads up to the first event of the stream.
    async fn read_to_event(client: &mut DuplexStream) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"data: {}\n\n\r\n") {
            assert_ne!(client.read_buf(&mut bytes).await.unwrap(), 0);
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_connection_holds_its_large_parts_on_the_heap_and_only_while_they_are_used() {
        let (_client, serving) = connection(1, None);
        let size = size_of_val(&serving);
        // A thousand idle streams are a thousand of these. The part that serves requests has
        // several KiB.
        assert!(size <= 256, "{size} bytes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_makes_no_room_for_others_before_its_response_is_written() {
        let pool = Pool::new(1, 1, Revokes::Idle);
        let lease = |id: &str| {
            let bounds = RoomBounds { ceiling: 1, share: 1, per_holder: 1 };
            pool.lease(&Holder::Caller(Caller::new(id)), 1, bounds)
        };
        let place = Arc::new(lease("client").unwrap());
        let (mut client, serving) = connection(16, Some(place.clone()));
        tokio::spawn(serving);
        client.write_all(b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        while !text.ends_with(LONG) {
            let mut byte = [0];
            client.read_exact(&mut byte).await.unwrap();
            text.push(char::from(byte[0]));
            // The connection holds 16 bytes of the rest.
            if !text.contains(&LONG[..LONG.len() - 17]) {
                assert_eq!(lease("newcomer").err(), Some(NoRoom::Full), "after {text}");
            }
        }
        assert!(lease("newcomer").is_ok());
        place.revoked().await;
    }

    #[tokio::test]
    async fn f4_a_connection_gives_way_while_all_its_requests_do_and_not_for_one_of_them() {
        let pool = Pool::new(1, 1, Revokes::Idle);
        let lease = |id: &str| {
            let bounds = RoomBounds { ceiling: 1, share: 1, per_holder: 1 };
            pool.lease(&Holder::Caller(Caller::new(id)), 1, bounds)
        };
        let place = Some(Arc::new(lease("client").unwrap()));
        let state = ConnState::multiplexed(place, Duration::from_secs(60), Duration::from_secs(60));
        let (with_credential, without) = (state.begin(), state.begin());
        without.yield_place();
        assert_eq!(lease("newcomer").err(), Some(NoRoom::Full));
        with_credential.yield_place();
        with_credential.keep_place().await;
        assert_eq!(lease("newcomer").err(), Some(NoRoom::Full));
        drop(with_credential);
        assert!(lease("newcomer").is_ok());
        assert!(timeout(Duration::ZERO, without.keep_place()).await.is_err());
        assert!(timeout(Duration::ZERO, state.begin().unless_revoked()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_interim_response_in_the_buffer_of_hyper_is_sent_before_a_detached_stream() {
        let mut client = connect(4096);
        let request = b"GET / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}";
        client.write_all(request).await.unwrap();
        let text = read_to_event(&mut client).await;
        let (interim, response) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(interim, "HTTP/1.1 100 Continue");
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_behind_an_unread_response_is_detached_once_that_is_read() {
        let mut client = connect(16);
        let requests = "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        client.write_all(requests.as_bytes()).await.unwrap();
        let text = read_to_event(&mut client).await;
        let (first, second) = text.split_once(LONG).unwrap();
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
        assert!(second.starts_with("HTTP/1.1 200 OK\r\n"), "{second}");
        assert!(second.contains("\r\nconnection: close\r\n"), "{second}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_pipelined_behind_a_detached_stream_are_not_served() {
        let mut client = connect(4096);
        let requests = "GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n";
        client.write_all(requests.as_bytes()).await.unwrap();
        let text = read_to_event(&mut client).await;
        assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 1, "{text}");
        // The next bytes are a keep-alive comment of the stream.
        let mut next = [0; 19];
        client.read_exact(&mut next).await.unwrap();
        assert_eq!(&next, b"e\r\n: keep-alive\n\n\r\n");
    }

    #[tokio::test(start_paused = true)]
    async fn w12_a_silent_client_and_half_a_preface_time_out() {
        for (bytes, seconds) in [("", 5), ("PRI * HT", 10)] {
            let (mut client, mut server) = duplex(64);
            client.write_all(bytes.as_bytes()).await.unwrap();
            let start = Instant::now();
            let error = detect_version(&mut server, &limits()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(start.elapsed(), Duration::from_secs(seconds));
        }
    }

    #[tokio::test]
    async fn the_first_bytes_decide_the_http_version() {
        for (bytes, version) in [
            (&b"P"[..], None),
            (b"POST /mcp HTTP/1.1\r\n", Some(HttpVersion::Http1)),
            (b"PRI * HTTP/1.1", Some(HttpVersion::Http1)),
            (H2_PREFACE, Some(HttpVersion::Http2)),
        ] {
            let (mut client, mut server) = duplex(64);
            client.write_all(bytes).await.unwrap();
            drop(client);
            let detected = detect_version(&mut server, &limits()).await.ok();
            assert_eq!(detected.as_ref().map(|(v, _)| *v), version);
            if let Some((_, prefix)) = detected {
                assert_eq!(prefix, bytes);
            }
        }
    }
}
