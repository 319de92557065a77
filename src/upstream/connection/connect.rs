//! How each kind of upstream is connected to.

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::Peer;
use crate::config::{Stdio, Transport, Upstream};
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::upstream::call::correlator::{Ears, Mailbox};
use crate::upstream::library::{Snapshot, Watch};
use crate::upstream::transport::Wire;
use crate::upstream::transport::http_sse::EventLine;
use crate::upstream::transport::stdio::Child;
use crate::upstream::transport::streamable_http::Endpoint;

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
    ears: Ears,
    tasks: TaskTracker,
    starting: Arc<Semaphore>,
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
    /// `starting` is leave to start children, shared by all upstreams.
    ///
    /// # Errors
    /// When the upstream can never be reached as it is configured.
    pub fn new(
        upstream: Arc<Upstream>,
        ears: Ears,
        tasks: TaskTracker,
        starting: Arc<Semaphore>,
    ) -> Result<Self, String> {
        let kept = match &upstream.transport {
            Transport::Http(http) | Transport::Sse(http) => {
                Kept::Http(Arc::new(Endpoint::new(http, &upstream.settings, tasks.clone())?))
            }
            Transport::Library(folder) => {
                let watch = Watch::new(folder, ears.changed.clone().unwrap_or_default());
                if let Err(error) = &watch {
                    warn!(upstream = %upstream.id, %error, "edits are found by polling only");
                }
                Kept::Library { _watch: watch.ok() }
            }
            Transport::Stdio(_) => Kept::Stdio,
        };
        Ok(Self { upstream, ears, tasks, starting, kept })
    }

    /// Opens a connection, within `walk_timeout`.
    pub async fn connect(&self) -> Result<Peer, Kind> {
        let settings = &self.upstream.settings;
        // Waiting for leave is no part of the time to connect.
        let _leave = match self.kept {
            Kept::Stdio => self.starting.acquire().await.ok(),
            Kept::Http(_) | Kept::Library { .. } => None,
        };
        let connecting = async {
            match (&self.upstream.transport, &self.kept) {
                (Transport::Http(http), Kept::Http(endpoint)) => {
                    self.connect_http(endpoint, http.revision).await
                }
                (Transport::Sse(_), Kept::Http(endpoint)) => {
                    self.connect_sse(endpoint, ClientCapabilities::NONE).await
                }
                (Transport::Stdio(stdio), _) => self.connect_child(stdio).await,
                (Transport::Library(folder), _) => {
                    let (folder, upstream) = (folder.clone(), self.upstream.clone());
                    let load =
                        move || Snapshot::load(&folder, upstream.id.as_str(), &upstream.settings);
                    let loaded = tokio::task::spawn_blocking(load).await;
                    loaded.unwrap_or(Err(Kind::Reset)).map(Peer::Library)
                }
                (Transport::Http(_) | Transport::Sse(_), _) => Err(Kind::Reset),
            }
        };
        timeout(settings.walk_timeout, connecting).await.unwrap_or(Err(Kind::Timeout))
    }

    /// Opens a connection like another one, within `walk_timeout`, on which `asks` may be asked.
    pub async fn connect_dedicated(
        &self,
        like: &Peer,
        capabilities: ClientCapabilities,
    ) -> Result<Peer, Kind> {
        let (settings, (revision, _)) = (&self.upstream.settings, like.describe());
        let connecting = async {
            match (like.wire(), &self.kept, &self.upstream.transport) {
                (Some(Wire::Http { .. }), Kept::Http(endpoint), _) => {
                    let wire = self.http(endpoint);
                    Peer::open(wire, revision, settings.walk_timeout, capabilities).await
                }
                (Some(Wire::Sse(_)), Kept::Http(endpoint), _) => {
                    self.connect_sse(endpoint, capabilities).await
                }
                (Some(Wire::Stdio(_)), _, Transport::Stdio(stdio)) => {
                    let ears = self.ears.without_changes();
                    let child = Child::spawn(stdio, settings, ears, &self.tasks)?;
                    Peer::open(Wire::Stdio(child), revision, settings.probe, capabilities).await
                }
                _ => Err(Kind::Reset),
            }
        };
        timeout(settings.walk_timeout, connecting).await.unwrap_or(Err(Kind::Timeout))
    }

    /// Finds out how an endpoint is spoken to. One that takes no `initialize` may be the stream of
    /// the older transport (2025-11-25, transports, backwards compatibility).
    async fn connect_http(
        &self,
        endpoint: &Arc<Endpoint>,
        revision: Option<Revision>,
    ) -> Result<Peer, Kind> {
        let probe = self.upstream.settings.walk_timeout;
        let refusal = match Peer::open(
            self.http(endpoint),
            revision,
            probe,
            ClientCapabilities::NONE,
        )
        .await
        {
            Err(kind @ Kind::Status { status: 400 | 404 | 405 }) if revision.is_none() => kind,
            opened => return opened,
        };
        self.connect_sse(endpoint, ClientCapabilities::NONE).await.map_err(|_| refusal)
    }

    async fn connect_sse(
        &self,
        endpoint: &Arc<Endpoint>,
        capabilities: ClientCapabilities,
    ) -> Result<Peer, Kind> {
        let line = EventLine::open(endpoint.clone(), self.ears.clone(), &self.tasks).await?;
        let probe = self.upstream.settings.walk_timeout;
        Peer::open(Wire::Sse(line), Some(Revision::NEWEST_LEGACY), probe, capabilities).await
    }

    /// Starts a child. One that dies of the first question is started again and asked in the old
    /// way.
    async fn connect_child(&self, stdio: &Stdio) -> Result<Peer, Kind> {
        let settings = &self.upstream.settings;
        let spawn =
            || Child::spawn(stdio, settings, self.ears.clone(), &self.tasks).map(Wire::Stdio);
        match Peer::open(spawn()?, stdio.revision, settings.probe, ClientCapabilities::NONE).await {
            Err(Kind::Reset) if stdio.revision.is_none() => {
                let legacy = Some(Revision::NEWEST_LEGACY);
                Peer::open(spawn()?, legacy, settings.probe, ClientCapabilities::NONE).await
            }
            opened => opened,
        }
    }

    fn http(&self, endpoint: &Arc<Endpoint>) -> Wire {
        // That its list has changed is heard by whoever listens to it.
        let mailbox = Mailbox::new(self.ears.without_changes());
        Wire::Http { endpoint: endpoint.clone(), mailbox }
    }
}
