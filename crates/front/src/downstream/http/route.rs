//! Routing of HTTP requests: checks and authentication, then Streamable HTTP (one endpoint for all
//! revisions), HTTP+SSE, or protected-resource metadata.

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::Endpoint;
use super::body;
use super::event_stream::{EventSource, EventStream, NextEvent, OneMessage, WireEvent};
use super::http_sse::HttpSseEndpoint;
use super::request_head::{self, Accepts};
use super::respond;
use super::respond::Body;
use crate::downstream::RequestGuard;
use crate::downstream::admission::{BodyBudget, StreamPermit};
use crate::downstream::batch::batch;
use crate::downstream::calls::{CallOutput, CallResponse, PendingCall};
use crate::downstream::channel::Sender;
use crate::downstream::clock;
use crate::downstream::conn::Peer;
use crate::downstream::{Serve, TlsServer};
use crate::session::dialect::Dialect;
use crate::session::notify::notifications::{NotificationStream, StreamEvent};
use crate::session::{CallPermits, Dispatch, MessageRefusal, RequestContext, TransportContext};
use base::platform::heap::boxed;
use config::Limits;
use domain::calls::caller::{Caller, Proof};
use domain::calls::fair_share::{Holder, network};
use domain::fault::{Fault, TransportFault};
use domain::json::jsonrpc::Id;
use domain::protocol::method::Countable;
use domain::text::chunks::Chunks;
use policy::Authenticated;
use upstream::call::result_memory::MessageMemory;

impl Endpoint {
    /// Returns the dialect for a refusal before the body is read, by the headers alone.
    fn dialect_of(&self, head: &Parts, path: &str) -> Dialect {
        let headers = request_head::read_headers(&head.headers);
        self.sessions.legacy().dialect_of(&headers, path, None)
    }

    /// The paths at which messages are served.
    fn endpoints(&self) -> impl Iterator<Item = &str> {
        let http_sse = self.http_sse.as_ref().map(HttpSseEndpoint::path);
        self.paths.iter().map(String::as_str).chain(http_sse)
    }

    /// Returns the endpoint that a path means, ignoring slashes at both ends, which clients add
    /// when they join URLs. Any other path is returned as it is.
    fn meant<'a>(&'a self, path: &'a str) -> &'a str {
        let inner = path.trim_matches('/');
        let is_same = |endpoint: &&str| endpoint.strip_prefix('/') == Some(inner);
        let exact = self.endpoints().find(|endpoint| *endpoint == path);
        exact.or_else(|| self.endpoints().find(is_same)).unwrap_or(path)
    }

    /// Returns the public response at a path, which needs no authentication. `None` for an
    /// endpoint, and for all paths whose existence only authenticated callers may learn.
    fn public(&self, head: &Parts, path: &str) -> Option<Result<Response<Body>, RouteRefusal>> {
        let is_endpoint = self.paths.iter().any(|endpoint| endpoint == path);
        let is_browser = || request_head::is_of_browser(&head.method, &head.headers);
        if (is_endpoint || path == "/") && is_browser() {
            return Some(Ok(respond::page(self.protected_resources.public_path(path))));
        }
        if is_endpoint {
            return None;
        }
        // The document names the authorization server that issues tokens.
        let document = self.protected_resources.document(path);
        let document = document.or_else(|| self.client_document.at(path).map(Ok));
        if let Some(document) = document {
            return Some(public_document(&head.method, document));
        }
        // Clients of MCP 2025-03-26 look here for an authorization server. A 401 would send them
        // into a sign-in at the gateway, which has none.
        let is_of_authorization_server = path == "/register" || path.contains("/.well-known/");
        is_of_authorization_server.then(|| Err(TransportFault::not_found().into()))
    }

    /// The refusal of a path that is not an endpoint, with the names of endpoints. The holder of a
    /// token gets only the main endpoint, whose audience the token has.
    fn no_endpoint(&self, caller: &Caller) -> TransportFault {
        let count = match caller.proof() {
            Proof::Token(_) => 1,
            _ => MAX_NAMED_ENDPOINTS,
        };
        let endpoints: Vec<_> = self.endpoints().take(count).collect();
        TransportFault::NotFound { endpoints: endpoints.join(", ") }
    }

