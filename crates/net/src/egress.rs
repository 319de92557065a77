//! HTTP client for all requests to upstreams, authorization servers and collectors.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::rt::Executor;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio::time::{Instant, timeout};

pub use crate::connection_pool::ResponseBody;
use crate::connection_pool::{ConnectionPool, SendError, Spawn};
use crate::proxy::{EgressConnector, ViaProxy};
use crate::{root_cause, tls};
use base::platform::{Dialling, platform};
use config::Proxies;
use domain::address_policy::AddressPolicy;
use domain::fault::{UpstreamFaultKind, excerpt};

/// Pooled HTTP client over HTTP/1.1 and, by ALPN, HTTP/2.
///
/// It follows no redirects. It requests no compression, so the bytes that are read bound the memory
/// that a response takes. It connects to no address that `address_policy` refuses, whichever
/// addresses a name resolves to.
pub struct Egress {
    pool: ArcSwap<HttpPool>,
    /// Makes a pool without connections.
    new_pool: Box<dyn Fn() -> Arc<HttpPool> + Send + Sync>,
    address_policy: AddressPolicy,
    proxies: Option<Arc<ViaProxy>>,
}

type HttpClient = Client<HttpsConnector<EgressConnector>, Full<Bytes>>;

/// The connections of a client; no connection is older than this.
struct HttpPool {
    /// Over TLS, or to proxies that forward requests.
    client: HttpClient,
    /// To servers, without TLS.
    plain: Arc<ConnectionPool>,
    since: Instant,
}

/// Time from the first connection of a pool until requests open new connections. A name that moves
/// to another server is followed while the previous server still serves.
const MAX_AGE: Duration = Duration::from_mins(10);

/// Idle connections that are kept for the few requests at a time of authorization servers and
/// vaults.
const FEW_CONNECTIONS: usize = 32;

/// Time until an idle connection is closed: less than the 5 s of common servers (Node, uvicorn), so
/// that no request goes into a connection that the server closes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Interval of HTTP/2 PING frames and TCP keepalive probes, so that calls do not use a dead
/// connection.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Time that the peer has to acknowledge a PING frame or probe.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

impl Egress {
    /// Creates a client for a few requests at a time. `connect` bounds the TCP handshake; `ca`
    /// holds certificates (PEM) that are trusted in addition to those of the system.
    ///
    /// # Errors
    /// When `ca` holds no usable certificate.
    pub fn new(
        connect: Duration,
        ca: Option<&str>,
        address_policy: AddressPolicy,
        proxies: Option<&Proxies>,
    ) -> Result<Self, String> {
        Self::pooled(FEW_CONNECTIONS, connect, ca, address_policy, proxies)
    }

    /// Creates a client that keeps up to `connections` idle connections for the next requests.
    /// Choose the number of requests at a time, since further connections are closed after use.
    ///
    /// # Errors
    /// As [`Egress::new`].
    pub fn pooled(
        connections: usize,
        connect: Duration,
        ca: Option<&str>,
        address_policy: AddressPolicy,
        proxies: Option<&Proxies>,
    ) -> Result<Self, String> {
        let executor = TokioExecutor::new();
        Self::on(executor, connections, connect, ca, address_policy, proxies)
    }

