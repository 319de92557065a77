//! Handshake with an upstream: finds its era, and negotiates revision and capabilities.
//!
//! The gateway sends a modern `server/discover` first, and its outcome decides the era. No other
//! module of `upstream` branches on the era: a [`Conversation`] encodes each message for it.

mod verdict;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use tokio::time::timeout;

use crate::call::reply::INITIALIZE_ID;
use crate::transport::streamable_http::{MCP_METHOD, MCP_NAME, PROTOCOL_VERSION, SESSION_ID};
use crate::transport::{UpstreamEvent, UpstreamTransport};
use base::platform::heap::boxed;
use domain::calls::call::ForwardedMeta;
use domain::calls::passthrough::PassthroughCapabilities;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::jsonrpc::{self, Id};
use domain::json::object::{ObjectWriter, write_members};
use domain::prompts::skill::EXTENSION;
use domain::protocol::log_level::LogLevel;
use domain::protocol::method::{DISCOVER, INITIALIZE, INITIALIZED, LIST_CHANGED, LISTEN, PING};
use domain::protocol::revision::{Era, Revision};
use domain::protocol::server_request::ClientCapabilities;
use domain::protocol::via::{VIA, Via};
use domain::{protocol::mcp_name, protocol::meta};
use verdict::{DiscoveryVerdict, discover, judge, modern_after_all};

/// The negotiated revision and capabilities, and the encoding of messages that they demand.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub revision: Revision,
    pub capabilities: Capabilities,
    /// Headers of every message, with transport headers, protocol version and session id.
    headers: HeaderMap,
    /// Whether each request declares the capabilities of its client; otherwise `initialize` did.
    declares_per_call: bool,
    /// Whether the headers `Mcp-Method` and `Mcp-Name` repeat the body (MCP 2026-07-28,
    /// transports).
    standard_headers: bool,
}

/// Capabilities that an upstream declared.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Capabilities {
    pub prompts: bool,
    pub list_changed: bool,
    pub completions: bool,
    /// The extension for skills.
    pub skills: bool,
    /// The capabilities in addition to prompts; `None` if unknown.
    pub passthrough: Option<Arc<PassthroughCapabilities>>,
    /// The gateways behind the upstream; first the upstream, if it is a gateway.
    pub behind: Via,
}

/// A request before it is encoded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RpcRequest<'a> {
    pub method: &'a str,
    /// Value of `Mcp-Name`: the name of the prompt.
    pub name: Option<&'a str>,
    /// The headers `Mcp-Param-*`, as pairs of name and value.
    pub param_headers: &'a [(String, String)],
    /// Members of `params` as JSON text without braces.
    pub params: &'a str,
    /// Trace context and `_meta` members of the client's call.
    pub forwarded: Option<&'a ForwardedMeta>,
    /// Server requests that the upstream may send before its response.
    pub capabilities: ClientCapabilities,
    /// Whether progress is requested; its token is the request's id.
    pub progress: bool,
    /// The least severe log messages that the upstream may send before its response.
    pub log_level: Option<LogLevel>,
}

/// Event of a notification stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListenEvent {
    /// The stream is open. The list may have changed before.
    Opened,
    /// `notifications/prompts/list_changed`.
    ListChanged,
    /// The stream has ended. The list may change unnoticed until it is open again.
    Closed,
}

impl Conversation {
    /// Performs the handshake, in the configured revision or in the one that `server/discover`
    /// finds within `probe`. `capabilities` are declared at `initialize`; a modern handshake
    /// declares none, since each request does.
    pub(crate) async fn open(
        transport: &UpstreamTransport,
        revision: Option<Revision>,
        probe: Duration,
        capabilities: ClientCapabilities,
    ) -> Result<Self, Kind> {
        let Some(revision) = revision else {
            return boxed(Self::detect(transport, probe)).await;
        };
        match revision.era() {
            Era::Legacy => initialize(transport, revision, capabilities).await,
            Era::Modern => {
                let result = discover(transport).await?;
                let capabilities = Capabilities::read(result.json());
                Ok(Self::modern(capabilities, transport.headers()))
            }
        }
    }