    /// Authenticates a request whose host and origin are allowed, and returns its response.
    async fn authenticate(
        &self,
        head: &Parts,
        body: Incoming,
        peer: &Peer,
        path: &str,
    ) -> Result<Response<Body>, RouteRefusal> {
        let address =
            request_head::client_address(peer.address, &head.headers, &self.trusted_proxies);
        self.gate.check_address(address)?;
        if let Some(name) = self.hooks.named(path) {
            boxed(self.hooks.take(head, body, name, address, &self.admission)).await?;
            self.sessions.hint(name);
            return Ok(respond::accepted());
        }
        if let Some(page) = self.sign_in.as_ref().filter(|page| page.is_at(path)) {
            let holder = Holder::Network(network(address));
            let reading = body::read(body, &head.headers, &self.limits, &self.admission, &holder);
            let (form, _memory) = boxed(reading).await?;
            return Ok(boxed(page.answer(head, &form, clock::now())).await?);
        }
        if let Some(response) = self.public(head, path) {
            return response;
        }
        let credentials = request_head::read_credentials(&head.headers, self.subject(peer));
        let audience = self.protected_resources.audience(path);
        let known = self.gate.authenticate(&credentials, audience, address, clock::now());
        let Authenticated { caller, token } = known.await?;
        let sender = Sender { subject_token: token, ..Sender::new(caller, Some(address)) };
        self.dispatch(head, body, path, sender).await
    }

    /// Returns the response to an authenticated request, by its path and method.
    async fn dispatch(
        &self,
        head: &Parts,
        body: Incoming,
        path: &str,
        sender: Sender,
    ) -> Result<Response<Body>, RouteRefusal> {
        let Parts { method, uri, headers, .. } = head;
        let limit = MAX_URI_LENGTH;
        if uri.path().len() > limit || uri.query().is_some_and(|query| query.len() > limit) {
            return Err(TransportFault::UriTooLong { limit }.into());
        }
        if let Some(http_sse) = &self.http_sse
            && http_sse.path() == path
        {
            return boxed(self.serve_http_sse(head, body, http_sse, sender)).await;
        }
        if !self.paths.iter().any(|endpoint| endpoint == path) {
            return Err(self.no_endpoint(&sender.caller).into());
        }
        match *method {
            Method::POST => self.post(head, body, path, sender).await,
            Method::GET => boxed(self.open_stream(headers, path, sender)).await,
            Method::DELETE => boxed(self.terminate(headers, path, sender)).await,
            _ => Err(TransportFault::MethodNotAllowed { allow: "GET, POST, DELETE" }.into()),
        }
    }

    /// Returns the notification stream of a session (MCP 2025-11-25, Streamable HTTP).
    async fn open_stream(
        &self,
        headers: &HeaderMap,
        path: &str,
        sender: Sender,
    ) -> Result<Response<Body>, RouteRefusal> {
        self.take(&sender, Countable::Stream).await?;
        let last_event = headers.get(LAST_EVENT_ID).and_then(|v| v.to_str().ok());
        let caller = &sender.caller;
        let mcp_headers = request_head::read_headers(headers);
        let now = clock::now();
        let notifications =
            self.sessions.legacy().open_stream(&mcp_headers, last_event, caller, path, now)?;
        let accepts = request_head::read_accept(headers)?;
        Ok(self.notification_stream(notifications, accepts, &sender, path).await?)
    }

    /// Terminates a session (MCP 2025-11-25, Streamable HTTP, session management).
    async fn terminate(
        &self,
        headers: &HeaderMap,
        path: &str,
        sender: Sender,
    ) -> Result<Response<Body>, RouteRefusal> {
        self.take(&sender, Countable::Delete).await?;
        let headers = request_head::read_headers(headers);
        let Sender { caller, address, .. } = &sender;
        self.sessions.legacy().terminate(&headers, caller, *address, path, clock::now()).await?;
        Ok(respond::empty(StatusCode::OK))
    }

