//! The accept loop.

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

use super::{Peer, Shown};
use crate::downstream::Serve;

/// Accepts connections, each of which gets a task of its own.
pub(crate) struct Listener<S> {
    socket: TcpListener,
    /// Of the newest configuration.
    endpoint: Arc<ArcSwap<S>>,
    open: Arc<Open>,
}

/// Connections that are open.
#[derive(Default)]
pub(crate) struct Open {
    count: AtomicUsize,
    closed: Notify,
}

/// One of them.
struct Place(Arc<Open>);

/// Pause after a failed accept. The usual cause is that no file descriptor is left: trying again
/// at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often a listener that is full looks whether more are allowed by now.
const LOOK: Duration = Duration::from_secs(1);

impl<S: Serve> Listener<S> {
    pub(crate) fn new(socket: TcpListener, endpoint: Arc<ArcSwap<S>>) -> Self {
        let configured = endpoint.load().limits().connections;
        let allowed = allowed_connections(configured);
        if allowed < configured {
            info!(connections = allowed, "limited by the open-file limit (ulimit -n)");
        }
        Self { socket, endpoint, open: Arc::default() }
    }

    /// Connections that are open, to be looked at.
    pub(crate) fn open(&self) -> Arc<Open> {
        self.open.clone()
    }

    /// Runs until `drain`; the connections then finish what they have in hand.
    pub(crate) async fn run(self, connections: TaskTracker, drain: CancellationToken) {
        loop {
            let accepting = async {
                self.budget().await;
                self.socket.accept().await
            };
            let Some(accepted) = drain.run_until_cancelled(accepting).await else {
                return;
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "a connection cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let place = Place::take(&self.open);
            // Answers are small and whole: waiting to fill a packet only costs time.
            let _ = stream.set_nodelay(true);
            let (endpoint, address) = (self.endpoint.clone(), peer.ip().to_canonical());
            let (tasks, drain) = (connections.clone(), drain.clone());
            let serving = async move {
                if let Err(error) = serve(stream, address, endpoint, tasks, drain).await {
                    debug!(%error, "connection ended early");
                }
                drop(place);
            };
            connections.spawn(serving.instrument(info_span!("connection", %peer)));
        }
    }

    /// Waits until there is room for one more connection: only this loop takes it.
    async fn budget(&self) {
        loop {
            let closed = self.open.closed.notified();
            if self.open.count() < allowed_connections(self.endpoint.load().limits().connections) {
                return;
            }
            // A raised limit counts, too.
            let _ = timeout(LOOK, closed).await;
        }
    }
}

impl Place {
    fn take(open: &Arc<Open>) -> Self {
        open.count.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Open {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.closed.notify_one();
    }
}

async fn serve<S: Serve>(
    stream: TcpStream,
    address: IpAddr,
    endpoint: Arc<ArcSwap<S>>,
    tasks: TaskTracker,
    drain: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Nothing else of this configuration is held as long as the connection lasts.
    let (limits, secure) = {
        let now = endpoint.load_full();
        (now.limits().clone(), now.secure().cloned())
    };
    let Some(secure) = secure else {
        let peer = Peer { address, shown: None, agreed_on_http2: false };
        return super::serve(stream, peer, endpoint, limits, tasks, drain).await;
    };
    let accepting = Box::pin(secure.accept(stream));
    let Some(accepted) = drain.run_until_cancelled(accepting).await else {
        return Ok(());
    };
    let (stream, subject) = accepted?;
    let shown = subject.map(|subject| Shown { subject, to: secure });
    let agreed_on_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let peer = Peer { address, shown, agreed_on_http2 };
    Box::pin(super::serve(stream, peer, endpoint, limits, tasks, drain)).await
}

/// The configured number, but never more than half of the open-file limit: the other half is for
/// connections to upstreams, files and logs.
fn allowed_connections(configured: usize) -> usize {
    let files = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    configured.min(usize::try_from(files / 2).unwrap_or(usize::MAX).max(1))
}
