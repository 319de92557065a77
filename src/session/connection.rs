//! Connections that last (stdio, HTTP+SSE): the handshake on one stands for all that follows on it, so
//! nothing needs to be sent along.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::dialect::Dialect;
use super::token::{Nonce, Token};
use super::{Dispatch, Refusal, RequestContext, Sessions, TransportContext};
use crate::domain::caller::Caller;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::seal::random;

/// One connection of one client.
pub struct Connection {
    /// Those of the newest configuration.
    sessions: Arc<ArcSwap<Sessions>>,
    pub(super) caller: Caller,
    /// Where its cursors and states belong.
    endpoint: String,
    /// Where it comes from, where that is an address.
    address: Option<IpAddr>,
    /// Tells its calls from those of others, before and after the handshake.
    pub(super) nonce: Nonce,
    pub(super) kind: ConnectionKind,
    /// Cancelled when nothing more comes from the client.
    pub(super) gone: CancellationToken,
    opened: Mutex<Option<Token>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionKind {
    /// Serves all revisions.
    Stdio,
    /// Older than the modern era, which has no such transport.
    Sse,
}

impl Connection {
    pub fn new(
        sessions: Arc<ArcSwap<Sessions>>,
        caller: Caller,
        endpoint: &str,
        address: Option<IpAddr>,
        kind: ConnectionKind,
    ) -> Self {
        let (endpoint, nonce, gone) = (endpoint.to_owned(), random(), CancellationToken::new());
        let opened = Mutex::default();
        Self { sessions, caller, endpoint, address, nonce, kind, gone, opened }
    }

    /// Nothing more comes from the client: nobody answers what it is asked.
    pub fn hang_up(&self) {
        self.gone.cancel();
    }

    /// Nothing more can be said to the client: its calls are ended.
    pub fn abandon(&self) {
        self.hang_up();
        self.sessions().shared.in_flight.cancel_all(self.nonce);
    }

    /// Reads a message, or an array of them, as these [`Sessions`] do.
    pub fn read(
        &self,
        sessions: &Sessions,
        body: &[u8],
        now_secs: u64,
    ) -> Result<Dispatch, Refusal> {
        let context = RequestContext {
            transport: TransportContext::Connection(self),
            caller: &self.caller,
            endpoint: &self.endpoint,
            address: self.address,
            now_secs,
            guess: self.dialect(),
            streams: true,
        };
        sessions.read(body, &context)
    }

    /// Whose connection it is.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Who is to be asked by now: for one message the same.
    pub fn sessions(&self) -> Arc<Sessions> {
        self.sessions.load_full()
    }

    /// How the client is written to: as was agreed, or as its transport would have it.
    pub fn dialect(&self) -> Dialect {
        let agreed = self.token().map(|token| token.revision);
        Dialect::new(agreed.unwrap_or(Revision::NEWEST_MODERN))
    }

    /// What was agreed, if there was a handshake. A stream of HTTP+SSE that a client has opened again
    /// by itself, behind a restart, is served as the oldest one.
    pub(super) fn token(&self) -> Option<Token> {
        let oldest = || Token {
            revision: Revision::V2024_11_05,
            capabilities: ClientCapabilities::NONE,
            issued_at: 0,
            nonce: self.nonce,
            caller: self.caller.id().to_owned(),
        };
        self.lock().clone().or_else(|| (self.kind == ConnectionKind::Sse).then(oldest))
    }

    /// Notes what was agreed; whether it is the first time.
    pub(super) fn open(&self, token: Token) -> bool {
        self.lock().replace(Token { nonce: self.nonce, ..token }).is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Token>> {
        self.opened.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