    async fn take(&self, sender: &Sender, request: Countable) -> Result<(), TransportFault> {
        self.gate.take_session_request(&sender.caller, sender.address, request).await
    }

    /// Returns the response to a POST of Streamable HTTP (MCP 2025-11-25, transports).
    async fn post(
        &self,
        head: &Parts,
        body: Incoming,
        path: &str,
        sender: Sender,
    ) -> Result<Response<Body>, RouteRefusal> {
        request_head::check_media_type(&head.headers)?;
        let accepts = request_head::read_accept(&head.headers)?;
        let holder = sender.holder();
        let (bytes, budget) =
            body::read(body, &head.headers, &self.limits, &self.admission, &holder).await?;
        let Sender { caller, subject_token, address } = &sender;
        let budget = Arc::new(budget);
        let headers = request_head::read_headers(&head.headers);
        let context = RequestContext {
            transport: TransportContext::Http(&headers),
            caller,
            subject_token: subject_token.as_ref(),
            endpoint: path,
            address: *address,
            now: clock::now(),
            assumed_dialect: self.sessions.legacy().dialect_of(&headers, path, Some(caller)),
            streams: accepts != Accepts::JsonOnly,
        };
        let dispatch = self.sessions.read(&bytes, &context).await?;
        drop(bytes);
        match dispatch {
            Dispatch::Accepted => Ok(respond::accepted()),
            Dispatch::Answer { message, session } => {
                let response = match accepts {
                    Accepts::StreamOnly => self.message_stream(budget, async { Some(message) }),
                    Accepts::Both | Accepts::JsonOnly => respond::json(message),
                };
                Ok(respond::with_session(response, session.as_deref()))
            }
            Dispatch::Opened { message, .. } => Ok(respond::json(message)),
            Dispatch::Listen(notifications) => {
                let id = notifications.request().cloned();
                let opening = self.notification_stream(notifications, accepts, &sender, path);
                Box::pin(opening).await.map_err(|fault| RouteRefusal::Transport { fault, id })
            }
            Dispatch::Batch(items) => {
                Ok(Box::pin(self.batch_response(holder, items, budget, accepts)).await)
            }
            Dispatch::Call(prepared) => {
                let id = Some(prepared.id.clone());
                let dialect = prepared.dialect;
                let refuse =
                    |fault: TransportFault| MessageRefusal { fault: fault.into(), id, dialect };
                let call = self.admission.call(&holder).map_err(refuse)?;
                let permits = CallPermits { call, budget };
                let call = PendingCall::new(self.sessions.clone(), prepared, permits);
                self.call_response(call, accepts).await
            }
        }
    }

    /// Returns the response to a batch: JSON if it is ready within `keep_alive`, otherwise a
    /// stream.
    async fn batch_response(
        &self,
        holder: Holder,
        items: Vec<Result<Dispatch, MessageRefusal>>,
        budget: Arc<BodyBudget>,
        accepts: Accepts,
    ) -> Response<Body> {
        let has_calls = items.iter().any(|item| matches!(item, Ok(Dispatch::Call(_))));
        let sessions = self.sessions.clone();
        let admission = self.admission.clone();
        let memory = budget.clone();
        let mut pending = Box::pin(batch(sessions, admission, holder, items, budget));
        let early = match accepts {
            Accepts::JsonOnly => Ok(pending.as_mut().await),
            _ => timeout(self.limits.keep_alive, pending.as_mut()).await,
        };
        match early {
            // Cancelled calls have no response, but the request had some: an empty stream.
            Ok(None) if has_calls => self.message_stream(memory, async { None }),
            Ok(None) => respond::accepted(),
            Ok(message) if accepts == Accepts::StreamOnly => {
                self.message_stream(memory, async { message })
            }
            Ok(Some(message)) => respond::json(Chunks::from(message).holding(memory)),
            Err(_) => self.message_stream(memory, pending),
        }
    }

