//! Reads a body into a [`Dispatch`]: parses it, decides the era of each message, and prepares
//! calls.

use super::call::in_flight::InFlightCall;
use super::connection::ConnectionKind;
use super::dialect::{Dialect, ResultForm, result_message};
use super::headers::Headers;
use super::message::{InboundMessage, MessageFault, ReplyContext};
use super::modern::is_modern;
use super::token::Nonce;
use super::tools::{Purpose, ToolRefusal, is_tool_result};
use super::{
    Dispatch, MAX_DEPTH, MessageRefusal, PreparedCall, RequestContext, Sessions, TransportContext,
};
use crate::telemetry::{End, ServerAttributes, ServerOperation};
use base::platform::heap::rare;
use domain::call::{Call, ClientMessages, ForwardedMeta};
use domain::caller::Caller;
use domain::fault::{Fault, RequestFault};
use domain::json::{self, Json, JsonKind, Outline};
use domain::jsonrpc::{Frame, Id};
use domain::meta;
use domain::method::{DISCOVER, ForeignMethod, INITIALIZE, LISTEN, Method, PING};
use domain::revision::{Era, Revision};

/// Messages of one batch: the response is one message, and waits for the slowest.
const MAX_BATCH: usize = 100;

impl Sessions {
    /// Reads a body: one message, or a batch (MCP 2025-03-26 only).
    ///
    /// # Errors
    /// The body is not strict JSON within [`MAX_DEPTH`], a batch is not allowed or has more than
    /// [`MAX_BATCH`] messages, a rate limit has no cell left for a request about the
    /// session, or the message is refused.
    pub async fn read(
        &self,
        body: &[u8],
        context: &RequestContext<'_>,
    ) -> Result<Dispatch, MessageRefusal> {
        let dialect = context.assumed_dialect;
        let refuse = |fault: Fault| MessageRefusal { fault, id: None, dialect };
        let mut outline = Outline::default();
        let message = json::utf8(body)
            .and_then(|text| Json::parse_outlined(text, MAX_DEPTH, &mut outline))
            .map_err(|error| refuse(error.into()))?;
        match message.kind() {
            JsonKind::Array => rare(self.read_batch(message, context)).await,
            _ => self.read_message(message, context).await,
        }
    }

    /// Reads a batch. A refused message of the batch becomes an error in the batch's response.
    async fn read_batch(
        &self,
        batch: Json<'_>,
        context: &RequestContext<'_>,
    ) -> Result<Dispatch, MessageRefusal> {
        let dialect = context.assumed_dialect;
        let refuse = |fault: Fault| MessageRefusal { fault, id: None, dialect };
        let count = batch.elements().take(MAX_BATCH + 1).count();
        let is_initialize = |m: Json<'_>| m.get("method").is_some_and(|m| m.is(INITIALIZE));
        if !dialect.supports_batches()
            || count == 0
            || count > MAX_BATCH
            || batch.elements().any(is_initialize)
        {
            return Err(refuse(RequestFault::BatchUnsupported.into()));
        }
        if let TransportContext::Http(headers) = context.transport {
            let RequestContext { caller, endpoint, now, .. } = *context;
            self.session(headers, caller, endpoint, now).map_err(refuse)?;
        }
        // The response to a batch is one message: nothing can be sent before it.
        let context = RequestContext { streams: false, ..*context };
        let mut items = Vec::with_capacity(count);
        for item in batch.elements() {
            items.push(match self.read_message(item, &context).await {
                // A subscription is a stream, and cannot be a part of another response.
                Ok(Dispatch::Listen(notifications)) => Err(MessageRefusal {
                    fault: RequestFault::BatchUnsupported.into(),
                    id: notifications.request().cloned(),
                    dialect,
                }),
                dispatch => dispatch,
            });
        }
        Ok(Dispatch::Batch(items))
    }

