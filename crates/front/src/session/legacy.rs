//! Legacy clients (MCP 2024-11-05 to 2025-11-25): `initialize`, sealed sessions, and the
//! notification stream that a session may open.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::call::server_requests::PendingServerRequests;
use super::connection::ClientConnection;
use super::dialect::{Dialect, result_message};
use super::endpoints::MethodTable;
use super::headers::{Headers, is_modern_version};
use super::message::{InboundMessage, MessageFault, ReplyContext};
use super::notify::notifications::{EventIds, NotificationStream, Subscriber};
use super::notify::streams::StreamEnd;
use super::relay::{cancel_elsewhere, hand_response_over};
use super::token::{Nonce, SessionToken, TokenOpener};
use super::{Dispatch, MessageRefusal, RequestContext, TransportContext};
use base::seal::Sealer;
use catalog::view_cache::ListDigests;
use domain::calls::call::ServerRequestMode;
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, RequestFault, TransportFault};
use domain::json::Json;
use domain::json::jsonrpc::{Id, ResponseOutcome};
use domain::protocol::method::{CANCELLED, INITIALIZE, PING};
use domain::protocol::revision::{Era, Revision};
use domain::protocol::server_request::ClientCapabilities;
use domain::time::unix_time::UnixSeconds;
use upstream::passthrough_signals::PassthroughLists;

/// The sessions of legacy clients: sealed tokens, of which only terminated ones are remembered.
pub struct LegacySessions {
    pub(super) endpoints: Arc<MethodTable>,
    pub(super) tokens: TokenOpener,
    pub(super) sealer: Arc<Sealer>,
    /// `server.limits.session_lifetime`
    pub(super) lifetime: Duration,
    /// `server.limits.stream_lifetime`; zero: unlimited.
    pub(super) stream_lifetime: Duration,
}

impl LegacySessions {
    /// Terminates a session (HTTP DELETE; MCP 2025-11-25, Streamable HTTP, session management).
    /// `now` is the wall-clock time.
    ///
    /// # Errors
    /// The headers name no valid session of this caller, or a modern revision, which has no
    /// sessions.
    pub async fn terminate(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        address: Option<IpAddr>,
        endpoint: &str,
        now: UnixSeconds,
    ) -> Result<(), MessageRefusal> {
        let token = self.legacy_session(headers, caller, endpoint, now)?;
        let holder = Holder::of(caller, address);
        let shared = &self.endpoints.shared;
        shared.terminated.insert(&holder, token.nonce);
        if let Some(cluster) = &shared.cluster {
            cluster.terminations().publish(&holder, *token.nonce.as_bytes()).await;
        }
        Ok(())
    }

    /// Opens the notification stream of a session (HTTP GET; MCP 2025-11-25, Streamable HTTP).
    /// `last_event` is the client's `Last-Event-ID`. `now` is the wall-clock time.
    ///
    /// # Errors
    /// The headers name no valid session of this caller, or a modern revision, which has no GET
    /// stream.
    pub fn open_stream(
        &self,
        headers: &Headers<'_>,
        last_event: Option<&str>,
        caller: &Caller,
        endpoint: &str,
        now: UnixSeconds,
    ) -> Result<NotificationStream, MessageRefusal> {
        let token = self.legacy_session(headers, caller, endpoint, now)?;
        let dialect = Dialect::new(token.revision);
        let subscriber = Subscriber::Session {
            ids: EventIds::new(self.sealer.clone(), endpoint),
            session: token.nonce,
            streams: self.endpoints.shared.streams.clone(),
            registration: None,
            termination: self.endpoints.shared.terminated.watch(token.nonce),
        };
        let known = last_event.and_then(|id| EventIds::digests(&self.sealer, endpoint, id));
        let lifetime = Some(self.stream_lifetime).filter(|l| !l.is_zero());
        let end = StreamEnd::new(&self.endpoints.gate, caller, lifetime, now);
        let changes = self.endpoints.router.changes(
            caller,
            endpoint,
            self.endpoints.served(endpoint).lists(),
        );
        let drain = self.endpoints.shared.drain.clone();
        let is_resumed = last_event.is_some();
        let stream = NotificationStream::new(changes, known, dialect, subscriber, drain, end);
        Ok(self.with_upstreams(stream, endpoint, token.nonce, is_resumed))
    }

