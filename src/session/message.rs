//! What goes in and out of the session layer: a message with all that came with it, and what is to
//! be done about it.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::call::in_flight::InFlightCall;
use super::connection::{Connection, ConnectionKind};
use super::dialect::Dialect;
use super::headers::Headers;
use super::notify::notifications::NotificationStream;
use super::token::Nonce;
use crate::domain::call::Call;
use crate::domain::caller::Caller;
use crate::domain::fault::Fault;
use crate::domain::jsonrpc::Id;
use crate::telemetry::TransportKind;

/// What a message asks of the transport.
pub enum Dispatch {
    /// Nothing comes back but the acceptance.
    Accepted,
    /// The answer is there already.
    Answer {
        message: String,
        /// The id of the session that this answer opens.
        session: Option<String>,
    },
    /// The answer to the handshake of a connection; the notices that follow on it, if this was the
    /// first one.
    Opened { message: String, notifications: Option<NotificationStream> },
    /// A call that is to be performed.
    Call(PreparedCall),
    /// A subscription that was opened.
    Listen(NotificationStream),
    /// Several messages that are answered together (2025-03-26 only).
    Batch(Vec<Result<Dispatch, Refusal>>),
}

/// A call, and how its answer is written.
pub struct PreparedCall {
    pub id: Id,
    pub dialect: Dialect,
    pub(crate) call: Call,
    /// The session or connection that it belongs to, where there is one.
    pub(crate) nonce: Option<Nonce>,
    pub(crate) in_flight: Option<InFlightCall>,
    pub(crate) transport_kind: TransportKind,
    /// What the client calls its progress.
    pub(crate) progress_token: Option<Id>,
    /// Cancelled when nothing more can come from the client, answers to questions among it.
    pub(crate) gone: CancellationToken,
}

/// Where a message comes from.
pub struct RequestContext<'a> {
    pub transport: TransportContext<'a>,
    pub caller: &'a Caller,
    pub endpoint: &'a str,
    /// Where it comes from, where that is an address.
    pub address: Option<IpAddr>,
    /// Time since the Unix epoch.
    pub now_secs: u64,
    /// How the client is written to as long as no more is known than the head of its request.
    pub guess: Dialect,
    /// Whether the client takes a stream of messages before its answer.
    pub streams: bool,
}

/// How a message came.
#[derive(Clone, Copy)]
pub enum TransportContext<'a> {
    Http(&'a Headers<'a>),
    Connection(&'a Connection),
}

impl TransportContext<'_> {
    /// A header that trace context comes in.
    pub(crate) fn trace(&self, name: &str) -> Option<&str> {
        match self {
            Self::Http(headers) => headers.trace(name),
            Self::Connection(_) => None,
        }
    }

    /// What it has travelled on.
    pub(crate) fn transport_kind(self) -> TransportKind {
        match self {
            Self::Connection(connection) if connection.kind == ConnectionKind::Stdio => {
                TransportKind::Pipe
            }
            Self::Connection(_) | Self::Http(_) => TransportKind::Http,
        }
    }
}

/// A message that is refused.
#[derive(Debug)]
pub struct Refusal {
    pub fault: Fault,
    /// The request, where it could be read.
    pub id: Option<Id>,
    pub dialect: Dialect,
}

/// What a call holds as long as it runs: its places among all that run.
#[derive(Clone)]
pub struct CallPermits {
    pub call: Arc<dyn CallPermit>,
    /// Of the message that asked for it.
    pub budget: Arc<dyn Send + Sync>,
}

/// A place among the calls that run.
pub trait CallPermit: Send + Sync {
    /// A user is going to think: the place goes to others. Not if too many think already.
    fn suspend(&self) -> bool;
}

/// How a call ended.
pub enum CallOutcome {
    Result(String),
    Fault(Fault),
    /// The client asked for no answer any more.
    Cancelled,
}
