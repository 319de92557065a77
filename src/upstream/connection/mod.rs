//! An upstream that is connected: what can be asked of it, whatever it is behind.

pub(crate) mod connect;
pub(crate) mod handshake;
pub(crate) mod list_pages;
pub(crate) mod dedicated;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::call::correlator::InterimSender;
use super::call::request::{RequestParams, UpstreamRequest, write_params};
use super::connection::handshake::{Conversation, RpcRequest};
use super::connection::list_pages::{Listed, PageStep, Pagination};
use super::library::Snapshot;
use super::transport::Transport;
use crate::config::Settings;
use crate::domain::call::ForwardedMeta;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::json::object::write_members;
use crate::domain::jsonrpc::Id;
use crate::domain::method::Method;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::policy::Pass;

/// The far end of one connection, shared by all calls.
pub enum Connection {
    Library(Snapshot),
    Remote(RemoteConnection),
}

/// A prompt server that is spoken with.
pub struct RemoteConnection {
    transport: Transport,
    conversation: Conversation,
    /// Ids of our own: what clients use never travels upstream.
    next_id: AtomicU64,
}

/// What is answered for an upstream without completions.
const NO_VALUES: &str = r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#;

impl Connection {
    /// Finds out how to speak over a wire; see [`Conversation::open`].
    pub async fn open(
        transport: Transport,
        revision: Option<Revision>,
        probe: Duration,
        capabilities: ClientCapabilities,
    ) -> Result<Self, Kind> {
        let conversation = Conversation::open(&transport, revision, probe, capabilities).await?;
        transport.correlator().set_accepts_requests(conversation.accepts_requests());
        // The handshake has used up three ids.
        Ok(Self::Remote(RemoteConnection { transport, conversation, next_id: AtomicU64::new(3) }))
    }

    /// Listens for notices until their stream ends; see [`Conversation::listen`]. A library's edits
    /// are noticed by its watch.
    pub async fn listen(&self, heard: impl FnMut(bool)) -> Result<(), Kind> {
        match self {
            Connection::Library(_) => std::future::pending().await,
            Connection::Remote(connection) => {
                let id = connection.next_id();
                connection.conversation.listen(&connection.transport, &id, heard).await
            }
        }
    }