    /// As [`Egress::pooled`]; `executor` runs the tasks of the connections.
    ///
    /// # Errors
    /// As [`Egress::new`].
    pub fn on<E>(
        executor: E,
        connections: usize,
        connect: Duration,
        ca: Option<&str>,
        address_policy: AddressPolicy,
        proxies: Option<&Proxies>,
    ) -> Result<Self, String>
    where
        E: Executor<Pin<Box<dyn Future<Output = ()> + Send>>> + Clone + Send + Sync + 'static,
    {
        let tls = tls::client(ca)?;
        let connector = |address_policy| {
            platform().network.http(Dialling {
                timeout: connect,
                // A notification stream may be silent for hours: only keepalive detects a dead
                // connection.
                keepalive: PING_INTERVAL,
                keepalive_timeout: PING_TIMEOUT,
                address_policy,
            })
        };
        // The operator's proxies are trusted, and are in the own network.
        let to_proxy = || connector(AddressPolicy::NotLinkLocal);
        let proxies = ViaProxy::new(proxies, to_proxy, &tls);
        let direct = connector(address_policy);
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(EgressConnector { direct: direct.clone(), proxies: proxies.clone() });
        let new_pool = Box::new(move || {
            let client = Client::builder(executor.clone())
                .timer(TokioTimer::new())
                .http2_keep_alive_interval(PING_INTERVAL)
                .http2_keep_alive_timeout(PING_TIMEOUT)
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(connections)
                .build(https.clone());
            let executor = executor.clone();
            let spawn: Spawn = Box::new(move |task| executor.execute(task));
            let plain = ConnectionPool::new(direct.clone(), spawn, connections, IDLE_TIMEOUT);
            Arc::new(HttpPool { client, plain, since: Instant::now() })
        });
        let pool = ArcSwap::new(new_pool());
        Ok(Self { pool, new_pool, address_policy, proxies })
    }

    /// Returns the pool for the next request. A pool that is too old is replaced: its idle
    /// connections are closed at once, the others when their requests end.
    fn pool(&self) -> Arc<HttpPool> {
        let pool = self.pool.load_full();
        if pool.since.elapsed() < MAX_AGE {
            return pool;
        }
        let renewed = (self.new_pool)();
        self.pool.store(renewed.clone());
        renewed
    }

    /// Sends one request and waits for the head of the response. Dropping the future or the
    /// response body aborts the request.
    ///
    /// # Errors
    /// [`UpstreamFaultKind::Unavailable`] when no connection can be opened or the address is
    /// refused, [`UpstreamFaultKind::Reset`] when an open connection fails.
    pub async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, UpstreamFaultKind> {
        // The resolver sees names only: an IP address in the URL is checked here.
        let host = request.uri().host().unwrap_or_default();
        self.address_policy
            .check_host(host)
            .map_err(|e| UpstreamFaultKind::Unavailable(e.to_string()))?;
        let refused = self.proxies.as_ref().and_then(|proxies| proxies.authorize(&mut request));
        let pool = self.pool();
        if refused.is_none() && request.uri().scheme() == Some(&Scheme::HTTP) {
            return pool.plain.send(request).await.map_err(|error| match error {
                SendError::Connect(error) => unavailable(error.as_ref()),
                SendError::Exchange(error) => reset(&error),
            });
        }
        let sent = Box::pin(pool.client.request(request)).await;
        let response =
            sent.map_err(
                |error| {
                    if error.is_connect() { unavailable(&error) } else { reset(&error) }
                },
            )?;
        match refused {
            Some(why) if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Err(UpstreamFaultKind::Unavailable(why.to_string()))
            }
            _ => Ok(response.map(ResponseBody::from)),
        }
    }
}

/// Returns the fault for a connection that cannot be opened.
fn unavailable(error: &dyn std::error::Error) -> UpstreamFaultKind {
    UpstreamFaultKind::Unavailable(explained(&root_cause(error)))
}

/// Returns why a connection cannot be opened, with the remedy where the authority of a certificate
/// is not known, as in networks whose proxy reads TLS.
fn explained(cause: &str) -> String {
    let cause = excerpt(cause);
    if !cause.contains("UnknownIssuer") {
        return cause;
    }
    format!(
        "{cause}: name a PEM file with the certificate of its authority in the variable SSL_CERT_FILE, or in \
         the upstream's `ca` (docs/proxies.md#the-way-out)"
    )
}

/// Time to connect to an authorization server.
pub const CONNECT: Duration = Duration::from_secs(3);

/// Largest metadata document, key set or token response, in bytes: usual documents have a few KiB.
const MAX_DOCUMENT: usize = 1 << 20;

