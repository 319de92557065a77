//! How each kind of upstream is connected to.

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::Connection;
use crate::config::{self, Stdio, Upstream};
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::upstream::call::correlator::{Correlator, NotificationSinks};
use crate::upstream::library::{Snapshot, Watch};
use crate::upstream::transport::Transport;
use crate::upstream::transport::http_sse::HttpSse;
use crate::upstream::transport::stdio::Child;
use crate::upstream::transport::streamable_http::HttpEndpoint;

/// What wakes a driver before its time.
#[derive(Clone, Default)]
pub(crate) struct Wake {
    /// The list may be another one.
    pub changed: Arc<Notify>,
    /// A call has found its session lost.
    pub lost: Arc<Notify>,
}

/// What is kept between two connections to one upstream.
pub struct Connector {
    upstream: Arc<Upstream>,
    sinks: NotificationSinks,
    tasks: TaskTracker,
    starting: Arc<Semaphore>,
    kept: KeptTransport,
}

enum KeptTransport {
    Http(Arc<HttpEndpoint>),
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
        sinks: NotificationSinks,
        tasks: TaskTracker,
        starting: Arc<Semaphore>,
    ) -> Result<Self, String> {
        let kept = match &upstream.transport {
            config::Transport::Http(http) | config::Transport::Sse(http) => KeptTransport::Http(
                Arc::new(HttpEndpoint::new(http, &upstream.settings, tasks.clone())?),
            ),
            config::Transport::Library(folder) => {
                let watch = Watch::new(folder, sinks.list_changed.clone().unwrap_or_default());
                if let Err(error) = &watch {
                    warn!(upstream = %upstream.id, %error, "edits are found by polling only");
                }
                KeptTransport::Library { _watch: watch.ok() }
            }
            config::Transport::Stdio(_) => KeptTransport::Stdio,
        };
        Ok(Self { upstream, sinks, tasks, starting, kept })
    }

    /// Opens a connection, within `walk_timeout`.
    pub async fn connect(&self) -> Result<Connection, Kind> {
        let settings = &self.upstream.settings;
        // Waiting for leave is no part of the time to connect.
        let _leave = match self.kept {
            KeptTransport::Stdio => self.starting.acquire().await.ok(),
            KeptTransport::Http(_) | KeptTransport::Library { .. } => None,
        };
        let connecting = async {
            match (&self.upstream.transport, &self.kept) {
                (config::Transport::Http(http), KeptTransport::Http(endpoint)) => {
                    self.connect_http(endpoint, http.revision).await
                }
                (config::Transport::Sse(_), KeptTransport::Http(endpoint)) => {
                    self.connect_sse(endpoint, ClientCapabilities::NONE).await
                }
                (config::Transport::Stdio(stdio), _) => self.connect_child(stdio).await,
                (config::Transport::Library(folder), _) => {
                    let (folder, upstream) = (folder.clone(), self.upstream.clone());
                    let load =
                        move || Snapshot::load(&folder, upstream.id.as_str(), &upstream.settings);
                    let loaded = tokio::task::spawn_blocking(load).await;
                    loaded.unwrap_or(Err(Kind::Reset)).map(Connection::Library)
                }
                (config::Transport::Http(_) | config::Transport::Sse(_), _) => Err(Kind::Reset),
            }
        };
        timeout(settings.walk_timeout, connecting).await.unwrap_or(Err(Kind::Timeout))
    }

    /// Opens a connection like another one, within `walk_timeout`, on which `asks` may be asked.
    pub async fn connect_dedicated(
        &self,
        like: &Connection,
        capabilities: ClientCapabilities,
    ) -> Result<Connection, Kind> {
        let (settings, (revision, _)) = (&self.upstream.settings, like.describe());
        let connecting = async {
            match (like.transport(), &self.kept, &self.upstream.transport) {
                (Some(Transport::Http { .. }), KeptTransport::Http(endpoint), _) => {
                    let transport = self.http(endpoint);
                    Connection::open(transport, revision, settings.walk_timeout, capabilities).await
                }
                (Some(Transport::Sse(_)), KeptTransport::Http(endpoint), _) => {
                    self.connect_sse(endpoint, capabilities).await
                }
                (Some(Transport::Stdio(_)), _, config::Transport::Stdio(stdio)) => {
                    let sinks = self.sinks.without_list_changed();
                    let child = Child::spawn(stdio, settings, sinks, &self.tasks)?;
                    Connection::open(
                        Transport::Stdio(child),
                        revision,
                        settings.probe,
                        capabilities,
                    )
                    .await
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
        endpoint: &Arc<HttpEndpoint>,
        revision: Option<Revision>,
    ) -> Result<Connection, Kind> {
        let probe = self.upstream.settings.walk_timeout;
        let refusal =
            match Connection::open(self.http(endpoint), revision, probe, ClientCapabilities::NONE)
                .await
            {
                Err(kind @ Kind::Status { status: 400 | 404 | 405 }) if revision.is_none() => kind,
                opened => return opened,
            };
        self.connect_sse(endpoint, ClientCapabilities::NONE).await.map_err(|_| refusal)
    }

    async fn connect_sse(
        &self,
        endpoint: &Arc<HttpEndpoint>,
        capabilities: ClientCapabilities,
    ) -> Result<Connection, Kind> {
        let line = HttpSse::open(endpoint.clone(), self.sinks.clone(), &self.tasks).await?;
        let probe = self.upstream.settings.walk_timeout;
        Connection::open(Transport::Sse(line), Some(Revision::NEWEST_LEGACY), probe, capabilities)
            .await
    }

    /// Starts a child. One that dies of the first question is started again and asked in the old
    /// way.
    async fn connect_child(&self, stdio: &Stdio) -> Result<Connection, Kind> {
        let settings = &self.upstream.settings;
        let spawn =
            || Child::spawn(stdio, settings, self.sinks.clone(), &self.tasks).map(Transport::Stdio);
        match Connection::open(spawn()?, stdio.revision, settings.probe, ClientCapabilities::NONE)
            .await
        {
            Err(Kind::Reset) if stdio.revision.is_none() => {
                let legacy = Some(Revision::NEWEST_LEGACY);
                Connection::open(spawn()?, legacy, settings.probe, ClientCapabilities::NONE).await
            }
            opened => opened,
        }
    }

    fn http(&self, endpoint: &Arc<HttpEndpoint>) -> Transport {
        // That its list has changed is heard by whoever listens to it.
        let correlator = Correlator::new(self.sinks.without_list_changed());
        Transport::Http { endpoint: endpoint.clone(), correlator }
    }
}