    /// Reads one request or notification of a legacy client.
    pub(super) async fn message(
        &self,
        inbound: &InboundMessage<'_>,
        id: Option<Id>,
    ) -> Result<Dispatch, MessageFault> {
        if inbound.method == INITIALIZE {
            return self.initialize(inbound, id);
        }
        let dialect = inbound.context.assumed_dialect;
        let token =
            self.token(inbound).map_err(|fault: Fault| MessageFault::new(fault, dialect))?;
        let dialect = Dialect::new(token.revision);
        let Some(id) = id else {
            if inbound.method == CANCELLED {
                let cancelled = Box::pin(self.cancel(inbound, token.nonce)).await;
                cancelled.map_err(|fault| MessageFault::new(fault, dialect))?;
            }
            return Ok(Dispatch::Accepted);
        };
        if inbound.method == PING {
            return Ok(Dispatch::Answer { message: result_message(&id, "{}"), session: None });
        }
        // A server request needs a stream to be sent on.
        let capabilities =
            if inbound.context.streams { token.capabilities } else { ClientCapabilities::NONE };
        let mode = ServerRequestMode::MidCall;
        let reply_context = ReplyContext { dialect, capabilities, mode, log_level: None };
        self.endpoints.prepare(inbound, id, reply_context, Some(token.nonce))
    }

    /// Resolves the server request that a response of the client belongs to, here or on the replica
    /// that sent it. A response that belongs to none is accepted and ignored.
    pub(super) async fn response(
        &self,
        context: &RequestContext<'_>,
        message: Json<'_>,
        id: Option<Id>,
        outcome: ResponseOutcome<'_>,
    ) -> Result<Dispatch, Fault> {
        let nonce = match context.transport {
            TransportContext::Http(headers) => {
                let RequestContext { caller, endpoint, now, .. } = *context;
                // The modern era has no JSON-RPC requests of servers, so no responses to them.
                if headers.session.is_absent() && is_modern_version(headers) {
                    return Ok(Dispatch::Accepted);
                }
                self.session_in_version(headers, caller, endpoint, now)?.nonce
            }
            TransportContext::Connection(connection) => connection.nonce,
        };
        let Some(id) = id else {
            return Ok(Dispatch::Accepted);
        };
        let sender = PendingServerRequests::sender_of(&id);
        let is_here = self.endpoints.shared.server_requests.resolve(nonce, id, outcome);
        // All calls of a connection are here.
        let is_http = matches!(context.transport, TransportContext::Http(_));
        if let Some(sender) = sender.filter(|_| is_http && !is_here) {
            let cluster = self.endpoints.shared.cluster.as_ref();
            hand_response_over(cluster, context, sender, nonce, message).await?;
        }
        Ok(Dispatch::Accepted)
    }

    /// Returns the session that `initialize` negotiated with the client of a message.
    fn token(&self, inbound: &InboundMessage<'_>) -> Result<SessionToken, Fault> {
        let RequestContext { transport, caller, endpoint, now, .. } = *inbound.context;
        match transport {
            TransportContext::Connection(connection) => {
                connection.token().ok_or_else(|| RequestFault::EraUnknown.into())
            }
            TransportContext::Http(headers) => {
                self.session_in_version(headers, caller, endpoint, now)
            }
        }
    }

    /// Returns the session of a request.
    ///
    /// # Errors
    /// As [`LegacySessions::session`]; the headers name a version that is unknown, or more than one
    /// (MCP 2025-11-25, transports, protocol version header).
    fn session_in_version(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        endpoint: &str,
        now: UnixSeconds,
    ) -> Result<SessionToken, Fault> {
        let token = self.session(headers, caller, endpoint, now)?;
        let version = headers.version;
        if version.is_absent() || version.value().and_then(Revision::parse).is_some() {
            Ok(token)
        } else {
            Err(RequestFault::LegacyVersionUnknown.into())
        }
    }

    fn initialize(
        &self,
        inbound: &InboundMessage<'_>,
        id: Option<Id>,
    ) -> Result<Dispatch, MessageFault> {
        let Some(id) = id else {
            return Ok(Dispatch::Accepted);
        };
        let member = |name| inbound.params.and_then(|p| p.get(name));
        let Some(requested) = member("protocolVersion").and_then(Json::as_str) else {
            let fault = Fault::invalid_params("`protocolVersion` must be a string");
            return Err(MessageFault::new(fault, Dialect::new(Revision::NEWEST_LEGACY)));
        };
        let revision = Revision::negotiate_legacy(&requested);
        let capabilities = ClientCapabilities::declared(member("capabilities"), revision);
        let RequestContext { transport, caller, endpoint, now, .. } = *inbound.context;
        let token = SessionToken::new(revision, capabilities, caller, now);
        debug!(%revision, requested = requested.escape_debug().to_string(), "session opened");
        let dialect = Dialect::new(revision);
        let message = result_message(
            &id,
            &dialect.initialize(&self.endpoints.identity, self.endpoints.served(endpoint).offer()),
        );
        Ok(match transport {
            TransportContext::Http(_) => {
                self.endpoints.gate.telemetry().metrics().session_created(revision.as_str());
                Dispatch::Answer { message, session: Some(token.seal(&self.sealer, endpoint)) }
            }
            TransportContext::Connection(connection) => {
                let notifications = connection
                    .initialize(token)
                    .then(|| self.notifications_of(connection, caller, None, StreamEnd::default()));
                Dispatch::Opened { message, notifications }
            }
        })
    }