    /// Returns the response of HTTP+SSE: GET opens the stream, POST sends a message.
    async fn serve_http_sse(
        &self,
        head: &Parts,
        body: Incoming,
        http_sse: &HttpSseEndpoint,
        sender: Sender,
    ) -> Result<Response<Body>, RouteRefusal> {
        match head.method {
            Method::GET => match request_head::read_accept(&head.headers)? {
                Accepts::JsonOnly => Err(STREAM_NOT_ACCEPTED.into()),
                _ => {
                    self.take(&sender, Countable::Stream).await?;
                    Ok(http_sse.open(sender, &self.sessions).await?)
                }
            },
            Method::POST => {
                request_head::check_media_type(&head.headers)?;
                let session = http_sse.find(&head.uri, &sender.caller)?;
                let Self { limits, admission, .. } = self;
                let holder = sender.holder();
                let (bytes, budget) =
                    body::read(body, &head.headers, limits, admission, &holder).await?;
                session.deliver(&sender, &bytes, budget).await?;
                Ok(respond::accepted())
            }
            _ => Err(TransportFault::MethodNotAllowed { allow: "GET, POST" }.into()),
        }
    }

    /// Returns the response to a call: JSON if it is ready within `keep_alive` and no message comes
    /// before it, otherwise a stream. A client that accepts JSON only waits for the response
    /// without its messages.
    async fn call_response(
        &self,
        mut call: PendingCall,
        accepts: Accepts,
    ) -> Result<Response<Body>, RouteRefusal> {
        let early = match accepts {
            Accepts::JsonOnly => Some(CallOutput::Response(call.response().await)),
            Accepts::Both => timeout(self.limits.keep_alive, call.next()).await.ok(),
            Accepts::StreamOnly => None,
        };
        match early {
            Some(CallOutput::Response(CallResponse::Message(message))) => {
                Ok(respond::json(message.holding(call.memory())))
            }
            Some(CallOutput::Response(CallResponse::Refused(refusal))) => Err(refusal.into()),
            // A cancelled call has no response (MCP 2025-11-25, cancellation): an empty stream.
            Some(CallOutput::Response(CallResponse::Cancelled)) => {
                Ok(self.message_stream(call.memory(), async { None }))
            }
            Some(CallOutput::Message(message)) => {
                Ok(self.call_stream(Some(WireEvent::message(None, &message)), call))
            }
            None => Ok(self.call_stream(None, call)),
        }
    }

    fn call_stream(&self, first: Option<WireEvent>, call: PendingCall) -> Response<Body> {
        // A stream is polled only while its client reads.
        respond::events(EventStream::of_call(first, call.in_task(), self.limits.keep_alive))
    }

    /// Returns a stream of one message, which holds `memory` until it is sent.
    fn message_stream(
        &self,
        memory: Arc<dyn MessageMemory>,
        message: impl Future<Output = Option<String>> + Send + 'static,
    ) -> Response<Body> {
        let source = OneMessage { message, memory };
        respond::events(EventStream::of_call(None, source, self.limits.keep_alive))
    }

    /// Returns a notification stream.
    ///
    /// # Errors
    /// `not_acceptable` for a client that accepts JSON only, as notifications need a stream;
    /// `overloaded` or `too_many_streams` when no stream is admitted; `audit_unavailable` when it
    /// cannot be recorded.
    async fn notification_stream(
        &self,
        notifications: NotificationStream,
        accepts: Accepts,
        sender: &Sender,
        path: &str,
    ) -> Result<Response<Body>, TransportFault> {
        if accepts == Accepts::JsonOnly {
            return Err(STREAM_NOT_ACCEPTED);
        }
        let permit = self.admission.stream(&sender.holder())?;
        // Last, so that a refused stream is not on record.
        let record = self.gate.stream(&sender.caller, sender.address, path).await?;
        let stream = notifications.admitted(record, permit.revocation());
        // On the heap: a future would hold the stream twice, before and after its first poll.
        let source = Box::new(Notifications { stream, permit });
        Ok(respond::events(EventStream::long_lived(None, source, self.limits.keep_alive)))
    }
}

impl Serve for Endpoint {
    fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    fn tls(&self) -> Option<&Arc<TlsServer>> {
        self.tls.as_ref()
    }

    fn trusts(&self, proxy: IpAddr) -> bool {
        self.trusted_proxies.contains(proxy)
    }

