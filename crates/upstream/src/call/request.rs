//! Requests to an upstream for the calls of clients, and their wire form.

use std::sync::Arc;

use domain::calls::call::{Call, ForwardedMeta, PROMPT_ATTRIBUTE};
use domain::calls::passthrough::PassthroughRequest;
use domain::json::document::Document;
use domain::json::object::ObjectWriter;
use domain::prompts::call_overlay::CallOverlay;
use domain::protocol::log_level::LogLevel;
use domain::protocol::method::Method;
use domain::protocol::server_request::ClientCapabilities;

/// A client's call, addressed to the upstream that owns the prompt.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub params: RequestParams,
    /// Members of `_meta` that the upstream gets.
    pub forwarded: ForwardedMeta,
    /// The overlays of the prompt; callers must not see their secrets.
    pub overlay: Option<Arc<CallOverlay>>,
    /// Which server requests the upstream may send before its response.
    pub capabilities: ClientCapabilities,
    /// Whether the client requested progress notifications.
    pub progress: bool,
    /// The least severe log messages that the client gets; `None` for none.
    pub log_level: Option<LogLevel>,
}

impl UpstreamRequest {
    /// A request for a call of a client; only progress may precede its response.
    pub fn of_call(call: &Call, params: RequestParams, overlay: Option<Arc<CallOverlay>>) -> Self {
        Self {
            params,
            forwarded: call.forwarded.clone(),
            overlay,
            capabilities: ClientCapabilities::NONE,
            progress: call.client.progress,
            log_level: None,
        }
    }
}

/// Parameters of a call, with the raw name of the prompt.
#[derive(Clone, Debug)]
pub enum RequestParams {
    Get {
        name: Arc<str>,
        /// An object of strings.
        arguments: Option<Document>,
        answers: Option<InputResponses>,
        /// The digest of the only source that a library may serve; `None` for any.
        source: Option<Arc<str>>,
    },
    Complete {
        prompt: Arc<str>,
        argument: String,
        /// The value that the user has typed so far.
        value: String,
        /// The `context` object of the request.
        context: Option<Document>,
    },
    ReadFile {
        /// The path of the skill that the file belongs to.
        skill: Arc<str>,
        /// The upstream's URI of the file.
        uri: Arc<str>,
    },
    ReadLink {
        /// The raw name of the prompt that links to the resource.
        prompt: Arc<str>,
        /// The upstream's URI of the resource.
        uri: Arc<str>,
    },
    /// A request for the upstream of `[passthrough]`, with the upstream's cursor.
    Passthrough { request: PassthroughRequest, answers: Option<InputResponses> },
}

impl RequestParams {
    /// Returns the method of the call.
    pub fn method(&self) -> Method {
        match self {
            Self::Get { .. } => Method::Get,
            Self::Complete { .. } => Method::Complete,
            Self::ReadFile { .. } => Method::ReadFile,
            Self::ReadLink { .. } => Method::ReadLink,
            Self::Passthrough { .. } => Method::Passthrough,
        }
    }

    /// Returns the method on the wire.
    pub(crate) fn wire_method(&self) -> &str {
        match self {
            Self::Passthrough { request, .. } => &request.method,
            params => params.method().as_str(),
        }
    }

    /// Returns the metric label of the method.
    pub fn method_label(&self) -> &'static str {
        match self {
            Self::Passthrough { request, .. } => request.label(),
            params => params.method().as_str(),
        }
    }

    /// Returns the telemetry attribute for the name, and the name.
    pub fn attribute(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Passthrough { request, .. } => {
                request.attribute().map(|key| (key, &*request.name))
            }
            params => Some((PROMPT_ATTRIBUTE, params.prompt())),
        }
    }

    /// Returns the approximate size of the parameters as JSON text, in bytes.
    pub fn size(&self) -> usize {
        let document = |document: &Option<Document>| {
            document.as_ref().map_or(0, |document| document.json().text().len())
        };
        64 + match self {
            Self::Get { name, arguments, .. } => name.len() + document(arguments),
            Self::Complete { prompt, value, context, .. } => {
                prompt.len() + value.len() + document(context)
            }
            Self::ReadFile { uri, .. } | Self::ReadLink { uri, .. } => uri.len(),
            Self::Passthrough { request, .. } => request.params.len(),
        }
    }

    /// Returns the name or URI that the `Mcp-Name` header repeats, for the methods that have one
    /// (MCP 2026-07-28, Streamable HTTP, standard headers).
    pub fn mcp_name(&self) -> Option<&str> {
        match self {
            Self::Get { name, .. } => Some(name),
            Self::ReadFile { uri, .. } | Self::ReadLink { uri, .. } => Some(uri),
            Self::Complete { .. } => None,
            Self::Passthrough { request, .. } => request.mcp_name(),
        }
    }

    /// Returns the headers that repeat parameters (MCP 2026-07-28, Streamable HTTP, custom headers
    /// from tool parameters).
    pub fn headers(&self) -> &[(String, String)] {
        match self {
            Self::Passthrough { request, .. } => &request.headers,
            _ => &[],
        }
    }

    /// Returns the raw name of the prompt, the path of the skill, or the target's name of a request
    /// for the upstream of `[passthrough]`.
    pub fn prompt(&self) -> &str {
        match self {
            Self::Get { name, .. } => name,
            Self::Complete { prompt, .. } | Self::ReadLink { prompt, .. } => prompt,
            Self::ReadFile { skill, .. } => skill,
            Self::Passthrough { request, .. } => &request.name,
        }
    }

    /// Returns the URI of the resource that a prompt links to.
    pub fn linked(&self) -> Option<&str> {
        match self {
            Self::ReadLink { uri, .. } => Some(uri),
            _ => None,
        }
    }
}

/// The client's answers, which a retried `prompts/get` carries (MCP 2026-07-28, multi-round-trip
/// requests).
#[derive(Clone, Debug, Default)]
pub struct InputResponses {
    /// `inputResponses` as JSON text.
    pub responses: Option<String>,
    /// `requestState` as the upstream issued it.
    pub state: Option<String>,
}

/// Adds the members of `params` to a request.
pub fn write_params(params: &RequestParams, out: &mut ObjectWriter<'_>) {
    match params {
        RequestParams::Get { name, arguments, answers, source: _ } => {
            out.text("name", name);
            if let Some(arguments) = arguments {
                out.json("arguments", arguments.json().text());
            }
            write_answers(answers.as_ref(), out);
        }
        RequestParams::Passthrough { request, answers } => {
            out.members(&request.params);
            write_answers(answers.as_ref(), out);
        }
        RequestParams::Complete { prompt, argument, value, context } => {
            out.object("ref", |reference| {
                reference.text("type", "ref/prompt").text("name", prompt);
            });
            out.object("argument", |typed| {
                typed.text("name", argument).text("value", value);
            });
            if let Some(context) = context {
                out.json("context", context.json().text());
            }
        }
        RequestParams::ReadFile { uri, skill: _ } | RequestParams::ReadLink { uri, prompt: _ } => {
            out.text("uri", uri);
        }
    }
}

fn write_answers(answers: Option<&InputResponses>, out: &mut ObjectWriter<'_>) {
    let Some(InputResponses { responses, state }) = answers else { return };
    if let Some(responses) = responses {
        out.json("inputResponses", responses);
    }
    if let Some(state) = state {
        out.text("requestState", state);
    }
}