    /// Detects the era by `server/discover`.
    async fn detect(transport: &UpstreamTransport, probe: Duration) -> Result<Self, Kind> {
        let mut discovering = pin!(discover(transport));
        match timeout(probe, discovering.as_mut()).await {
            Ok(outcome) => match judge(outcome.as_ref().map_err(Clone::clone)) {
                DiscoveryVerdict::Modern(capabilities) => {
                    Ok(Self::modern(capabilities, transport.headers()))
                }
                DiscoveryVerdict::Legacy => {
                    initialize(transport, Revision::NEWEST_LEGACY, ClientCapabilities::NONE).await
                }
                DiscoveryVerdict::Undecided(kind) => Err(kind),
            },
            // An upstream without a response is a legacy server, or is slow: a late response still
            // makes it modern.
            Err(_) => {
                let initializing =
                    initialize(transport, Revision::NEWEST_LEGACY, ClientCapabilities::NONE);
                let mut initializing = pin!(initializing);
                tokio::select! {
                    late = discovering.as_mut() => match modern_after_all(late, transport) {
                        Some(conversation) => Ok(conversation),
                        None => initializing.await,
                    },
                    opened = initializing.as_mut() => match opened {
                        Ok(conversation) => Ok(conversation),
                        Err(kind) => {
                            let late = timeout(probe, discovering).await;
                            late.ok().and_then(|late| modern_after_all(late, transport)).ok_or(kind)
                        }
                    },
                }
            }
        }
    }

