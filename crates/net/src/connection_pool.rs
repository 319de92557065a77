//! HTTP/1.1 connections without TLS, kept for the next requests.
//!
//! A connection has no task: the request that holds it polls it. The response thus wakes one task,
//! where a connection with a task wakes two, often on two threads.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until};

use crate::waker::MutableWaker;
use base::platform::heap::boxed;
use base::platform::{Connect, Locked, Stream};

type OutgoingRequest = Request<Full<Bytes>>;

/// Runs the task that closes idle connections.
pub(super) type Spawn = Box<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

/// The idle connections of a client.
pub(super) struct ConnectionPool {
    connector: Arc<dyn Connect>,
    spawn: Spawn,
    /// Most idle connections; further connections are closed after use.
    most: usize,
    /// Time until an idle connection is closed.
    idle_timeout: Duration,
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// By the beginning of their idle time.
    connections: Vec<IdleConnection>,
    /// Whether a task closes them after their idle time.
    is_watched: bool,
}

struct IdleConnection {
    connection: Box<OpenConnection>,
    since: Instant,
}

/// A connection, and the sender of its requests.
struct OpenConnection {
    authority: Authority,
    sender: SendRequest<Full<Bytes>>,
    /// `None` after its end: dropping it returns a request that it has not sent.
    connection: Option<Connection<TokioIo<Stream>, Full<Bytes>>>,
    /// Wakes the task of the request. Muted while that task does something after which it polls
    /// the connection, and while the connection is idle.
    waker: Arc<MutableWaker>,
}

/// Why a request has no response.
pub(super) enum SendError {
    /// No connection can be opened.
    Connect(Box<dyn std::error::Error + Send + Sync>),
    /// The open connection failed.
    Exchange(hyper::Error),
}

impl ConnectionPool {
    pub(super) fn new(
        connector: Arc<dyn Connect>,
        spawn: Spawn,
        most: usize,
        idle_timeout: Duration,
    ) -> Arc<Self> {
        let idle = Mutex::default();
        Arc::new(Self { connector, spawn, most, idle_timeout, idle })
    }

    /// Sends a request, and waits for the head of the response. A request that an idle connection
    /// has not sent, because its server closed it, goes to another connection.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: OutgoingRequest,
    ) -> Result<Response<ResponseBody>, SendError> {
        let url = request.uri().clone();
        let authority = url.authority().ok_or_else(|| SendError::Connect("no host".into()))?;
        let mut request = in_origin_form(request, authority);
        while let Some(mut connection) = self.take(authority) {
            match connection.send(request).await {
                Ok(response) => return Ok(self.lease(connection, response)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(SendError::Exchange(error.into_error())),
                },
            }
        }
        boxed(self.send_first(&url, authority, request)).await
    }

    /// Sends the first request of a connection.
    async fn send_first(
        self: &Arc<Self>,
        url: &Uri,
        authority: &Authority,
        request: OutgoingRequest,
    ) -> Result<Response<ResponseBody>, SendError> {
        let stream = self.connector.connect(url.clone()).await.map_err(SendError::Connect)?;
        let opened = handshake(TokioIo::new(stream)).await.map_err(SendError::Exchange)?;
        let (sender, connection) = opened;
        let connection = Some(connection);
        let authority = authority.clone();
        let waker = MutableWaker::new();
        let mut opened = Box::new(OpenConnection { authority, sender, connection, waker });
        let sent = opened.send(request).await;
        let response = sent.map_err(|error| SendError::Exchange(error.into_error()))?;
        Ok(self.lease(opened, response))
    }

    /// Takes the connection to the server that was used last.
    fn take(&self, authority: &Authority) -> Option<Box<OpenConnection>> {
        loop {
            let mut idle = self.idle.locked();
            let mut connections = idle.connections.iter();
            let at = connections.rposition(|idle| idle.connection.authority == *authority)?;
            let IdleConnection { mut connection, since } = idle.connections.remove(at);
            drop(idle);
            if since.elapsed() < self.idle_timeout && connection.is_usable() {
                return Some(connection);
            }
        }
    }

    /// Returns a response whose body holds the connection until its end.
    fn lease(
        self: &Arc<Self>,
        connection: Box<OpenConnection>,
        response: Response<Incoming>,
    ) -> Response<ResponseBody> {
        response.map(|incoming| {
            let lease = Some(Lease { connection, pool: Arc::downgrade(self) });
            let mut body = ResponseBody { incoming, lease };
            if body.incoming.is_end_stream() {
                body.release();
            }
            body
        })
    }

    fn put(self: &Arc<Self>, connection: Box<OpenConnection>) {
        connection.waker.mute();
        let since = Instant::now();
        let mut idle = self.idle.locked();
        if idle.connections.len() >= self.most {
            return;
        }
        idle.connections.push(IdleConnection { connection, since });
        if !idle.is_watched {
            idle.is_watched = true;
            drop(idle);
            (self.spawn)(Box::pin(close_idle(Arc::downgrade(self), since + self.idle_timeout)));
        }
    }

    /// Closes the connections whose idle time has ended. Returns the end of the next idle time.
    fn close_expired(&self, now: Instant) -> Option<Instant> {
        let mut idle = self.idle.locked();
        idle.connections.retain(|idle| now < idle.since + self.idle_timeout);
        let oldest = idle.connections.first().map(|idle| idle.since + self.idle_timeout);
        idle.is_watched = oldest.is_some();
        oldest
    }
}

