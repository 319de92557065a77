//! An upstream that is connected: what can be asked of it, whatever it is behind.

pub mod connect;
pub mod handshake;
pub mod list_pages;
pub mod dedicated;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::call::correlator::Asides;
use super::call::request::{Outgoing, Wanted, write_params};
use super::connection::handshake::{Conversation, RpcRequest};
use super::connection::list_pages::{Listed, Step, Walk};
use super::library::Snapshot;
use super::transport::Wire;
use crate::config::Settings;
use crate::domain::call::Along;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::{Json, write_str};
use crate::domain::jsonrpc::Id;
use crate::domain::method::Method;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;

/// The far end of one connection, shared by all calls.
pub enum Peer {
    Library(Snapshot),
    Remote(RemotePeer),
}

/// A prompt server that is spoken with.
pub struct RemotePeer {
    wire: Wire,
    conversation: Conversation,
    /// Ids of our own: what clients use never travels upstream.
    next_id: AtomicU64,
}

/// What is answered for an upstream without completions.
const NO_VALUES: &str = r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#;

impl Peer {
    /// Finds out how to speak over a wire; see [`Conversation::open`].
    pub async fn open(
        wire: Wire,
        revision: Option<Revision>,
        probe: Duration,
        capabilities: ClientCapabilities,
    ) -> Result<Self, Kind> {
        let conversation = Conversation::open(&wire, revision, probe, capabilities).await?;
        wire.mailbox().set_accepts_requests(conversation.accepts_requests());
        // The handshake has used up three ids.
        Ok(Self::Remote(RemotePeer { wire, conversation, next_id: AtomicU64::new(3) }))
    }

    /// Listens for notices until their stream ends; see [`Conversation::listen`]. A library's edits
    /// are noticed by its watch.
    pub async fn listen(&self, heard: impl FnMut(bool)) -> Result<(), Kind> {
        match self {
            Peer::Library(_) => std::future::pending().await,
            Peer::Remote(peer) => {
                let id = peer.next_id();
                peer.conversation.listen(&peer.wire, &id, heard).await
            }
        }
    }

    /// Holds the stream open on which a legacy upstream may ask beside its answers, until it ends.
    /// `opened` is called when it is open.
    pub async fn hear_questions(&self, mut opened: impl FnMut()) -> Result<(), Kind> {
        match self {
            Peer::Library(_) => std::future::pending().await,
            Peer::Remote(peer) => {
                let heard = |message: Option<Json<'_>>| {
                    if message.is_none() {
                        opened();
                    }
                };
                peer.conversation.hear(&peer.wire, heard).await
            }
        }
    }

    /// The whole list; `along` goes with each of its pages. An upstream that knows no prompts has none.
    pub async fn walk(&self, settings: &Settings, along: &Along) -> Result<Listed, Kind> {
        match self {
            Peer::Library(snapshot) => Ok(snapshot.listed.clone()),
            Peer::Remote(peer) if !peer.conversation.capabilities.prompts => Ok(Listed::default()),
            Peer::Remote(peer) => {
                match timeout(settings.walk_timeout, peer.walk(settings, along)).await {
                    Err(_) => Err(Kind::Timeout),
                    Ok(Err(Kind::Error { code: METHOD_NOT_FOUND, .. })) => Ok(Listed::default()),
                    Ok(result) => result,
                }
            }
        }
    }

    /// The raw result of a call; no values where the upstream has no completions. `asides` hears what
    /// is said before it.
    pub async fn perform(
        &self,
        outgoing: &Outgoing,
        asides: Option<Asides>,
    ) -> Result<Document, Kind> {
        match (self, &outgoing.wanted) {
            (Peer::Library(snapshot), Wanted::Get { name, arguments, .. }) => {
                snapshot.get(name, arguments.as_ref().map(Document::json))
            }
            (Peer::Library(snapshot), Wanted::Complete { prompt, argument, value, .. }) => {
                snapshot.complete(prompt, argument, value)
            }
            (Peer::Remote(peer), Wanted::Get { .. }) => peer.perform(outgoing, asides).await,
            (Peer::Remote(peer), Wanted::Complete { .. }) => {
                if !peer.conversation.capabilities.completions {
                    return no_values();
                }
                match peer.perform(outgoing, asides).await {
                    Err(Kind::Error { code: METHOD_NOT_FOUND, .. }) => no_values(),
                    answer => answer,
                }
            }
        }
    }

    /// Whether a client that can be asked needs a connection of its own.
    pub fn declares_at_open(&self) -> bool {
        matches!(self, Peer::Remote(peer) if peer.conversation.declares_at_open())
    }

    /// Whether two calls at once could mix up their questions.
    pub fn mixes_questions(&self) -> bool {
        match self {
            Peer::Library(_) => false,
            Peer::Remote(peer) => peer.wire.is_shared() || peer.wire.mailbox().is_ambiguous(),
        }
    }

    /// Whether all that it says comes on one stream, whichever call it belongs to.
    pub fn is_shared(&self) -> bool {
        matches!(self, Peer::Remote(peer) if peer.wire.is_shared())
    }

    /// Whether a call that nobody waits for any more might still ask, and nobody could tell.
    pub fn has_orphans(&self) -> bool {
        matches!(self, Peer::Remote(peer) if {
            let mailbox = peer.wire.mailbox();
            mailbox.has_orphans() && (self.mixes_questions() || mailbox.has_unassociated_requests())
        })
    }

    /// Waits until nothing of it is left, once it was dropped.
    pub fn ended(&self) -> Option<CancellationToken> {
        match self {
            Peer::Library(_) => None,
            Peer::Remote(peer) => peer.wire.ended(),
        }
    }

    /// What it is spoken with over, where it is spoken with.
    pub fn wire(&self) -> Option<&Wire> {
        match self {
            Peer::Library(_) => None,
            Peer::Remote(peer) => Some(&peer.wire),
        }
    }

    /// What was agreed, for a line in the log: revision and transport.
    pub fn describe(&self) -> (Option<Revision>, &'static str) {
        match self {
            Peer::Library(_) => (None, "library"),
            Peer::Remote(peer) => (Some(peer.conversation.revision), peer.wire.name()),
        }
    }

    /// Whether its list only changes by connecting again.
    pub fn is_snapshot(&self) -> bool {
        matches!(self, Peer::Library(_))
    }

    /// Waits until the connection has ended by itself.
    pub async fn gone(&self) {
        match self {
            Peer::Library(_) => std::future::pending().await,
            Peer::Remote(peer) => peer.wire.gone().await,
        }
    }

    /// Whether a question that is not answered in time speaks against the connection: a child that
    /// hangs will hang for ever, a network may recover.
    pub fn hangs_for_good(&self) -> bool {
        matches!(self, Peer::Remote(peer) if peer.wire.silence_is_an_answer())
    }

    /// Whether it says when its list changes.
    pub fn notifies(&self) -> bool {
        match self {
            Peer::Library(_) => true,
            Peer::Remote(peer) => peer.conversation.capabilities.list_changed,
        }
    }

    /// Says goodbye where a session would be left behind.
    pub async fn close(&self) {
        if let Peer::Remote(peer) = self
            && let Some(headers) = peer.conversation.farewell()
        {
            // Whether it is heard changes nothing: the upstream's own timeout does the rest.
            let _ = peer.wire.delete(headers).await;
        }
    }
}

