//! `/api/v1/approvals`: what is approved, and decisions on it over the same code path as
//! `promptgate approvals`.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use http::StatusCode;
use http::header::ETAG;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::AdminState;
use super::answer::AdminAnswer;
use base::platform::wall_clock;
use base::seal;
use gateway::router::approval::ApprovalRow;
use gateway::router::approvals::json::row_json;
use gateway::router::approvals::{Action, ApprovalError, Decider, Examined, notes};

/// Longest wait for the configuration with the changed lock file. It is read once its digest is the
/// same in two polls.
const APPLIED: Duration = Duration::from_secs(5);

/// A decision on prompts, as the body of a POST.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionRequest {
    /// Public names.
    pub prompts: Vec<String>,
    /// The person who decides, as the client names them.
    pub by: Option<String>,
    pub why: Option<String>,
    /// A digest, for a rollback.
    pub to: Option<String>,
}

/// A decision that was not carried out.
pub(super) type Refusal = (StatusCode, Value);

impl AdminState {
    /// Returns the document of `/api/v1/approvals`.
    pub(super) fn approvals(&self) -> Value {
        self.document(&self.router.approval_rows())
    }

    /// The answer with that document, and its entity tag.
    pub(super) fn approvals_answer(&self) -> AdminAnswer {
        let document = self.approvals();
        AdminAnswer::json(StatusCode::OK, &document).with(ETAG, &entity_tag(&document))
    }

    fn document(&self, rows: &[ApprovalRow]) -> Value {
        let row = |row: &ApprovalRow| {
            let mut document = row_json(&Examined::known(row));
            document["tag"] = prompt_tag(row).into();
            document
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        json!({"lock": self.router.lock_digest(), "prompts": rows})
    }

    /// Carries a decision out. `if_match` is the entity tag of the document on which it is based
    /// (RFC 9110, section 13.1.1); for one prompt, the `tag` of its row will do.
    ///
    /// # Errors
    /// The document has changed, a prompt is unknown, or the lock file cannot be changed.
    pub(super) async fn decide(
        &self,
        action: Action,
        decision: DecisionRequest,
        if_match: Option<&str>,
    ) -> Result<Value, Refusal> {
        let refuse = |status, error: &str| (status, json!({ "error": error }));
        let Some(if_match) = if_match else {
            let error = "send the ETag of GET /api/v1/approvals, which shows what is decided on, in If-Match";
            return Err(refuse(StatusCode::PRECONDITION_REQUIRED, error));
        };
        let changed = || {
            let error =
                "the approvals or what upstreams offer have changed; read /api/v1/approvals again";
            refuse(StatusCode::PRECONDITION_FAILED, error)
        };
        // One snapshot of the catalog, so that the decision is on the version that the tag names.
        let rows = self.router.approval_rows();
        let chosen = chosen(&rows, &decision.prompts)?;
        let is_of_prompt = matches!(chosen.as_slice(), [only] if if_match == prompt_tag(only));
        if !is_of_prompt && if_match != entity_tag(&self.document(&rows)) {
            return Err(changed());
        }
        let lock = self.router.lock_digest().to_owned();
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
            at: wall_clock(),
        };
        let outcome = self.router.decide(&action, examined, Some(lock), &decider).await;
        let lock = outcome.map_err(refusal)?.lock;
        let applied = timeout(APPLIED, self.router.lock_in_use(&lock.digest)).await;
        Ok(json!({
            action.key(): decision.prompts,
            "lock": lock.digest,
            "applied": applied.is_ok(),
            "notes": notes,
        }))
    }
}

/// The prompts with these names, each once.
fn chosen(rows: &[ApprovalRow], names: &[String]) -> Result<Vec<ApprovalRow>, Refusal> {
    let by_name: HashMap<&str, &ApprovalRow> =
        rows.iter().map(|row| (row.public_name.as_str(), row)).collect();
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    if names.is_empty() {
        let error = "prompts must hold at least one public name";
        return Err((StatusCode::BAD_REQUEST, json!({ "error": error })));
    }
    let find = |name: &str| {
        let error =
            || json!({"error": format!("no prompt {name:?} is offered or in the lock file")});
        let row = by_name.get(name).copied().cloned();
        row.ok_or_else(|| (StatusCode::NOT_FOUND, error()))
    };
    names.into_iter().map(find).collect()
}

/// Returns the entity tag of one prompt. It changes with the offered, approved and rejected
/// versions.
pub(super) fn prompt_tag(row: &ApprovalRow) -> String {
    entity_tag(&row_json(&Examined::known(row)))
}

/// Returns the entity tag of a document (RFC 9110, section 8.8.3).
fn entity_tag(document: &Value) -> String {
    let digest = seal::sha256_text(document.to_string().as_bytes());
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
