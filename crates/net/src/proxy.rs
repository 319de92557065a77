//! HTTP proxies between the gateway and servers beyond its own network: which one leads to a URL,
//! and connections through it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::PROXY_AUTHORIZATION;
use http::uri::Scheme;
use http::{Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tower_service::Service;

use super::root_cause;
use base::platform::{Connect, ConnectError, Connecting, Stream};
use config::Proxies;
use domain::address_policy::is_loopback;

/// The proxies that lead to URLs.
pub struct ProxyRoutes(Matcher);

impl ProxyRoutes {
    pub fn new(proxies: &Proxies) -> Self {
        let url = |proxy: &Option<config::Secret>| {
            proxy.as_ref().map_or(String::new(), |proxy| proxy.expose().to_owned())
        };
        let matcher = Matcher::builder().http(url(&proxies.http)).https(url(&proxies.https));
        Self(matcher.no(proxies.direct.as_str()).build())
    }

    /// Returns the proxy that leads to a URL; `None` where the server is called directly, as
    /// loopback always is.
    fn route(&self, url: &Uri) -> Option<Intercept> {
        self.0.intercept(url).filter(|_| !is_loopback(url.host().unwrap_or_default()))
    }

    /// Returns the URL of the proxy that leads to a URL, without its credentials.
    pub fn way(&self, url: &Uri) -> Option<String> {
        self.route(url).map(|proxy| shown(&proxy))
    }
}

/// Connections through the proxies of one client.
pub(super) struct ViaProxy {
    routes: ProxyRoutes,
    /// Opens connections to proxies.
    connector: HttpsConnector<EgressConnector>,
}

impl ViaProxy {
    /// `None` without any proxy. `connector` opens connections to the proxies; `tls` is for proxies
    /// with an `https` URL.
    pub(super) fn new(
        proxies: Option<&Proxies>,
        connector: impl FnOnce() -> Arc<dyn Connect>,
        tls: &ClientConfig,
    ) -> Option<Arc<Self>> {
        let proxies = proxies.filter(|all| all.http.is_some() || all.https.is_some())?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(EgressConnector { direct: connector(), proxies: None });
        Some(Arc::new(Self { routes: ProxyRoutes::new(proxies), connector }))
    }

    /// Opens a connection to the server at a URL, where a proxy leads to it: a tunnel for `https`
    /// (RFC 9110, section 9.3.6), else one to the proxy, which forwards requests.
    pub(super) fn connect(&self, url: &Uri) -> Option<Connecting> {
        let proxy = self.routes.route(url)?;
        let mut connector = self.connector.clone();
        let url = url.clone();
        Some(Box::pin(async move {
            if url.scheme() == Some(&Scheme::HTTPS) {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), connector);
                if let Some(credential) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(credential.clone());
                }
                let stream = tunnel.call(url.clone()).await;
                let stream = stream.map_err(|error| refused(&proxy, &url, error))?;
                return Ok(Stream::new(TokioIo::new(stream)));
            }
            let stream = connector.call(proxy.uri().clone()).await;
            let stream = stream.map_err(|error| unreachable(&proxy, error.as_ref()))?;
            Ok(Stream::new(TokioIo::new(stream)).forwarded())
        }))
    }

    /// Adds the credential of the proxy to a request that the proxy forwards. Returns the error
    /// that a 407 of the proxy means; `None` where the proxy does not forward the request.
    pub(super) fn authorize<B>(&self, request: &mut Request<B>) -> Option<ProxyError> {
        let is_forwarded = request.uri().scheme() == Some(&Scheme::HTTP);
        let proxy = self.routes.route(request.uri()).filter(|_| is_forwarded)?;
        if let Some(credential) = proxy.basic_auth() {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credential.clone());
        }
        Some(wants_credential(&proxy))
    }
}

/// Opens connections over the network of the machine, through proxies where they lead. The client
/// clones it for each request.
#[derive(Clone)]
pub(super) struct EgressConnector {
    pub direct: Arc<dyn Connect>,
    pub proxies: Option<Arc<ViaProxy>>,
}

