//! Notifications: the webhook of `[approvals.notify]` receives the prompts that wait for approval.

mod outbox;
mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use outbox::{AfterFailure, Outbox, VersionId};
use webhook::WebhookClient;

use super::Approvals;
use base::platform::wall_clock;
use base::seal;
use catalog::approval::ApprovalRow;
use catalog::blocking::run_blocking;
use catalog::snapshot::Catalog;
use catalog::status::waiting_sentence;
use domain::approval::{Class, Reason};
use domain::fault::excerpt;
use domain::name::UpstreamId;

/// Notifies the newest configuration's webhook of waiting prompts, until `stop`. `newest` returns
/// the approvals of that configuration; `None` once the gateway has ended.
pub async fn keep_notifying(newest: impl Fn() -> Option<Arc<Approvals>>, stop: CancellationToken) {
    let notifying = async {
        let mut notifier = Notifier::default();
        let Some(mut published) = newest().map(|newest| newest.router.published()) else {
            return std::future::pending().await;
        };
        loop {
            published.mark_unchanged();
            let next = match newest() {
                Some(newest) => notifier.step(&newest).await,
                None => None,
            };
            tokio::select! {
                Ok(()) = published.changed() => {}
                () = until(next) => {}
            }
        }
    };
    stop.run_until_cancelled(notifying).await;
}

async fn until(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next).await,
        None => std::future::pending().await,
    }
}

/// The waiting versions by upstream.
type Waiting = BTreeMap<UpstreamId, BTreeSet<VersionId>>;

#[derive(Default)]
struct Notifier {
    outbox: Outbox,
    /// The client of the newest configuration.
    client: Option<WebhookClient>,
}

impl Notifier {
    /// Updates the outbox, and sends the next notification if it is due. Returns when the next
    /// notification is due.
    async fn step(&mut self, approvals: &Approvals) -> Option<Instant> {
        let webhook = approvals.rules.notify.as_ref();
        if self.client.as_ref().map(|client| &client.webhook) != webhook {
            self.client = webhook.cloned().map(WebhookClient::new);
            // A new receiver has received no notification yet.
            self.outbox = Outbox::default();
        }
        let client = self.client.as_ref()?;
        let catalog = approvals.router.catalog();
        let seen = catalog.clone();
        let waiting = run_blocking(move || waiting(&seen)).await;
        self.outbox.observe(waiting.clone(), Instant::now());
        let (due, upstream) = self.outbox.next()?;
        if due > Instant::now() {
            return Some(due);
        }
        let upstream = upstream.clone();
        let versions = waiting.get(&upstream)?;
        let id = message_id(&client.webhook.gateway, &upstream, versions);
        let body = message(&client.webhook.gateway, &upstream, &catalog);
        let outcome = match client.send(&id, body.to_string()).await {
            Ok(()) => {
                self.outbox.delivered(&upstream, Instant::now());
                "delivered"
            }
            Err(error) => self.note_failure(&upstream, &error),
        };
        approvals.shared.telemetry.metrics().approval_notification(outcome);
        // The waiting versions may have changed during the attempt: check again.
        Some(Instant::now())
    }

    /// Notes a failed attempt, and returns its outcome for the metric.
    fn note_failure(&mut self, upstream: &UpstreamId, error: &str) -> &'static str {
        let receiver = self.client.as_ref().map(WebhookClient::host).unwrap_or_default();
        match self.outbox.failed(upstream, Instant::now(), fastrand::f64()) {
            AfterFailure::Retried { is_first } => {
                if is_first {
                    warn!(%upstream, receiver, error, "a notification of approvals has failed; it is sent again for an hour");
                }
                "failed"
            }
            AfterFailure::GivenUp => {
                error!(%upstream, receiver, error, "a notification of approvals is given up; correct approvals.notify or its receiver: \
                     the next one is sent when another version waits, or after a restart");
                "given_up"
            }
        }
    }
}

fn waiting(catalog: &Catalog) -> Waiting {
    let mut waiting = Waiting::new();
    for row in catalog.approvals.iter().flat_map(|rows| rows.iter()).filter(|row| row.is_waiting())
    {
        let versions: &mut BTreeSet<_> = waiting.entry(row.upstream.clone()).or_default();
        versions.extend(version_id(row));
    }
    waiting
}

/// Identifies the waiting version of a prompt. Texts count only if they are the reason for waiting:
/// other texts become known one after another, and are not news.
fn version_id(row: &ApprovalRow) -> Option<VersionId> {
    let version = row.offered.as_ref()?.version.version();
    let texts = (row.decision.reason == Reason::TextChanged).then_some(&version.texts);
    let texts: Vec<_> = texts.into_iter().flatten().collect();
    let id = json!([row.raw_name, version.definition, version.source, texts]);
    Some(seal::sha256(id.to_string().as_bytes()))
}

/// Bytes of a message id: enough to make collisions improbable.
const ID_LEN: usize = 16;

/// Returns the same id for the same versions, after a restart and on all replicas, so that
/// receivers recognize duplicates.
fn message_id(gateway: &str, upstream: &UpstreamId, versions: &BTreeSet<VersionId>) -> String {
    let mut text = json!([gateway, upstream.as_str()]).to_string().into_bytes();
    text.extend(versions.iter().flatten());
    format!("msg_{}", seal::hex::hex(&seal::sha256(&text)[..ID_LEN]))
}

/// Most prompts that a message names.
const NAMED: usize = 50;

/// Returns a message in the form that the Standard Webhooks specification recommends. Chats display
/// `text`, so `text` holds no text of an upstream.
fn message(gateway: &str, upstream: &UpstreamId, catalog: &Catalog) -> Value {
    let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
    let rows = rows.filter(|row| row.upstream == *upstream && row.is_waiting());
    let count = rows.clone().count();
    json!({
        "type": "approvals.waiting",
        "timestamp": humantime::format_rfc3339_seconds(wall_clock()).to_string(),
        "text": format!("{gateway}: upstream {upstream}: {}", waiting_sentence(count)),
        "data": {
            "gateway": gateway,
            "upstream": upstream.as_str(),
            "waiting": count,
            "prompts": rows.take(NAMED).map(prompt_json).collect::<Vec<_>>(),
        },
    })
}

fn prompt_json(row: &ApprovalRow) -> Value {
    let class = row.offered.as_ref().map(|offered| offered.version.version().class());
    json!({
        "name": excerpt(&row.public_name),
        "rawName": excerpt(&row.raw_name),
        "state": row.decision.state.as_str(),
        "reason": row.decision.reason.as_str(),
        "class": class.map(Class::as_str),
    })
}
