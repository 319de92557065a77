//! Orderly shutdown: signals, and the tasks that end in order.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use config::Limits;

/// The tasks and phases of a shutdown, in the order in which they end: `pre_drain`, `drain`,
/// `stop`.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// The accept loop and its connections.
    pub connections: TaskTracker,
    /// Cancelled first: `/readyz` answers 503, and connections are still accepted.
    pub pre_drain: CancellationToken,
    /// Cancelled after `server.limits.pre_drain`: no connections are accepted, and streams end.
    pub drain: CancellationToken,
    /// The drivers of upstreams, the refresh, and calls that outlive their connection.
    pub background: TaskTracker,
    /// Cancelled last: calls and background tasks end.
    pub stop: CancellationToken,
}

/// The time for background tasks to end after `stop`: a child process has two seconds to end after
/// the end of its input, and three more after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);

impl Shutdown {
    /// Drains the connections: accepts new ones for `pre_drain`, then lets requests in flight
    /// finish within `grace`.
    pub async fn drain_connections(&self, limits: &Limits) {
        info!(pre_drain = ?limits.pre_drain, grace = ?limits.grace, "draining");
        self.pre_drain.cancel();
        tokio::time::sleep(limits.pre_drain).await;
        self.drain.cancel();
        self.connections.close();
        if timeout(limits.grace, self.connections.wait()).await.is_err() {
            warn!(
                connections = self.connections.len(),
                "grace period ended with open connections; their calls get shutting_down"
            );
        }
    }

    /// Ends the background tasks within [`STOP_TIMEOUT`]. Calls in flight get `shutting_down`, and
    /// their connections have the same time to send it.
    pub async fn stop(&self) {
        // Without a drain the accept loop would go on.
        self.pre_drain.cancel();
        self.drain.cancel();
        self.stop.cancel();
        self.background.close();
        self.connections.close();
        let ending = async { tokio::join!(self.background.wait(), self.connections.wait()) };
        if timeout(STOP_TIMEOUT, ending).await.is_err() {
            warn!(
                tasks = self.background.len(),
                connections = self.connections.len(),
                "shutdown timed out; abandoning remaining tasks"
            );
        }
        info!("stopped");
    }
}

/// Returns a future that resolves at SIGTERM or SIGINT. From the call on, neither signal ends the
/// process by itself.
pub fn termination_signal() -> impl Future<Output = ()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let signals = signal(SignalKind::terminate())
            .and_then(|terminate| Ok((terminate, signal(SignalKind::interrupt())?)));
        async move {
            match signals {
                Ok((mut terminate, mut interrupt)) => {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                }
                Err(_) => std::future::pending().await,
            }
        }
    }
    #[cfg(not(unix))]
    async {
        drop(tokio::signal::ctrl_c().await);
    }
}

/// Returns a future that notifies `reload` at each SIGHUP, from the call on, and never resolves.
pub fn reload_signals(reload: &Notify) -> impl Future<Output = ()> {
    #[cfg(unix)]
    let signals = {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::hangup())
    };
    async move {
        #[cfg(unix)]
        if let Ok(mut signals) = signals {
            while signals.recv().await.is_some() {
                reload.notify_one();
            }
        }
        let _ = reload;
        std::future::pending().await
    }
}

/// Makes a write beyond the file size limit (RLIMIT_FSIZE) fail with an error, as on a full disk,
/// instead of ending the process by SIGXFSZ.
pub fn handle_file_size_signal() {
    #[cfg(target_os = "linux")]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // tokio never removes a handler, also after the listener is dropped.
        let file_size = rustix::process::Signal::XFSZ.as_raw();
        drop(signal(SignalKind::from_raw(file_size)));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::time::{Instant, sleep};

    use super::*;
    use config::Config;

    fn limits() -> Limits {
        Config::parse("g", "", Path::new(""), &[]).unwrap().server.limits
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_finish_within_the_grace_period() {
        let shutdown = Shutdown::default();
        let start = Instant::now();
        let drain = shutdown.drain.clone();
        shutdown.connections.spawn(async move {
            drain.cancelled().await;
            sleep(Duration::from_secs(7)).await;
        });
        let stop = shutdown.stop.clone();
        shutdown.background.spawn(async move { stop.cancelled().await });
        shutdown.drain_connections(&limits()).await;
        shutdown.stop().await;
        assert_eq!(start.elapsed().as_secs(), 1 + 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_with_hanging_tasks_times_out() {
        let shutdown = Shutdown::default();
        let start = Instant::now();
        shutdown.connections.spawn(std::future::pending::<()>());
        shutdown.background.spawn(std::future::pending::<()>());
        shutdown.drain_connections(&limits()).await;
        shutdown.stop().await;
        assert_eq!(start.elapsed().as_secs(), 1 + 30 + 6);
    }
}