    /// Receives `list_changed` notifications until their stream ends: the GET stream in the legacy
    /// era, whose messages go to the correlator, `subscriptions/listen` in the modern one. Cancel
    /// safe.
    ///
    /// # Errors
    /// When the upstream has no such stream ([`Kind::Error`] with code -32601 where it does not
    /// declare `listChanged`), or the stream breaks.
    pub(crate) async fn listen(
        &self,
        transport: &UpstreamTransport,
        id: &Id,
        mut on_event: impl FnMut(ListenEvent),
    ) -> Result<(), Kind> {
        let [tools, resources] = self.rest_notifications(transport);
        if self.capabilities.skills && resources {
            transport.correlator().set_resources_are_skills();
        }
        if !self.capabilities.list_changed && !tools && !resources {
            let message = "no listChanged".to_owned();
            return Err(Kind::Error { code: -32601, message, data: None });
        }
        // In the legacy era the messages of the stream go to the correlator, as those on the
        // streams of calls do.
        let is_legacy = self.revision.era() == Era::Legacy;
        let on_stream_event = |event: UpstreamEvent<'_>| match event {
            UpstreamEvent::Opened => on_event(ListenEvent::Opened),
            UpstreamEvent::Closed => on_event(ListenEvent::Closed),
            UpstreamEvent::Message(message) => {
                let is_change = message.get("method").is_some_and(|m| m.is(LIST_CHANGED));
                if is_change && !is_legacy {
                    on_event(ListenEvent::ListChanged);
                } else if !is_legacy {
                    note_rest(transport, message);
                }
            }
        };
        match self.revision.era() {
            Era::Legacy => self.read_get_stream(transport, on_stream_event).await,
            Era::Modern => {
                let mut params = String::new();
                write_members(&mut params, |params| {
                    params.object("notifications", |wanted| {
                        let prompts = self.capabilities.list_changed;
                        let lists = [
                            ("promptsListChanged", prompts),
                            ("toolsListChanged", tools),
                            ("resourcesListChanged", resources),
                        ];
                        for (list, _) in lists.into_iter().filter(|(_, is_wanted)| *is_wanted) {
                            wanted.display(list, true);
                        }
                    });
                });
                let params = params.as_str();
                let rpc = RpcRequest { method: LISTEN, params, ..RpcRequest::default() };
                let (headers, body) = self.encode(id, rpc);
                transport.subscribe(id, headers, body, on_stream_event).await
            }
        }
    }

    /// Whether changes of the upstream's tools and resources are needed and announced. Skills have
    /// no notification, but their files are resources, which may be listed.
    fn rest_notifications(&self, transport: &UpstreamTransport) -> [bool; 2] {
        let wants_passthrough = transport.correlator().wants_passthrough();
        let Some(passthrough) = &self.capabilities.passthrough else { return [false; 2] };
        [
            wants_passthrough && passthrough.tools == Some(true),
            (wants_passthrough || self.capabilities.skills) && passthrough.resources == Some(true),
        ]
    }

    /// Reads the GET stream of a legacy upstream, which carries the messages that belong to no
    /// request, until it ends.
    pub(crate) async fn read_get_stream(
        &self,
        transport: &UpstreamTransport,
        on_event: impl FnMut(UpstreamEvent<'_>),
    ) -> Result<(), Kind> {
        transport.listen(self.headers.clone(), on_event).await
    }

    /// Returns the headers and the body of a request.
    pub(crate) fn encode(&self, id: &Id, rpc: RpcRequest<'_>) -> (HeaderMap, String) {
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
            for (name, value) in rpc.param_headers {
                let name = HeaderName::from_bytes(name.as_bytes());
                if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                    headers.insert(name, value);
                }
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
            out.json(meta::CLIENT_INFO, CLIENT_INFO);
            if let Some(level) = rpc.log_level.filter(|_| self.capabilities.has_logging()) {
                out.text(meta::LOG_LEVEL, level.as_str());
            }
        }
        if let Some(forwarded) = rpc.forwarded {
            out.members(&forwarded.meta);
            forwarded.trace.write(out);
            if !forwarded.via.is_none() {
                out.text(VIA, forwarded.via.as_str());
            }
        }
        if rpc.progress {
            out.json(meta::PROGRESS_TOKEN, id.text());
        }
    }

    /// Whether client capabilities are declared at `initialize`, so that a client that accepts
    /// server requests needs a separate session.
    pub(crate) fn declares_at_open(&self) -> bool {
        !self.declares_per_call
    }

    /// Whether the log level is requested once for all calls of the session.
    pub(crate) fn has_log_level_of_session(&self) -> bool {
        !self.declares_per_call && self.capabilities.has_logging()
    }

    /// Returns the headers of `notifications/cancelled`; nothing in the modern era, where closing
    /// the response stream cancels the request.
    pub(crate) fn cancellation_headers(&self) -> Option<HeaderMap> {
        (self.revision.era() == Era::Legacy).then(|| self.headers.clone())
    }

    /// Returns the headers of the DELETE that ends the session; nothing without a session id.
    pub(crate) fn session_end(&self) -> Option<HeaderMap> {
        self.headers.contains_key(SESSION_ID).then(|| self.headers.clone())
    }

    /// Returns the method of a request without parameters to which every upstream responds.
    pub(crate) fn probe(&self) -> &'static str {
        match self.revision.era() {
            Era::Legacy => PING,
            Era::Modern => DISCOVER,
        }
    }

    /// Whether an empty `nextCursor` ends a list: many legacy servers end lists this way, but in
    /// the modern schema an empty cursor is valid.
    pub(crate) fn empty_cursor_ends(&self) -> bool {
        self.revision.era() == Era::Legacy
    }

    /// Whether the upstream may send JSON-RPC requests.
    pub(crate) fn accepts_requests(&self) -> bool {
        self.revision.era() == Era::Legacy
    }

    /// `headers` are the headers of the transport.
    fn modern(capabilities: Capabilities, mut headers: HeaderMap) -> Self {
        let revision = Revision::NEWEST_MODERN;
        headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(revision.as_str()));
        Self { revision, capabilities, headers, declares_per_call: true, standard_headers: true }
    }

    /// `headers` are the headers of the transport.
    fn legacy(
        revision: Revision,
        capabilities: Capabilities,
        session: Option<&HeaderValue>,
        mut headers: HeaderMap,
    ) -> Self {
        headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(revision.as_str()));
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
    /// Reads the result of a handshake.
    fn read(result: Json<'_>) -> Self {
        let declared = result.get("capabilities");
        let member = |name: &str| declared.and_then(|d| d.get(name));
        Self {
            prompts: member("prompts").is_some(),
            list_changed: member("prompts").and_then(|p| p.get("listChanged")?.as_bool())
                == Some(true),
            completions: member("completions").is_some(),
            skills: member("extensions").and_then(|e| e.get(EXTENSION)).is_some(),
            passthrough: Some(Arc::new(PassthroughCapabilities::read(declared))),
            behind: Via::read(result.get("_meta")),
        }
    }

    fn has_logging(&self) -> bool {
        self.passthrough.as_ref().is_some_and(|passthrough| passthrough.logging)
    }

    /// Drops the logging capability if log messages cannot be correlated with calls.
    pub(crate) fn drop_logging(&mut self) {
        if let Some(passthrough) = &mut self.passthrough {
            Arc::make_mut(passthrough).logging = false;
        }
    }

    /// Assumed capabilities of a modern upstream that `server/discover` did not show: the gateway
    /// tries these capabilities.
    const ASSUMED: Self = Self {
        prompts: true,
        list_changed: false,
        completions: true,
        skills: false,
        passthrough: None,
        behind: Via::NONE,
    };
}

