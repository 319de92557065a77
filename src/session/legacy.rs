//! Legacy clients (2024-11-05 to 2025-11-25): the handshake, sealed sessions, and the stream of
//! notices that a session may open.

use tracing::debug;

use super::dialect::{Dialect, result_message};
use super::headers::Headers;
use super::notify::notifications::{EventIds, NotificationStream, Subscriber};
use super::notify::streams::StreamEnd;
use super::read::{DialectFault, InboundMessage, ReplyContext, is_modern_version};
use super::token::{Nonce, Token};
use super::{Dispatch, Refusal, RequestContext, Sessions, TransportContext};
use crate::domain::call::ServerRequestMode;
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, RequestFault, TransportFault};
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Id, Outcome};
use crate::domain::method::{CANCELLED, INITIALIZE, PING};
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;

impl Sessions {
    /// Ends a session (legacy DELETE).
    pub fn end(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
    ) -> Result<(), Refusal> {
        let dialect = self.dialect_of(headers, endpoint, Some(caller));
        let terminated = match is_modern_version(headers) {
            true => Err(TransportFault::MethodNotAllowed { allow: "POST" }.into()),
            false => self.session(headers, caller, endpoint, now_secs),
        };
        let token = terminated.map_err(|fault| Refusal { fault, id: None, dialect })?;
        self.shared.terminated.insert(token.nonce, self.limits.deleted_sessions);
        Ok(())
    }

    /// Opens the notification stream of a session (legacy GET). `last_event` is the id of the last
    /// event that its client saw.
    pub fn open_stream(
        &self,
        headers: &Headers<'_>,
        last_event: Option<&str>,
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
    ) -> Result<NotificationStream, Refusal> {
        let opened = match is_modern_version(headers) {
            true => Err(TransportFault::MethodNotAllowed { allow: "POST" }.into()),
            false => self.session(headers, caller, endpoint, now_secs),
        };
        let dialect = self.dialect_of(headers, endpoint, Some(caller));
        let token = opened.map_err(|fault| Refusal { fault, id: None, dialect })?;
        let record = self.gate.stream(caller, endpoint);
        let record = record.map_err(|fault| Refusal { fault: fault.into(), id: None, dialect })?;
        let audience = Subscriber::Session {
            ids: EventIds::new(self.sealer.clone(), endpoint),
            place: self.shared.streams.open(token.nonce),
            termination: self.shared.terminated.watch(token.nonce),
        };
        let known = last_event.and_then(|id| EventIds::digest(&self.sealer, endpoint, id));
        let lifetime = Some(self.limits.stream_lifetime).filter(|l| !l.is_zero());
        let end = self.end_of_stream(caller, lifetime, now_secs);
        let (changes, drain) = (self.router.changes(caller, endpoint), self.shared.drain.clone());
        let dialect = Dialect::new(token.revision);
        let notifications = NotificationStream::new(changes, known, dialect, audience, drain, end);
        let notifications = notifications.recorded(record).counted(self.telemetry().clone());
        Ok(notifications.with_url_elicitations(
            self.router.pages(),
            self.shared.url_elicitations.clone(),
            token.nonce,
        ))
    }

    pub(super) fn legacy(
        &self,
        inbound: &InboundMessage<'_>,
        id: Option<Id>,
    ) -> Result<Dispatch, DialectFault> {
        if inbound.method == INITIALIZE {
            return self.initialize(inbound, id);
        }
        let token = self.token(inbound).map_err(|fault| (fault, inbound.context.guess))?;
        let dialect = Dialect::new(token.revision);
        let Some(id) = id else {
            if inbound.method == CANCELLED {
                self.cancel(token.nonce, inbound.params);
            }
            return Ok(Dispatch::Accepted);
        };
        match inbound.method == PING {
            true => Ok(Dispatch::Answer { message: result_message(&id, "{}"), session: None }),
            false => {
                let streams = inbound.context.streams;
                let capabilities =
                    if streams { token.capabilities } else { ClientCapabilities::NONE };
                let reply_context =
                    ReplyContext { dialect, capabilities, mode: ServerRequestMode::MidCall };
                self.prepare(inbound, id, reply_context, Some(token.nonce))
            }
        }
    }

