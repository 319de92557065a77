//! `/api/v1/pins`: what is approved, and decisions on it over the same code path as `promptgate pins`.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::State;
use crate::router::approvals::json::row_json;
use crate::router::approvals::{Action, ApprovalError, Decider, Examined, notes};
use crate::seal;

/// Longest wait for the configuration with the changed lock file. It is read once its digest is the same in two polls.
const APPLIED: Duration = Duration::from_secs(5);

/// A decision on prompts, as the body of a POST.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Decision {
    /// Public names.
    prompts: Vec<String>,
    /// Who decides, as the client says.
    by: Option<String>,
    why: Option<String>,
    /// A digest, for a rollback.
    to: Option<String>,
}

/// A decision that was not carried out.
pub(super) type Refusal = (StatusCode, Value);

impl State {
    /// Returns the document of `/api/v1/pins`.
    pub(super) fn pins(&self) -> Value {
        let rows = self.router.pin_rows();
        let rows: Vec<_> = rows.iter().map(|row| row_json(&Examined::known(row))).collect();
        json!({"lock": self.router.lock_digest(), "prompts": rows})
    }

    /// Carries a decision out. `if_match` is the entity tag of the document on which it is based (RFC 9110, section 13.1.1).
    ///
    /// # Errors
    /// The document has changed, a prompt is unknown, or the lock file cannot be changed.
    pub(super) async fn decide(
        &self,
        action: Action,
        decision: Decision,
        if_match: Option<&str>,
    ) -> Result<Value, Refusal> {
        let refuse = |status, error: &str| (status, json!({ "error": error }));
        let Some(if_match) = if_match else {
            let error =
                "send the ETag of GET /api/v1/pins, which shows what is decided on, in If-Match";
            return Err(refuse(StatusCode::PRECONDITION_REQUIRED, error));
        };
        let changed = || {
            let error = "the pins or what upstreams offer have changed; read /api/v1/pins again";
            refuse(StatusCode::PRECONDITION_FAILED, error)
        };
        if if_match != entity_tag(&self.pins()) {
            return Err(changed());
        }
        let lock = self.router.lock_digest().to_owned();
        let rows = self.router.pin_rows();
        let mut chosen = Vec::with_capacity(decision.prompts.len());
        for name in &decision.prompts {
            let Some(row) = rows.iter().find(|row| row.public_name == *name) else {
                let error = format!("no prompt {name:?} is offered or pinned");
                return Err(refuse(StatusCode::NOT_FOUND, &error));
            };
            chosen.push(row.clone());
        }
        if chosen.is_empty() {
            return Err(refuse(
                StatusCode::BAD_REQUEST,
                "prompts must hold at least one public name",
            ));
        }
        let seen: Vec<_> = chosen.iter().map(Examined::known).collect();
        let examined = self.router.examine_all(chosen).await.map_err(refusal)?;
        if !examined.iter().zip(&seen).all(|(now, seen)| now.is_as_seen(seen)) {
            return Err(changed());
        }
        let action = match action {
            Action::RollBack { .. } => Action::RollBack { to: decision.to },
            action => action,
        };
        let notes = notes(&action, &examined);
        let decider = Decider {
            by: decision.by.unwrap_or_else(|| "admin".to_owned()),
            why: decision.why,
            via: "admin",
            at: SystemTime::now(),
        };
        let lock = self.router.decide(&action, examined, Some(lock), &decider).await;
        let lock = lock.map_err(refusal)?;
        let applied = timeout(APPLIED, self.router.lock_in_use(&lock.digest)).await;
        Ok(json!({
            action.key(): decision.prompts,
            "lock": lock.digest,
            "applied": applied.is_ok(),
            "notes": notes,
        }))
    }
}

/// Returns the entity tag of a document (RFC 9110, section 8.8.3).
pub(super) fn entity_tag(document: &Value) -> String {
    let digest = seal::digest_text(&seal::sha256(document.to_string().as_bytes()));
    format!("\"{digest}\"")
}

fn refusal(error: ApprovalError) -> Refusal {
    let message = error.to_string();
    let document = match error {
        ApprovalError::ReadOnly { patch, .. } => json!({"error": message, "patch": patch}),
        _ => json!({ "error": message }),
    };
    (StatusCode::CONFLICT, document)
}