impl Service<Uri> for EgressConnector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let via = self.proxies.as_ref().and_then(|proxies| proxies.connect(&url));
        let connecting = via.unwrap_or_else(|| self.direct.connect(url));
        Box::pin(async { Ok(TokioIo::new(connecting.await?)) })
    }
}

/// Why a tunnel is not opened; the crate has no name for it.
type TunnelError = <Tunnel<HttpsConnector<EgressConnector>> as Service<Uri>>::Error;

/// Why a proxy does not lead to a server. The text is for operators, and contains no credential.
#[derive(Debug)]
pub(super) struct ProxyError(String);

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProxyError {}

fn wants_credential(proxy: &Intercept) -> ProxyError {
    let has = if proxy.basic_auth().is_some() { "refuses the" } else { "demands a" };
    let shown = shown(proxy);
    ProxyError(format!(
        "the proxy {shown} {has} user and password (407): set them in net.proxy or in HTTPS_PROXY, as \
         http://user:password@host:port"
    ))
}

fn unreachable(proxy: &Intercept, error: &dyn std::error::Error) -> ConnectError {
    let why = root_cause(error);
    ProxyError(format!("the proxy {} is not reachable: {why}", shown(proxy))).into()
}

fn refused(proxy: &Intercept, url: &Uri, error: TunnelError) -> ConnectError {
    let host = url.host().unwrap_or_default();
    let shown = shown(proxy);
    match error {
        TunnelError::ProxyAuthRequired => wants_credential(proxy).into(),
        TunnelError::TunnelUnsuccessful => ProxyError(format!(
            "the proxy {shown} does not connect to {host}: it does not allow or not reach it; if the host is \
             in the own network, add it to NO_PROXY or set proxy = false"
        ))
        .into(),
        TunnelError::ConnectFailed(error) => unreachable(proxy, error.as_ref()),
        error => ProxyError(format!("the proxy {shown} broke off: {}", root_cause(&error))).into(),
    }
}

