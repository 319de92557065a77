//! The accept loop of one listening socket.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, info_span, warn};

use super::{ClientCertificate, ConnError, Peer};
use crate::downstream::Serve;

/// A listening socket. Each connection that it accepts is served by a task of its own.
pub(crate) struct Listener<S> {
    socket: TcpListener,
    /// The endpoint of the current configuration.
    endpoint: Arc<ArcSwap<S>>,
    open: Arc<OpenConnections>,
}

/// The number of open connections of one listener.
#[derive(Default)]
pub(crate) struct OpenConnections {
    count: AtomicUsize,
    closed: Notify,
}

/// One open connection, counted until it is dropped.
#[must_use]
struct ConnectionPermit(Arc<OpenConnections>);

/// Pause after a failed accept. The usual cause is that no file descriptor is left: a retry at once
/// would fail again and use a core.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How often a listener at its limit reads the limit again, since a reload may raise it: soon enough for
/// an operator who waits for it.
const LIMIT_POLL: Duration = Duration::from_secs(1);

impl<S: Serve> Listener<S> {
    /// Creates the accept loop of a socket.
    pub(crate) fn new(socket: TcpListener, endpoint: Arc<ArcSwap<S>>) -> Self {
        let configured = endpoint.load().limits().connections;
        let allowed = allowed_connections(configured);
        if allowed < configured {
            info!(
                connections = allowed,
                configured, "connections limited by the open-file limit; raise ulimit -n"
            );
        }
        Self { socket, endpoint, open: Arc::default() }
    }

    /// Returns the counter of open connections, for metrics.
    pub(crate) fn open(&self) -> Arc<OpenConnections> {
        self.open.clone()
    }

    /// Accepts connections until `drain` is cancelled. Connections are tracked in `connections`, and
    /// finish the requests in flight after `drain`.
    pub(crate) async fn run(self, connections: TaskTracker, drain: CancellationToken) {
        let mut failure = None;
        loop {
            let accepting = async {
                self.below_limit().await;
                self.socket.accept().await
            };
            let Some(accepted) = drain.run_until_cancelled(accepting).await else {
                return;
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    let code = error.raw_os_error();
                    if failure.replace(code) == Some(code) {
                        debug!(%error, "accept failed again; retrying");
                    } else {
                        warn!(%error, "accept failed; retrying");
                    }
                    sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            if failure.take().is_some() {
                info!("accept succeeds again");
            }
            let permit = ConnectionPermit::new(&self.open);
            // Messages are small and written whole: to wait for a full packet only adds latency.
            let _ = stream.set_nodelay(true);
            let endpoint = self.endpoint.clone();
            let tasks = connections.clone();
            let drain = drain.clone();
            let serving = async move {
                let ip = address.ip().to_canonical();
                if let Err(error) = serve(stream, ip, endpoint, tasks, drain).await {
                    debug!(%error, "connection ended early");
                }
                drop(permit);
            };
            connections.spawn(serving.instrument(info_span!("connection", peer = %address)));
        }
    }

    /// Waits until one more connection is allowed. Only the accept loop opens connections, so the
    /// answer holds until it does.
    async fn below_limit(&self) {
        loop {
            let closed = self.open.closed.notified();
            if self.open.count() < allowed_connections(self.endpoint.load().limits().connections) {
                return;
            }
            let _ = timeout(LIMIT_POLL, closed).await;
        }
    }
}

impl ConnectionPermit {
    fn new(open: &Arc<OpenConnections>) -> Self {
        open.count.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.closed.notify_one();
    }
}

impl OpenConnections {
    /// Returns how many connections are open.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Serves one connection, after the TLS handshake where TLS is configured.
async fn serve<S: Serve>(
    stream: TcpStream,
    address: IpAddr,
    endpoint: Arc<ArcSwap<S>>,
    tasks: TaskTracker,
    drain: CancellationToken,
) -> Result<(), ConnError> {
    // A connection may last longer than its configuration: it keeps only these two of it.
    let current = endpoint.load_full();
    let limits = current.limits().clone();
    let tls = current.tls().cloned();
    drop(current);
    let Some(tls) = tls else {
        let peer = Peer { address, certificate: None, negotiated_http2: false };
        return super::serve(stream, peer, endpoint, limits, tasks, drain).await;
    };
    let handshake = Box::pin(tls.accept(stream));
    let Some(accepted) = drain.run_until_cancelled(handshake).await else {
        return Ok(());
    };
    let (stream, subject) = accepted?;
    let certificate = subject.map(|subject| ClientCertificate { subject, verified_by: tls });
    let negotiated_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let peer = Peer { address, certificate, negotiated_http2 };
    Box::pin(super::serve(stream, peer, endpoint, limits, tasks, drain)).await
}

/// Returns the configured number, but never more than half of the open-file limit: the other half is
/// for connections to upstreams, files and logs.
fn allowed_connections(configured: usize) -> usize {
    let files = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    configured.min(usize::try_from(files / 2).unwrap_or(usize::MAX).max(1))
}
