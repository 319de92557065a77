//! Finding out how an upstream wants to be spoken to, and opening the conversation.
//!
//! A modern `server/discover` is asked first; what comes back decides the era. Past this file
//! nobody asks which era it is: a [`Conversation`] says what goes around each message.

mod verdict;

use std::pin::pin;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use tokio::time::timeout;

use crate::domain::call::ForwardedMeta;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::json::object::{ObjectWriter, write_object};
use crate::domain::jsonrpc::{self, Id};
use crate::domain::method::{INITIALIZE, INITIALIZED, LIST_CHANGED, LISTEN};
use crate::domain::revision::{Era, Revision};
use crate::domain::server_request::ClientCapabilities;
use crate::domain::{mcp_name, meta};
use crate::upstream::transport::Transport;
use crate::upstream::transport::streamable_http::{
    MCP_METHOD, MCP_NAME, PROTOCOL_VERSION, SESSION_ID,
};
use verdict::{Verdict, discover, judge, modern_after_all};

/// An open conversation: what was agreed, and how messages are dressed for it.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub revision: Revision,
    pub capabilities: Capabilities,
    /// Goes with every message: version, session.
    headers: HeaderMap,
    /// Whether each request says what the client behind it can be asked; else the handshake did.
    declares_per_call: bool,
    /// Whether `Mcp-Method` and `Mcp-Name` repeat the body.
    standard_headers: bool,
}

/// What an upstream declared, as far as prompts go.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Capabilities {
    pub prompts: bool,
    pub list_changed: bool,
    pub completions: bool,
}

/// A request before it is dressed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RpcRequest<'a> {
    pub method: &'a str,
    /// Goes into `Mcp-Name`.
    pub name: Option<&'a str>,
    /// Members of `params` as JSON text without braces.
    pub params: &'a str,
    /// What travels along with a client's call.
    pub forwarded: Option<&'a ForwardedMeta>,
    /// What may be asked before the answer.
    pub capabilities: ClientCapabilities,
    /// Whether progress is wanted; its token is the request's id.
    pub progress: bool,
}

impl Conversation {
    /// Opens a conversation in the configured revision, or in the one that is found; `probe` is the
    /// time that the first question may take. `asks` is what may be asked on it; a conversation in
    /// which each request says that takes no notice.
    pub(crate) async fn open(
        transport: &Transport,
        revision: Option<Revision>,
        probe: Duration,
        capabilities: ClientCapabilities,
    ) -> Result<Self, Kind> {
        match revision.map(|r| (r, r.era())) {
            Some((revision, Era::Legacy)) => initialize(transport, revision, capabilities).await,
            Some((_, Era::Modern)) => {
                let result = discover(transport).await?;
                Ok(Self::modern(Capabilities::read(result.json().get("capabilities"))))
            }
            // On the heap: the search is rare, and its future large.
            None => Box::pin(Self::find(transport, probe)).await,
        }
    }

    /// Finds the era by asking.
    async fn find(transport: &Transport, probe: Duration) -> Result<Self, Kind> {
        let mut discovering = pin!(discover(transport));
        match timeout(probe, discovering.as_mut()).await {
            Ok(answer) => match judge(answer.as_ref().map_err(Clone::clone)) {
                Verdict::Modern(capabilities) => Ok(Self::modern(capabilities)),
                Verdict::Legacy => {
                    initialize(transport, Revision::NEWEST_LEGACY, ClientCapabilities::NONE).await
                }
                Verdict::Undecided(kind) => Err(kind),
            },
            Err(_) if !transport.times_out_unknown_methods() => Err(Kind::Timeout),
            // A child that says nothing may be an old one, or one that is slow to start: an answer
            // that comes late still makes it modern.
            Err(_) => {
                let initializing =
                    initialize(transport, Revision::NEWEST_LEGACY, ClientCapabilities::NONE);
                let mut initializing = pin!(initializing);
                tokio::select! {
                    late = discovering.as_mut() => match modern_after_all(late) {
                        Some(conversation) => Ok(conversation),
                        None => initializing.await,
                    },
                    opened = initializing.as_mut() => match opened {
                        Ok(conversation) => Ok(conversation),
                        Err(kind) => {
                            let late = timeout(probe, discovering).await;
                            late.ok().and_then(modern_after_all).ok_or(kind)
                        }
                    },
                }
            }
        }
    }