    /// Returns the notifications of a connection whose client sends a call without `initialize`, as
    /// some clients of HTTP+SSE do when they have opened the stream again; `None` for all other
    /// connections, and later. The client may have missed changes, so one `list_changed` is sent at
    /// once.
    pub fn resume(
        &self,
        connection: &ClientConnection,
        caller: &Caller,
    ) -> Option<NotificationStream> {
        let end = StreamEnd::default().or_revoked(connection.resume()?);
        Some(self.notifications_of(connection, caller, Some(ListDigests::default()), end))
    }

    fn notifications_of(
        &self,
        connection: &ClientConnection,
        caller: &Caller,
        known: Option<ListDigests>,
        end: StreamEnd,
    ) -> NotificationStream {
        let endpoint = connection.endpoint();
        let dialect = connection.dialect();
        let changes = self.endpoints.router.changes(
            caller,
            endpoint,
            self.endpoints.served(endpoint).lists(),
        );
        let drain = self.endpoints.shared.drain.clone();
        let subscriber = Subscriber::Connection;
        let is_resumed = known.is_some();
        let stream = NotificationStream::new(changes, known, dialect, subscriber, drain, end);
        self.with_upstreams(stream, endpoint, connection.nonce, is_resumed)
    }

    /// Adds notifications of upstreams: completed URL elicitations, and changes of `[passthrough]`.
    /// A reconnect with other capabilities is announced as well, since the legacy stream subscribes
    /// to no resource. `is_resumed`: the client had a stream for the session before.
    fn with_upstreams(
        &self,
        stream: NotificationStream,
        endpoint: &str,
        session: Nonce,
        is_resumed: bool,
    ) -> NotificationStream {
        let pending = self.endpoints.shared.url_elicitations.clone();
        let stream = stream.counted(self.endpoints.gate.telemetry().clone());
        let lists = PassthroughLists { tools: true, resources: true };
        let notices = self.endpoints.passthrough_notices(endpoint, lists);
        let notices = notices.map(|notices| if is_resumed { notices.resumed() } else { notices });
        let stream = stream.with_passthrough(notices);
        stream.with_url_elicitations(self.endpoints.router.url_completions(), pending, session)
    }

    /// Returns the session of a request that only legacy clients send (GET, DELETE).
    fn legacy_session(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        endpoint: &str,
        now: UnixSeconds,
    ) -> Result<SessionToken, MessageRefusal> {
        let revision = headers.version.value().and_then(Revision::parse);
        let is_modern = match revision {
            Some(revision) => revision.era() == Era::Modern,
            None => headers.session.is_absent() && is_modern_version(headers),
        };
        let session = if is_modern {
            Err(TransportFault::MethodNotAllowed { allow: "POST" }.into())
        } else {
            self.session_in_version(headers, caller, endpoint, now)
        };
        let dialect = self.dialect_of(headers, endpoint, Some(caller));
        session.map_err(|fault| MessageRefusal { fault, id: None, dialect })
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

    /// Returns the session that the headers name.
    ///
    /// # Errors
    /// There is no session id, or the session is not one of this caller, has expired after
    /// `server.limits.session_lifetime`, or was terminated. The session of another caller is
    /// counted as a refusal, and answered like an unknown one.
    pub(super) fn session(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        endpoint: &str,
        now: UnixSeconds,
    ) -> Result<SessionToken, Fault> {
        if headers.session.is_absent() {
            return Err(TransportFault::SessionRequired.into());
        }
        let id = headers.session.value();
        let token = id.and_then(|id| self.tokens.open(endpoint, id));
        if token.as_ref().is_some_and(|token| !token.belongs_to(caller)) {
            self.endpoints.gate.suspect(caller, &TransportFault::SessionUnknown);
        }
        let token = token.filter(|token| {
            token.belongs_to(caller)
                && now.saturating_since(token.issued_at) <= self.lifetime
                && !self.endpoints.shared.terminated.contains(&token.nonce)
        });
        token.ok_or_else(|| TransportFault::SessionUnknown.into())
    }

    /// Cancels the call that a `notifications/cancelled` names, if the session has one with this
    /// id, here or on another replica.
    async fn cancel(
        &self,
        inbound: &InboundMessage<'_>,
        session: Nonce,
    ) -> Result<(), TransportFault> {
        let Some(id) = inbound.cancelled_request() else {
            return Ok(());
        };
        let MethodTable { gate, shared, .. } = &*self.endpoints;
        let is_here = shared.in_flight.cancel(session, id.clone());
        match inbound.context.transport {
            TransportContext::Http(_) if !is_here => match &shared.cluster {
                Some(cluster) => {
                    cancel_elsewhere(gate, cluster, inbound.context, session, &id).await
                }
                None => Ok(()),
            },
            // All calls of a connection are here.
            _ => Ok(()),
        }
    }
}
