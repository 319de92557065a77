//! Connections that last (stdio, HTTP+SSE): the handshake on one stands for all that follows on it, so
//! nothing needs to be sent along.

use std::sync::{Arc, Mutex, MutexGuard};

use super::dialect::Dialect;
use super::token::{Nonce, Token};
use super::{Envelope, Refusal, Sessions, Turn, Via};
use crate::domain::caller::Caller;
use crate::domain::revision::Revision;
use crate::seal::random;

/// One connection of one client.
pub struct Connection {
    sessions: Arc<Sessions>,
    pub(super) caller: Caller,
    /// Where its cursors and states belong.
    endpoint: String,
    /// Tells its calls from those of others, before and after the handshake.
    pub(super) nonce: Nonce,
    pub(super) kind: ConnectionKind,
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
        sessions: Arc<Sessions>,
        caller: Caller,
        endpoint: &str,
        kind: ConnectionKind,
    ) -> Self {
        let (endpoint, nonce) = (endpoint.to_owned(), random());
        Self { sessions, caller, endpoint, nonce, kind, opened: Mutex::default() }
    }

    /// Reads a message, or an array of them; see [`Sessions::read`].
    pub fn read(&self, body: &[u8], now_secs: u64) -> Result<Turn, Refusal> {
        let envelope = Envelope {
            via: Via::Connection(self),
            caller: &self.caller,
            endpoint: &self.endpoint,
            now_secs,
            guess: self.dialect(),
            streams: true,
        };
        self.sessions.read(body, &envelope)
    }

    /// Whose connection it is.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// How the client is written to: as was agreed, or as its transport would have it.
    pub fn dialect(&self) -> Dialect {
        let agreed = self.token().map(|token| token.revision);
        Dialect::new(agreed.unwrap_or(match self.kind {
            ConnectionKind::Stdio => Revision::NEWEST_MODERN,
            ConnectionKind::Sse => Revision::NEWEST_LEGACY,
        }))
    }

    /// What was agreed, if there was a handshake.
    pub(super) fn token(&self) -> Option<Token> {
        self.lock().clone()
    }

    /// Notes what was agreed; whether it is the first time.
    pub(super) fn open(&self, token: Token) -> bool {
        self.lock().replace(Token { nonce: self.nonce, ..token }).is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Token>> {
        self.opened.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
