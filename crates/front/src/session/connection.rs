//! Long-lived connections (standard streams, HTTP+SSE). The `initialize` of a connection holds for
//! all messages that follow on it, so messages carry no session id.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::dialect::Dialect;
use super::token::{Nonce, SessionToken};
use super::{Dispatch, MessageRefusal, RequestContext, Sessions, TransportContext};
use base::platform::Locked;
use domain::calls::caller::Caller;
use domain::calls::subject_token::SubjectToken;
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ClientCapabilities;
use domain::time::unix_time::UnixSeconds;

/// One connection of one client.
pub struct ClientConnection {
    /// The sessions of the newest configuration.
    sessions: Arc<ArcSwap<Sessions>>,
    pub(super) caller: Caller,
    /// The path of the endpoint, to which cursors and request states are bound.
    endpoint: String,
    /// Distinguishes the calls of this connection from those of others, even before `initialize`.
    pub(super) nonce: Nonce,
    pub(super) kind: ConnectionKind,
    /// Cancelled when the client can send nothing more.
    pub(super) input_closed: CancellationToken,
    agreement: Mutex<Agreement>,
}

/// The negotiated state of a connection.
#[derive(Default)]
struct Agreement {
    /// The session that the newest `initialize` negotiated.
    initialized: Option<SessionToken>,
    /// Cancelled by the first `initialize` behind a call without one.
    resumed: Option<CancellationToken>,
}

/// The transport of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionKind {
    /// Standard streams. Serves all revisions.
    Stdio,
    /// HTTP+SSE (MCP 2024-11-05, transports). The modern era does not have this transport.
    Sse,
}

impl ClientConnection {
    pub fn new(
        sessions: Arc<ArcSwap<Sessions>>,
        caller: Caller,
        endpoint: &str,
        kind: ConnectionKind,
    ) -> Self {
        Self {
            sessions,
            caller,
            endpoint: endpoint.to_owned(),
            nonce: Nonce::random(),
            kind,
            input_closed: CancellationToken::new(),
            agreement: Mutex::default(),
        }
    }

    /// Marks the input as closed: no further responses to server requests can arrive.
    pub fn close_input(&self) {
        self.input_closed.cancel();
    }

    /// Cancels all calls of the connection, because the client can no longer receive anything.
    pub fn disconnect(&self) {
        self.close_input();
        self.sessions().shared.in_flight.cancel_all(self.nonce);
    }

    /// Reads a message or a batch of `caller` with `sessions`. The caller has the id of the
    /// connection's caller, but may have another credential, with other groups: the one of the
    /// message counts.
    ///
    /// # Errors
    /// As [`Sessions::read`].
    pub async fn read(
        &self,
        sessions: &Sessions,
        caller: &Caller,
        subject_token: Option<&SubjectToken>,
        address: Option<IpAddr>,
        body: &[u8],
        now: UnixSeconds,
    ) -> Result<Dispatch, MessageRefusal> {
        let context = RequestContext {
            transport: TransportContext::Connection(self),
            caller,
            subject_token,
            endpoint: &self.endpoint,
            address,
            now,
            assumed_dialect: self.dialect(),
            streams: true,
        };
        sessions.read(body, &context).await
    }

    /// Returns the path of the endpoint that the connection serves.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the caller of the connection.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the sessions of the newest configuration. A message takes them once and keeps them
    /// until its response.
    pub fn sessions(&self) -> Arc<Sessions> {
        self.sessions.load_full()
    }

    /// Returns the dialect of the agreed revision, or the newest one before `initialize`.
    pub fn dialect(&self) -> Dialect {
        let agreed = self.token().map(|token| token.revision);
        Dialect::new(agreed.unwrap_or(Revision::NEWEST_MODERN))
    }

    /// Returns the session that `initialize` negotiated. An HTTP+SSE client that reconnects by
    /// itself after a restart of the gateway may send no `initialize`: it is served as the oldest
    /// revision.
    pub(super) fn token(&self) -> Option<SessionToken> {
        let oldest = || SessionToken {
            revision: Revision::V2024_11_05,
            capabilities: ClientCapabilities::NONE,
            issued_at: UnixSeconds(0),
            nonce: self.nonce,
            caller: self.caller.id().into(),
        };
        self.agreement
            .locked()
            .initialized
            .clone()
            .or_else(|| (self.kind == ConnectionKind::Sse).then(oldest))
    }

    /// Notes that the client goes on without `initialize`; see [`ClientConnection::token`]. The
    /// first time it returns a token that is cancelled if it sends one after all.
    pub(super) fn resume(&self) -> Option<CancellationToken> {
        let mut agreement = self.agreement.locked();
        let is_first = agreement.initialized.is_none() && agreement.resumed.is_none();
        let is_resumed = is_first && self.kind == ConnectionKind::Sse;
        is_resumed.then(|| agreement.resumed.insert(CancellationToken::new()).clone())
    }

    /// Stores the session that `initialize` negotiated. Returns whether it was the first
    /// `initialize`.
    pub(super) fn initialize(&self, token: SessionToken) -> bool {
        let mut agreement = self.agreement.locked();
        if let Some(resumed) = &agreement.resumed {
            resumed.cancel();
        }
        agreement.initialized.replace(SessionToken { nonce: self.nonce, ..token }).is_none()
    }
}