    /// Reads one message, alone or of a batch.
    async fn read_message(
        &self,
        message: Json<'_>,
        context: &RequestContext<'_>,
    ) -> Result<Dispatch, MessageRefusal> {
        let dialect = context.assumed_dialect;
        let refuse = |id, fault| MessageRefusal { fault, id, dialect };
        let is_response = || ["result", "error"].iter().any(|name| message.get(name).is_some());
        let frame = Frame::read_strict(message).map_err(|error| {
            // A malformed response carries an id of the gateway. An error with this id would refer
            // to another request, one of the client.
            let id = error.id.clone().filter(|_| !is_response());
            refuse(id, error.into())
        })?;
        let (id, method, params) = match frame {
            Frame::Request { id, method, params } => (Some(id), method, params),
            Frame::Notification { method, params } => (None, method, params),
            Frame::Response { id, outcome } => {
                let accepted = Box::pin(self.response(context, message, id, outcome)).await;
                return accepted.map_err(|fault| refuse(None, fault));
            }
        };
        let method = &*method;
        let counted = self.counted_at_once(method, params, context.endpoint);
        if let (Some(request), Some(id)) = (counted, &id) {
            let taken = self.gate.take_session_request(context.caller, context.address, request);
            Box::pin(taken).await.map_err(|fault| {
                self.gate.telemetry().metrics().refused(fault.reason(), fault.limit());
                refuse(Some(id.clone()), fault.into())
            })?;
        }
        let inbound = InboundMessage { context, method, params };
        let dispatch = match era(context.transport, method, params) {
            Some(Era::Modern) => self.modern(&inbound, id.clone()),
            Some(Era::Legacy) => self.legacy(&inbound, id.clone()).await,
            None => match (context.transport, &id) {
                // On a connection, notifications and `ping` are served before the era is known.
                (TransportContext::Connection(_), None) => self.modern(&inbound, None),
                (TransportContext::Connection(_), Some(id)) if method == PING => {
                    Ok(Dispatch::Answer { message: result_message(id, "{}"), session: None })
                }
                _ => Err(MessageFault::new(RequestFault::EraUnknown, dialect)),
            },
        };
        if let Some(id) = &id {
            self.measure(&inbound, id, &dispatch);
        }
        match dispatch {
            Err(MessageFault { fault, dialect, form }) => match id {
                Some(id) if form == ResultForm::Tool && is_tool_result(&fault) => {
                    let result = dialect.tool_error(&fault, &self.identity);
                    Ok(Dispatch::Answer { message: result_message(&id, &result), session: None })
                }
                id => Err(MessageRefusal { fault, id, dialect }),
            },
            Ok(dispatch) => Ok(dispatch),
        }
    }

    /// Measures a request whose response is complete already. Calls are measured while they run,
    /// and subscriptions are not.
    fn measure(
        &self,
        inbound: &InboundMessage<'_>,
        id: &Id,
        dispatch: &Result<Dispatch, MessageFault>,
    ) {
        let InboundMessage { context, method, params } = *inbound;
        let (dialect, end) = match dispatch {
            Ok(Dispatch::Answer { .. } | Dispatch::Opened { .. }) => {
                (context.assumed_dialect, End::Well)
            }
            Ok(_) => return,
            Err(MessageFault { fault, dialect, .. }) => (*dialect, End::Fault(fault)),
        };
        // `initialize` is labelled with the revision that it negotiates.
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
        ServerOperation::begin(self.gate.telemetry(), attributes, &mut trace).end(end);
    }

    /// Returns the dialect for a client of which only the headers are known. The revision of a
    /// session is used only if the session belongs to `caller`, so that not even the form of an
    /// error reveals anything about the session of another caller.
    pub fn dialect_of(
        &self,
        headers: &Headers<'_>,
        endpoint: &str,
        caller: Option<&Caller>,
    ) -> Dialect {
        let session = headers.session.value();
        let own = session.zip(caller).and_then(|(id, caller)| {
            self.tokens.open(endpoint, id).filter(|token| token.belongs_to(caller))
        });
        let version = headers.version.value().and_then(Revision::parse);
        let revision = own.map(|token| token.revision).or(version);
        // Only legacy clients have sessions.
        let assumed = session.map_or(Revision::NEWEST_MODERN, |_| Revision::UNSAID);
        Dialect::new(revision.unwrap_or(assumed))
    }

