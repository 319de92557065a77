//! The session layer: turns frames into calls and results into frames, so that past it nobody
//! asks which era a client speaks.

pub(crate) mod connection;
pub(crate) mod dialect;
pub(crate) mod headers;
mod legacy;
mod modern;
mod message;
pub(crate) mod call;
pub(crate) mod notify;
mod token;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Limits};
use crate::domain::call::{Call, Client, ForwardedMeta, Request, ServerRequestMode};
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, RequestFault, TransportFault};
use crate::domain::json::{Json, Kind as JsonKind};
use crate::domain::jsonrpc::{Frame, Id};
use crate::domain::meta;
use crate::domain::method::{CANCELLED, DISCOVER, INITIALIZE, LISTEN, Method, PING};
use crate::domain::revision::{Era, Revision};
use crate::domain::server_request::ClientCapabilities;
use crate::policy::{Credentials, Gate};
use crate::router::Router;
use crate::seal::Sealer;
use crate::telemetry::{End, ServerAttributes, ServerOperation, Telemetry};
use call::in_flight::{InFlightCall, InFlightCalls};
use call::server_requests::PendingServerRequests;
use connection::ConnectionKind;
use dialect::{Dialect, Identity, result_message};
use headers::Headers;
use notify::streams::Streams;
use notify::terminated::TerminatedSessions;
use notify::url_elicitations::PendingUrlElicitations;
use token::{Nonce, Token};

pub(crate) use message::PreparedCall;
pub use message::{
    CallOutcome, CallPermit, CallPermits, Dispatch, Refusal, RequestContext, TransportContext,
};
pub(crate) use notify::streams::StreamEnd;

/// Speaks with clients of all revisions.
pub struct Sessions {
    gate: Arc<Gate>,
    router: Arc<Router>,
    sealer: Arc<Sealer>,
    identity: Identity,
    limits: Limits,
    discover_ttl: Duration,
    shared: Arc<SharedState>,
}

/// What all sessions of one gateway share, whatever its configuration is by now.
pub struct SharedState {
    terminated: Arc<TerminatedSessions>,
    in_flight: InFlightCalls,
    server_requests: PendingServerRequests,
    url_elicitations: PendingUrlElicitations,
    streams: Streams,
    /// Calls that go on without their client.
    tasks: TaskTracker,
    /// Ends streams when the gateway is about to end.
    drain: CancellationToken,
    /// Ends what still runs then.
    stop: CancellationToken,
}

impl SharedState {
    pub fn new(tasks: TaskTracker, drain: CancellationToken, stop: CancellationToken) -> Self {
        Self {
            terminated: Arc::default(),
            in_flight: InFlightCalls::default(),
            server_requests: PendingServerRequests::default(),
            url_elicitations: PendingUrlElicitations::default(),
            streams: Streams::default(),
            tasks,
            drain,
            stop,
        }
    }
}

impl Sessions {
    pub fn new(
        config: &Config,
        gate: Arc<Gate>,
        router: Arc<Router>,
        sealer: Arc<Sealer>,
        shared: Arc<SharedState>,
    ) -> Self {
        let server = &config.server;
        Self {
            gate,
            router,
            sealer,
            identity: Identity::new(&server.name, server.instructions.as_deref()),
            limits: server.limits.clone(),
            discover_ttl: config.listing.ttl_max,
            shared,
        }
    }

    /// Who a request comes from; asked before its body is read.
    pub async fn authenticate(
        &self,
        credentials: &Credentials<'_>,
        audience: &str,
        address: IpAddr,
        now_secs: u64,
    ) -> Result<Caller, TransportFault> {
        self.gate.authenticate(credentials, audience, address, now_secs).await
    }