/// Time from the request of such a document to its last byte.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Failure to fetch a JSON document.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FetchError {
    /// The server responded with another status than 200 or 201; the document may be at another
    /// URL.
    #[error("HTTP {}{}{}", status.as_u16(), with(", ", error), with(": ", description))]
    Status {
        status: StatusCode,
        /// Member `error` of the response (RFC 6749, section 5.2).
        error: Option<String>,
        /// The reason in the response, for operators.
        description: Option<String>,
    },
    #[error("no response in time")]
    Timeout,
    #[error("the response is not JSON")]
    NotJson,
    #[error("{0}")]
    Broken(String),
}

fn with(separator: &str, text: &Option<String>) -> String {
    text.as_ref().map(|text| format!("{separator}{text}")).unwrap_or_default()
}

impl FetchError {
    /// The failure that a document describes: by `error` and `error_description` (RFC 6749, section
    /// 5.2), or in a form that is common in other interfaces. Texts are excerpts.
    pub fn of(status: StatusCode, document: &Value) -> Self {
        let text = |pointer: &str| Some(excerpt(document.pointer(pointer)?.as_str()?));
        let places = ["/error_description", "/error/message", "/errors/0", "/message", "/detail"];
        let description = places.into_iter().find_map(text);
        Self::Status { status, error: text("/error"), description }
    }
}

/// Checks that a response is not encoded, as [`UNENCODED`] requests.
///
/// # Errors
/// The reason, with the encoding.
pub fn check_encoding(headers: &HeaderMap) -> Result<(), String> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    match encodings.find(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        None => Ok(()),
        Some(encoding) => {
            let encoding = excerpt(&String::from_utf8_lossy(encoding.as_bytes()));
            Err(format!(
                "the response has Content-Encoding {encoding:?}, although the request has Accept-Encoding: identity"
            ))
        }
    }
}

/// Asks for responses without an encoding: with no such header a server may choose any (RFC 9110,
/// section 12.5.3).
pub const UNENCODED: HeaderValue = HeaderValue::from_static("identity");

impl Egress {
    /// Sends a request and reads the body of a successful response, of up to 1 MiB within ten
    /// seconds, without following redirects.
    ///
    /// # Errors
    /// When the server cannot be reached, responds with another status than 200 or 201, or exceeds
    /// a bound.
    pub async fn fetch(&self, request: Request<Full<Bytes>>) -> Result<Bytes, FetchError> {
        self.fetch_within(request, MAX_DOCUMENT, DOCUMENT_TIMEOUT).await
    }

    /// Fetches a body of up to `most` bytes within `patience`; see [`Egress::fetch`].
    async fn fetch_within(
        &self,
        mut request: Request<Full<Bytes>>,
        most: usize,
        patience: Duration,
    ) -> Result<Bytes, FetchError> {
        request.headers_mut().insert(ACCEPT_ENCODING, UNENCODED);
        let reading = async {
            let response = self.send(request).await;
            let response = response.map_err(|kind| FetchError::Broken(kind.diagnosis()))?;
            read_body(response, most).await
        };
        timeout(patience, reading).await.unwrap_or(Err(FetchError::Timeout))
    }

    /// Fetches a JSON document; see [`Egress::fetch`].
    ///
    /// # Errors
    /// See [`Egress::fetch`]; or the response is no JSON.
    pub async fn json(&self, request: Request<Full<Bytes>>) -> Result<Value, FetchError> {
        self.json_within(request, MAX_DOCUMENT, DOCUMENT_TIMEOUT).await
    }

