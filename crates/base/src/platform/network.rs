//! The network: listening, and connecting.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

use super::System;
use domain::address_policy::AddressPolicy;

/// A connection: bytes in both directions.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A connection of any network.
pub struct Stream {
    socket: Box<dyn Socket>,
    /// Whether an HTTP proxy at its end forwards requests, which then name the whole URL.
    is_forwarded: bool,
}

impl Stream {
    pub fn new(socket: impl Socket + 'static) -> Self {
        Self { socket: Box::new(socket), is_forwarded: false }
    }

    /// Marks the stream as one to an HTTP proxy that forwards requests (RFC 9112, section 3.2.2).
    pub fn forwarded(self) -> Self {
        Self { is_forwarded: true, ..self }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_forwarded)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// The network of the machine.
#[async_trait]
pub trait Network: Send + Sync {
    /// Listens at an address.
    async fn bind(&self, address: SocketAddr) -> io::Result<Box<dyn Acceptor>>;

    /// Connects to a port of a host, by any of its addresses.
    async fn connect(&self, host: &str, port: u16) -> io::Result<Stream>;

    /// Returns the addresses of a host.
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// Returns a connector for HTTP.
    fn http(&self, dialling: Dialling) -> Arc<dyn Connect>;
}

/// A socket that listens.
#[async_trait]
pub trait Acceptor: Send + Sync {
    /// Returns the address, with the port that the system has chosen for port 0.
    fn address(&self) -> io::Result<SocketAddr>;

    /// Waits for a connection. Returns it with the address of its peer. Cancel safe.
    async fn accept(&self) -> io::Result<(Stream, SocketAddr)>;
}

/// How HTTP connections are opened.
#[derive(Clone, Copy, Debug)]
pub struct Dialling {
    /// Bounds the TCP handshake.
    pub timeout: Duration,
    /// The interval of keepalive probes.
    pub keepalive: Duration,
    /// The time for the acknowledgement of a probe.
    pub keepalive_timeout: Duration,
    /// The addresses to which no connection is opened, whichever name has led to them.
    pub address_policy: AddressPolicy,
}

impl Dialling {
    /// Checks an address by the address policy.
    ///
    /// # Errors
    /// Why no connection to it may be opened.
    pub fn check(&self, address: IpAddr) -> io::Result<()> {
        self.address_policy.check(address).map_err(io::Error::other)
    }
}

/// Opens connections to the hosts of URLs.
pub trait Connect: Send + Sync {
    /// Connects to the host of a URL.
    fn connect(&self, url: Uri) -> Connecting;
}

/// A connection that is being opened.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>> + Send>>;

/// Why a connection was not opened.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// Probes without an acknowledgement after which a connection is broken.
const KEEPALIVE_RETRIES: u32 = 3;

#[async_trait]
impl Network for System {
    async fn bind(&self, address: SocketAddr) -> io::Result<Box<dyn Acceptor>> {
        Ok(Box::new(TcpListener::bind(address).await?))
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<Stream> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Stream::new(stream))
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }

    fn http(&self, dialling: Dialling) -> Arc<dyn Connect> {
        let mut tcp =
            HttpConnector::new_with_resolver(Resolver { system: GaiResolver::new(), dialling });
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(dialling.timeout));
        tcp.set_keepalive(Some(dialling.keepalive));
        tcp.set_keepalive_interval(Some(dialling.keepalive_timeout));
        tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        Arc::new(tcp)
    }
}

#[async_trait]
impl Acceptor for TcpListener {
    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        // Messages are small and written whole: waiting for a full packet would only add latency.
        let _ = stream.set_nodelay(true);
        Ok((Stream::new(stream), peer))
    }
}

impl Connect for HttpConnector<Resolver> {
    fn connect(&self, url: Uri) -> Connecting {
        // The connector is always ready.
        let connecting = self.clone().call(url);
        Box::pin(async { Ok(Stream::new(connecting.await?.into_inner())) })
    }
}

/// DNS resolver that drops the addresses that the policy refuses. The client connects to the
/// addresses that this resolver returns, so DNS rebinding between the check and the connection is
/// not possible.
#[derive(Clone)]
struct Resolver {
    system: GaiResolver,
    dialling: Dialling,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.system.call(name);
        let dialling = self.dialling;
        Box::pin(async move { allowed(resolving.await?, dialling) })
    }
}

/// Returns the addresses that the policy allows.
fn allowed(
    addresses: impl Iterator<Item = SocketAddr>,
    dialling: Dialling,
) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    let mut allowed = Vec::new();
    let mut refused = None;
    for address in addresses {
        match dialling.check(address.ip()) {
            Ok(()) => allowed.push(address),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if allowed.is_empty() => Err(error),
        _ => Ok(allowed.into_iter()),
    }
}
