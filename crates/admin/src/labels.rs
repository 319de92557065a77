//! `/api/v1/labels`: which versions of library prompts the labels name, and their moves.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::AdminState;
use super::answer::ErrorDocument;
use super::approvals::Refusal;
use calls::labels::{LabelChange, LabelledPrompt, LabelsDocument, MovedLabel};
use config::labels::MoveError;
use domain::approval::Decider;

/// A move of a label, as the body of a PUT.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct MoveRequest {
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub version: u32,
    /// Whether the prompt may get a label that it does not have.
    #[serde(default)]
    pub new: bool,
    /// The person who moves it; counts only where the credential is a token.
    pub by: Option<String>,
    pub why: Option<String>,
}

/// A removal of a label, as the body of a DELETE.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct RemovalRequest {
    /// The person who removes it; counts only where the credential is a token.
    pub by: Option<String>,
    pub why: Option<String>,
}

/// The document of `/api/v1/labels`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct Labels {
    /// Whether `admin.write` is set.
    takes_moves: bool,
    prompts: Vec<LabelsDocument>,
}

/// Returns the document of `/api/v1/labels`.
pub(super) fn all(state: &AdminState) -> Labels {
    let prompts = state.router.labels().prompts();
    let prompts = prompts.iter().map(LabelledPrompt::document).collect();
    Labels { takes_moves: state.admin.write, prompts }
}

/// Changes a label of the prompt `name`. `if_match` is the tag of the prompt in that document
/// (RFC 9110, section 13.1.1).
pub(super) async fn change(
    state: &AdminState,
    name: &str,
    change: LabelChange<'_>,
    decider: &Decider,
    if_match: Option<&str>,
) -> Result<MovedLabel, Refusal> {
    let Some(tag) = if_match else {
        let error = "send the `tag` that GET /api/v1/labels has for the prompt in If-Match";
        return Err((StatusCode::PRECONDITION_REQUIRED, ErrorDocument::new(error)));
    };
    let labels = state.router.labels();
    let Some(prompt) = labels.prompt(name) else {
        let error = format!("no prompt {name:?} of a library has versions (docs/versions.md)");
        return Err((StatusCode::NOT_FOUND, ErrorDocument::new(error)));
    };
    let tag = Some(tag.trim().trim_matches('"').to_owned());
    let from = labels.move_to(&prompt, change, tag, decider).await.map_err(refusal)?;
    Ok(prompt.moved(change, from))
}

fn refusal(error: MoveError) -> Refusal {
    let status = match error {
        MoveError::Conflict => StatusCode::PRECONDITION_FAILED,
        MoveError::Refused(_) | MoveError::File { .. } => StatusCode::CONFLICT,
    };
    (status, ErrorDocument::new(error.to_string()))
}