    /// Listens for notices that the list may be another one, until the stream of them ends. Calls
    /// `heard` when it is open, and for each notice.
    ///
    /// # Errors
    /// Why there is no such stream, [`Kind::Error`] with -32601 where none was promised.
    pub(crate) async fn listen(
        &self,
        transport: &Transport,
        id: &Id,
        mut heard: impl FnMut(bool),
    ) -> Result<(), Kind> {
        if !self.capabilities.list_changed {
            let message = "no listChanged".to_owned();
            return Err(Kind::Error { code: -32601, message, data: None });
        }
        let on_message = |message: Option<Json<'_>>| {
            let tells = |m: Json<'_>| m.get("method").is_some_and(|m| m.is(LIST_CHANGED));
            if message.is_none_or(tells) {
                heard(message.is_some());
            }
        };
        match self.revision.era() {
            Era::Legacy => self.hear(transport, on_message).await,
            Era::Modern => {
                let params = "\"notifications\":{\"promptsListChanged\":true}";
                let rpc = RpcRequest { method: LISTEN, params, ..RpcRequest::default() };
                let (headers, body) = self.dress(id, rpc);
                transport.subscribe(id, headers, body, on_message).await
            }
        }
    }

    /// Reads the stream of messages that belong to no request (legacy only).
    pub(crate) async fn hear(
        &self,
        transport: &Transport,
        heard: impl FnMut(Option<Json<'_>>),
    ) -> Result<(), Kind> {
        transport.listen(self.headers.clone(), heard).await
    }

    /// Headers and body of a request.
    pub(crate) fn dress(&self, id: &Id, rpc: RpcRequest<'_>) -> (HeaderMap, String) {
        let mut headers = self.headers.clone();
        if self.standard_headers {
            let mut set = |name, value: &str| {
                // Method names and encoded prompt names are visible ASCII.
                if let Ok(value) = HeaderValue::from_str(value) {
                    headers.insert(name, value);
                }
            };
            set(MCP_METHOD, rpc.method);
            if let Some(name) = rpc.name {
                set(MCP_NAME, &mcp_name::encode(name));
            }
        }
        if let Some(forwarded) = rpc.forwarded {
            for (name, part) in forwarded.trace.parts() {
                if let Ok(value) = HeaderValue::from_str(part) {
                    headers.insert(name, value);
                }
            }
        }
        let body = jsonrpc::request(id, rpc.method, rpc.params.len() + META_SIZE, |params| {
            params.members(rpc.params);
            params.object_unless_empty("_meta", |meta| self.write_meta(id, &rpc, meta));
        });
        (headers, body)
    }

    /// Adds the members of a request's `_meta`.
    fn write_meta(&self, id: &Id, rpc: &RpcRequest<'_>, out: &mut ObjectWriter<'_>) {
        if self.declares_per_call {
            out.text(meta::PROTOCOL_VERSION, self.revision.as_str());
            out.written(meta::CLIENT_CAPABILITIES, |out| rpc.capabilities.write(out));
            out.written(meta::CLIENT_INFO, write_client_info);
        }
        if let Some(forwarded) = rpc.forwarded {
            out.members(&forwarded.meta);
            forwarded.trace.write(out);
        }
        if rpc.progress {
            out.json(meta::PROGRESS_TOKEN, id.text());
        }
    }

    /// Whether what can be asked is said when the conversation is opened, so that a client that can
    /// be asked needs one of its own.
    pub(crate) fn declares_at_open(&self) -> bool {
        !self.declares_per_call
    }

    /// Headers of a message that cancels a request; nothing where closing its connection does.
    pub(crate) fn cancelling(&self) -> Option<HeaderMap> {
        (self.revision.era() == Era::Legacy).then(|| self.headers.clone())
    }

    /// Headers that end the session; nothing where there is none.
    pub(crate) fn farewell(&self) -> Option<HeaderMap> {
        self.headers.contains_key(SESSION_ID).then(|| self.headers.clone())
    }

    /// Whether the upstream may send requests of its own.
    pub(crate) fn accepts_requests(&self) -> bool {
        self.revision.era() == Era::Legacy
    }

    fn modern(capabilities: Capabilities) -> Self {
        let revision = Revision::NEWEST_MODERN;
        let version = HeaderValue::from_static(revision.as_str());
        Self {
            revision,
            capabilities,
            headers: HeaderMap::from_iter([(PROTOCOL_VERSION, version)]),
            declares_per_call: true,
            standard_headers: true,
        }
    }

    fn legacy(
        revision: Revision,
        capabilities: Capabilities,
        session: Option<&HeaderValue>,
    ) -> Self {
        let version = HeaderValue::from_static(revision.as_str());
        let mut headers = HeaderMap::from_iter([(PROTOCOL_VERSION, version)]);
        headers.extend(session.map(|session| {
            let mut session = session.clone();
            session.set_sensitive(true);
            (SESSION_ID, session)
        }));
        let standard_headers = false;
        Self { revision, capabilities, headers, declares_per_call: false, standard_headers }
    }
}