    /// Fetches a JSON document of up to `most` bytes within `patience`; see [`Egress::fetch`].
    ///
    /// # Errors
    /// As [`Egress::json`].
    pub async fn json_within(
        &self,
        request: Request<Full<Bytes>>,
        most: usize,
        patience: Duration,
    ) -> Result<Value, FetchError> {
        let body = self.fetch_within(request, most, patience).await?;
        let json = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&body);
        serde_json::from_slice(json).map_err(|_| FetchError::NotJson)
    }

    /// Fetches the JSON document at `url`.
    ///
    /// # Errors
    /// See [`Egress::json`].
    pub async fn get_json(&self, url: &Uri) -> Result<Value, FetchError> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = url.clone();
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(ACCEPT, json);
        self.json(request).await
    }
}

/// Reads the body of a successful response, of up to `most` bytes.
///
/// # Errors
/// Another status than 200 or 201, an encoding, or a larger or broken body.
pub async fn read_body(response: Response<ResponseBody>, most: usize) -> Result<Bytes, FetchError> {
    let status = response.status();
    if status.is_success() {
        check_encoding(response.headers()).map_err(FetchError::Broken)?;
    }
    let body = Limited::new(response.into_body(), most).collect().await;
    let body = body.map_err(|error| {
        FetchError::Broken(if error.is::<LengthLimitError>() {
            format!("the document is larger than {} KiB", most >> 10)
        } else {
            format!("the response broke off: {}", excerpt(&root_cause(error.as_ref())))
        })
    })?;
    let body = body.to_bytes();
    if matches!(status, StatusCode::OK | StatusCode::CREATED) {
        return Ok(body);
    }
    Err(FetchError::of(status, &serde_json::from_slice(&body).unwrap_or_default()))
}

