//! An open connection to an upstream, over any transport.

pub mod connect;
pub mod handshake;
pub(crate) mod list_pages;
pub mod dedicated;
pub mod examiner;
mod known_tools;
mod library_watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::call::correlator::InterimSender;
use super::call::request::{RequestParams, UpstreamRequest, write_params};
use super::connection::handshake::{Conversation, ListenEvent, RpcRequest};
use super::connection::list_pages::{PageStep, Pagination, WalkKind};
use super::guard::large_texts::work_on;
use super::passthrough_signals::KnownTools;
use super::transport::{UpstreamEvent, UpstreamTransport};
use base::platform::heap::boxed;
use config::Settings;
use domain::calls::call::ForwardedMeta;
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;
use domain::calls::passthrough::PassthroughCapabilities;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::document::Document;
use domain::json::jsonrpc::Id;
use domain::json::object::write_members;
use domain::protocol::log_level::LogLevel;
use domain::protocol::method::{Method, SET_LOG_LEVEL};
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ClientCapabilities;
use domain::protocol::via::Via;
use library::LibrarySnapshot;
use library::prompt_list::{MalformedPrompt, PromptList};
use policy::Pass;

/// A connection to an upstream, shared by calls.
pub enum Connection {
    /// The last read prompts of a library or of a prompt store.
    Library(Arc<LibrarySnapshot>),
    Remote(Box<RemoteConnection>),
}

/// The negotiated properties that calls need before they have a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Negotiated {
    /// `None` for a library.
    pub revision: Option<Revision>,
    /// See [`Connection::is_shared`].
    pub is_shared: bool,
    /// See [`Connection::declares_at_open`].
    pub declares_at_open: bool,
    /// See [`Connection::notifies`].
    pub notifies: bool,
    /// See [`Connection::has_skills`].
    pub has_skills: bool,
}

/// A connection to an MCP server.
pub struct RemoteConnection {
    transport: UpstreamTransport,
    conversation: Conversation,
    /// Id of the next request. The gateway numbers its requests itself; ids of clients are never
    /// sent upstream.
    next_id: AtomicU64,
    /// The number of the least severe level of log messages that the session has requested, for
    /// upstreams with one level for each session.
    log_level: AtomicU8,
}

/// `CompleteResult` for an upstream without the capability `completions`.
const NO_VALUES: &str = r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#;

impl Connection {
    /// Performs the handshake over a transport; see [`Conversation::open`].
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn open(
        transport: UpstreamTransport,
        revision: Option<Revision>,
        probe: Duration,
        capabilities: ClientCapabilities,
    ) -> Result<Self, Kind> {
        let mut conversation =
            Conversation::open(&transport, revision, probe, capabilities).await?;
        if transport.is_shared() {
            conversation.capabilities.drop_logging();
        }
        transport.correlator().set_accepts_requests(conversation.accepts_requests());
        if let UpstreamTransport::Stdio(child) = &transport {
            child.put_in_service();
        }
        // The handshake has used the ids 0 to 2.
        let next_id = AtomicU64::new(3);
        let log_level = AtomicU8::new(u8::MAX);
        let connection = RemoteConnection { transport, conversation, next_id, log_level };
        Ok(Self::Remote(Box::new(connection)))
    }

    /// Receives `list_changed` notifications until their stream ends; see [`Conversation::listen`].
    /// Never returns for a library, whose watch reports edits. Cancel safe.
    ///
    /// # Errors
    /// See [`Conversation::listen`].
    pub async fn listen(&self, on_event: impl FnMut(ListenEvent)) -> Result<(), Kind> {
        match self {
            Connection::Library(_) => std::future::pending().await,
            Connection::Remote(connection) => {
                let id = connection.next_id();
                connection.conversation.listen(&connection.transport, &id, on_event).await
            }
        }
    }

