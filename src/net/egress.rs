//! The way out: the one HTTP client that requests to upstreams go through.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio::time::timeout;
use tower_service::Service;

use crate::domain::address_policy::AddressPolicy;
use crate::domain::fault::{UpstreamFaultKind, excerpt};
use crate::net::tls;

/// A pooled client over HTTP/1.1 and, by ALPN, HTTP/2. It follows no redirects and asks for no
/// compression, so that what arrives is bounded by what is read; and it connects to no address out of
/// reach, whatever names resolve to.
pub(crate) struct Egress {
    client: Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>,
    address_policy: AddressPolicy,
}

/// Connections that wait for the next request, per upstream. More in-flight calls open more;
/// beyond this many they are closed after use.
const IDLE_CONNECTIONS: usize = 32;

/// Shorter than what common servers keep an idle connection for (Node and uvicorn: 5 s), so that we
/// close first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Silent connections are asked for a sign of life, lest calls go into a dead one.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

impl Egress {
    /// `ca` holds certificates that are trusted beside the system's, in PEM.
    ///
    /// # Errors
    /// When `ca` holds no certificate that can be trusted.
    pub(crate) fn new(
        connect: Duration,
        ca: Option<&str>,
        address_policy: AddressPolicy,
    ) -> Result<Self, String> {
        let tls = tls::client(ca)?;
        let mut tcp = HttpConnector::new_with_resolver(Resolver {
            system: GaiResolver::new(),
            address_policy,
        });
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect));
        // A stream of notices may be silent for hours: only this tells it from a dead line.
        tcp.set_keepalive(Some(PING_INTERVAL));
        tcp.set_keepalive_interval(Some(PING_TIMEOUT));
        tcp.set_keepalive_retries(Some(3));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(https);
        Ok(Self { client, address_policy })
    }

    /// Sends one request and waits for the head of its answer. Dropping the future or the body
    /// ends the exchange.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, UpstreamFaultKind> {
        // An address that is written as one is never resolved.
        let host = request.uri().host().unwrap_or_default();
        self.address_policy
            .check_host(host)
            .map_err(|e| UpstreamFaultKind::Unavailable(e.to_string()))?;
        self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                UpstreamFaultKind::Unavailable(excerpt(&root_cause(&error)))
            } else {
                reset(&error)
            }
        })
    }
}

/// Time to connect to those who tell of keys or tokens.
pub(crate) const CONNECT: Duration = Duration::from_secs(3);

/// Largest document that tells of keys or tokens, in bytes, and the longest it may take.
const DOCUMENT: usize = 1 << 20;
const DOCUMENT_TIME: Duration = Duration::from_secs(10);

/// A document that is not there, or none.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NoDocument {
    /// It is not at this place; it may be at another one.
    #[error("HTTP {}{}", status.as_u16(), error.as_ref().map(|e| format!(", {e}")).unwrap_or_default())]
    Status {
        status: StatusCode,
        /// `error` of what was answered (RFC 6749, section 5.2).
        error: Option<String>,
    },
    #[error("{0}")]
    Broken(String),
}

impl Egress {
    /// Asks for a small JSON document: within a MiB and ten seconds, without redirects.
    pub(crate) async fn json(&self, request: Request<Full<Bytes>>) -> Result<Value, NoDocument> {
        let broken = |what: &str| NoDocument::Broken(what.to_owned());
        let reading = async {
            let response = self.send(request).await.map_err(|e| broken(&e.to_string()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), DOCUMENT).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    broken("the document is larger than 1 MiB")
                } else {
                    broken(&format!("the response broke off: {}", root_cause(error.as_ref())))
                }
            })?;
            let document: Result<Value, _> = serde_json::from_slice(&body.to_bytes());
            match (status, document) {
                (StatusCode::OK, Ok(document)) => Ok(document),
                (StatusCode::OK, Err(_)) => Err(broken("what is there is not JSON")),
                (status, document) => {
                    let error =
                        document.ok().and_then(|d| Some(excerpt(d.get("error")?.as_str()?)));
                    Err(NoDocument::Status { status, error })
                }
            }
        };
        let read = timeout(DOCUMENT_TIME, reading).await;
        read.unwrap_or_else(|_| Err(broken("no answer within ten seconds")))
    }

    pub(crate) async fn get_json(&self, url: &Uri) -> Result<Value, NoDocument> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = url.clone();
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(ACCEPT, json);
        self.json(request).await
    }
}

/// Resolves names, and drops what is out of reach: here is where the addresses come from that are then
/// connected to, so no second answer can differ from the one that was checked.
#[derive(Clone)]
struct Resolver {
    system: GaiResolver,
    address_policy: AddressPolicy,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolving, address_policy) = (self.system.call(name), self.address_policy);
        Box::pin(async move { in_reach(resolving.await?, address_policy) })
    }
}

fn in_reach(
    addresses: impl Iterator<Item = SocketAddr>,
    address_policy: AddressPolicy,
) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    let (mut allowed, mut refused) = (Vec::new(), None);
    for address in addresses {
        match address_policy.check(address.ip()) {
            Ok(()) => allowed.push(address),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if allowed.is_empty() => Err(io::Error::other(error)),
        _ => Ok(allowed.into_iter()),
    }
}

/// Returns the fault of a connection that failed after it was open.
pub(crate) fn reset(error: &dyn std::error::Error) -> UpstreamFaultKind {
    UpstreamFaultKind::Reset(excerpt(&root_cause(error)))
}

/// The innermost error: "Connection refused" says more than "client error (Connect)".
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn send(
        host: &str,
        port: u16,
        address_policy: AddressPolicy,
    ) -> Result<(), UpstreamFaultKind> {
        let egress = Egress::new(Duration::from_secs(5), None, address_policy).unwrap();
        let request = Request::get(format!("http://{host}:{port}/")).body(Full::default()).unwrap();
        egress.send(request).await.map(drop)
    }

    #[tokio::test]
    async fn a12_what_is_out_of_reach_gets_no_connection_however_it_is_written() {
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
        let knock = tokio::time::timeout(Duration::ZERO, sinkhole.accept()).await;
        assert!(knock.is_err(), "somebody knocked");
        let answering = async { drop(sinkhole.accept().await.unwrap()) };
        let (sent, ()) =
            tokio::join!(send("localhost", port, AddressPolicy::NotLinkLocal), answering);
        let cause = match sent.unwrap_err() {
            UpstreamFaultKind::Reset(cause) => cause,
            other => panic!("{other:?}"),
        };
        assert!(!cause.is_empty() && cause != "client error (SendRequest)", "{cause}");
    }
}
