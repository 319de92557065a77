//! How the gateway is, as documents.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Reloads;
use crate::audit::Audit;
use crate::policy::Gate;
use crate::router::{Router, UpstreamStatus};
use crate::telemetry::Telemetry;

/// What there is to look at.
pub(crate) struct State {
    pub router: Arc<Router>,
    pub gate: Arc<Gate>,
    pub audit: Audit,
    pub telemetry: Telemetry,
    /// Cancelled once the gateway is about to end.
    pub leaving: CancellationToken,
    /// `sha256:…` of the configuration.
    pub config_digest: String,
    pub reloads: Arc<Reloads>,
}

impl State {
    /// Why requests should go elsewhere at present; nothing if they may come.
    fn hindrances(&self) -> Vec<String> {
        let mut hindrances = Vec::new();
        let mut add = |what: &str| hindrances.push(what.to_owned());
        if self.leaving.is_cancelled() {
            add("draining: the gateway is about to end");
        }
        if self.audit.refuses() {
            add("audit_unavailable: the audit log cannot be written, and calls are refused");
        }
        if !self.gate.can_know_callers() {
            add("auth_unavailable: the keys of auth.jwt cannot be had");
        }
        let catalog = self.router.catalog();
        if catalog.pending {
            add("starting: not every upstream was heard of yet");
        } else if let Some(fault) = &catalog.list_fault {
            // Which upstream, and why, is for those with the token.
            add(fault.reason());
        }
        hindrances
    }

    /// 200 if requests may come, else 503, and why.
    pub(super) fn readiness(&self) -> (StatusCode, Value) {
        let why = self.hindrances();
        let status = match why.is_empty() {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, json!({"ready": why.is_empty(), "why": why}))
    }

    pub(super) fn status(&self) -> Value {
        let why = self.hindrances();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "startedAt": humantime::format_rfc3339_seconds(self.reloads.started_at).to_string(),
            "uptimeSecs": self.reloads.started.elapsed().as_secs(),
            "configDigest": self.config_digest,
            "reloads": self.reloads.describe(),
            "ready": why.is_empty(),
            "why": why,
            "audit": match (self.audit.is_on(), self.audit.is_written()) {
                (false, _) => "off",
                (true, true) => "written",
                (true, false) => "failing",
            },
        })
    }

    pub(super) fn upstreams(&self) -> Value {
        let upstreams: Vec<_> = self.router.status().into_iter().map(upstream).collect();
        json!({ "upstreams": upstreams })
    }

    pub(super) fn catalog(&self) -> Value {
        let catalog = self.router.catalog();
        let prompts: Vec<_> = catalog
            .content
            .owners()
            .iter()
            .map(|owner| {
                json!({"name": owner.public_name, "upstream": owner.upstream.as_str(),
                    "rawName": owner.raw_name, "digest": owner.digest})
            })
            .collect();
        json!({"prompts": prompts, "leftOut": catalog.content.left_out})
    }
}

fn upstream(status: UpstreamStatus) -> Value {
    let UpstreamStatus { id, transport, state, revision, notifies, listed, .. } = status;
    let (walk, failure, (in_flight, waiting)) = (status.walk, status.failure, status.load);
    let wait =
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
        "breaker": if wait.is_some() { "open" } else { "closed" },
    });
    if let Some(wait) = wait {
        row["nextTryMs"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
    }
    if let Some(walk) = walk {
        row["prompts"] = walk.prompts.into();
        row["pages"] = walk.pages.into();
        row["ageSecs"] = walk.at.elapsed().as_secs().into();
    }
    let stderr_tail = status.stderr_tail.lines();
    if !stderr_tail.is_empty() {
        row["stderr"] = stderr_tail.into();
    }
    if let Some(kind) = failure {
        row["error"] = json!({"reason": kind.reason(), "message": kind.to_string()});
    }
    row
}
