//! The part of this replica in the cluster: it joins, publishes its presence, and handles the
//! messages that other replicas relay.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Foundation;
use super::edition::Edition;
use audit::question::Evidence;
use base::seal::{Sealer, digest_text};
use calls::rollouts::rollbacks::RollbackNotice;
use cluster::{ClusterDeps, ClusterMember, Handling, Presence, Receipt, RelayMessage, Relayed};
use config::Config;
use domain::calls::fair_share::{Holder, Places};
use front::downstream::Endpoint;
use shutdown::Shutdown;

/// Posts of other replicas that are handled at once. Further posts are refused.
const HANDLED_AT_ONCE: usize = 256;

/// Questions of other replicas that are answered at once: each may read the audit log.
const ANSWERED_AT_ONCE: usize = 4;

/// The time for the answer to a question. The asking replica waits longer.
const ANSWER_TIME: Duration = Duration::from_secs(4);

/// Joins the cluster of the configuration; `None` without one.
pub(super) async fn join(
    config: &Config,
    foundation: &Foundation,
    sealer: Arc<Sealer>,
) -> io::Result<Option<(Arc<ClusterMember>, mpsc::Receiver<Relayed>)>> {
    let Some(cluster) = config.cluster.clone() else {
        return Ok(None);
    };
    let Foundation { telemetry, audit, shutdown } = foundation;
    let deps = ClusterDeps {
        sealer,
        telemetry: telemetry.clone(),
        audit: audit.clone(),
        supervisor: shutdown.supervisor.clone(),
    };
    let joined = ClusterMember::join(cluster, &config.server.limits, &config.digest, deps).await;
    joined.map(Some).map_err(io::Error::other)
}

/// Takes part in the cluster, until the end of the shutdown: publishes what the newest edition
/// serves, and handles the messages that other replicas relay.
pub(super) fn take_part(
    cluster: &Arc<ClusterMember>,
    relayed: mpsc::Receiver<Relayed>,
    edition: &Arc<ArcSwap<Edition>>,
    endpoint: Arc<ArcSwap<Endpoint>>,
    evidence: Evidence,
    shutdown: &Shutdown,
) {
    let Shutdown { stop, background: tasks, supervisor, .. } = shutdown;
    let describe = presence(cluster.clone(), Arc::downgrade(edition));
    let sessions = edition.load().shared.clone();
    let terminated = move |holder: &Holder, session| {
        sessions.terminated_elsewhere(holder, session);
    };
    let keeping = cluster.clone().run_membership(describe, terminated, stop.clone());
    supervisor.supervise("membership", keeping);
    let desk = AnswerDesk {
        evidence,
        limit: cluster.config().relay_size,
        places: Arc::new(Semaphore::new(ANSWERED_AT_ONCE)),
    };
    let news = edition.load().router.rollouts().news();
    supervisor.supervise("rollouts", tell_of_rollouts(cluster.clone(), news, stop.clone()));
    let edition = edition.clone();
    let handling = handle_all(relayed, edition, endpoint, desk, tasks.clone(), stop.clone());
    supervisor.supervise("relay", handling);
}

/// Returns the presence of this replica: it describes the content that the newest edition serves.
fn presence(
    cluster: Arc<ClusterMember>,
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

/// The part of a replica that answers the questions of others.
struct AnswerDesk {
    evidence: Evidence,
    /// Largest answer, in bytes.
    limit: usize,
    places: Arc<Semaphore>,
}

impl AnswerDesk {
    /// Answers a question, unless too many questions are being answered.
    fn answer(&self, question: Vec<u8>, receipt: Receipt, tasks: &TaskTracker) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            tasks.spawn(receipt.acknowledge(Handling::Overloaded));
            return;
        };
        let evidence = self.evidence.clone();
        let limit = self.limit;
        let until = Instant::now() + ANSWER_TIME;
        tasks.spawn(async move {
            let _place = place;
            receipt.answer(evidence.answer_text(&question, until, limit).await).await;
        });
    }
}

/// Tells other replicas of rollouts that are rolled back or restarted here, until `stop`.
async fn tell_of_rollouts(
    cluster: Arc<ClusterMember>,
    mut news: broadcast::Receiver<RollbackNotice>,
    stop: CancellationToken,
) {
    while let Some(told) = stop.run_until_cancelled(news.recv()).await {
        match told {
            Ok(news) => {
                let body = serde_json::to_vec(&news).unwrap_or_default();
                cluster.relay().tell_all(RelayMessage::Rollback { body }).await;
            }
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => stop.cancelled().await,
        }
    }
}

/// Handles the messages of other replicas, until `stop`.
async fn handle_all(
    mut messages: mpsc::Receiver<Relayed>,
    edition: Arc<ArcSwap<Edition>>,
    endpoint: Arc<ArcSwap<Endpoint>>,
    desk: AnswerDesk,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let places = Places::new(HANDLED_AT_ONCE);
    while let Some(Some(relayed)) = stop.run_until_cancelled(messages.recv()).await {
        let edition = edition.load_full();
        let Relayed { message, receipt } = relayed;
        let (session_id, caller, address, body) = match message {
            RelayMessage::Post { session_id, caller, address, body } => {
                (session_id, caller, address, body)
            }
            RelayMessage::Question { body } => {
                desk.answer(body, receipt, &tasks);
                continue;
            }
            RelayMessage::Hint { upstream } => {
                edition.router.hint(&upstream);
                tasks.spawn(receipt.acknowledge(Handling::Handled));
                continue;
            }
            RelayMessage::Rollback { body } => {
                if let Ok(news) = serde_json::from_slice(&body) {
                    edition.router.rollouts().follow(&news);
                }
                tasks.spawn(receipt.acknowledge(Handling::Handled));
                continue;
            }
            RelayMessage::Response { .. } | RelayMessage::Cancelled { .. } => {
                let handling = edition.shared.receive(&message);
                tasks.spawn(receipt.acknowledge(handling));
                continue;
            }
        };
        let holder = Holder::of(&caller, address);
        let Some(place) = places.take(holder, edition.config.server.limits.share) else {
            tasks.spawn(receipt.acknowledge(Handling::Overloaded));
            continue;
        };
        let endpoint = endpoint.load_full();
        // A post may wait for the reader of its stream.
        tasks.spawn(async move {
            let _place = place;
            let handling = endpoint.receive(&session_id, &caller, address, &body).await;
            receipt.acknowledge(handling).await;
        });
    }
}