    /// Counts a request before anything is known of it but where it comes from.
    pub fn check_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        self.gate.check_address(address)
    }

    /// How many calls are performed that can be cancelled by their ids.
    pub fn in_flight_calls(&self) -> usize {
        self.shared.in_flight.count()
    }

    /// What is measured.
    pub fn telemetry(&self) -> &Telemetry {
        self.gate.telemetry()
    }

    /// Who calls over standard streams.
    pub fn stdio_caller(&self) -> Caller {
        self.gate.stdio_caller()
    }

    /// Reads a body: a message, or an array of them.
    pub fn read(&self, body: &[u8], context: &RequestContext<'_>) -> Result<Dispatch, Refusal> {
        let guess = context.guess;
        let refuse = |fault: Fault| Refusal { fault, id: None, dialect: guess };
        let message = Json::parse(body, self.limits.json_depth).map_err(|e| refuse(e.into()))?;
        if message.kind() != JsonKind::Array {
            return self.read_one(message, context);
        }
        let count = message.elements().take(self.limits.batch_items + 1).count();
        let initializes = |m: Json<'_>| m.get("method").is_some_and(|m| m.is(INITIALIZE));
        if !guess.takes_batches()
            || count == 0
            || count > self.limits.batch_items
            || message.elements().any(initializes)
        {
            return Err(refuse(RequestFault::BatchUnsupported.into()));
        }
        if let TransportContext::Http(headers) = context.transport {
            let RequestContext { caller, endpoint, now_secs, .. } = *context;
            self.session(headers, caller, endpoint, now_secs).map_err(refuse)?;
        }
        // The answers are one message, before which nothing can be said.
        let context = RequestContext { streams: false, ..*context };
        let read = |item| match self.read_one(item, &context) {
            // A subscription is a stream, and no part of another answer.
            Ok(Dispatch::Listen(notifications)) => Err(Refusal {
                fault: RequestFault::BatchUnsupported.into(),
                id: notifications.request().cloned(),
                dialect: guess,
            }),
            dispatch => dispatch,
        };
        Ok(Dispatch::Batch(message.elements().map(read).collect()))
    }

    /// Reads one message, alone or of a batch.
    fn read_one(
        &self,
        message: Json<'_>,
        context: &RequestContext<'_>,
    ) -> Result<Dispatch, Refusal> {
        let guess = context.guess;
        let refuse = |id, fault| Refusal { fault, id, dialect: guess };
        let answers = ["result", "error"].iter().any(|name| message.get(name).is_some());
        let frame = Frame::read_strict(message).map_err(|error| {
            // The id of a broken response is one of ours: answered to, it would name another call.
            let id = error.id.clone().filter(|_| !answers);
            refuse(id, error.into())
        })?;
        let (id, method, params) = match frame {
            Frame::Request { id, method, params } => (Some(id), method, params),
            Frame::Notification { method, params } => (None, method, params),
            Frame::Response { id, outcome } => {
                return self.answered(context, id, outcome).map_err(|fault| refuse(None, fault));
            }
        };
        let method = &*method;
        let inbound = InboundMessage { context, method, params };
        let dispatch = match era(context.transport, method, params) {
            Some(Era::Modern) => self.modern(&inbound, id.clone()),
            Some(Era::Legacy) => self.legacy(&inbound, id.clone()),
            None => match (context.transport, &id) {
                // Notifications of a connection need no era, nor does a sign of life.
                (TransportContext::Connection(_), None) => self.modern(&inbound, None),
                (TransportContext::Connection(_), Some(id)) if method == PING => {
                    Ok(Dispatch::Answer { message: result_message(id, "{}"), session: None })
                }
                _ => Err((RequestFault::EraUnknown.into(), guess)),
            },
        };
        if let Some(id) = &id {
            self.measure(&inbound, id, &dispatch);
        }
        dispatch.map_err(|(fault, dialect)| Refusal { fault, id, dialect })
    }

    /// Measures a request that is answered at once; calls are as they are performed.
    fn measure(
        &self,
        inbound: &InboundMessage<'_>,
        id: &Id,
        dispatch: &Result<Dispatch, DialectFault>,
    ) {
        let InboundMessage { context, method, params } = *inbound;
        let (dialect, terminated) = match dispatch {
            Ok(Dispatch::Answer { .. } | Dispatch::Opened { .. }) => (context.guess, End::Well),
            Ok(_) => return,
            Err((fault, dialect)) => (*dialect, End::Fault(fault)),
        };
        // What a handshake agrees on is what its client asks for, if that is served.
        let requested = params.filter(|_| method == INITIALIZE);
        let requested = requested.and_then(|p| p.get("protocolVersion")?.as_str());
        let agreed = requested.map(|requested| Revision::negotiate_legacy(&requested));
        let attributes = ServerAttributes {
            method: known_method(method),
            revision: agreed.unwrap_or(dialect.revision()).as_str(),
            transport: context.transport.transport_kind(),
            session: None,
            id: id.text(),
            prompt: None,
            client: context.address,
        };
        let mut trace = ForwardedMeta::read(params, |name| context.transport.trace(name)).trace;
        ServerOperation::begin(self.gate.telemetry(), attributes, &mut trace).end(terminated);
    }

    /// How a client is written to that said no more than its headers. Of the session of somebody else, or of
    /// anybody as long as nobody is known, nothing is told, not even by the shape of an error.
    pub fn dialect_of(
        &self,
        headers: &Headers<'_>,
        endpoint: &str,
        caller: Option<&Caller>,
    ) -> Dialect {
        let session = headers.session.value();
        let own = session.zip(caller).and_then(|(id, caller)| {
            Token::open(&self.sealer, endpoint, id).filter(|token| token.is_of(caller))
        });
        let version = headers.version.value().and_then(Revision::parse);
        let revision = own.map(|token| token.revision).or(version);
        // Only legacy clients have sessions.
        let assumed = session.map_or(Revision::NEWEST_MODERN, |_| Revision::UNSAID);
        Dialect::new(revision.unwrap_or(assumed))
    }

    /// A call that is known and well formed, of the session or connection `nonce`.
    fn prepare(
        &self,
        inbound: &InboundMessage<'_>,
        id: Id,
        reply_context: ReplyContext,
        nonce: Option<Nonce>,
    ) -> Result<Dispatch, DialectFault> {
        let InboundMessage { context, method, params } = *inbound;
        let ReplyContext { dialect, capabilities, mode } = reply_context;
        let request = Method::parse(method)
            .ok_or_else(|| RequestFault::MethodNotFound.into())
            .and_then(|method| Request::read(method, params));
        let request = request.map_err(|fault| (fault, dialect))?;
        let in_flight = self.start(nonce, &id).map_err(|fault| (fault, dialect))?;
        let token = params.and_then(|p| p.get("_meta")?.get(meta::PROGRESS_TOKEN));
        let progress_token = token.filter(|_| context.streams).and_then(Id::read);
        let call = Call {
            caller: context.caller.clone(),
            endpoint: context.endpoint.to_owned(),
            address: context.address,
            client: Client { capabilities, mode, progress: progress_token.is_some() },
            forwarded: ForwardedMeta::read(params, |name| context.transport.trace(name)),
            request,
        };
        let gone = match context.transport {
            // From then on nothing can be posted.
            TransportContext::Http(_) => self.shared.drain.clone(),
            TransportContext::Connection(connection) => connection.gone.clone(),
        };
        let transport_kind = context.transport.transport_kind();
        Ok(Dispatch::Call(PreparedCall {
            id,
            dialect,
            call,
            nonce,
            in_flight,
            transport_kind,
            progress_token,
            gone,
        }))
    }

    /// When a stream must end: after `lifetime`, if there is one, and once its caller is not known any
    /// more.
    pub fn end_of_stream(
        &self,
        caller: &Caller,
        lifetime: Option<Duration>,
        now_secs: u64,
    ) -> StreamEnd {
        let known = caller.expires().map(|at| Duration::from_secs(at.saturating_sub(now_secs)));
        let longest = lifetime.into_iter().chain(known).min();
        let at = longest.and_then(|longest| Instant::now().checked_add(longest));
        StreamEnd { at, revocation: Some(self.gate.revocation(caller)) }
    }

    /// Notes a call that can be cancelled by its id, which may run once only.
    fn start(&self, nonce: Option<Nonce>, id: &Id) -> Result<Option<InFlightCall>, Fault> {
        let start =
            |nonce| self.shared.in_flight.start(nonce, id.clone()).ok_or(RequestFault::IdInUse);
        Ok(nonce.map(start).transpose()?)
    }
}

