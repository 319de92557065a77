//! How each kind of upstream is connected to.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::http::Endpoint;
use super::library::{Snapshot, Watch};
use super::peer::Peer;
use super::stdio::Child;
use super::wire::Wire;
use crate::config::{Stdio, Transport, Upstream};
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::revision::Revision;

/// What wakes a driver before its time.
#[derive(Clone, Default)]
pub struct Wake {
    /// The list may be another one.
    pub changed: Arc<Notify>,
    /// A call has found its session lost.
    pub lost: Arc<Notify>,
}

/// What is kept between two connections to one upstream.
pub struct Connector {
    upstream: Arc<Upstream>,
    wake: Wake,
    tasks: TaskTracker,
    kept: Kept,
}

enum Kept {
    Http(Arc<Endpoint>),
    /// The watch lives as long as the driver.
    Library {
        _watch: Option<Watch>,
    },
    Stdio,
}

impl Connector {
    /// # Errors
    /// When the upstream can never be reached as it is configured.
    pub fn new(upstream: Arc<Upstream>, wake: Wake, tasks: TaskTracker) -> Result<Self, String> {
        let kept = match &upstream.transport {
            Transport::Http(http) => {
                Kept::Http(Arc::new(Endpoint::new(http, &upstream.settings, tasks.clone())?))
            }
            Transport::Library(folder) => {
                let watch = Watch::new(folder, wake.changed.clone());
                if let Err(error) = &watch {
                    warn!(upstream = %upstream.id, %error, "edits are found by polling only");
                }
                Kept::Library { _watch: watch.ok() }
            }
            Transport::Stdio(_) => Kept::Stdio,
        };
        Ok(Self { upstream, wake, tasks, kept })
    }

    /// Opens a connection, within `walk_timeout`.
    pub async fn connect(&self) -> Result<Peer, Kind> {
        let settings = &self.upstream.settings;
        let connecting = async {
            match (&self.upstream.transport, &self.kept) {
                (Transport::Http(http), Kept::Http(endpoint)) => {
                    let wire = Wire::Http(endpoint.clone());
                    Peer::open(wire, http.revision, settings.walk_timeout).await
                }
                (Transport::Stdio(stdio), _) => self.connect_child(stdio).await,
                (Transport::Library(folder), _) => {
                    let (folder, upstream) = (folder.clone(), self.upstream.clone());
                    let load =
                        move || Snapshot::load(&folder, upstream.id.as_str(), &upstream.settings);
                    let loaded = tokio::task::spawn_blocking(load).await;
                    loaded.unwrap_or(Err(Kind::Reset)).map(Peer::Library)
                }
                (Transport::Http(_), _) => Err(Kind::Reset),
            }
        };
        timeout(settings.walk_timeout, connecting).await.unwrap_or(Err(Kind::Timeout))
    }

    /// Starts a child. One that dies of the first question is started again and asked in the old
    /// way.
    async fn connect_child(&self, stdio: &Stdio) -> Result<Peer, Kind> {
        let settings = &self.upstream.settings;
        let spawn = || {
            let changed = self.wake.changed.clone();
            Child::spawn(stdio, settings, changed, &self.tasks).map(Wire::Stdio)
        };
        match Peer::open(spawn()?, stdio.revision, settings.probe).await {
            Err(Kind::Reset) if stdio.revision.is_none() => {
                Peer::open(spawn()?, Some(Revision::NEWEST_LEGACY), settings.probe).await
            }
            opened => opened,
        }
    }
}