impl RemotePeer {
    async fn walk(&self, settings: &Settings, along: &Along) -> Result<Listed, Kind> {
        let mut walk = Walk::new(settings);
        let mut params = String::new();
        loop {
            let method = Method::List.as_str();
            let rpc =
                RpcRequest { method, params: &params, along: Some(along), ..RpcRequest::default() };
            let page = timeout(settings.page_timeout, self.request(rpc, None)).await;
            match walk.page(page.map_err(|_| Kind::Timeout)??.json())? {
                Step::Done(listed) => return Ok(listed),
                Step::Next(cursor) => {
                    params = String::from("\"cursor\":");
                    write_str(&cursor, &mut params);
                    params.push(',');
                }
            }
        }
    }

    async fn perform(&self, outgoing: &Outgoing, asides: Option<Asides>) -> Result<Document, Kind> {
        // Parameters may be large: they are not kept beside the message that is made of them.
        let (id, headers, body) = {
            let mut params = String::with_capacity(outgoing.wanted.size());
            let (method, name) = write_params(&outgoing.wanted, &mut params);
            let rpc = RpcRequest {
                method: method.as_str(),
                name,
                params: &params,
                along: Some(&outgoing.along),
                capabilities: outgoing.capabilities,
                progress: outgoing.progress,
            };
            self.dress(rpc)
        };
        self.send(id, headers, body, asides).await
    }

    async fn request(&self, rpc: RpcRequest<'_>, asides: Option<Asides>) -> Result<Document, Kind> {
        let (id, headers, body) = self.dress(rpc);
        self.send(id, headers, body, asides).await
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
        asides: Option<Asides>,
    ) -> Result<Document, Kind> {
        let mut unanswered = Unanswered { peer: self, id: &id, waiting: true };
        let answer = self.wire.request(&id, headers, body, asides).await;
        unanswered.waiting = false;
        answer.map(|(result, _)| result)
    }

    fn next_id(&self) -> Id {
        Id::number(self.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

/// A request that is under way. Dropped before its answer, at a deadline or because its caller has
/// cancelled, it is cancelled upstream (2025-11-25, cancellation).
struct Unanswered<'a> {
    peer: &'a RemotePeer,
    id: &'a Id,
    waiting: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.waiting
            && let Some(headers) = self.peer.conversation.cancelling()
        {
            self.peer.wire.cancel(self.id, headers);
        }
    }
}

const METHOD_NOT_FOUND: i64 = -32601;

fn no_values() -> Result<Document, Kind> {
    let bytes = NO_VALUES.as_bytes().to_vec();
    Document::parse(bytes, 8).map_err(|e| Kind::Protocol(e.to_string()))
}