    /// Holds the stream open on which a legacy upstream may ask beside its answers, until it ends.
    /// `opened` is called when it is open.
    pub async fn receive_server_requests(&self, mut opened: impl FnMut()) -> Result<(), Kind> {
        match self {
            Connection::Library(_) => std::future::pending().await,
            Connection::Remote(connection) => {
                let heard = |message: Option<Json<'_>>| {
                    if message.is_none() {
                        opened();
                    }
                };
                connection.conversation.hear(&connection.transport, heard).await
            }
        }
    }

    /// The whole list; `along` goes with each of its pages. An upstream that knows no prompts has none.
    pub async fn walk(
        &self,
        settings: &Settings,
        forwarded: &ForwardedMeta,
    ) -> Result<Listed, Kind> {
        match self {
            Connection::Library(snapshot) => Ok(snapshot.listed.clone()),
            Connection::Remote(connection) if !connection.conversation.capabilities.prompts => {
                Ok(Listed::default())
            }
            Connection::Remote(connection) => {
                match timeout(settings.walk_timeout, connection.walk(settings, forwarded)).await {
                    Err(_) => Err(Kind::Timeout),
                    Ok(Err(Kind::Error { code: METHOD_NOT_FOUND, .. })) => Ok(Listed::default()),
                    Ok(result) => result,
                }
            }
        }
    }

    /// The raw result of a call; no values where the upstream has no completions. `asides` hears what
    /// is said before it.
    pub(crate) async fn perform(
        &self,
        _pass: &Pass,
        request: &UpstreamRequest,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        self.send_call(request, interim).await
    }

    async fn send_call(
        &self,
        request: &UpstreamRequest,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        match (self, &request.params) {
            (Connection::Library(snapshot), RequestParams::Get { name, arguments, .. }) => {
                snapshot.get(name, arguments.as_ref().map(Document::json))
            }
            (
                Connection::Library(snapshot),
                RequestParams::Complete { prompt, argument, value, .. },
            ) => snapshot.complete(prompt, argument, value),
            (Connection::Remote(connection), RequestParams::Get { .. }) => {
                connection.perform(request, interim).await
            }
            (Connection::Remote(connection), RequestParams::Complete { .. }) => {
                if !connection.conversation.capabilities.completions {
                    return no_values();
                }
                match connection.perform(request, interim).await {
                    Err(Kind::Error { code: METHOD_NOT_FOUND, .. }) => no_values(),
                    answer => answer,
                }
            }
        }
    }

    /// Whether a client that can be asked needs a connection of its own.
    pub fn declares_at_open(&self) -> bool {
        matches!(self, Connection::Remote(connection) if connection.conversation.declares_at_open())
    }

    /// Whether two calls at once could mix up their questions.
    pub fn needs_exclusive_calls(&self) -> bool {
        match self {
            Connection::Library(_) => false,
            Connection::Remote(connection) => {
                connection.transport.is_shared() || connection.transport.correlator().is_ambiguous()
            }
        }
    }

    /// Whether all that it says comes on one stream, whichever call it belongs to.
    pub fn is_shared(&self) -> bool {
        matches!(self, Connection::Remote(connection) if connection.transport.is_shared())
    }

    /// Whether a call that nobody waits for any more might still ask, and nobody could tell.
    pub fn has_abandoned_calls(&self) -> bool {
        matches!(self, Connection::Remote(connection) if {
            let correlator = connection.transport.correlator();
            correlator.has_abandoned_calls() && (self.needs_exclusive_calls() || correlator.has_unassociated_requests())
        })
    }

    /// Waits until nothing of it is left, once it was dropped.
    pub fn ended(&self) -> Option<CancellationToken> {
        match self {
            Connection::Library(_) => None,
            Connection::Remote(connection) => connection.transport.ended(),
        }
    }

    /// What it is spoken with over, where it is spoken with.
    pub fn transport(&self) -> Option<&Transport> {
        match self {
            Connection::Library(_) => None,
            Connection::Remote(connection) => Some(&connection.transport),
        }
    }

    /// What was agreed, for a line in the log: revision and transport.
    pub fn describe(&self) -> (Option<Revision>, &'static str) {
        match self {
            Connection::Library(_) => (None, "library"),
            Connection::Remote(connection) => {
                (Some(connection.conversation.revision), connection.transport.name())
            }
        }
    }

    /// Whether its list only changes by connecting again.
    pub fn is_snapshot(&self) -> bool {
        matches!(self, Connection::Library(_))
    }

    /// Waits until the connection has ended by itself.
    pub async fn gone(&self) {
        match self {
            Connection::Library(_) => std::future::pending().await,
            Connection::Remote(connection) => connection.transport.gone().await,
        }
    }

    /// Whether a question that is not answered in time speaks against the connection: a child that
    /// hangs will hang for ever, a network may recover.
    pub fn is_stuck(&self) -> bool {
        matches!(self, Connection::Remote(connection) if connection.transport.times_out_unknown_methods())
    }

    /// Whether it says when its list changes.
    pub fn notifies(&self) -> bool {
        match self {
            Connection::Library(_) => true,
            Connection::Remote(connection) => connection.conversation.capabilities.list_changed,
        }
    }

    /// Says goodbye where a session would be left behind.
    pub async fn close(&self) {
        if let Connection::Remote(connection) = self
            && let Some(headers) = connection.conversation.farewell()
        {
            // Whether it is heard changes nothing: the upstream's own timeout does the rest.
            let _ = connection.transport.delete(headers).await;
        }
    }
}