/// Notes a notification of a stream about tools and resources.
fn note_rest(transport: &UpstreamTransport, message: Json<'_>) {
    let method = message.get("method").and_then(Json::as_str).unwrap_or_default();
    transport.correlator().note_rest(&method);
}

const NO_COMMON_REVISION: &str = "it supports no MCP revision that the gateway supports";

/// Sends `initialize` and `notifications/initialized` (MCP 2025-11-25, lifecycle).
async fn initialize(
    transport: &UpstreamTransport,
    offered: Revision,
    capabilities: ClientCapabilities,
) -> Result<Conversation, Kind> {
    // Not the id of `server/discover`, whose response may still come.
    let id = Id::number(INITIALIZE_ID);
    let body = jsonrpc::request(&id, INITIALIZE, META_SIZE, |params| {
        params.text("protocolVersion", offered.as_str());
        params.written("capabilities", |out| capabilities.write(out));
        params.json("clientInfo", CLIENT_INFO);
    });
    let (result, headers) = transport.request(&id, transport.headers(), body, None).await?;
    let result = result.json();
    let version = result.get("protocolVersion").and_then(Json::as_str);
    let revision = version.and_then(|v| Revision::parse(&v)).filter(|r| r.era() == Era::Legacy);
    let revision = revision.ok_or_else(|| Kind::Protocol(NO_COMMON_REVISION.to_owned()))?;
    let mut capabilities = Capabilities::read(result);
    // 2024-11-05 has no such capability: only a request shows whether completions are supported.
    capabilities.completions |= revision == Revision::V2024_11_05;
    let session = headers.get(SESSION_ID);
    let conversation = Conversation::legacy(revision, capabilities, session, transport.headers());
    let initialized = jsonrpc::notification(INITIALIZED, |_| {});
    transport.notify(conversation.headers.clone(), initialized).await?;
    Ok(conversation)
}

/// The approximate size of `_meta`, or of the parameters of `initialize`, in bytes.
const META_SIZE: usize = 320;

/// The `Implementation` that the gateway declares to upstreams.
const CLIENT_INFO: &str =
    concat!(r#"{"name":"promptgate","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

#[cfg(test)]
mod tests {
    use super::*;
    use domain::json::document::Document;

    fn document(text: &str) -> Document {
        Document::parse(text.as_bytes().to_vec(), 8).unwrap()
    }

    #[test]
    fn a_modern_request_repeats_its_body_in_headers() {
        let conversation = Conversation::modern(Capabilities::default(), HeaderMap::new());
        let params = r#""name":"é""#;
        let forwarded = ForwardedMeta { meta: "\"k\":1".to_owned(), ..ForwardedMeta::default() };
        let rpc = RpcRequest {
            method: "prompts/get",
            name: Some("é"),
            params,
            forwarded: Some(&forwarded),
            capabilities: ClientCapabilities::FORM,
            progress: true,
            param_headers: &[("mcp-param-region".to_owned(), "eu".to_owned())],
            log_level: Some(LogLevel::Info),
        };
        let (headers, body) = conversation.encode(&Id::number(7), rpc);
        assert_eq!(headers[MCP_METHOD], "prompts/get");
        assert_eq!(headers[MCP_NAME], "=?base64?w6k=?=");
        assert_eq!(headers["mcp-param-region"], "eu");
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
        assert!(meta.get(meta::LOG_LEVEL).is_none(), "it has not declared to log");
    }

    #[test]
    fn a_legacy_request_carries_the_session_alone() {
        let session = HeaderValue::from_static("s-1");
        let conversation = Conversation::legacy(
            Revision::V2025_06_18,
            Capabilities::default(),
            Some(&session),
            HeaderMap::new(),
        );
        let rpc = RpcRequest { method: "prompts/list", ..RpcRequest::default() };
        let (headers, body) = conversation.encode(&Id::number(1), rpc);
        assert_eq!(headers[SESSION_ID], "s-1");
        assert!(!headers.contains_key(MCP_METHOD));
        assert_eq!(body, r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{}}"#);
    }
}
