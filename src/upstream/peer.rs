//! An upstream that is connected: what can be asked of it, whatever it is behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::handshake::{Ask, Conversation};
use super::library::Snapshot;
use super::walk::{Listed, Step, Walk};
use super::wire::Wire;
use crate::config::Settings;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::{Json, write_str};
use crate::domain::jsonrpc::Id;
use crate::domain::method::Method;
use crate::domain::revision::Revision;

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

/// A completion that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// Raw name of the prompt.
    pub prompt: &'a str,
    pub argument: &'a str,
    /// What was typed so far.
    pub value: &'a str,
    /// The `context` object of the request.
    pub context: Option<Json<'a>>,
}

/// What is answered for an upstream without completions.
const NO_VALUES: &str = r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#;

impl Peer {
    /// Finds out how to speak over a wire. `probe` is the time that the first question may take.
    pub async fn open(
        wire: Wire,
        revision: Option<Revision>,
        probe: Duration,
    ) -> Result<Self, Kind> {
        let conversation = Conversation::open(&wire, revision, probe).await?;
        wire.set_answers(conversation.is_asked());
        // The handshake has used up two ids.
        Ok(Self::Remote(RemotePeer { wire, conversation, next_id: AtomicU64::new(2) }))
    }

    /// Listens for notices until their stream ends; see [`Conversation::listen`]. A library's edits
    /// are noticed by its watch.
    pub async fn listen(&self, heard: impl FnMut()) -> Result<(), Kind> {
        match self {
            Peer::Library(_) => std::future::pending().await,
            Peer::Remote(peer) => {
                let id = peer.next_id();
                peer.conversation.listen(&peer.wire, &id, heard).await
            }
        }
    }

    /// The whole list. An upstream that knows no prompts has none.
    pub async fn walk(&self, settings: &Settings) -> Result<Listed, Kind> {
        match self {
            Peer::Library(snapshot) => Ok(snapshot.listed.clone()),
            Peer::Remote(peer) if !peer.conversation.capabilities.prompts => Ok(Listed::default()),
            Peer::Remote(peer) => match timeout(settings.walk_timeout, peer.walk(settings)).await {
                Err(_) => Err(Kind::Timeout),
                Ok(Err(Kind::Error { code: METHOD_NOT_FOUND, .. })) => Ok(Listed::default()),
                Ok(result) => result,
            },
        }
    }

    /// The raw result of a get. `arguments` is an object of strings.
    pub async fn get(&self, name: &str, arguments: Option<Json<'_>>) -> Result<Document, Kind> {
        match self {
            Peer::Library(snapshot) => snapshot.get(name, arguments),
            Peer::Remote(peer) => {
                let mut params = String::from("\"name\":");
                write_str(name, &mut params);
                params.push(',');
                write_member("arguments", arguments, &mut params);
                let ask = Ask { method: Method::Get.as_str(), name: Some(name), params: &params };
                peer.request(ask).await
            }
        }
    }

    /// The raw result of a completion; no values where the upstream has no completions.
    pub async fn complete(&self, ask: Completion<'_>) -> Result<Document, Kind> {
        match self {
            Peer::Library(snapshot) => snapshot.complete(ask.prompt, ask.argument, ask.value),
            Peer::Remote(peer) if !peer.conversation.capabilities.completions => no_values(),
            Peer::Remote(peer) => {
                let mut params = String::from("\"ref\":{\"type\":\"ref/prompt\",\"name\":");
                write_str(ask.prompt, &mut params);
                params.push_str("},\"argument\":{\"name\":");
                write_str(ask.argument, &mut params);
                params.push_str(",\"value\":");
                write_str(ask.value, &mut params);
                params.push_str("},");
                write_member("context", ask.context, &mut params);
                let method = Method::Complete.as_str();
                match peer.request(Ask { method, name: None, params: &params }).await {
                    Err(Kind::Error { code: METHOD_NOT_FOUND, .. }) => no_values(),
                    answer => answer,
                }
            }
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
    async fn walk(&self, settings: &Settings) -> Result<Listed, Kind> {
        let mut walk = Walk::new(settings);
        let mut params = String::new();
        loop {
            let ask = Ask { method: Method::List.as_str(), name: None, params: &params };
            let page = timeout(settings.page_timeout, self.request(ask)).await;
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

    async fn request(&self, ask: Ask<'_>) -> Result<Document, Kind> {
        let id = self.next_id();
        let (headers, body) = self.conversation.dress(&id, ask);
        let mut unanswered = Unanswered { peer: self, id: &id, waiting: true };
        let answer = self.wire.request(&id, headers, body).await;
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

/// Appends `"name":value,` for a value that is there.
fn write_member(name: &str, value: Option<Json<'_>>, out: &mut String) {
    if let Some(value) = value {
        write_str(name, out);
        out.push(':');
        value.write_without_nulls(out);
        out.push(',');
    }
}