    /// Takes in what a client says to a question of ours.
    pub(super) fn answered(
        &self,
        context: &RequestContext<'_>,
        id: Option<Id>,
        outcome: Outcome<'_>,
    ) -> Result<Dispatch, Fault> {
        let nonce = match context.transport {
            TransportContext::Http(headers) => {
                let RequestContext { caller, endpoint, now_secs, .. } = *context;
                // The modern era has no requests of servers: nothing can be an answer to one.
                if headers.session.is_absent() && is_modern_version(headers) {
                    return Ok(Dispatch::Accepted);
                }
                self.session(headers, caller, endpoint, now_secs)?.nonce
            }
            TransportContext::Connection(connection) => connection.nonce,
        };
        if let Some(id) = id {
            self.shared.server_requests.resolve(nonce, id, outcome);
        }
        Ok(Dispatch::Accepted)
    }

    /// What was agreed with the client of a message.
    fn token(&self, inbound: &InboundMessage<'_>) -> Result<Token, Fault> {
        let RequestContext { transport, caller, endpoint, now_secs, .. } = *inbound.context;
        match transport {
            TransportContext::Connection(connection) => {
                connection.token().ok_or_else(|| RequestFault::EraUnknown.into())
            }
            TransportContext::Http(headers) => {
                let token = self.session(headers, caller, endpoint, now_secs)?;
                let version = headers.version;
                match version.is_absent() || version.value().and_then(Revision::parse).is_some() {
                    true => Ok(token),
                    false => Err(RequestFault::LegacyVersionUnknown.into()),
                }
            }
        }
    }

    fn initialize(
        &self,
        inbound: &InboundMessage<'_>,
        id: Option<Id>,
    ) -> Result<Dispatch, DialectFault> {
        let Some(id) = id else {
            return Ok(Dispatch::Accepted);
        };
        let member = |name| inbound.params.and_then(|p| p.get(name));
        let Some(requested) = member("protocolVersion").and_then(Json::as_str) else {
            let fault = Fault::invalid_params("`protocolVersion` must be a string");
            return Err((fault, Dialect::new(Revision::NEWEST_LEGACY)));
        };
        let revision = Revision::negotiate_legacy(&requested);
        let capabilities = ClientCapabilities::declared(member("capabilities"), revision);
        let RequestContext { transport, caller, endpoint, now_secs, .. } = *inbound.context;
        let token = Token::new(revision, capabilities, caller, now_secs);
        debug!(%revision, requested = requested.escape_debug().to_string(), "session opened");
        let dialect = Dialect::new(revision);
        let message = result_message(&id, &dialect.initialize(&self.identity));
        Ok(match transport {
            TransportContext::Http(_) => {
                self.telemetry().metrics().session_created(revision.as_str());
                Dispatch::Answer { message, session: Some(token.seal(&self.sealer, endpoint)) }
            }
            TransportContext::Connection(connection) => {
                let notifications = connection.open(token).then(|| {
                    let changes = self.router.changes(caller, endpoint);
                    let (audience, drain) = (Subscriber::Connection, self.shared.drain.clone());
                    let end = StreamEnd::default();
                    let notifications =
                        NotificationStream::new(changes, None, dialect, audience, drain, end);
                    let (pages, url_elicitations) =
                        (self.router.pages(), self.shared.url_elicitations.clone());
                    let notifications = notifications.counted(self.telemetry().clone());
                    notifications.with_url_elicitations(pages, url_elicitations, connection.nonce)
                });
                Dispatch::Opened { message, notifications }
            }
        })
    }

    /// The session that the headers name, if it is the caller's and alive.
    pub(super) fn session(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
    ) -> Result<Token, Fault> {
        if headers.session.is_absent() {
            return Err(TransportFault::SessionRequired.into());
        }
        let id = headers.session.value();
        let token = id.and_then(|id| Token::open(&self.sealer, endpoint, id));
        if token.as_ref().is_some_and(|token| !token.is_of(caller)) {
            self.gate.suspect(caller, &TransportFault::SessionUnknown);
        }
        let token = token.filter(|token| {
            token.is_of(caller)
                && now_secs.saturating_sub(token.issued_at)
                    <= self.limits.session_lifetime.as_secs()
                && !self.shared.terminated.contains(&token.nonce)
        });
        token.ok_or_else(|| TransportFault::SessionUnknown.into())
    }

    pub(super) fn cancel(&self, session: Nonce, params: Option<Json<'_>>) {
        if let Some(id) = params.and_then(|p| p.get("requestId")).and_then(Id::read) {
            self.shared.in_flight.cancel(session, id);
        }
    }
}