    /// Prepares a call: checks its method and parameters, and registers its id with the session or
    /// connection `nonce`.
    pub(super) fn prepare(
        &self,
        inbound: &InboundMessage<'_>,
        id: Id,
        reply_context: ReplyContext,
        nonce: Option<Nonce>,
    ) -> Result<Dispatch, MessageFault> {
        let InboundMessage { context, method, params } = *inbound;
        let ReplyContext { dialect, capabilities, mode } = reply_context;
        let reject = |fault: Fault| MessageFault::new(fault, dialect);
        let (request, form) = match self.purpose(method, params, context.endpoint, dialect) {
            Ok(Purpose::Call(request, form)) => {
                (self.with_public_name(request, context.caller), form)
            }
            Ok(Purpose::Constant(result)) => {
                return Ok(Dispatch::Answer {
                    message: result_message(&id, &result),
                    session: None,
                });
            }
            Err(ToolRefusal { fault, form: ResultForm::Tool }) if is_tool_result(&fault) => {
                let result = dialect.tool_error(&fault, &self.identity);
                return Ok(Dispatch::Answer {
                    message: result_message(&id, &result),
                    session: None,
                });
            }
            Err(ToolRefusal { fault, .. }) => return Err(reject(fault)),
        };
        let in_flight = self.register(nonce, &id).map_err(reject)?;
        let token = params.and_then(|p| p.get("_meta")?.get(meta::PROGRESS_TOKEN));
        let progress_token = token.filter(|_| context.streams).and_then(Id::read);
        let call = Call {
            caller: context.caller.clone(),
            subject_token: context.subject_token.cloned(),
            endpoint: context.endpoint.into(),
            address: context.address,
            tried_by: None,
            client: ClientMessages { capabilities, mode, progress: progress_token.is_some() },
            forwarded: ForwardedMeta::read(params, |name| context.transport.trace(name)),
            request,
        };
        let input_closed = match context.transport {
            TransportContext::Http(_) => None,
            TransportContext::Connection(connection) => Some(connection.input_closed.clone()),
        };
        let transport_kind = context.transport.transport_kind();
        Ok(Dispatch::Call(PreparedCall {
            id,
            dialect,
            form,
            call,
            nonce,
            in_flight,
            transport_kind,
            progress_token,
            input_closed,
        }))
    }

    /// Registers a request for `notifications/cancelled`, if it has a session or connection.
    ///
    /// # Errors
    /// [`RequestFault::IdInUse`] if the session has a request with this id in flight.
    pub(super) fn register(
        &self,
        nonce: Option<Nonce>,
        id: &Id,
    ) -> Result<Option<InFlightCall>, Fault> {
        let start =
            |nonce| self.shared.in_flight.start(nonce, id.clone()).ok_or(RequestFault::IdInUse);
        Ok(nonce.map(start).transpose()?)
    }
}

/// Returns the name of a known method, and `_OTHER` for any other name: clients must not be able to
/// create arbitrary metric labels (OpenTelemetry semantic conventions).
fn known_method(name: &str) -> &'static str {
    let known = [INITIALIZE, DISCOVER, PING, LISTEN];
    let calls = Method::ALL.map(Method::as_str);
    let foreign = ForeignMethod::ALL.map(ForeignMethod::as_str);
    known.into_iter().chain(calls).chain(foreign).find(|known| *known == name).unwrap_or("_OTHER")
}

/// Returns the era of a message; the first sign counts. `None` if there is no sign.
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

/// Returns whether the version header names a modern revision or an unknown one, or is unreadable.
pub(super) fn is_modern_version(headers: &Headers<'_>) -> bool {
    let version = headers.version.value().map(Revision::parse);
    match version {
        Some(Some(revision)) => revision.era() == Era::Modern,
        Some(None) => true,
        None => !headers.version.is_absent(),
    }
}
