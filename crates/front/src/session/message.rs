//! Input and output of the session layer: a message with its context, and the action that follows
//! for the transport.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::call::in_flight::InFlightCall;
use super::connection::{ClientConnection, ConnectionKind};
use super::dialect::{Dialect, ResultForm};
use super::headers::Headers;
use super::notify::notifications::NotificationStream;
use super::token::Nonce;
use domain::calls::call::{Call, ServerRequestMode};
use domain::calls::caller::Caller;
use domain::calls::subject_token::SubjectToken;
use domain::fault::Fault;
use domain::json::Json;
use domain::json::jsonrpc::Id;
use domain::protocol::log_level::LogLevel;
use domain::protocol::server_request::ClientCapabilities;
use domain::text::chunks::Chunks;
use domain::time::unix_time::UnixSeconds;
use telemetry::TransportKind;
use upstream::call::result_memory::MessageMemory;

/// The action of the transport for a message.
pub enum Dispatch {
    /// A notification or a response was accepted; the transport sends no message.
    Accepted,
    /// A response that is complete already.
    Answer {
        message: String,
        /// The id of the session that this response opens (`Mcp-Session-Id`).
        session: Option<String>,
    },
    /// The response to `initialize` on a connection, and the notification stream of the connection
    /// if this was its first `initialize`.
    Opened { message: String, notifications: Option<NotificationStream> },
    /// A call that the transport performs.
    Call(PreparedCall),
    /// An opened subscription (MCP 2026-07-28, subscriptions).
    Listen(NotificationStream),
    /// The items of a batch, with one array of responses (only MCP 2025-03-26).
    Batch(Vec<Result<Dispatch, MessageRefusal>>),
}

/// A checked call, with the data to write its response.
pub struct PreparedCall {
    pub id: Id,
    pub dialect: Dialect,
    pub(crate) form: ResultForm,
    pub(crate) call: Call,
    /// The session or connection of the call; `None` over HTTP in the modern era.
    pub(crate) nonce: Option<Nonce>,
    /// The registration for `notifications/cancelled`, where there is a session or connection.
    pub(crate) in_flight: Option<InFlightCall>,
    pub(crate) transport_kind: TransportKind,
    /// The client's progress token (`_meta.progressToken`).
    pub(crate) progress_token: Option<Id>,
    /// Cancelled when the client of a connection can send no more messages, so no responses to
    /// server requests. `None` over HTTP, where a client can send them until the gateway drains.
    pub(crate) input_closed: Option<CancellationToken>,
}

/// The context of one message: transport, caller and endpoint.
pub struct RequestContext<'a> {
    pub transport: TransportContext<'a>,
    pub caller: &'a Caller,
    /// The token that the caller has brought with the message.
    pub subject_token: Option<&'a SubjectToken>,
    /// The path of the endpoint.
    pub endpoint: &'a str,
    /// IP address of the client; `None` for standard streams.
    pub address: Option<IpAddr>,
    /// Time of the message, in seconds since the Unix epoch.
    pub now: UnixSeconds,
    /// The dialect for errors until the message itself names a revision.
    pub assumed_dialect: Dialect,
    /// Whether the client accepts a stream of messages before the response.
    pub streams: bool,
}

/// The transport that received a message.
#[derive(Clone, Copy)]
pub enum TransportContext<'a> {
    /// Streamable HTTP, with the headers of the request.
    Http(&'a Headers<'a>),
    /// Standard streams or HTTP+SSE.
    Connection(&'a ClientConnection),
}

impl TransportContext<'_> {
    /// Returns a header of the trace context (`traceparent`, `tracestate`, `baggage`).
    pub(crate) fn trace(&self, name: &str) -> Option<&str> {
        match self {
            Self::Http(headers) => headers.trace(name),
            Self::Connection(_) => None,
        }
    }

    /// Returns the transport as telemetry labels it.
    pub(crate) fn transport_kind(self) -> TransportKind {
        match self {
            Self::Connection(connection) if connection.kind == ConnectionKind::Stdio => {
                TransportKind::Pipe
            }
            Self::Connection(_) | Self::Http(_) => TransportKind::Http,
        }
    }

    /// Returns [`PreparedCall::input_closed`] for a call over the transport.
    pub(super) fn input_closed(self) -> Option<CancellationToken> {
        match self {
            Self::Http(_) => None,
            Self::Connection(connection) => Some(connection.input_closed.clone()),
        }
    }
}

/// A refused message, with the data to write its error response.
#[derive(Debug)]
pub struct MessageRefusal {
    pub fault: Fault,
    /// The id of the request, if it could be read.
    pub id: Option<Id>,
    pub dialect: Dialect,
}

/// The admission of one call, held until the call has ended.
#[derive(Clone)]
pub struct CallPermits {
    pub call: Arc<dyn CallPermit>,
    /// The reserved bytes of the message that contains the call, and of its result. The calls of a
    /// batch share one budget.
    pub budget: Arc<dyn MessageMemory>,
}

/// The permit of one call in flight (`server.limits.in_flight`).
pub trait CallPermit: Send + Sync {
    /// Releases the permit while the call waits for the user's input. Returns `false` and releases
    /// no permit if too many calls wait for input already.
    fn suspend(&self) -> bool;
}

/// The outcome of a call.
pub enum CallOutcome {
    /// The result, as JSON text.
    Result(Chunks),
    Fault(Fault),
    /// The client has cancelled the call. No response is sent (MCP 2025-11-25, cancellation).
    Cancelled,
}

/// The revision and the abilities of the client of a call.
pub(super) struct ReplyContext {
    pub dialect: Dialect,
    pub capabilities: ClientCapabilities,
    pub mode: ServerRequestMode,
    /// The least severe log messages that a modern request asks for. In the legacy era the session
    /// sets the level.
    pub log_level: Option<LogLevel>,
}

/// The fault of a refused message, with the dialect of the error response.
pub(super) struct MessageFault {
    pub fault: Fault,
    pub dialect: Dialect,
    /// Whether the client called a tool, whose result may report the fault.
    pub form: ResultForm,
}

impl MessageFault {
    /// The rejection of a message that calls no tool.
    pub(super) fn new(fault: impl Into<Fault>, dialect: Dialect) -> Self {
        Self { fault: fault.into(), dialect, form: ResultForm::Prompt }
    }
}

/// One request or notification, with its context.
pub(super) struct InboundMessage<'a> {
    pub context: &'a RequestContext<'a>,
    pub method: &'a str,
    pub params: Option<Json<'a>>,
}

impl InboundMessage<'_> {
    /// Returns the id of the request that a `notifications/cancelled` names.
    pub(super) fn cancelled_request(&self) -> Option<Id> {
        self.params?.get("requestId").and_then(Id::read)
    }
}
