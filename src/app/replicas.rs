//! This replica among the others: it joins them, tells them what it serves, and takes what they hand over.

use std::io;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::edition::Edition;
use super::{App, Foundation};
use crate::cluster::{Cluster, ClusterDeps, Handling, Message, Presence, Relayed};
use crate::config::Config;
use crate::domain::fair_share::Holder;
use crate::downstream::Endpoint;
use crate::seal::{Sealer, digest_text};
use crate::session::Sessions;
use crate::shutdown::Shutdown;

/// Messages of other replicas that are handled at once. More are refused.
const HANDLED_AT_ONCE: usize = 256;

/// Joins the cluster of the configuration; `None` without one.
///
/// # Errors
/// The store cannot be used, and the configuration does not allow to start without it.
pub(super) async fn join(
    config: &Config,
    foundation: &Foundation,
    sealer: Arc<Sealer>,
) -> io::Result<Option<(Arc<Cluster>, mpsc::Receiver<Relayed>)>> {
    let Some(cluster) = config.cluster.clone() else {
        return Ok(None);
    };
    let Foundation { telemetry, audit, shutdown } = foundation;
    let deps = ClusterDeps {
        sealer,
        telemetry: telemetry.clone(),
        audit: audit.clone(),
        tasks: shutdown.background.clone(),
        stop: shutdown.stop.clone(),
    };
    let joined = Cluster::join(cluster, &config.server.limits, &config.digest, deps).await;
    joined.map(Some).map_err(io::Error::other)
}

impl App {
    /// Takes part in the cluster, until the end of the shutdown.
    pub(super) fn take_part(
        &self,
        cluster: &Arc<Cluster>,
        relayed: mpsc::Receiver<Relayed>,
        endpoint: Arc<ArcSwap<Endpoint>>,
    ) {
        let Shutdown { stop, background: tasks, .. } = &self.shutdown;
        let describe = presence(cluster.clone(), Arc::downgrade(&self.edition));
        let sessions = self.sessions.clone();
        let terminated = move |holder: &Holder, session| {
            sessions.load().terminated_elsewhere(holder, session);
        };
        tasks.spawn(cluster.clone().keep(describe, terminated, stop.clone()));
        let sessions = self.sessions.clone();
        let handling = handle_all(relayed, sessions, endpoint, tasks.clone(), stop.clone());
        tasks.spawn(handling);
    }
}

/// Returns what this replica tells the others: what the newest edition serves.
fn presence(
    cluster: Arc<Cluster>,
    edition: Weak<ArcSwap<Edition>>,
) -> impl Fn() -> Presence + Send + 'static {
    move || {
        let edition = edition.upgrade().map(|edition| edition.load_full());
        let catalog = edition.as_ref().map(|edition| edition.router.catalog());
        let catalog = catalog.filter(|catalog| !catalog.pending);
        let catalog = catalog.map(|catalog| digest_text(catalog.content.everyone.digest()));
        let config = edition.as_ref().map_or("", |edition| edition.config.digest.as_str());
        cluster.presence(config, catalog)
    }
}

/// Handles the messages of other replicas, until `stop`.
async fn handle_all(
    mut messages: mpsc::Receiver<Relayed>,
    sessions: Arc<ArcSwap<Sessions>>,
    endpoint: Arc<ArcSwap<Endpoint>>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(HANDLED_AT_ONCE));
    while let Some(Some(relayed)) = stop.run_until_cancelled(messages.recv()).await {
        let Ok(place) = places.clone().try_acquire_owned() else {
            tasks.spawn(relayed.acknowledge(Handling::Overloaded));
            continue;
        };
        let (sessions, endpoint) = (sessions.load_full(), endpoint.load_full());
        tasks.spawn(async move {
            let _place = place;
            handle(relayed, &sessions, &endpoint).await;
        });
    }
}

/// Handles a message, and acknowledges it.
async fn handle(relayed: Relayed, sessions: &Sessions, endpoint: &Endpoint) {
    let handling = match &relayed.message {
        Message::Post { session_id, caller, address, body } => {
            endpoint.receive(session_id, caller, *address, body).await
        }
        message => sessions.receive(message),
    };
    relayed.acknowledge(handling).await;
}