    /// Reads the GET stream on which a legacy upstream may send server requests outside of the
    /// streams of calls, until it ends. Calls `on_open` when the stream is open. Cancel safe.
    ///
    /// # Errors
    /// When the upstream has no such stream, or the stream breaks.
    pub async fn receive_server_requests(&self, mut on_open: impl FnMut()) -> Result<(), Kind> {
        match self {
            Connection::Library(_) => std::future::pending().await,
            Connection::Remote(connection) => {
                let on_event = |event: UpstreamEvent<'_>| {
                    if let UpstreamEvent::Opened = event {
                        on_open();
                    }
                };
                connection.conversation.read_get_stream(&connection.transport, on_event).await
            }
        }
    }

    /// Reads the whole list, with the skills, within `walk_timeout`. `forwarded` is sent with the
    /// request of each page; omits elements that came back to a gateway of its `via`. The list of
    /// an upstream without prompts is empty.
    ///
    /// # Errors
    /// When a page cannot be read within `page_timeout`, or a limit of the walk is exceeded.
    pub async fn walk(
        &self,
        settings: &Settings,
        forwarded: &ForwardedMeta,
    ) -> Result<PromptList, Kind> {
        match self {
            Connection::Library(snapshot) => Ok(snapshot.listed.clone()),
            Connection::Remote(connection) => {
                let walking = connection.walk(settings, forwarded);
                timeout(settings.walk_timeout, walking).await.unwrap_or(Err(Kind::Timeout))
            }
        }
    }

    /// Lists the upstream's tools within `walk_timeout`; empty without tools.
    pub(crate) async fn known_tools(&self, settings: &Settings) -> Result<KnownTools, Kind> {
        match self {
            Connection::Remote(connection)
                if self
                    .passthrough_capabilities()
                    .is_none_or(|passthrough| passthrough.tools.is_some()) =>
            {
                let listing = known_tools::known_tools(connection, settings);
                timeout(settings.walk_timeout, listing).await.unwrap_or(Err(Kind::Timeout))
            }
            Connection::Library(_) | Connection::Remote(_) => Ok(KnownTools::new()),
        }
    }

    /// Sends the request of an authorized call and returns the upstream's unchanged result. Without
    /// the capability `completions` a completion has no values. Messages before the response go to
    /// `interim`. Dropping the future before the response cancels the request upstream.
    ///
    /// # Errors
    /// See [`UpstreamTransport::request`]; for a library, when the prompt is unknown or cannot be
    /// rendered. [`Kind::SessionLost`] if the connection is closed: nothing was sent.
    pub async fn perform(
        &self,
        pass: &Pass,
        request: &UpstreamRequest,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        if self.transport().is_some_and(UpstreamTransport::is_closed) {
            return Err(Kind::SessionLost);
        }
        self.send_call(pass.holder(), request, interim).await
    }

    async fn send_call(
        &self,
        holder: &Holder,
        request: &UpstreamRequest,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        match (self, &request.params) {
            (Connection::Library(snapshot), RequestParams::Get { name, arguments, source, .. }) => {
                let bytes = snapshot.size_of_get(name, arguments.as_ref(), source.as_deref());
                let name = name.clone();
                let arguments = arguments.clone();
                let source = source.clone();
                let snapshot = snapshot.clone();
                let render = move || {
                    let arguments = arguments.as_ref().map(Document::json);
                    snapshot.get(&name, arguments, source.as_deref())
                };
                work_on(bytes, holder, render).await
            }
            (
                Connection::Library(snapshot),
                RequestParams::Complete { prompt, argument, value, .. },
            ) => snapshot.complete(prompt, argument, value),
            (Connection::Library(snapshot), RequestParams::ReadFile { uri, .. }) => {
                snapshot.read_file(uri).await
            }
            (
                Connection::Library(_),
                RequestParams::ReadLink { .. } | RequestParams::Passthrough { .. },
            ) => {
                let message = "a library has prompts only".to_owned();
                Err(Kind::Error { code: METHOD_NOT_FOUND, message, data: None })
            }
            (
                Connection::Remote(connection),
                RequestParams::Get { .. }
                | RequestParams::ReadFile { .. }
                | RequestParams::ReadLink { .. }
                | RequestParams::Passthrough { .. },
            ) => connection.perform(request, interim).await,
            (Connection::Remote(connection), RequestParams::Complete { .. }) => {
                if !connection.conversation.capabilities.completions {
                    return no_values();
                }
                match connection.perform(request, interim).await {
                    Err(Kind::Error { code: METHOD_NOT_FOUND, .. }) => no_values(),
                    response => response,
                }
            }
        }
    }

    /// Whether client capabilities are declared once per session, at `initialize`: then a client
    /// that accepts server requests needs a dedicated connection.
    pub fn declares_at_open(&self) -> bool {
        matches!(self, Connection::Remote(connection) if connection.conversation.declares_at_open())
    }

    /// Whether server requests of two concurrent calls could not be distinguished, so calls with
    /// server requests must run one at a time.
    pub fn needs_exclusive_calls(&self) -> bool {
        match self {
            Connection::Library(_) => false,
            Connection::Remote(connection) => {
                connection.transport.is_shared() || connection.transport.correlator().is_ambiguous()
            }
        }
    }

    /// Whether all messages come on one stream, whichever call they belong to.
    pub fn is_shared(&self) -> bool {
        matches!(self, Connection::Remote(connection) if connection.transport.is_shared())
    }

    /// Whether an abandoned call could still send a server request that would be correlated with
    /// another call.
    pub fn has_abandoned_calls(&self) -> bool {
        matches!(self, Connection::Remote(connection) if {
            let correlator = connection.transport.correlator();
            correlator.has_abandoned_calls() && (self.needs_exclusive_calls() || correlator.has_unassociated_requests())
        })
    }

    /// Returns a token that is cancelled when the child process and its descendants have ended;
    /// nothing without a child process.
    pub fn terminated(&self) -> Option<CancellationToken> {
        match self {
            Connection::Library(_) => None,
            Connection::Remote(connection) => connection.transport.terminated(),
        }
    }

    /// Returns the snapshot of a library; nothing for a server.
    pub(super) fn library(&self) -> Option<&LibrarySnapshot> {
        match self {
            Self::Library(library) => Some(library),
            Self::Remote(_) => None,
        }
    }

    /// Returns the transport; nothing for a library.
    pub fn transport(&self) -> Option<&UpstreamTransport> {
        match self {
            Connection::Library(_) => None,
            Connection::Remote(connection) => Some(&connection.transport),
        }
    }

    /// Returns the negotiated revision (nothing for a library) and the name of the transport.
    pub fn describe(&self) -> (Option<Revision>, &'static str) {
        match self {
            Connection::Library(snapshot) => (None, snapshot.transport),
            Connection::Remote(connection) => {
                (Some(connection.conversation.revision), connection.transport.name())
            }
        }
    }

    pub fn negotiated(&self) -> Negotiated {
        Negotiated {
            revision: self.describe().0,
            is_shared: self.is_shared(),
            declares_at_open: self.declares_at_open(),
            notifies: self.notifies(),
            has_skills: self.has_skills(),
        }
    }

    /// Returns the capabilities in addition to prompts; `None` for a library, and if the handshake
    /// did not show such capabilities.
    pub fn passthrough_capabilities(&self) -> Option<&Arc<PassthroughCapabilities>> {
        match self {
            Connection::Library(_) => None,
            Connection::Remote(connection) => {
                connection.conversation.capabilities.passthrough.as_ref()
            }
        }
    }

    /// Returns the gateways behind the upstream, as its handshake showed them; nothing for a
    /// library.
    pub fn behind(&self) -> Option<&Via> {
        match self {
            Connection::Library(_) => None,
            Connection::Remote(connection) => Some(&connection.conversation.capabilities.behind),
        }
    }

    /// Whether the list of this connection never changes: another list needs another connection.
    pub fn is_snapshot(&self) -> bool {
        matches!(self, Connection::Library(_))
    }

    /// Whether a change of the list is noticed at once: a folder is watched, a prompt store is not.
    pub(super) fn is_watched(&self) -> bool {
        matches!(self, Connection::Library(snapshot) if snapshot.is_watched())
    }

    /// Waits until the connection is closed. Cancel safe.
    pub async fn closed(&self) {
        match self {
            Connection::Library(_) => std::future::pending().await,
            Connection::Remote(connection) => connection.transport.closed().await,
        }
    }

    /// Whether a request that times out means that the connection is unusable: a child process that
    /// hangs does not recover, a network may.
    pub fn breaks_on_timeout(&self) -> bool {
        matches!(self, Connection::Remote(connection) if connection.transport.times_out_unknown_methods())
    }

    /// Whether the upstream still serves the connection: it answers a ping, or `server/discover` in
    /// the modern era, within `patience`, even with an error for an unknown method. Over a network
    /// a missing response means nothing.
    pub async fn is_served(&self, patience: Duration) -> bool {
        match self.ping(patience).await {
            Ok(()) | Err(Kind::Error { code: METHOD_NOT_FOUND, .. }) => true,
            Err(kind) => !self.is_suspect_after(&kind),
        }
    }

    /// Sends a ping, or `server/discover` in the modern era.
    ///
    /// # Errors
    /// The upstream does not answer within `patience`, or with an error.
    pub async fn ping(&self, patience: Duration) -> Result<(), Kind> {
        let Connection::Remote(connection) = self else { return Ok(()) };
        let method = connection.conversation.probe();
        let asking = connection.request(RpcRequest { method, ..RpcRequest::default() }, None);
        timeout(patience, asking).await.unwrap_or(Err(Kind::Timeout)).map(drop)
    }

    /// Whether requests were outstanding when the connection was closed.
    pub(crate) fn was_in_use(&self) -> bool {
        matches!(self, Connection::Remote(connection) if connection.transport.correlator().was_in_use())
    }

    /// Whether the connection may have caused a failure. A child process has no session, and a
    /// child process that responds does not hang.
    pub(crate) fn is_suspect_after(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Timeout => self.breaks_on_timeout(),
            Kind::Error { .. } | Kind::Protocol(_) | Kind::NoMessage { .. } => {
                !self.breaks_on_timeout() && kind.is_of_connection()
            }
            kind => kind.is_of_connection(),
        }
    }

    /// Whether the upstream sends `list_changed`.
    pub fn notifies(&self) -> bool {
        match self {
            Connection::Library(snapshot) => snapshot.is_watched(),
            Connection::Remote(connection) => connection.conversation.capabilities.list_changed,
        }
    }

    /// Whether the server has the extension for skills. A library has no need of it.
    pub fn has_skills(&self) -> bool {
        match self {
            Connection::Library(_) => false,
            Connection::Remote(connection) => connection.conversation.capabilities.skills,
        }
    }

    /// Ends the session at the upstream, if one is open. An error is ignored: the upstream's
    /// session timeout ends the session.
    pub async fn close(&self) {
        if let Connection::Remote(connection) = self
            && let Some(headers) = connection.conversation.session_end()
        {
            let _ = connection.transport.delete(headers).await;
        }
    }
}