/// Closes connections after their idle time, until there are none.
async fn close_idle(pool: Weak<ConnectionPool>, first: Instant) {
    let mut next = Some(first);
    while let Some(at) = next {
        sleep_until(at).await;
        next = pool.upgrade().and_then(|pool| pool.close_expired(Instant::now()));
    }
}

/// The request as a server gets it without a proxy (RFC 9112, section 3.2.1).
fn in_origin_form(mut request: OutgoingRequest, authority: &Authority) -> OutgoingRequest {
    if !request.headers().contains_key(HOST) {
        // Userinfo does not belong there (RFC 9110, section 4.2.4).
        let host = authority.as_str().rsplit('@').next().unwrap_or_default();
        if let Ok(host) = HeaderValue::from_str(host) {
            request.headers_mut().insert(HOST, host);
        }
    }
    let root = PathAndQuery::from_static("/");
    let path = request.uri().path_and_query().cloned().unwrap_or(root);
    *request.uri_mut() = Uri::from(path);
    request
}

impl OpenConnection {
    /// Whether an idle connection takes a request: its server has not closed it.
    fn is_usable(&mut self) -> bool {
        self.sender.is_ready()
            || (!self.poll(&mut Context::from_waker(Waker::noop())) && self.sender.is_ready())
    }

    /// Moves bytes between the socket and the sender or the body. Returns whether it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        // The poll that follows sees each event that was missed.
        let _ = self.waker.unmute(context.waker());
        let waker = Waker::from(self.waker.clone());
        let has_ended = Pin::new(connection).poll(&mut Context::from_waker(&waker)).is_ready();
        if has_ended {
            self.connection = None;
        }
        has_ended
    }

    async fn send(
        &mut self,
        request: OutgoingRequest,
    ) -> Result<Response<Incoming>, TrySendError<OutgoingRequest>> {
        self.waker.mute();
        let mut response = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            if self.poll(context) {
                return response.as_mut().poll(context);
            }
            // The response comes while the connection is polled: it need not wake the task.
            response.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }
}

/// The body of a response, which polls its connection.
pub struct ResponseBody {
    incoming: Incoming,
    /// `None` after the end of the body, and where the connection has a task.
    lease: Option<Lease>,
}

/// A connection that is used for one request.
struct Lease {
    connection: Box<OpenConnection>,
    pool: Weak<ConnectionPool>,
}

impl From<Incoming> for ResponseBody {
    /// The body of a connection that has a task.
    fn from(incoming: Incoming) -> Self {
        Self { incoming, lease: None }
    }
}

