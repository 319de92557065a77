//! The part of this replica in the cluster: it joins, publishes its presence, and handles the
//! messages that other replicas relay.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::time::{Instant, sleep};
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
    let sharing = share_rollouts(cluster.clone(), news, edition.clone());
    let stopping = stop.clone();
    supervisor.supervise("rollouts", async move {
        stopping.run_until_cancelled(sharing).await;
    });
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

/// Time until the store is read again after a failure, so that a new version is served soon.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Keeps the rollbacks and restarts of rollouts in the store, tells other replicas of them, and
/// reads theirs with each connection to the store. Never returns.
async fn share_rollouts(
    cluster: Arc<ClusterMember>,
    mut news: broadcast::Receiver<RollbackNotice>,
    edition: Arc<ArcSwap<Edition>>,
) {
    let mut is_read = false;
    loop {
        let told = tokio::select! {
            () = cluster.rollbacks().connected() => None,
            () = sleep(READ_AGAIN), if !is_read => None,
            told = news.recv() => told.ok(),
        };
        is_read = match told {
            None => read_rollouts(&cluster, &edition).await,
            Some(notice) => {
                let is_kept = keep_rollout(&cluster, &edition.load_full(), &notice).await;
                let body = serde_json::to_vec(&notice).unwrap_or_default();
                cluster.relay().tell_all(RelayMessage::Rollback { body }).await;
                is_read && is_kept
            }
        };
    }
}

/// Applies what the store has, and writes what it lacks. Returns whether it could be used.
async fn read_rollouts(cluster: &ClusterMember, edition: &ArcSwap<Edition>) -> bool {
    let edition = edition.load_full();
    let Ok(kept) = cluster.rollbacks().read(&edition.sealer).await else { return false };
    let kept: Vec<_> = kept.iter().filter_map(|text| serde_json::from_slice(text).ok()).collect();
    let mut is_kept = true;
    let missing = edition.router.rollouts().follow_store(&kept);
    for notice in &missing {
        is_kept &= keep_rollout(cluster, &edition, notice).await;
    }
    is_kept
}

/// Writes a rollback or restart to the store. Returns whether that succeeded.
async fn keep_rollout(cluster: &ClusterMember, edition: &Edition, notice: &RollbackNotice) -> bool {
    let RollbackNotice { prompt, from, to, changed, .. } = notice;
    let rollout = format!("rollout\0{prompt}\0{from}\0{to}");
    let text = serde_json::to_vec(notice).unwrap_or_default();
    cluster.rollbacks().write(&edition.sealer, &rollout, *changed, &text).await.is_ok()
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
            RelayMessage::Hint { upstream, accepted } => {
                edition.router.hint(&upstream, accepted);
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
