//! Reads a body into a [`Dispatch`]: parses it, decides the era of each message, and prepares
//! calls.

use std::time::Duration;

use tokio::time::Instant;

use super::connection::ConnectionKind;
use super::dialect::{ResultForm, result_message};
use super::headers::is_modern_version;
use super::message::{InboundMessage, MessageFault};
use super::modern::{is_modern, modern};
use super::tools::is_tool_result;
use super::{Dispatch, MAX_DEPTH, MessageRefusal, RequestContext, Sessions, TransportContext};
use base::platform::heap::boxed;
use domain::calls::call::ForwardedMeta;
use domain::fault::{Fault, RequestFault};
use domain::json::jsonrpc::{Frame, Id};
use domain::json::{self, Json, JsonKind, Outline};
use domain::protocol::method::{DISCOVER, ForeignMethod, INITIALIZE, LISTEN, Method, PING};
use domain::protocol::revision::{Era, Revision};
use telemetry::{End, ServerAttributes, ServerOperation};

/// Messages of one batch: the response is one message, and waits for the slowest.
const MAX_BATCH: usize = 100;

/// Longest time that `server/discover` waits for the first lists after the start. A client that was
/// told of no skills never asks for skills.
const LISTS_AWAITED: Duration = Duration::from_secs(1);

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
            JsonKind::Array => boxed(self.read_batch(message, context)).await,
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
            self.legacy.session(headers, caller, endpoint, now).map_err(refuse)?;
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
                let accepted = Box::pin(self.legacy.response(context, message, id, outcome)).await;
                return accepted.map_err(|fault| refuse(None, fault));
            }
        };
        let method = &*method;
        let served = self.endpoints.served(context.endpoint);
        let counted = served.counted_at_once(method, params, context.caller);
        if let (Some(request), Some(id)) = (counted, &id) {
            let taken = self.gate.take_session_request(context.caller, context.address, request);
            Box::pin(taken).await.map_err(|fault| {
                self.gate.telemetry().metrics().refused(fault.reason(), fault.limit());
                refuse(Some(id.clone()), fault.into())
            })?;
        }
        if method == DISCOVER {
            // Whether there are skills is unknown before the first lists.
            let settled = Instant::now() + LISTS_AWAITED;
            boxed(self.endpoints.router.lists().settled(settled)).await;
        }
        let inbound = InboundMessage { context, method, params };
        let dispatch = match era(context.transport, method, params) {
            Some(Era::Modern) => modern(&self.endpoints, &inbound, id.clone()),
            Some(Era::Legacy) => self.legacy.message(&inbound, id.clone()).await,
            None => match (context.transport, &id) {
                // On a connection, notifications and `ping` are served before the era is known.
                (TransportContext::Connection(_), None) => modern(&self.endpoints, &inbound, None),
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
                    let result = dialect.tool_error(&fault, &self.endpoints.identity);
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
            target: None,
            client: context.address,
        };
        let mut trace = ForwardedMeta::read(params, |name| context.transport.trace(name)).trace;
        ServerOperation::begin(self.gate.telemetry(), attributes, &mut trace).end(end);
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