impl RemoteConnection {
    async fn walk(&self, settings: &Settings, forwarded: &ForwardedMeta) -> Result<Listed, Kind> {
        let mut walk = Pagination::new(settings);
        let mut params = String::new();
        loop {
            let method = Method::List.as_str();
            let rpc = RpcRequest {
                method,
                params: &params,
                forwarded: Some(forwarded),
                ..RpcRequest::default()
            };
            let page = timeout(settings.page_timeout, self.request(rpc, None)).await;
            match walk.page(page.map_err(|_| Kind::Timeout)??.json())? {
                PageStep::Done(listed) => return Ok(listed),
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
        // Parameters may be large: they are not kept beside the message that is made of them.
        let (id, headers, body) = {
            let mut params = String::with_capacity(request.params.size());
            write_members(&mut params, |params| write_params(&request.params, params));
            let rpc = RpcRequest {
                method: request.params.method().as_str(),
                name: request.params.mcp_name(),
                params: &params,
                forwarded: Some(&request.forwarded),
                capabilities: request.capabilities,
                progress: request.progress,
            };
            self.dress(rpc)
        };
        self.send(id, headers, body, interim).await
    }

    async fn request(
        &self,
        rpc: RpcRequest<'_>,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        let (id, headers, body) = self.dress(rpc);
        self.send(id, headers, body, interim).await
    }

    fn dress(&self, rpc: RpcRequest<'_>) -> (Id, HeaderMap, String) {
        let id = self.next_id();
        let (headers, body) = self.conversation.dress(&id, rpc);
        (id, headers, body)
    }

    async fn send(
        &self,
        id: Id,
        headers: HeaderMap,
        body: String,
        interim: Option<InterimSender>,
    ) -> Result<Document, Kind> {
        let mut unanswered = Unanswered { connection: self, id: &id, waiting: true };
        let answer = self.transport.request(&id, headers, body, interim).await;
        unanswered.waiting = false;
        answer.map(|(result, _)| result)
    }

    fn next_id(&self) -> Id {
        Id::number(self.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

/// This program as the client of a gateway (`promptgate list`, `promptgate get`). The only connection whose
/// calls need no proof: the gateway at its other end has a gate of its own.
pub(crate) struct GatewayClient(Connection);

impl GatewayClient {
    /// Opens a connection to a gateway; see [`Conversation::open`].
    ///
    /// # Errors
    /// When the gateway cannot be reached, or refuses the handshake.
    pub(crate) async fn open(transport: Transport, probe: Duration) -> Result<Self, Kind> {
        let opened = Connection::open(transport, None, probe, ClientCapabilities::NONE).await;
        opened.map(Self)
    }

    /// The whole list, as [`Connection::walk`].
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn list(
        &self,
        settings: &Settings,
        forwarded: &ForwardedMeta,
    ) -> Result<Listed, Kind> {
        self.0.walk(settings, forwarded).await
    }

    /// Sends one call.
    ///
    /// # Errors
    /// The gateway's error, or why it could not be asked.
    pub(crate) async fn call(&self, request: &UpstreamRequest) -> Result<Document, Kind> {
        self.0.send_call(request, None).await
    }
}

/// A request that is under way. Dropped before its answer, at a deadline or because its caller has
/// cancelled, it is cancelled upstream (2025-11-25, cancellation).
struct Unanswered<'a> {
    connection: &'a RemoteConnection,
    id: &'a Id,
    waiting: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.waiting
            && let Some(headers) = self.connection.conversation.cancelling()
        {
            self.connection.transport.cancel(self.id, headers);
        }
    }
}

const METHOD_NOT_FOUND: i64 = -32601;

fn no_values() -> Result<Document, Kind> {
    let bytes = NO_VALUES.as_bytes().to_vec();
    Document::parse(bytes, 8).map_err(|e| Kind::Protocol(e.to_string()))
}
