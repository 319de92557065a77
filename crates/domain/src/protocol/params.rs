//! Readers of parameters that several methods have.

use crate::fault::{Fault, RequestFault};
use crate::json::Json;
use crate::json::document::Document;

/// The answers of a modern client that calls again (MCP 2026-07-28, multi-round-trip requests).
#[derive(Clone, Debug)]
pub struct InputRetry {
    /// `requestState`: a sealed token of the gateway.
    pub state: String,
    /// `inputResponses`: an object.
    pub responses: Option<Document>,
}

/// Reads the answers of a retried `prompts/get`. `inputResponses` without a `requestState` belong
/// to no server request of the gateway: they are ignored, and the server requests are sent again.
pub(crate) fn retry(
    state: Option<Json<'_>>,
    responses: Option<Json<'_>>,
) -> Result<Option<InputRetry>, RequestFault> {
    let Some(state) = state else {
        return Ok(None);
    };
    let state = text(state).ok_or(RequestFault::InvalidState)?;
    let what = "`inputResponses` must be an object of objects".to_owned();
    let objects = |r: &Json<'_>| r.members().all(|(_, answer)| answer.is_object());
    let read = responses.map(|responses| responses.object().filter(objects));
    match read {
        Some(None) => Err(RequestFault::InvalidParams { what }),
        read => {
            let responses = read.flatten().map(Document::copy_of);
            Ok(Some(InputRetry { state, responses }))
        }
    }
}

fn text(value: Json<'_>) -> Option<String> {
    value.as_str().map(|text| text.into_owned())
}

pub(crate) fn required(value: Option<Json<'_>>, name: &str) -> Result<String, Fault> {
    let text = value.and_then(text);
    text.ok_or_else(|| Fault::invalid_params(format!("`{name}` must be a string")))
}

pub(crate) fn cursor(value: Option<Json<'_>>) -> Result<Option<String>, Fault> {
    let read = |value| text(value).ok_or(RequestFault::InvalidCursor);
    Ok(value.map(read).transpose()?)
}