/// Who makes a call, as far as it concerns the way back.
struct ReplyContext {
    dialect: Dialect,
    capabilities: ClientCapabilities,
    mode: ServerRequestMode,
}

/// The name of a method, if it is one that is known: others could be anything.
fn known_method(name: &str) -> &'static str {
    let known = [INITIALIZE, DISCOVER, PING, LISTEN];
    let calls = Method::ALL.map(Method::as_str);
    known.into_iter().chain(calls).find(|known| *known == name).unwrap_or("_OTHER")
}

/// A fault, and how it is written.
type DialectFault = (Fault, Dialect);

/// One message with all that came with it.
struct InboundMessage<'a> {
    context: &'a RequestContext<'a>,
    method: &'a str,
    params: Option<Json<'a>>,
}

/// Which era a message belongs to; the first sign counts.
fn era(transport: TransportContext<'_>, method: &str, params: Option<Json<'_>>) -> Option<Era> {
    let is_modern = modern::is_modern(params);
    match transport {
        TransportContext::Http(_) if is_modern => Some(Era::Modern),
        TransportContext::Connection(c) if is_modern && c.kind == ConnectionKind::Stdio => {
            Some(Era::Modern)
        }
        _ if method == INITIALIZE => Some(Era::Legacy),
        TransportContext::Http(headers) if !headers.session.is_absent() => Some(Era::Legacy),
        TransportContext::Http(headers) if is_modern_version(headers) => Some(Era::Modern),
        TransportContext::Connection(connection) => connection.token().map(|_| Era::Legacy),
        TransportContext::Http(_) => None,
    }
}

/// Whether the version header names a modern revision, or one that nobody knows.
fn is_modern_version(headers: &Headers<'_>) -> bool {
    let version = headers.version.value().map(Revision::parse);
    match version {
        Some(Some(revision)) => revision.era() == Era::Modern,
        Some(None) => true,
        None => !headers.version.is_absent(),
    }
}