/// Returns the fault for an HTTP client error on an open connection.
pub fn reset(error: &dyn std::error::Error) -> UpstreamFaultKind {
    UpstreamFaultKind::Reset(excerpt(&root_cause(error)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};
    use tokio::net::TcpListener;
    use tokio::sync::Barrier;
    use tokio::task::JoinSet;

    use super::*;

    async fn send(
        host: &str,
        port: u16,
        address_policy: AddressPolicy,
    ) -> Result<(), UpstreamFaultKind> {
        let egress = Egress::new(Duration::from_secs(5), None, address_policy, None).unwrap();
        let request = Request::get(format!("http://{host}:{port}/")).body(Full::default()).unwrap();
        egress.send(request).await.map(drop)
    }

    #[tokio::test]
    async fn a12_a_refused_address_gets_no_connection_in_any_spelling() {
        let sinkhole = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = sinkhole.local_addr().unwrap().port();
        let spellings =
            ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.1", "[::ffff:127.0.0.1]"];
        for host in spellings {
            match send(host, port, AddressPolicy::PublicOnly).await {
                Err(UpstreamFaultKind::Unavailable(why)) => {
                    assert!(why.contains("not a public address"), "{host}: {why}");
                }
                other => panic!("{host}: {other:?}"),
            }
        }
        let metadata = send("2852039166", port, AddressPolicy::NotLinkLocal).await;
        assert!(format!("{metadata:?}").contains("link-local"), "{metadata:?}");
        let accepted = tokio::time::timeout(Duration::ZERO, sinkhole.accept()).await;
        assert!(accepted.is_err(), "a refused address got a connection");
        let accepting = async { drop(sinkhole.accept().await.unwrap()) };
        let (sent, ()) =
            tokio::join!(send("localhost", port, AddressPolicy::NotLinkLocal), accepting);
        let cause = match sent.unwrap_err() {
            UpstreamFaultKind::Reset(cause) => cause,
            other => panic!("{other:?}"),
        };
        assert!(!cause.is_empty() && cause != "client error (SendRequest)", "{cause}");
    }

    /// Answers requests with nothing, in groups of `group`. Returns its port, and how many
    /// connections it has accepted.
    async fn answer_in_groups(group: usize) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepted = Arc::<AtomicUsize>::default();
        let arrived = Arc::new(Barrier::new(group));
        let count = accepted.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let arrived = arrived.clone();
                tokio::spawn(async move {
                    let mut stream = BufStream::new(stream);
                    let mut line = String::new();
                    while stream.read_line(&mut line).await.is_ok_and(|length| length > 0) {
                        if line == "\r\n" {
                            arrived.wait().await;
                            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                            stream.write_all(answer).await.unwrap();
                            stream.flush().await.unwrap();
                        }
                        line.clear();
                    }
                });
            }
        });
        (port, accepted)
    }

    #[test]
    fn an_encoding_that_was_not_asked_for_is_named() {
        let check = |values: &[&'static str]| {
            let values = values.iter().map(|v| (CONTENT_ENCODING, HeaderValue::from_static(v)));
            check_encoding(&values.collect())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["Identity"]), Ok(()));
        assert!(check(&["identity", "gzip"]).unwrap_err().contains("Content-Encoding \"gzip\""));
    }

    #[test]
    fn what_a_provider_says_about_a_failure_is_shown_bounded_and_cleaned() {
        use serde_json::json;
        let shown =
            |document: Value| FetchError::of(StatusCode::BAD_REQUEST, &document).to_string();
        for (document, expected) in [
            (json!(null), "HTTP 400"),
            (json!({"error": "invalid_grant"}), "HTTP 400, invalid_grant"),
            (
                json!({"error": "invalid_grant", "error_description": "expired\n\u{1b}[1m"}),
                "HTTP 400, invalid_grant: expired  [1m",
            ),
            (json!({"error": {"code": 403, "message": "no"}}), "HTTP 400: no"),
            (json!({"errors": ["permission denied"]}), "HTTP 400: permission denied"),
            (json!({"error": null, "message": "no"}), "HTTP 400: no"),
        ] {
            assert_eq!(shown(document), expected);
        }
        let long = shown(json!({"error_description": "x".repeat(10_000)}));
        assert!(long.len() < 300, "{}", long.len());
    }

    #[tokio::test]
    async fn as_many_connections_as_requests_at_a_time_are_used_again() {
        const AT_ONCE: usize = 40;
        let (port, accepted) = answer_in_groups(AT_ONCE).await;
        let timeout = Duration::from_secs(20);
        let policy = AddressPolicy::NotLinkLocal;
        let egress = Arc::new(Egress::pooled(AT_ONCE, timeout, None, policy, None).unwrap());
        for _ in 0..20 {
            let requests: JoinSet<_> = (0..AT_ONCE)
                .map(|_| {
                    let egress = egress.clone();
                    let url = format!("http://127.0.0.1:{port}/");
                    let request = Request::get(url).body(Full::default()).unwrap();
                    async move { egress.send(request).await.unwrap().into_body().collect().await }
                })
                .collect();
            for body in requests.join_all().await {
                assert!(body.unwrap().to_bytes().is_empty());
            }
        }
        // A few more, where one was not idle again in time.
        let accepted = accepted.load(Ordering::SeqCst);
        assert!(accepted < 2 * AT_ONCE, "{accepted} connections for 20 times {AT_ONCE} requests");
    }

    #[tokio::test]
    async fn a_connection_that_is_always_in_use_is_replaced_after_ten_minutes() {
        let (port, accepted) = answer_in_groups(1).await;
        let timeout = Duration::from_secs(20);
        let policy = AddressPolicy::NotLinkLocal;
        let egress = Egress::new(timeout, None, policy, None).unwrap();
        let between = IDLE_TIMEOUT - Duration::from_secs(1);
        let mut connections = Vec::new();
        for _ in 0..=MAX_AGE.as_secs() / between.as_secs() {
            let url = format!("http://127.0.0.1:{port}/");
            let request = Request::get(url).body(Full::default()).unwrap();
            egress.send(request).await.unwrap().into_body().collect().await.unwrap();
            connections.push(accepted.load(Ordering::SeqCst));
            tokio::time::pause();
            tokio::time::advance(between).await;
            tokio::time::resume();
        }
        let last = connections.pop();
        assert_eq!((connections.last(), last), (Some(&1), Some(2)), "{connections:?}");
    }
}
