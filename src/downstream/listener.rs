//! The accept loop.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, info_span, warn};

use super::connection::{self, Peer};
use super::{Secure, Serve};
use crate::config::Limits;

/// Accepts connections, each of which gets a task of its own.
pub struct Listener<S> {
    pub socket: TcpListener,
    pub endpoint: Arc<S>,
    pub limits: Limits,
    /// Absent: plain HTTP.
    pub secure: Option<Arc<Secure>>,
}

/// Pause after a failed accept. The usual cause is that no file descriptor is left: trying again
/// at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl<S: Serve> Listener<S> {
    /// Runs until `drain`; the connections then finish what they have in hand.
    pub async fn run(self: Arc<Self>, connections: TaskTracker, drain: CancellationToken) {
        let most = allowed_connections(self.limits.connections);
        let slots = Arc::new(Semaphore::new(most));
        loop {
            let accepting = async {
                // Never closed, so there is a permit sooner or later.
                let slot = slots.clone().acquire_owned().await;
                (slot, self.socket.accept().await)
            };
            let Some((slot, accepted)) = drain.run_until_cancelled(accepting).await else {
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
            // Answers are small and whole: waiting to fill a packet only costs time.
            let _ = stream.set_nodelay(true);
            let (listener, address) = (self.clone(), peer.ip().to_canonical());
            let (tasks, drain) = (connections.clone(), drain.clone());
            let serving = async move {
                if let Err(error) = listener.serve(stream, address, tasks, drain).await {
                    debug!(%error, "connection ended early");
                }
                drop(slot);
            };
            connections.spawn(serving.instrument(info_span!("connection", %peer)));
        }
    }

    async fn serve(
        &self,
        stream: TcpStream,
        address: IpAddr,
        tasks: TaskTracker,
        drain: CancellationToken,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (endpoint, limits) = (self.endpoint.clone(), &self.limits);
        let Some(secure) = &self.secure else {
            let peer = Peer { address, subject: None };
            return connection::serve(stream, peer, endpoint, limits, tasks, drain).await;
        };
        let Some(accepted) = drain.run_until_cancelled(secure.accept(stream)).await else {
            return Ok(());
        };
        let (stream, subject) = accepted?;
        let peer = Peer { address, subject };
        connection::serve(stream, peer, endpoint, limits, tasks, drain).await
    }
}

/// The configured number, but never more than half of the open-file limit: the other half is for
/// connections to upstreams, files and logs.
fn allowed_connections(configured: usize) -> usize {
    let files = rlimit::Resource::NOFILE.get_soft().unwrap_or(u64::MAX);
    let half = usize::try_from(files / 2).unwrap_or(usize::MAX).max(1);
    if half < configured {
        info!(connections = half, "limited by the open-file limit (ulimit -n)");
    }
    configured.min(half)
}