impl RemoteConnection {
    /// Reads the prompts and then the skills that the upstream declares. If only the skills cannot
    /// be listed, the prompts are kept, unless the connection itself is at fault.
    async fn walk(
        &self,
        settings: &Settings,
        forwarded: &ForwardedMeta,
    ) -> Result<PromptList, Kind> {
        let declared = &self.conversation.capabilities;
        let mut listed = PromptList::default();
        if declared.prompts {
            match self.walk_list(WalkKind::Prompts, settings, forwarded).await {
                Err(Kind::Error { code: METHOD_NOT_FOUND, .. }) => {}
                prompts => listed = prompts?,
            }
        }
        if declared.skills {
            match self.walk_list(WalkKind::Skills, settings, forwarded).await {
                Ok(skills) => listed.add_skills(skills),
                Err(kind @ (Kind::Error { .. } | Kind::Protocol(_) | Kind::PaginationLimit(_))) => {
                    let reason = format!("its skills cannot be listed: {}", kind.diagnosis());
                    let name = Method::ListSkills.as_str().to_owned();
                    listed.malformed.push(MalformedPrompt { name, reason, is_served: false });
                    listed.skills_failure = Some(kind);
                }
                Err(kind) => return Err(kind),
            }
        }
        Ok(listed)
    }

