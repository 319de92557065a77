//! Reads a body into a [`Dispatch`]: decides the era of each message, and prepares calls.

use super::call::in_flight::InFlightCall;
use super::connection::ConnectionKind;
use super::dialect::{Dialect, result_message};
use super::headers::Headers;
use super::modern::is_modern;
use super::token::{Nonce, Token};
use super::{Dispatch, PreparedCall, Refusal, RequestContext, Sessions, TransportContext};
use crate::domain::call::{Call, Client, ForwardedMeta, Request, ServerRequestMode};
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, RequestFault};
use crate::domain::json::{Json, Kind as JsonKind};
use crate::domain::jsonrpc::{Frame, Id};
use crate::domain::meta;
use crate::domain::method::{DISCOVER, INITIALIZE, LISTEN, Method, PING};
use crate::domain::revision::{Era, Revision};
use crate::domain::server_request::ClientCapabilities;
use crate::telemetry::{End, ServerAttributes, ServerOperation};

impl Sessions {
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
    pub(super) fn prepare(
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

    /// Notes a call that can be cancelled by its id, which may run once only.
    pub(super) fn start(
        &self,
        nonce: Option<Nonce>,
        id: &Id,
    ) -> Result<Option<InFlightCall>, Fault> {
        let start =
            |nonce| self.shared.in_flight.start(nonce, id.clone()).ok_or(RequestFault::IdInUse);
        Ok(nonce.map(start).transpose()?)
    }
}

/// Who makes a call, as far as it concerns the way back.
pub(super) struct ReplyContext {
    pub dialect: Dialect,
    pub capabilities: ClientCapabilities,
    pub mode: ServerRequestMode,
}

/// The name of a method, if it is one that is known: others could be anything.
fn known_method(name: &str) -> &'static str {
    let known = [INITIALIZE, DISCOVER, PING, LISTEN];
    let calls = Method::ALL.map(Method::as_str);
    known.into_iter().chain(calls).find(|known| *known == name).unwrap_or("_OTHER")
}

/// A fault, and how it is written.
pub(super) type DialectFault = (Fault, Dialect);

/// One message with all that came with it.
pub(super) struct InboundMessage<'a> {
    pub context: &'a RequestContext<'a>,
    pub method: &'a str,
    pub params: Option<Json<'a>>,
}

/// Which era a message belongs to; the first sign counts.
fn era(transport: TransportContext<'_>, method: &str, params: Option<Json<'_>>) -> Option<Era> {
    let is_modern = is_modern(params);
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
pub(super) fn is_modern_version(headers: &Headers<'_>) -> bool {
    let version = headers.version.value().map(Revision::parse);
    match version {
        Some(Some(revision)) => revision.era() == Era::Modern,
        Some(None) => true,
        None => !headers.version.is_absent(),
    }
}
