//! What is wanted of an upstream, and how that is written.

use crate::domain::call::ForwardedMeta;
use crate::domain::document::Document;
use crate::domain::json::object;
use crate::domain::json::write_str;
use crate::domain::method::Method;
use crate::domain::server_request::ClientCapabilities;

/// A client's call on its way to its owner.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub params: RequestParams,
    pub forwarded: ForwardedMeta,
    /// What the upstream may ask before it answers.
    pub capabilities: ClientCapabilities,
    /// Whether progress is wanted.
    pub progress: bool,
}

/// What is wanted, under raw names.
#[derive(Clone, Debug)]
pub enum RequestParams {
    Get {
        name: String,
        /// An object of strings.
        arguments: Option<Document>,
        answers: Option<InputResponses>,
    },
    Complete {
        prompt: String,
        argument: String,
        /// What was typed so far.
        value: String,
        /// The `context` object of the request.
        context: Option<Document>,
    },
}

impl RequestParams {
    pub fn method(&self) -> Method {
        match self {
            Self::Get { .. } => Method::Get,
            Self::Complete { .. } => Method::Complete,
        }
    }

    /// About how many bytes its parameters have.
    pub(crate) fn size(&self) -> usize {
        let document = |document: &Option<Document>| {
            document.as_ref().map_or(0, |document| document.json().text().len())
        };
        64 + match self {
            Self::Get { name, arguments, .. } => name.len() + document(arguments),
            Self::Complete { prompt, value, context, .. } => {
                prompt.len() + value.len() + document(context)
            }
        }
    }

    /// The raw name of the prompt that it is about.
    pub fn prompt(&self) -> &str {
        match self {
            Self::Get { name, .. } => name,
            Self::Complete { prompt, .. } => prompt,
        }
    }
}

/// What a get is repeated with once the upstream's questions are answered (2026-07-28).
#[derive(Clone, Debug, Default)]
pub struct InputResponses {
    /// `inputResponses` as JSON text.
    pub responses: Option<String>,
    /// `requestState` as the upstream gave it out.
    pub state: Option<String>,
}

/// Appends the members of `params`, each followed by a comma; returns the method, and the name that
/// headers repeat.
pub(crate) fn write_params<'a>(
    params: &'a RequestParams,
    out: &mut String,
) -> (Method, Option<&'a str>) {
    match params {
        RequestParams::Get { name, arguments, answers } => {
            object::write_text("name", name, out);
            write_member("arguments", arguments.as_ref(), out);
            if let Some(InputResponses { responses, state }) = answers {
                if let Some(responses) = responses {
                    object::write_json("inputResponses", responses, out);
                }
                if let Some(state) = state {
                    object::write_text("requestState", state, out);
                }
            }
            (Method::Get, Some(name))
        }
        RequestParams::Complete { prompt, argument, value, context } => {
            out.push_str("\"ref\":{\"type\":\"ref/prompt\",\"name\":");
            write_str(prompt, out);
            out.push_str("},\"argument\":{\"name\":");
            write_str(argument, out);
            out.push_str(",\"value\":");
            write_str(value, out);
            out.push_str("},");
            write_member("context", context.as_ref(), out);
            (Method::Complete, None)
        }
    }
}

fn write_member(name: &str, value: Option<&Document>, out: &mut String) {
    if let Some(value) = value {
        object::write_json(name, value.json().text(), out);
    }
}
