//! The load generator: requests prepared once, sent over connections that stay open. Each has a
//! number of its own in it, so no cache of whole texts can answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One request as it is sent again and again.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
    /// Calls in it: the items of a batch.
    pub calls: u64,
    /// Whether the answers are errors.
    pub fails: bool,
}

/// The digits in a body that the number of the request replaces.
pub const NUMBER: &str = "00000000";

/// A number that no request had before, as long as [`NUMBER`].
fn next_number() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("{:08}", LAST.fetch_add(1, Ordering::Relaxed) % 100_000_000)
}

/// A request in bytes.
struct Numbered {
    bytes: Vec<u8>,
    /// Where its number stands.
    places: Vec<usize>,
}

impl Numbered {
    fn new(bytes: Vec<u8>) -> Self {
        let places = memmem::find_iter(&bytes, NUMBER).collect();
        Self { bytes, places }
    }

    /// The request with a new number.
    fn next(&mut self) -> &[u8] {
        let number = next_number();
        for &place in &self.places {
            self.bytes[place..place + number.len()].copy_from_slice(number.as_bytes());
        }
        &self.bytes
    }
}

/// The results of a closed loop.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Calls that were answered.
    pub calls: u64,
    pub took: Duration,
    /// Of each request.
    pub latencies: Vec<Duration>,
}

impl Prepared {
    /// The request with other ids: two requests of one session that run at once must not have one
    /// id.
    pub fn numbered(&self, connection: usize) -> Self {
        let body = self.body.replace("\"id\":", &format!("\"id\":{}", connection + 1));
        Self { body, ..self.clone() }
    }

    /// The bytes of the request over HTTP/1.1.
    pub fn bytes(&self) -> Vec<u8> {
        let Self { path, headers, body, .. } = self;
        let head: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {length}\r\n\r\n{body}")
            .into_bytes()
    }

    fn request(&self) -> hyper::Request<Full<Bytes>> {
        let mut request = hyper::Request::post(format!("http://localhost{}", self.path));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let body = self.body.replace(NUMBER, &next_number());
        request.body(Full::new(body.into())).expect("a request")
    }
}

/// One connection of HTTP/1.1.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, buffer: Vec::new() }
    }

    /// Sends a request and reads its whole response.
    ///
    /// # Panics
    /// If the status is not 200, or the response has no length.
    pub async fn ask(&mut self, request: &[u8]) -> &[u8] {
        self.stream.write_all(request).await.expect("it reads");
        self.buffer.clear();
        let mut expected = usize::MAX;
        while self.buffer.len() < expected {
            let read = self.stream.read_buf(&mut self.buffer).await.expect("it responds");
            assert!(read > 0, "closed: {}", String::from_utf8_lossy(&self.buffer));
            if expected == usize::MAX {
                expected = length(&self.buffer).unwrap_or(usize::MAX);
            }
        }
        let is_good = self.buffer.starts_with(b"HTTP/1.1 200");
        assert!(is_good, "{}", String::from_utf8_lossy(&self.buffer));
        &self.buffer
    }
}

/// The length of a response, once its head is there.
fn length(response: &[u8]) -> Option<usize> {
    let head = memmem::find(response, b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&response[..head]).ok()?.to_ascii_lowercase();
    let length = text.split("content-length: ").nth(1)?.split('\r').next()?.parse::<usize>();
    length.ok().map(|length| head + length)
}

/// Opens a legacy session; returns its id if the other side has given one.
pub async fn initialize(
    addr: SocketAddr,
    mut prepared: Prepared,
    revision: &str,
) -> Option<String> {
    prepared.body = format!(
        r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{revision}","capabilities":{{}},"clientInfo":{{"name":"load","version":"1"}}}}}}"#
    );
    let mut connection = Connection::open(addr).await;
    let response = String::from_utf8_lossy(connection.ask(&prepared.bytes()).await).into_owned();
    let head = response.to_ascii_lowercase();
    let at = head.find("mcp-session-id: ")? + "mcp-session-id: ".len();
    response[at..].split('\r').next().map(str::to_owned)
}

/// Sends the request over `connections` at once, each as soon as the one before is answered.
///
/// # Panics
/// If the first response is not the error, or the result, that is expected.
pub async fn closed_loop(
    addr: SocketAddr,
    prepared: &Prepared,
    connections: usize,
    duration: Duration,
) -> Done {
    let mut tasks = JoinSet::new();
    let until = Instant::now() + duration;
    for connection in 0..connections {
        let (bytes, calls) = (prepared.numbered(connection).bytes(), prepared.calls);
        let (mut request, fails) = (Numbered::new(bytes), prepared.fails);
        tasks.spawn(async move {
            let mut connection = Connection::open(addr).await;
            let first = connection.ask(request.next()).await;
            let is_error = memmem::find(first, b"\"error\":").is_some();
            assert_eq!(is_error, fails, "{}", String::from_utf8_lossy(first));
            let mut done = Done { calls, ..Done::default() };
            while Instant::now() < until {
                let started = Instant::now();
                connection.ask(request.next()).await;
                done.latencies.push(started.elapsed());
                done.calls += calls;
            }
            done
        });
    }
    together(tasks).await
}

/// The same over HTTP/2: four connections, `streams` requests at once.
pub async fn closed_loop_http2(
    addr: SocketAddr,
    prepared: &Prepared,
    streams: usize,
    duration: Duration,
) -> Done {
    const CONNECTIONS: usize = 4;
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        senders.push(sender);
    }
    let mut tasks = JoinSet::new();
    let until = Instant::now() + duration;
    for stream in 0..streams {
        let sender: SendRequest<Full<Bytes>> = senders[stream % CONNECTIONS].clone();
        let prepared = prepared.numbered(stream);
        tasks.spawn(async move {
            let mut sender = sender;
            let mut done = Done::default();
            while Instant::now() < until {
                let started = Instant::now();
                let response = sender.send_request(prepared.request()).await.expect("a response");
                assert_eq!(response.status(), 200);
                response.into_body().collect().await.expect("a body");
                done.latencies.push(started.elapsed());
                done.calls += prepared.calls;
            }
            done
        });
    }
    together(tasks).await
}

async fn together(mut tasks: JoinSet<Done>) -> Done {
    let started = Instant::now();
    let mut all = Done::default();
    while let Some(done) = tasks.join_next().await {
        let done = done.expect("no request failed");
        all.calls += done.calls;
        all.latencies.extend(done.latencies);
    }
    all.took = started.elapsed();
    all
}
