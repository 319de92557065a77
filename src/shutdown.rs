//! The end: a signal in, tracked tasks out.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::config::Limits;

/// The tasks of a gateway, in the order in which they end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shutdown {
    /// The accept loop and its connections.
    pub connections: TaskTracker,
    /// Cancelled first: nobody new should come.
    pub leaving: CancellationToken,
    pub drain: CancellationToken,
    /// Drivers, the refresh, and calls that outlive their client.
    pub background: TaskTracker,
    pub stop: CancellationToken,
}

/// How long background tasks may take to end once nobody needs them any more: a child process has
/// two seconds to end at the end of its input, and three more once it is asked to.
const BACKGROUND_GRACE: Duration = Duration::from_secs(6);

impl Shutdown {
    /// Ends what is served: accepts for `pre_drain` more, and lets what is in flight finish within
    /// `grace`.
    pub(crate) async fn wind_down(&self, limits: &Limits) {
        info!(pre_drain = ?limits.pre_drain, grace = ?limits.grace, "draining");
        self.leaving.cancel();
        tokio::time::sleep(limits.pre_drain).await;
        self.drain.cancel();
        self.connections.close();
        if timeout(limits.grace, self.connections.wait()).await.is_err() {
            warn!(
                connections = self.connections.len(),
                "still busy at the end of the grace period"
            );
        }
    }

    /// Ends what works in the background. Calls that still run are told so, and their clients, too, as
    /// long as that takes no longer than the rest.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.background.close();
        self.connections.close();
        let ending = async { tokio::join!(self.background.wait(), self.connections.wait()) };
        if timeout(BACKGROUND_GRACE, ending).await.is_err() {
            let (tasks, connections) = (self.background.len(), self.connections.len());
            warn!(tasks, connections, "what does not end is left behind");
        }
        info!("stopped");
    }
}

/// Ends with SIGTERM or SIGINT. From the call on neither ends the process by itself.
pub(crate) fn signal() -> impl Future<Output = ()> {
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

/// Notifies `told` whenever SIGHUP comes, from the call on; never ends.
pub(crate) fn hang_ups(told: &Notify) -> impl Future<Output = ()> {
    #[cfg(unix)]
    let hang_ups = {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::hangup())
    };
    async move {
        #[cfg(unix)]
        if let Ok(mut hang_ups) = hang_ups {
            while hang_ups.recv().await.is_some() {
                told.notify_one();
            }
        }
        let _ = told;
        std::future::pending().await
    }
}

/// Makes a write beyond the largest file that is allowed an error, as a full disk is, and not the
/// end of the process.
pub(crate) fn survive_large_files() {
    #[cfg(target_os = "linux")]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // A handler stays for good, whether or not anybody listens.
        let too_large = rustix::process::Signal::XFSZ.as_raw();
        drop(signal(SignalKind::from_raw(too_large)));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::config::Config;

    fn limits() -> Limits {
        Config::parse("g", "", Path::new(""), &[]).unwrap().server.limits
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_in_flight_finishes_within_the_grace() {
        let (shutdown, start) = (Shutdown::default(), Instant::now());
        let drain = shutdown.drain.clone();
        shutdown.connections.spawn(async move {
            drain.cancelled().await;
            sleep(Duration::from_secs(7)).await;
        });
        let stop = shutdown.stop.clone();
        shutdown.background.spawn(async move { stop.cancelled().await });
        shutdown.wind_down(&limits()).await;
        shutdown.stop().await;
        assert_eq!(start.elapsed().as_secs(), 1 + 7);
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_does_not_hold_up_the_end_for_ever() {
        let (shutdown, start) = (Shutdown::default(), Instant::now());
        shutdown.connections.spawn(std::future::pending::<()>());
        shutdown.background.spawn(std::future::pending::<()>());
        shutdown.wind_down(&limits()).await;
        shutdown.stop().await;
        assert_eq!(start.elapsed().as_secs(), 1 + 30 + 6);
    }
}