impl Capabilities {
    fn read(declared: Option<Json<'_>>) -> Self {
        let member = |name: &str| declared.and_then(|d| d.get(name));
        Self {
            prompts: member("prompts").is_some(),
            list_changed: member("prompts").and_then(|p| p.get("listChanged")?.as_bool())
                == Some(true),
            completions: member("completions").is_some(),
        }
    }

    /// What is tried with an upstream whose declaration could not be asked for.
    const ASSUMED: Self = Self { prompts: true, list_changed: false, completions: true };
}

const UNSPOKEN: &str = "it speaks no revision of MCP that is known here";

async fn initialize(
    transport: &Transport,
    offered: Revision,
    capabilities: ClientCapabilities,
) -> Result<Conversation, Kind> {
    // Not the id of the first question, whose answer may still come.
    let id = Id::number(1);
    let body = jsonrpc::request(&id, INITIALIZE, META_SIZE, |params| {
        params.text("protocolVersion", offered.as_str());
        params.written("capabilities", |out| capabilities.write(out));
        params.written("clientInfo", write_client_info);
    });
    let (result, headers) = transport.request(&id, HeaderMap::new(), body, None).await?;
    let result = result.json();
    let version = result.get("protocolVersion").and_then(Json::as_str);
    let revision = version.and_then(|v| Revision::parse(&v)).filter(|r| r.era() == Era::Legacy);
    let revision = revision.ok_or_else(|| Kind::Protocol(UNSPOKEN.to_owned()))?;
    let mut capabilities = Capabilities::read(result.get("capabilities"));
    // 2024-11-05 has no capability for it: asking is the only way to know.
    capabilities.completions |= revision == Revision::V2024_11_05;
    let session = headers.get(SESSION_ID);
    let conversation = Conversation::legacy(revision, capabilities, session);
    let ready = jsonrpc::notification(INITIALIZED, |_| {});
    transport.notify(conversation.headers.clone(), ready).await?;
    Ok(conversation)
}

/// About how many bytes `_meta`, or the parameters of `initialize`, have.
const META_SIZE: usize = 320;

/// Appends the `Implementation` that the gateway declares to upstreams.
fn write_client_info(out: &mut String) {
    write_object(out, |info| {
        info.text("name", "promptgate").text("version", env!("CARGO_PKG_VERSION"));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::document::Document;

    fn document(text: &str) -> Document {
        Document::parse(text.as_bytes().to_vec(), 8).unwrap()
    }

    #[test]
    fn a_modern_request_repeats_its_body_in_headers() {
        let conversation = Conversation::modern(Capabilities::default());
        let params = r#""name":"é""#;
        let forwarded = ForwardedMeta { meta: "\"k\":1".to_owned(), ..ForwardedMeta::default() };
        let rpc = RpcRequest {
            method: "prompts/get",
            name: Some("é"),
            params,
            forwarded: Some(&forwarded),
            capabilities: ClientCapabilities::FORM,
            progress: true,
        };
        let (headers, body) = conversation.dress(&Id::number(7), rpc);
        assert_eq!(headers[MCP_METHOD], "prompts/get");
        assert_eq!(headers[MCP_NAME], "=?base64?w6k=?=");
        assert_eq!(headers[PROTOCOL_VERSION], "2026-07-28");
        let body = document(&body);
        let params = body.json().get("params").unwrap();
        assert!(params.get("name").unwrap().is("é"));
        let meta = params.get("_meta").unwrap();
        assert!(meta.get(meta::PROTOCOL_VERSION).unwrap().is("2026-07-28"));
        let capabilities = meta.get(meta::CLIENT_CAPABILITIES).unwrap();
        assert_eq!(capabilities.text(), r#"{"elicitation":{}}"#);
        assert_eq!(meta.get("k").unwrap().text(), "1");
        assert_eq!(meta.get("progressToken").unwrap().text(), "7");
    }

    #[test]
    fn a_legacy_request_carries_the_session_alone() {
        let session = HeaderValue::from_static("s-1");
        let conversation =
            Conversation::legacy(Revision::V2025_06_18, Capabilities::default(), Some(&session));
        let rpc = RpcRequest { method: "prompts/list", ..RpcRequest::default() };
        let (headers, body) = conversation.dress(&Id::number(1), rpc);
        assert_eq!(headers[SESSION_ID], "s-1");
        assert!(!headers.contains_key(MCP_METHOD));
        assert_eq!(body, r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{}}"#);
    }
}
