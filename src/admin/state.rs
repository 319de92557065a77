//! The state of the gateway as JSON documents.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Reloads;
use crate::audit::Audit;
use crate::cluster::{Cluster, Replica};
use crate::config::OnStoreFailure;
use crate::domain::fault::UpstreamFaultKind;
use crate::domain::millis::whole_millis;
use crate::domain::overlay;
use crate::policy::Gate;
use crate::router::{Router, UpstreamStatus};
use crate::telemetry::Telemetry;

/// The parts of the gateway that the admin API shows.
pub(crate) struct State {
    pub router: Arc<Router>,
    pub gate: Arc<Gate>,
    pub audit: Audit,
    pub telemetry: Telemetry,
    /// `None` if this replica stands alone.
    pub cluster: Option<Arc<Cluster>>,
    /// Cancelled when a shutdown starts.
    pub pre_drain: CancellationToken,
    /// The digest of the configuration, `sha256:…`.
    pub config_digest: String,
    pub reloads: Arc<Reloads>,
}

impl State {
    /// Returns why requests should go to another replica at present; empty if the gateway is ready.
    fn unready_reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        let mut add = |reason: &str| reasons.push(reason.to_owned());
        if self.pre_drain.is_cancelled() {
            add("draining: the gateway is shutting down");
        }
        if self.audit.refuses() {
            add("audit_unavailable: the audit log cannot be written; calls are refused");
        }
        if let Some(cluster) = &self.cluster
            && cluster.config().on_failure == OnStoreFailure::Refuse
            && cluster.failure().is_some()
        {
            add(
                "cluster_unavailable: the store of the cluster cannot be reached; calls are refused",
            );
        }
        if !self.gate.can_know_callers() {
            add("auth_unavailable: the keys of auth.jwt cannot be fetched");
        }
        if self.cluster.as_ref().is_some_and(|cluster| cluster.is_learning()) {
            add("starting: not every session that was terminated on another replica is known yet");
        }
        let catalog = self.router.catalog();
        if catalog.pending {
            add("starting: not every upstream has reported its list yet");
        } else if let Some(fault) = &catalog.list_fault {
            // The name of the upstream and the error are shown with the token only.
            add(fault.reason());
        }
        reasons
    }

    /// Returns the answer of `/readyz`: 200 if the gateway is ready, else 503, with the reasons.
    pub(super) fn readiness(&self) -> (StatusCode, Value) {
        let why = self.unready_reasons();
        let status = if why.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, json!({"ready": why.is_empty(), "why": why}))
    }

    /// Returns the document of `/api/v1/status`.
    pub(super) fn status(&self) -> Value {
        let why = self.unready_reasons();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "startedAt": humantime::format_rfc3339_seconds(self.reloads.started_at).to_string(),
            "uptimeSecs": self.reloads.started.elapsed().as_secs(),
            "configDigest": self.config_digest,
            "lockDigest": self.router.lock_digest(),
            "reloads": self.reloads.to_json(),
            "ready": why.is_empty(),
            "why": why,
            "audit": match (self.audit.is_on(), self.audit.is_up()) {
                (false, _) => "off",
                (true, true) => "written",
                (true, false) => "failing",
            },
        })
    }

    /// Returns the document of `/api/v1/replicas`: those that lived at the last heartbeat, this one among them; empty
    /// if it stands alone.
    pub(super) fn replicas(&self) -> Value {
        let Some(cluster) = &self.cluster else {
            return json!({ "store": "none", "replicas": [] });
        };
        let failure = cluster.failure();
        let started = |at: u64| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at));
        let uptime = |at| started(at).and_then(|at| at.elapsed().ok()).map(|up| up.as_secs());
        let row = |replica: &Replica| {
            let Replica { id, presence, seen } = replica;
            json!({
                "name": presence.name,
                "self": *id == cluster.id(),
                "version": presence.version,
                "configDigest": presence.config,
                "catalogDigest": presence.catalog,
                "uptimeSecs": uptime(presence.started),
                "seenMs": whole_millis(seen.elapsed()),
            })
        };
        json!({
            "store": if failure.is_some() { "unavailable" } else { "available" },
            "error": failure,
            "differing": cluster.differing(),
            "unreadable": cluster.unreadable(),
            "replicas": cluster.replicas().iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// Returns the document of `/api/v1/upstreams`.
    pub(super) fn upstreams(&self) -> Value {
        let upstreams: Vec<_> = self.router.status().into_iter().map(upstream).collect();
        json!({ "upstreams": upstreams })
    }

    /// Returns the document of `/api/v1/catalog`.
    pub(super) fn catalog(&self) -> Value {
        let catalog = self.router.catalog();
        let prompts: Vec<_> = catalog
            .content
            .owners()
            .map(|owner| {
                let overlays = owner.overlay.iter().flat_map(|overlay| &overlay.numbers);
                let overlays: Vec<_> = overlays.map(|number| overlay::key(*number)).collect();
                json!({"name": owner.public_name, "upstream": owner.upstream.as_str(),
                    "rawName": owner.raw_name, "digest": owner.digest, "overlays": overlays,
                    "state": owner.pin.state.as_str()})
            })
            .collect();
        let left_out = &catalog.content.left_out;
        let look_alikes = &catalog.content.look_alikes;
        json!({"prompts": prompts, "leftOut": left_out, "lookAlikes": look_alikes})
    }
}

/// Returns one element of `/api/v1/upstreams`.
fn upstream(status: UpstreamStatus) -> Value {
    let UpstreamStatus { id, transport, state, revision, notifies, listed, .. } = &status;
    let (in_flight, waiting) = status.load;
    let next_probe =
        status.breaker_open_until.map(|until| until.saturating_duration_since(Instant::now()));
    let mut row = json!({
        "upstream": id,
        "transport": transport,
        "state": state,
        "era": revision.map(|revision| revision.era_name()),
        "revision": revision.map(|revision| revision.as_str()),
        "listChanged": notifies,
        "listed": listed,
        "inFlight": in_flight,
        "waiting": waiting,
        "breaker": if next_probe.is_some() { "open" } else { "closed" },
    });
    if let Some(next_probe) = next_probe {
        row["nextTryMs"] = whole_millis(next_probe).into();
    }
    if let Some(walk) = status.walk {
        row["prompts"] = walk.prompts.into();
        row["pages"] = walk.pages.into();
        row["ageSecs"] = walk.at.elapsed().as_secs().into();
    }
    if let Some(note) = status.note() {
        row["note"] = note.into();
    }
    // The lines of the attempt that failed, where there is one: the upstream may have been started again.
    let stderr = match status.failure.as_ref().map(UpstreamFaultKind::stderr) {
        Some(stderr) if !stderr.is_empty() => stderr.to_vec(),
        _ => status.stderr_tail.lines(),
    };
    if !stderr.is_empty() {
        row["stderr"] = stderr.into();
    }
    if let Some(kind) = status.failure {
        row["error"] = json!({"reason": kind.reason(), "message": kind.diagnosis()});
    }
    row
}
