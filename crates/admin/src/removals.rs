//! `/api/v1/upstreams/ID/accept`: applies a removal of many prompts that is held back.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::AdminState;
use super::answer::ErrorDocument;
use super::approvals::Refusal;
use super::sign_in::Visitor;
use audit::record::AuditEvent;
use catalog::status::UpstreamStatus;
use cluster::RelayMessage;
use upstream::held_removal::HeldRemoval;

/// The acceptance of a removal, as the body of a POST.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct AcceptanceRequest {
    /// The person. Counts only with the shared token.
    pub by: Option<String>,
    pub why: Option<String>,
}

/// The removal that was accepted. The source is read again at once, on all replicas.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct AcceptedRemoval {
    /// The number of prompts that were served.
    served: usize,
    /// The number of prompts that the source lists.
    listed: usize,
}

/// Accepts the removal of an upstream that is held back, here and on the other replicas, and
/// records it.
pub(super) fn accept(
    state: &AdminState,
    upstream: &str,
    AcceptanceRequest { by, why }: AcceptanceRequest,
    visitor: &Visitor,
) -> Result<AcceptedRemoval, Refusal> {
    let refusal = |status, why: String| (status, ErrorDocument::new(why));
    let status = state.router.status().into_iter().find(|status| status.id == upstream);
    let UpstreamStatus { held_removal, .. } = status.ok_or_else(|| {
        refusal(StatusCode::NOT_FOUND, format!("no upstream has the name {upstream}"))
    })?;
    let HeldRemoval { served, listed, .. } = held_removal.ok_or_else(|| {
        refusal(StatusCode::CONFLICT, format!("no removal of {upstream} is held back here"))
    })?;
    let event = AuditEvent::new("removal_accepted").text("upstream", upstream);
    let event = event.number("served", served as u64).number("listed", listed as u64);
    let event = event.text("by", &visitor.recorded(by)).optional_text("why", why.as_deref());
    state.audit.note(event);
    state.router.hint(upstream, Some(listed));
    if let Some(cluster) = state.cluster.clone() {
        let message = RelayMessage::Hint { upstream: upstream.to_owned(), accepted: Some(listed) };
        let telling = async move { cluster.relay().tell_all(message).await };
        state.supervisor.tasks().spawn(telling);
    }
    Ok(AcceptedRemoval { served, listed })
}