    async fn serve(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        _: &RequestGuard,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        let protected_resources = &self.protected_resources;
        let telemetry = self.gate.telemetry();
        let path = self.meant(head.uri.path());
        let refuse = |fault: TransportFault, id: Option<Id>| {
            telemetry.metrics().refused(fault.reason(), fault.limit());
            let challenge = protected_resources.challenge(path, &fault);
            let dialect = self.dialect_of(&head, path);
            let refusal = respond::refusal(&MessageRefusal { fault: fault.into(), id, dialect });
            match challenge {
                Some(challenge) => respond::with_challenge(refusal, &challenge),
                None => refusal,
            }
        };
        if let Err(fault) = self.guard.check_host(&head.uri, &head.headers) {
            return refuse(fault, None);
        }
        let origin = match self.guard.check_origin(&head.headers) {
            Ok(origin) => origin,
            Err(fault) => return refuse(fault, None),
        };
        if head.method == Method::OPTIONS {
            let mut response = respond::empty(StatusCode::NO_CONTENT);
            if let Some(origin) = origin {
                origin.allow_preflight(response.headers_mut());
            }
            return response;
        }
        let result = self.authenticate(&head, body, peer, path).await;
        let mut response = result.unwrap_or_else(|refused| match refused {
            RouteRefusal::Transport { fault, id } => refuse(fault, id),
            RouteRefusal::Message(refusal) => {
                // A refused request with an id is counted as the outcome of its call.
                match &refusal.fault {
                    fault @ Fault::Transport(TransportFault::Overloaded) => {
                        telemetry.metrics().refused(fault.reason(), None);
                    }
                    fault if refusal.id.is_none() => {
                        telemetry.metrics().refused(fault.reason(), None);
                    }
                    _ => {}
                }
                respond::refusal(&refusal)
            }
        });
        if let Some(origin) = origin {
            origin.allow(response.headers_mut());
        }
        response
    }
}

/// A notification stream, and its permit among all streams.
struct Notifications {
    stream: NotificationStream,
    permit: StreamPermit,
}

impl EventSource for Box<Notifications> {
    async fn next_event(mut self) -> NextEvent<Self> {
        let StreamEvent { id, message } = self.stream.next().await?;
        self.permit.sent();
        Some((WireEvent::message(id.as_deref(), &message), Some(self)))
    }
}

/// Returns a document that is served without authentication.
fn public_document(
    method: &Method,
    document: Result<String, TransportFault>,
) -> Result<Response<Body>, RouteRefusal> {
    match *method {
        Method::GET | Method::HEAD => Ok(respond::document(document?)),
        _ => Err(TransportFault::MethodNotAllowed { allow: "GET" }.into()),
    }
}

/// Bytes of a path, and of a query: the endpoint needs a session id in the query at most.
const MAX_URI_LENGTH: usize = 8_192;

/// Endpoints that a refusal names: enough to see the right one, and a bound for its length.
const MAX_NAMED_ENDPOINTS: usize = 10;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Why a client gets no stream.
const STREAM_NOT_ACCEPTED: TransportFault =
    TransportFault::NotAcceptable { accept: "text/event-stream" };

/// Why a request has no result.
enum RouteRefusal {
    /// Refused before its message was read, or because its stream cannot be opened; with its id, if
    /// it was read.
    Transport { fault: TransportFault, id: Option<Id> },
    /// Its message was refused, or its call failed.
    Message(MessageRefusal),
}

impl From<TransportFault> for RouteRefusal {
    fn from(fault: TransportFault) -> Self {
        Self::Transport { fault, id: None }
    }
}

impl From<MessageRefusal> for RouteRefusal {
    fn from(refusal: MessageRefusal) -> Self {
        Self::Message(refusal)
    }
}

impl EventSource for PendingCall {
    async fn next_event(mut self) -> NextEvent<Self> {
        match self.next().await {
            CallOutput::Message(message) => Some((WireEvent::message(None, &message), Some(self))),
            CallOutput::Response(response) => {
                let event = WireEvent::message(None, &self.text_of(response)?);
                Some((event.holding(self.memory()), None))
            }
        }
    }
}
