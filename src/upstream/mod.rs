//! The upstream side: one driver per upstream keeps a connection and a list; calls go through a
//! handle that shares the connection.

pub mod answer;
pub mod backoff;
pub mod connect;
pub mod driver;
pub mod egress;
pub mod handshake;
pub mod http;
pub mod library;
pub mod peer;
pub mod stdio;
pub mod walk;
pub mod wire;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::config;
use crate::domain::document::Document;
use crate::domain::fault::{UpstreamFault, UpstreamFaultKind as Kind};
use crate::domain::json::Json;
use connect::Wake;
use driver::{Driver, Link, Report};
use peer::{Completion, Peer};

/// The router's handle on one upstream.
pub struct Upstream {
    config: Arc<config::Upstream>,
    link: watch::Receiver<Link>,
    wake: Wake,
    /// Calls at once.
    slots: Semaphore,
}

impl Upstream {
    /// Starts the driver of the upstream at `index` and returns its handle.
    pub fn start(
        index: usize,
        config: config::Upstream,
        reports: mpsc::Sender<Report>,
        tasks: &TaskTracker,
        shutdown: CancellationToken,
    ) -> Self {
        let config = Arc::new(config);
        let (sender, link) = watch::channel(Link::Connecting);
        let wake = Wake::default();
        let driver = Driver {
            index,
            upstream: config.clone(),
            link: sender,
            wake: wake.clone(),
            tasks: tasks.clone(),
            reports,
            shutdown,
            listening: AtomicBool::new(false),
        };
        let span = tracing::info_span!("upstream", id = %config.id);
        tasks.spawn(driver.run().instrument(span));
        let slots = Semaphore::new(config.settings.in_flight);
        Self { config, link, wake, slots }
    }

    pub fn config(&self) -> &config::Upstream {
        &self.config
    }

    /// The raw result of a get, within the upstream's `timeout` and before `deadline`.
    pub async fn get(
        &self,
        name: &str,
        arguments: Option<Json<'_>>,
        deadline: Instant,
    ) -> Result<Document, UpstreamFault> {
        let ask = async |peer: Arc<Peer>| peer.get(name, arguments).await;
        self.call(ask, deadline).await
    }

    /// The raw result of a completion, as [`Upstream::get`].
    pub async fn complete(
        &self,
        completion: Completion<'_>,
        deadline: Instant,
    ) -> Result<Document, UpstreamFault> {
        let ask = async |peer: Arc<Peer>| peer.complete(completion).await;
        self.call(ask, deadline).await
    }

    async fn call<F>(
        &self,
        ask: impl Fn(Arc<Peer>) -> F,
        deadline: Instant,
    ) -> Result<Document, UpstreamFault>
    where
        F: Future<Output = Result<Document, Kind>>,
    {
        let deadline = deadline.min(Instant::now() + self.config.settings.timeout);
        let exchange = async {
            // Never closed, so waiting is the only thing that can happen.
            let _slot = self.slots.acquire().await;
            let peer = self.connected().await?;
            match ask(peer.clone()).await {
                // A 404 comes before any processing, so the request is safe to repeat, once.
                Err(Kind::SessionLost) => ask(self.another_than(&peer).await?).await,
                answer => answer,
            }
        };
        let answer = timeout_at(deadline, exchange).await.unwrap_or(Err(Kind::Timeout));
        let upstream = || self.config.id.to_string();
        answer.map_err(|kind| UpstreamFault { upstream: upstream(), kind })
    }

    /// The peer, once it is known whether there is one.
    async fn connected(&self) -> Result<Arc<Peer>, Kind> {
        self.link_that(|link| !matches!(link, Link::Connecting)).await
    }

    /// The peer of the next connection, which is asked for.
    async fn another_than(&self, lost: &Arc<Peer>) -> Result<Arc<Peer>, Kind> {
        let is_lost = |link: &Link| matches!(link, Link::Up(peer) if Arc::ptr_eq(peer, lost));
        if is_lost(&self.link.borrow()) {
            self.wake.lost.notify_one();
        }
        self.link_that(|link| !is_lost(link)).await
    }

    async fn link_that(&self, wanted: impl Fn(&Link) -> bool) -> Result<Arc<Peer>, Kind> {
        let mut link = self.link.clone();
        let found = link.wait_for(wanted).await.map(|link| link.clone());
        match found {
            Ok(Link::Up(peer)) => Ok(peer),
            Ok(Link::Down(kind)) => Err(unreachable_because(kind)),
            Ok(Link::Connecting) | Err(_) => {
                Err(Kind::Unavailable("the gateway is shutting down".to_owned()))
            }
        }
    }
}

/// Why a call cannot be made: what kept the driver from connecting.
fn unreachable_because(kind: Kind) -> Kind {
    match kind {
        Kind::Unavailable(_) | Kind::AuthFailed { .. } | Kind::RateLimited { .. } => kind,
        other => Kind::Unavailable(other.to_string()),
    }
}
