//! The endpoints, as clients of both eras use them: the methods that they serve, and the calls
//! that they accept.

use std::sync::Arc;
use std::time::Duration;

use super::call::in_flight::InFlightCall;
use super::dialect::{ResultForm, ServerIdentity, result_message};
use super::headers::Field;
use super::message::{InboundMessage, MessageFault, ReplyContext};
use super::notify::passthrough::PassthroughNotices;
use super::token::Nonce;
use super::tools::{Purpose, ServedMethods, ToolRefusal, is_tool_result, with_public_name};
use super::{Dispatch, PreparedCall, SessionSharedState, TransportContext};
use calls::Router;
use domain::calls::call::{Call, ClientMessages, ForwardedMeta, Request, ServerRequestMode};
use domain::fault::{Fault, RequestFault};
use domain::json::jsonrpc::Id;
use domain::protocol::log_level::LogLevel;
use domain::protocol::meta;
use domain::protocol::method::ForeignMethod;
use policy::Gate;
use upstream::passthrough_signals::PassthroughLists;

/// The endpoints of one configuration.
pub(super) struct MethodTable {
    pub gate: Arc<Gate>,
    pub router: Arc<Router>,
    pub identity: Arc<ServerIdentity>,
    /// The pseudonym of the installation.
    pub pseudonym: String,
    pub discover_ttl: Duration,
    /// `server.empty_lists`
    pub empty_lists: bool,
    pub shared: Arc<SessionSharedState>,
}

impl MethodTable {
    /// Returns the methods and lists of an endpoint.
    pub(super) fn served<'a>(&'a self, endpoint: &'a str) -> ServedMethods<'a> {
        let exposure = self.router.exposure(endpoint);
        let router = &self.router;
        let passthrough = router.passthrough_at(endpoint);
        let pseudonym = &*self.pseudonym;
        ServedMethods {
            exposure,
            empty_lists: self.empty_lists,
            router,
            endpoint,
            passthrough,
            pseudonym,
        }
    }

    /// Returns the changes of the upstream of `[passthrough]` for a stream that wants these; `None`
    /// where the endpoint does not serve it.
    pub(super) fn passthrough_notices(
        &self,
        endpoint: &str,
        wanted: PassthroughLists,
    ) -> Option<PassthroughNotices> {
        let passthrough = self.router.passthrough_at(endpoint)?;
        Some(PassthroughNotices::new(passthrough.changes(), wanted))
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
        let dialect = reply_context.dialect;
        let reject = |fault: Fault| MessageFault::new(fault, dialect);
        let served = self.served(context.endpoint);
        let result = match served.purpose(method, params, context, dialect) {
            Ok(Purpose::Call(request, form)) => {
                let request = with_public_name(&self.router, request, context.caller);
                let request = self.with_mismatch(request, inbound, nonce);
                let call = self.prepare_call(inbound, id, reply_context, nonce, request, form);
                return call.map(Dispatch::Call).map_err(reject);
            }
            Ok(Purpose::EmptyList(member)) => {
                let ttl_ms = self.discover_ttl.as_millis();
                dialect.empty_list(member, &self.identity, ttl_ms)
            }
            Err(ToolRefusal { fault, form: ResultForm::Tool }) if is_tool_result(&fault) => {
                dialect.tool_error(&fault, &self.identity)
            }
            Err(ToolRefusal { fault, .. }) => return Err(reject(fault)),
        };
        Ok(Dispatch::Answer { message: result_message(&id, &result), session: None })
    }

    /// Prepares the call of a request whose result the client gets in this form.
    fn prepare_call(
        &self,
        inbound: &InboundMessage<'_>,
        id: Id,
        reply_context: ReplyContext,
        nonce: Option<Nonce>,
        request: Request,
        form: ResultForm,
    ) -> Result<PreparedCall, Fault> {
        let InboundMessage { context, params, .. } = *inbound;
        let mut forwarded = ForwardedMeta::read(params, |name| context.transport.trace(name));
        let through = forwarded.via.through(&self.pseudonym);
        forwarded.via = through.ok_or(RequestFault::Loop)?;
        let in_flight = self.register(nonce, &id)?;
        let token = params.and_then(|p| p.get("_meta")?.get(meta::PROGRESS_TOKEN));
        let progress_token = token.filter(|_| context.streams).and_then(Id::read);
        let log_level = self.log_level(&request, &reply_context, nonce);
        let ReplyContext { dialect, capabilities, mode, .. } = reply_context;
        let call = Call {
            caller: context.caller.clone(),
            subject_token: context.subject_token.cloned(),
            endpoint: context.endpoint.into(),
            address: context.address,
            tried_by: None,
            client: ClientMessages {
                capabilities,
                mode,
                progress: progress_token.is_some(),
                log_level: log_level.filter(|_| context.streams),
                reads_skills: dialect.has_skills(),
            },
            forwarded,
            request,
        };
        let transport_kind = context.transport.transport_kind();
        let input_closed = context.transport.input_closed();
        Ok(PreparedCall {
            id,
            dialect,
            form,
            call,
            nonce,
            in_flight,
            transport_kind,
            progress_token,
            input_closed,
        })
    }

    /// Returns the least severe log messages that the client gets about a call, which only the
    /// upstream of `[passthrough]` sends.
    fn log_level(
        &self,
        request: &Request,
        reply_context: &ReplyContext,
        nonce: Option<Nonce>,
    ) -> Option<LogLevel> {
        match (request, reply_context.mode) {
            (Request::Passthrough(_), ServerRequestMode::InputRequired) => reply_context.log_level,
            (Request::Passthrough(_), ServerRequestMode::MidCall) => {
                self.shared.log_levels.get(&nonce?)
            }
            _ => None,
        }
    }

    /// Adds to a request for the upstream of `[passthrough]` the header that differs from its
    /// arguments.
    fn with_mismatch(
        &self,
        mut request: Request,
        inbound: &InboundMessage<'_>,
        nonce: Option<Nonce>,
    ) -> Request {
        let InboundMessage { context, params, .. } = *inbound;
        let Request::Passthrough(passthrough) = &mut request else { return request };
        let Some(served) = self.router.passthrough_at(context.endpoint) else { return request };
        if let TransportContext::Http(headers) = context.transport
            && nonce.is_none()
            && passthrough.kind == Some(ForeignMethod::CallTool)
            && let Some(known) = served.param_headers(&passthrough.name)
        {
            let header = |name: &str| match headers.params.get(name) {
                Field::Absent => None,
                field => Some(field.value()),
            };
            let arguments = params.and_then(|params| params.get("arguments"));
            passthrough.mismatch = known.check(arguments, header).err().map(str::to_owned);
        }
        request
    }

    /// Registers a request for `notifications/cancelled`, if it has a session or connection.
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
