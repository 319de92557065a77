//! `/api/v1/labels`: which versions of library prompts the labels name, and their moves.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminState;
use super::approvals::Refusal;
use super::sign_in::Visitor;
use calls::labels::LabelledPrompt;
use config::labels::MoveError;

/// A move of a label, as the body of a PUT.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveRequest {
    pub version: u32,
    /// The person who moves it, as the client names them.
    pub by: Option<String>,
    pub why: Option<String>,
}

/// Returns the document of `/api/v1/labels`.
pub(super) fn all(state: &AdminState) -> Value {
    let prompts = state.router.labels().prompts();
    let prompts: Vec<_> = prompts.iter().map(LabelledPrompt::json).collect();
    json!({"takesMoves": state.admin.write, "prompts": prompts})
}

/// Moves a label. `if_match` is the tag of the prompt in that document (RFC 9110, section 13.1.1).
pub(super) async fn put(
    state: &AdminState,
    [name, label]: [&str; 2],
    wanted: MoveRequest,
    visitor: &Visitor,
    if_match: Option<&str>,
) -> Result<Value, Refusal> {
    let Some(tag) = if_match else {
        let error = "send the `tag` that GET /api/v1/labels has for the prompt in If-Match";
        return Err((StatusCode::PRECONDITION_REQUIRED, json!({ "error": error })));
    };
    let labels = state.router.labels();
    let Some(prompt) = labels.prompt(name) else {
        let error = format!("no prompt {name:?} of a library has versions (docs/versions.md)");
        return Err((StatusCode::NOT_FOUND, json!({ "error": error })));
    };
    let decider = visitor.decider(wanted.by, wanted.why);
    let tag = Some(tag.trim().trim_matches('"').to_owned());
    let moved = labels.move_to(&prompt, label, wanted.version, tag, &decider).await;
    let from = moved.map_err(refusal)?;
    Ok(prompt.moved_json(label, from, wanted.version))
}

fn refusal(error: MoveError) -> Refusal {
    let status = match error {
        MoveError::Conflict => StatusCode::PRECONDITION_FAILED,
        MoveError::Refused(_) | MoveError::File { .. } => StatusCode::CONFLICT,
    };
    (status, json!({"error": error.to_string()}))
}