impl ResponseBody {
    /// Returns the connection to its pool, after the end of the body.
    fn release(&mut self) {
        if let Some(Lease { connection, pool }) = self.lease.take()
            && let Some(pool) = pool.upgrade()
            && !connection.sender.is_closed()
        {
            pool.put(connection);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming, lease } = &mut *self;
        let Some(Lease { connection, .. }) = lease else {
            return Pin::new(incoming).poll_frame(context);
        };
        let waker = connection.waker.clone();
        waker.mute();
        // A frame comes while the connection is polled: it need not wake the task.
        let mut quiet = Context::from_waker(Waker::noop());
        let mut frame = Pin::new(&mut *incoming).poll_frame(&mut quiet);
        if frame.is_pending() {
            if connection.poll(context) {
                *lease = None;
                return Pin::new(incoming).poll_frame(context);
            }
            waker.mute();
            frame = Pin::new(&mut *incoming).poll_frame(&mut quiet);
        }
        match frame {
            Poll::Ready(Some(Err(_))) => *lease = None,
            Poll::Ready(None) => self.release(),
            Poll::Ready(Some(Ok(_))) if incoming.is_end_stream() => self.release(),
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Pending => {
                if waker.unmute(context.waker()) {
                    context.waker().wake_by_ref();
                }
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc::{self, UnboundedSender};

    use super::*;
    use base::platform::{Dialling, platform};
    use domain::address_policy::AddressPolicy;

    const IDLE: Duration = Duration::from_secs(4);

    fn pool(most: usize) -> Arc<ConnectionPool> {
        let connector = platform().network.http(Dialling {
            timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(10),
            address_policy: AddressPolicy::NotLinkLocal,
        });
        let spawn: Spawn = Box::new(|task| drop(tokio::spawn(task)));
        ConnectionPool::new(connector, spawn, most, IDLE)
    }

    /// A server whose connections each answer with the responses of `answers` in turn, and end
    /// after the last of them.
    struct Server {
        url: String,
        accepted: Arc<AtomicUsize>,
        ends: mpsc::UnboundedReceiver<End>,
    }

    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    enum End {
        OfServer,
        OfClient,
    }

    impl Server {
        async fn start(answers: &'static [&'static str]) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/mcp?a=b", listener.local_addr().unwrap());
            let accepted = Arc::<AtomicUsize>::default();
            let (tell, ends) = mpsc::unbounded_channel();
            let count = accepted.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    count.fetch_add(1, Ordering::SeqCst);
                    let tell = tell.clone();
                    tokio::spawn(async move { answer(stream, answers, &tell).await });
                }
            });
            Self { url, accepted, ends }
        }

        async fn until(&mut self, end: End) {
            while self.ends.recv().await.unwrap() != end {}
            // The reactor has seen what the server did before.
            tokio::task::yield_now().await;
        }

        fn accepted(&self) -> usize {
            self.accepted.load(Ordering::SeqCst)
        }

        async fn get(&self, pool: &Arc<ConnectionPool>) -> Result<String, &'static str> {
            let request = Request::get(&self.url).body(Full::default()).unwrap();
            let response = pool.send(request).await.map_err(|error| match error {
                SendError::Connect(_) => "connect",
                SendError::Exchange(_) => "exchange",
            })?;
            let body = response.into_body().collect().await.map_err(|_| "body")?;
            Ok(String::from_utf8(body.to_bytes().to_vec()).unwrap())
        }
    }

    async fn answer(mut stream: TcpStream, answers: &[&str], ends: &UnboundedSender<End>) {
        for response in answers {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => {
                        let _ = ends.send(End::OfClient);
                        return;
                    }
                }
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            assert!(head.starts_with("get /mcp?a=b http/1.1\r\n"), "{head}");
            assert_eq!(head.matches("host: 127.0.0.1:").count(), 1, "{head}");
            stream.write_all(response.as_bytes()).await.unwrap();
        }
        let _ = stream.shutdown().await;
        let _ = ends.send(End::OfServer);
        let _ = stream.read(&mut [0]).await;
        let _ = ends.send(End::OfClient);
    }

    const PLAIN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n";
    const EMPTY: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
    const LAST: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    const CUT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok";

    #[tokio::test]
    async fn a_connection_is_used_again_after_each_kind_of_body() {
        let server = Server::start(&[PLAIN, CHUNKED, EMPTY, PLAIN, LAST]).await;
        let pool = pool(8);
        for expected in ["ok", "ok", "", "ok", "ok"] {
            assert_eq!(server.get(&pool).await.as_deref(), Ok(expected));
            assert_eq!(server.accepted(), 1);
        }
        assert_eq!(server.get(&pool).await.as_deref(), Ok("ok"));
        assert_eq!(server.accepted(), 2, "the server had announced the end of the connection");
    }

    #[tokio::test]
    async fn a_request_that_an_ended_connection_has_not_sent_goes_to_another() {
        let mut server = Server::start(&[PLAIN]).await;
        let pool = pool(8);
        for connections in 1..=3 {
            assert_eq!(server.get(&pool).await.as_deref(), Ok("ok"));
            assert_eq!(server.accepted(), connections);
            server.until(End::OfServer).await;
        }
    }

    #[tokio::test]
    async fn after_the_end_of_its_server_a_request_fails_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp?a=b", listener.local_addr().unwrap());
        let (_told, ends) = mpsc::unbounded_channel();
        let server = Server { url, accepted: Arc::default(), ends };
        let pool = pool(8);
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 512];
            let _ = stream.read(&mut head).await.unwrap();
            // Behind its last chunk the connection waits for the next request.
            stream.write_all(CHUNKED.as_bytes()).await.unwrap();
            stream
        };
        let (body, stream) = tokio::join!(server.get(&pool), serving);
        assert_eq!(body.as_deref(), Ok("ok"));
        drop((stream, listener));
        // The reactor sees the end.
        tokio::task::yield_now().await;
        let failed = tokio::time::timeout(Duration::from_secs(5), server.get(&pool)).await;
        assert_eq!(failed, Ok(Err("connect")));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_or_is_not_read_closes_its_connection() {
        let mut server = Server::start(&[CUT]).await;
        let pool = pool(8);
        assert_eq!(server.get(&pool).await, Err("body"));
        let request = Request::get(&server.url).body(Full::default()).unwrap();
        drop(pool.send(request).await.ok().unwrap());
        for _ in 0..2 {
            server.until(End::OfClient).await;
        }
        assert!(pool.idle.locked().connections.is_empty());
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_after_its_time() {
        let mut server = Server::start(&[PLAIN, PLAIN, PLAIN]).await;
        let pool = pool(1);
        let (first, second) = tokio::join!(server.get(&pool), server.get(&pool));
        assert_eq!((first.as_deref(), second.as_deref()), (Ok("ok"), Ok("ok")));
        // Beyond the most idle connections.
        server.until(End::OfClient).await;
        assert_eq!(pool.idle.locked().connections.len(), 1);
        tokio::time::pause();
        tokio::time::advance(IDLE).await;
        tokio::time::resume();
        server.until(End::OfClient).await;
        assert!(!pool.idle.locked().is_watched);
    }
}