/// The URL of a proxy, without its credentials and without a slash at its end.
fn shown(proxy: &Intercept) -> String {
    proxy.uri().to_string().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::time::Duration;

    use http_body_util::{BodyExt, Full};
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::egress::Egress;
    use base::seal::provider;
    use domain::address_policy::AddressPolicy;

    /// A certificate of `prompts.example` and of this machine, in PEM, and its server.
    fn certificate() -> (String, TlsAcceptor) {
        let names = ["prompts.example", "localhost"].map(str::to_owned);
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider::tls())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        (cert.pem(), TlsAcceptor::from(Arc::new(config)))
    }

    async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    type Heads = Arc<Mutex<Vec<String>>>;

    /// Answers each request with `answer`, over TLS if there is an acceptor, and forwards what
    /// follows to a server, if there is one. Returns the heads of the requests.
    async fn server(
        tls: Option<TlsAcceptor>,
        answer: &'static str,
        to: Option<SocketAddr>,
    ) -> (SocketAddr, Heads) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Heads::default();
        let seen = heads.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = tls.clone();
                let seen = seen.clone();
                tokio::spawn(async move {
                    let Some(tls) = tls else {
                        return serve(stream, answer, to, &seen).await;
                    };
                    // A client that does not trust it ends the handshake.
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, answer, to, &seen).await;
                    }
                });
            }
        });
        (address, heads)
    }

    async fn serve(
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        answer: &str,
        to: Option<SocketAddr>,
        seen: &Heads,
    ) {
        let head = head(&mut stream).await;
        seen.lock().unwrap().push(head);
        stream.write_all(answer.as_bytes()).await.unwrap();
        if let Some(to) = to {
            let mut server = TcpStream::connect(to).await.unwrap();
            let _ = copy_bidirectional(&mut stream, &mut server).await;
        }
    }

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    async fn get(url: &str, proxy: &str, ca: Option<&str>) -> Result<String, String> {
        let proxy = Some(config::Secret::new(proxy));
        let proxies = Proxies { http: proxy.clone(), https: proxy, direct: "own.example".into() };
        let connect = Duration::from_secs(5);
        let policy = AddressPolicy::PublicOnly;
        let egress = Egress::new(connect, ca, policy, Some(&proxies)).unwrap();
        let request = Request::get(url).body(Full::default()).unwrap();
        let response = egress.send(request).await.map_err(|kind| kind.diagnosis())?;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Ok(String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_tunnel_carries_tls_through_a_proxy_whose_credential_stays_there() {
        let (ca, tls) = certificate();
        let (target, requests) = server(Some(tls.clone()), OK, None).await;
        let opened = "HTTP/1.1 200 Connection established\r\n\r\n";
        for (tls, scheme) in [(None, "http"), (Some(tls), "https")] {
            let (proxy, tunnels) = server(tls, opened, Some(target)).await;
            let proxy = format!("{scheme}://ada:p%40ss@localhost:{}", proxy.port());
            let body = get("https://prompts.example/mcp", &proxy, Some(&ca)).await;
            assert_eq!(body.as_deref(), Ok("ok"), "{scheme}");
            let [tunnel] = &tunnels.lock().unwrap()[..] else { panic!("one tunnel") };
            assert!(tunnel.starts_with("CONNECT prompts.example:443 HTTP/1.1\r\n"), "{tunnel}");
            assert!(tunnel.contains("Proxy-Authorization: Basic YWRhOnBAc3M=\r\n"), "{tunnel}");
        }
        let requests = requests.lock().unwrap();
        assert_eq!(requests.len(), 2);
        for request in requests.iter() {
            assert!(request.starts_with("GET /mcp HTTP/1.1\r\n"), "{request}");
            assert!(!request.to_lowercase().contains("proxy"), "{request}");
        }
    }

    #[tokio::test]
    async fn k5_a_proxy_that_does_not_lead_there_is_named_without_its_password() {
        let refusal = |answer: &'static str| async move {
            let (proxy, _) = server(None, answer, None).await;
            let proxy = format!("http://ada:hunter2@{proxy}");
            let said = get("https://prompts.example/mcp", &proxy, None).await.unwrap_err();
            assert!(said.contains("the proxy http://127.0.0.1:"), "{said}");
            assert!(!said.contains("hunter2") && !said.contains("ada"), "{said}");
            said
        };
        let said = refusal("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
        assert!(said.contains("refuses the user and password (407)"), "{said}");
        let said = refusal("HTTP/1.1 403 Forbidden\r\n\r\n").await;
        assert!(said.contains("does not connect to prompts.example"), "{said}");
        assert!(refusal("").await.contains("broke off"));
        let said = get("https://prompts.example/", "http://ada:hunter2@127.0.0.1:1", None).await;
        let said = said.unwrap_err();
        assert!(said.contains("the proxy http://127.0.0.1:1 is not reachable: "), "{said}");
        let (proxy, _) = server(None, "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", None).await;
        let said = get("http://prompts.example/", &proxy.to_string(), None).await.unwrap_err();
        assert!(said.contains("demands a user and password (407)"), "{said}");
    }

    #[tokio::test]
    async fn a_certificate_of_an_unknown_authority_leads_to_the_remedy() {
        let (_, tls) = certificate();
        let (proxy, _) = server(Some(tls), OK, None).await;
        let proxy = format!("https://localhost:{}", proxy.port());
        let said = get("http://prompts.example/", &proxy, None).await.unwrap_err();
        assert!(said.contains("UnknownIssuer"), "{said}");
        assert!(said.contains("SSL_CERT_FILE"), "{said}");
    }

    #[test]
    fn loopback_and_the_hosts_of_no_proxy_are_called_directly() {
        let proxy = Some(config::Secret::new("http://u:p@proxy:3128"));
        let direct = "own.example,10.0.0.0/8".to_owned();
        let routes = ProxyRoutes::new(&Proxies { http: None, https: proxy, direct });
        let way = |url: &str| routes.way(&url.parse().unwrap());
        assert_eq!(way("https://a.example/mcp").as_deref(), Some("http://proxy:3128"));
        for url in [
            "http://a.example/",
            "https://localhost/",
            "https://LOCALHOST:1/",
            "https://127.0.0.2/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://own.example/",
            "https://b.own.example/",
            "https://10.1.2.3/",
        ] {
            assert_eq!(way(url), None, "{url}");
        }
    }
}
