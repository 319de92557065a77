//! The accept loop of one listening socket.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, info_span, warn};

use super::{ClientCertificate, ConnContext, ConnError, Peer};
use crate::downstream::pool::{NoRoom, Pool, PoolLease, Revokes, RoomBounds};
use crate::downstream::{Serve, TlsServer};
use base::platform::{Acceptor, Stream};
use config::Limits;
use domain::calls::fair_share::{Holder, network};

/// A listening socket. Each accepted connection is served by a separate task.
pub struct Listener<S> {
    socket: Box<dyn Acceptor>,
    /// The endpoint of the current configuration.
    endpoint: Arc<ArcSwap<S>>,
    open: Arc<OpenConnections>,
}

/// The open connections of one listener, by the networks of their peers.
pub struct OpenConnections {
    pool: Pool,
}

/// Pause after a failed accept. The usual cause is that no file descriptor is left: a retry at once
/// would fail again and use a core.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How often a listener at its limit reads the limit again, since a reload may raise it: soon
/// enough for an operator who waits for it.
const LIMIT_POLL: Duration = Duration::from_secs(1);

impl<S: Serve> Listener<S> {
    /// Creates the accept loop of a socket.
    pub fn new(socket: Box<dyn Acceptor>, endpoint: Arc<ArcSwap<S>>) -> Self {
        let configured = endpoint.load().limits().connections;
        let allowed = allowed_connections(configured);
        if allowed < configured {
            info!(
                connections = allowed,
                configured,
                "connections limited by the open-file limit; raise the hard limit (ulimit -Hn)"
            );
        }
        let pool = Pool::new(allowed, allowed, Revokes::Idle);
        let open = Arc::new(OpenConnections { pool });
        Self { socket, endpoint, open }
    }

    /// Returns the counter of open connections, for metrics.
    pub fn open(&self) -> Arc<OpenConnections> {
        self.open.clone()
    }

    /// Accepts connections until `drain` is cancelled. Connections are tracked in `connections`,
    /// and finish the requests in flight after `drain`.
    pub async fn run(self, connections: TaskTracker, drain: CancellationToken) {
        let mut failure = None;
        loop {
            let Some(accepted) = drain.run_until_cancelled(self.socket.accept()).await else {
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
            let ip = address.ip().to_canonical();
            let place = match drain.run_until_cancelled(self.admit(ip)).await {
                Some(Some(place)) => place,
                Some(None) => continue,
                None => return,
            };
            // A connection may outlive its configuration, of which it keeps only these two values.
            let current = self.endpoint.load_full();
            let context = ConnContext {
                endpoint: self.endpoint.clone(),
                limits: current.limits().clone(),
                tasks: connections.clone(),
                drain: drain.clone(),
            };
            let tls = current.tls().cloned();
            let serving = async move {
                tokio::select! {
                    served = serve(stream, ip, tls, place.clone(), context) => {
                        if let Err(error) = served {
                            debug!(%error, "connection ended early");
                        }
                    }
                    () = place.revoked() => {
                        debug!("the idle connection is closed for a new one");
                    }
                }
            };
            connections.spawn(serving.instrument(info_span!("connection", peer = %address)));
        }
    }

    /// Admits a connection; `None` if it must be closed, since its network has too many
    /// connections. Waits while there is no room and no connection is idle.
    async fn admit(&self, peer: IpAddr) -> Option<Arc<PoolLease>> {
        let holder = Holder::Network(network(peer));
        loop {
            let changed = self.open.pool.changed();
            let endpoint = self.endpoint.load();
            let Limits { connections, share, .. } = **endpoint.limits();
            let total = allowed_connections(connections);
            let share = share.of(total);
            self.open.pool.resize(total, share);
            // A trusted proxy carries the connections of many clients.
            let share = if endpoint.trusts(peer) { total } else { share };
            drop(endpoint);
            let bounds = RoomBounds { ceiling: total, share, per_holder: usize::MAX };
            match self.open.pool.lease(&holder, 1, bounds) {
                Ok(place) => return Some(Arc::new(place)),
                Err(NoRoom::Full) => drop(timeout(LIMIT_POLL, changed).await),
                Err(NoRoom::OverShare | NoRoom::PerHolder) => {
                    debug!(%peer, "too many connections from this network; closing the new one");
                    return None;
                }
            }
        }
    }
}

impl OpenConnections {
    /// Returns how many connections are open.
    pub fn count(&self) -> usize {
        self.pool.used()
    }
}

/// Serves one connection, after the TLS handshake where TLS is configured.
async fn serve<S: Serve>(
    stream: Stream,
    address: IpAddr,
    tls: Option<Arc<TlsServer>>,
    place: Arc<PoolLease>,
    context: ConnContext<S>,
) -> Result<(), ConnError> {
    match tls {
        None => {
            let peer = Peer { address, certificate: None, negotiated_http2: false };
            super::serve(stream, peer, Some(place), context).await
        }
        // On the heap: the task of a connection without TLS has no room for a session.
        Some(tls) => Box::pin(serve_tls(stream, address, tls, place, context)).await,
    }
}

async fn serve_tls<S: Serve>(
    stream: Stream,
    address: IpAddr,
    tls: Arc<TlsServer>,
    place: Arc<PoolLease>,
    context: ConnContext<S>,
) -> Result<(), ConnError> {
    let handshake = Box::pin(tls.accept(stream));
    let Some(accepted) = context.drain.run_until_cancelled(handshake).await else {
        return Ok(());
    };
    let (stream, subject) = accepted?;
    let certificate = subject.map(|subject| ClientCertificate { subject, verified_by: tls });
    let negotiated_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let peer = Peer { address, certificate, negotiated_http2 };
    super::serve(stream, peer, Some(place), context).await
}

/// Returns the configured number, but never more than half of the open-file limit: the other half
/// is for connections to upstreams, files and logs. Windows has no such limit for sockets.
fn allowed_connections(configured: usize) -> usize {
    #[cfg(unix)]
    let files = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    #[cfg(not(unix))]
    let files = u64::MAX;
    configured.min(usize::try_from(files / 2).unwrap_or(usize::MAX).max(1))
}
