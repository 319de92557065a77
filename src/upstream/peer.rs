//! An upstream that is connected: what can be asked of it, whatever it is behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::timeout;

use super::handshake::{Ask, Conversation};
use super::http::Endpoint;
use super::library::Snapshot;
use super::walk::{Listed, Step, Walk};
use crate::config::{self, Settings};
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::{Json, write_str};
use crate::domain::jsonrpc::Id;
use crate::domain::method::Method;
use crate::domain::revision::Revision;

/// The far end of one connection, shared by all calls.
pub enum Peer {
    Http(HttpPeer),
    Library(Snapshot),
}

pub struct HttpPeer {
    endpoint: Arc<Endpoint>,
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
    /// Connects over HTTP and finds out how to speak.
    pub async fn http(endpoint: Arc<Endpoint>, http: &config::Http) -> Result<Self, Kind> {
        let conversation = Conversation::open(&endpoint, http.revision).await?;
        // 0 belongs to the handshake.
        Ok(Self::Http(HttpPeer { endpoint, conversation, next_id: AtomicU64::new(1) }))
    }

    /// The whole list. An upstream that knows no prompts has none.
    pub async fn walk(&self, settings: &Settings) -> Result<Listed, Kind> {
        match self {
            Peer::Library(snapshot) => Ok(snapshot.listed.clone()),
            Peer::Http(peer) if !peer.conversation.capabilities.prompts => Ok(Listed::default()),
            Peer::Http(peer) => match timeout(settings.walk_timeout, peer.walk(settings)).await {
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
            Peer::Http(peer) => {
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
            Peer::Http(peer) if !peer.conversation.capabilities.completions => no_values(),
            Peer::Http(peer) => {
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
            Peer::Http(peer) => (Some(peer.conversation.revision), "http"),
        }
    }

    /// Whether its list only changes by connecting again.
    pub fn is_snapshot(&self) -> bool {
        matches!(self, Peer::Library(_))
    }

    /// Says goodbye where a session would be left behind.
    pub async fn close(&self) {
        if let Peer::Http(peer) = self
            && let Some(headers) = peer.conversation.farewell()
        {
            // Whether it is heard changes nothing: the upstream's own timeout does the rest.
            let _ = peer.endpoint.delete(headers).await;
        }
    }
}

impl HttpPeer {
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
        let id = Id::number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let (headers, body) = self.conversation.dress(&id, ask);
        Ok(self.endpoint.request(&id, headers, body).await?.result)
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