    async fn walk_list(
        &self,
        kind: WalkKind,
        settings: &Settings,
        forwarded: &ForwardedMeta,
    ) -> Result<PromptList, Kind> {
        let repairs = self.transport.correlator().repairs();
        let empty_ends = self.conversation.empty_cursor_ends();
        let behind = &self.conversation.capabilities.behind;
        let walk = Pagination::new(kind, settings, repairs, empty_ends);
        let mut walk = walk.through(behind, &forwarded.via);
        let mut params = String::new();
        loop {
            let method = kind.method().as_str();
            let rpc = RpcRequest {
                method,
                params: &params,
                forwarded: Some(forwarded),
                ..RpcRequest::default()
            };
            let page = timeout(settings.page_timeout, self.request(rpc, None)).await;
            match walk.page(&page.map_err(|_| Kind::Timeout)??)? {
                PageStep::Done(listed) => return Ok(*listed),
                PageStep::Next(cursor) => {
                    params.clear();
                    write_members(&mut params, |params| {
                        params.text("cursor", &cursor);
                    });
                }
            }
        }
    }

    async fn perform(
        &self,
        request: &UpstreamRequest,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        if let Some(level) = request.log_level {
            boxed(self.lower_log_level(level)).await;
        }
        // Parameters may be large: they are dropped before the wait, and only the message is kept.
        let (id, headers, body) = {
            let mut params = String::with_capacity(request.params.size());
            write_members(&mut params, |params| write_params(&request.params, params));
            let rpc = RpcRequest {
                method: request.params.wire_method(),
                name: request.params.mcp_name(),
                param_headers: request.params.headers(),
                params: &params,
                forwarded: Some(&request.forwarded),
                capabilities: request.capabilities,
                progress: request.progress,
                log_level: request.log_level,
            };
            self.encode(rpc)
        };
        self.send(id, headers, body, interim).await
    }

    /// Requests log messages from this level on, if the session has one level for all calls and has
    /// requested less so far (MCP 2025-11-25, logging). A failure only loses messages.
    async fn lower_log_level(&self, level: LogLevel) {
        if !self.conversation.has_log_level_of_session()
            || self.log_level.fetch_min(level as u8, Ordering::Relaxed) <= level as u8
        {
            return;
        }
        let mut params = String::new();
        write_members(&mut params, |params| {
            params.text("level", level.as_str());
        });
        let rpc = RpcRequest { method: SET_LOG_LEVEL, params: &params, ..RpcRequest::default() };
        let _ = timeout(LOG_LEVEL_TIMEOUT, self.request(rpc, None)).await;
    }

    async fn request(
        &self,
        rpc: RpcRequest<'_>,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        let (id, headers, body) = self.encode(rpc);
        self.send(id, headers, body, interim).await
    }

    fn encode(&self, rpc: RpcRequest<'_>) -> (Id, HeaderMap, String) {
        let id = self.next_id();
        let (headers, body) = self.conversation.encode(&id, rpc);
        (id, headers, body)
    }

    async fn send(
        &self,
        id: Id,
        headers: HeaderMap,
        body: String,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        let mut guard = RequestInFlight { connection: self, id: &id, is_outstanding: true };
        let response = self.transport.request(&id, headers, body, interim).await;
        guard.is_outstanding = false;
        response.map(|(result, _)| result)
    }

    fn next_id(&self) -> Id {
        Id::number(self.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

/// This program as the client of a gateway (`promptgate list`, `promptgate get`). Calls on this
/// connection need no proof: the remote gateway authorizes them.
pub struct GatewayClient(Connection);

impl GatewayClient {
    /// Opens a connection to a gateway; see [`Conversation::open`].
    ///
    /// # Errors
    /// When the gateway cannot be reached, or refuses the handshake.
    pub async fn open(transport: UpstreamTransport, probe: Duration) -> Result<Self, Kind> {
        let opened = Connection::open(transport, None, probe, ClientCapabilities::NONE).await;
        opened.map(Self)
    }

    /// The whole list, as [`Connection::walk`].
    ///
    /// # Errors
    /// See [`Connection::walk`].
    pub async fn list(
        &self,
        settings: &Settings,
        forwarded: &ForwardedMeta,
    ) -> Result<PromptList, Kind> {
        self.0.walk(settings, forwarded).await
    }

    /// Whether the endpoint supports prompts, even if it currently lists no prompt.
    pub fn has_prompts(&self) -> bool {
        matches!(&self.0, Connection::Remote(connection) if connection.conversation.capabilities.prompts)
    }

    /// Sends one call.
    ///
    /// # Errors
    /// The gateway's error, or why the gateway could not be called.
    pub async fn call(&self, request: &UpstreamRequest) -> Result<Document, Kind> {
        self.0.send_call(&Holder::Caller(Caller::anonymous()), request, None).await
    }
}

/// Guard of a request in flight. Dropped before the response, at a deadline or because the caller
/// has cancelled, it cancels the request upstream (MCP 2025-11-25, cancellation).
struct RequestInFlight<'a> {
    connection: &'a RemoteConnection,
    id: &'a Id,
    is_outstanding: bool,
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        if self.is_outstanding
            && let Some(headers) = self.connection.conversation.cancellation_headers()
        {
            self.connection.transport.cancel(self.id, headers);
        }
    }
}

const METHOD_NOT_FOUND: i64 = -32601;

/// Longest time that a call waits for its log level to be set.
const LOG_LEVEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns a completion result without values.
fn no_values() -> Result<Document, Kind> {
    let bytes = NO_VALUES.as_bytes().to_vec();
    Document::parse(bytes, 8).map_err(|e| Kind::Protocol(e.to_string()))
}
