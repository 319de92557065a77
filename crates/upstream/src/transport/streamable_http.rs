//! Streamable HTTP transport (MCP 2025-11-25, transports): each message is a POST; the response to
//! a request is JSON or an event stream.

mod lost_session;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST};
use http::response::Parts;
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};
use http_body::Body;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tracing::debug;

use lost_session::has_working_session;

use super::UpstreamEvent;
use super::refusal::{encoded, other_media, refusal, showing, with_beginning};
use super::sender::RequestSender;
use super::sse_reader::{SseReader, next_chunk};
use crate::auth::authorization::Authorization;
use crate::call::correlator::{Correlator, Followup};
use crate::call::reply;
use crate::call::result_memory;
use base::platform::heap::boxed;
use base::platform::wall_clock;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::document::Document;
use domain::json::jsonrpc::{Frame, Id};
use net::egress::{Egress, ResponseBody, UNENCODED, check_encoding};
use net::origin;

/// HTTP endpoint of an upstream for one session.
#[derive(Clone)]
pub struct HttpEndpoint {
    sender: RequestSender,
    url: Uri,
    /// The headers of each request: media types, and the configured headers, including the
    /// credential.
    headers: HeaderMap,
    /// Bytes of the largest message.
    max_message: usize,
    /// Tasks that post cancellations and responses to server requests.
    tasks: TaskTracker,
    /// Bounds the messages that are posted without a wait for their outcome.
    background_posts: Arc<Semaphore>,
    /// Bounds the response streams that are read to their end in the background.
    stream_ends: Arc<Semaphore>,
    /// Time to post a client's answer to a server request.
    answer_timeout: Duration,
    /// Milliseconds until an ended notification stream is reopened; 0 if the upstream has sent no
    /// time.
    retry_ms: Arc<AtomicU64>,
}

/// Longest time until a stream is reopened, even if the upstream requests a longer time.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// Time until a response stream is resumed if the upstream sends none: as in the SDKs.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// Shortest time until a response stream is resumed: an upstream that ends each stream at once must
/// not keep the gateway busy until the deadline of the call.
const SHORTEST_RETRY: Duration = Duration::from_millis(100);

/// Most consecutive failed attempts to resume a response stream.
const MAX_FAILED_RESUMPTIONS: usize = 3;

/// Time to post a message whose outcome is not awaited.
const BACKGROUND_POST_TIMEOUT: Duration = Duration::from_secs(1);

/// Most background posts at once: an upstream that sends requests and accepts no responses must not
/// use unbounded memory.
const MAX_BACKGROUND_POSTS: usize = 64;

/// Time in which a response stream may end, and bytes that it may still send, after the response.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_END: usize = 16 << 10;

/// Most response streams that are read to their end; connections of further streams are closed.
const MAX_STREAM_ENDS: usize = 64;

/// Result of a request with the headers of its HTTP response.
pub struct HttpReply {
    pub result: Document,
    pub headers: HeaderMap,
}

pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub(crate) const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Capacity for the headers of a request, which avoids a reallocation when call headers are added.
const COMMON_HEADERS: usize = 13;

/// Most bytes that are allocated because of an announced length.
const MAX_FIRST_BUFFER: usize = 4 << 20;

impl HttpEndpoint {
    /// The static credential of the gateway is sent unless `authorization` has it, or the token of
    /// one caller.
    ///
    /// # Errors
    /// When a configured header or certificate cannot be used.
    pub fn new(
        http: &config::Http,
        authorization: Option<Authorization>,
        settings: &config::Settings,
        tasks: TaskTracker,
    ) -> Result<Self, String> {
        let mut headers = HeaderMap::with_capacity(COMMON_HEADERS);
        headers.extend(host(&http.url).map(|host| (HOST, host)));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accept = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, accept);
        headers.insert(ACCEPT_ENCODING, UNENCODED);
        let is_static = matches!(authorization, None | Some(Authorization::Service(_)));
        let credential = http.credentials.header.as_ref().filter(|_| is_static);
        for (name, secret) in http.headers.iter().chain(credential) {
            let mut value = HeaderValue::from_str(secret.expose()).map_err(|e| e.to_string())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let in_flight = settings.in_flight;
        let ca = http.ca.as_deref();
        let policy = http.address_policy;
        let proxies = http.proxies.as_ref();
        let egress = Egress::pooled(in_flight, settings.connect, ca, policy, proxies)?;
        Ok(Self {
            sender: RequestSender::new(egress, authorization),
            url: http.url.clone(),
            headers,
            max_message: settings.max_message,
            tasks,
            background_posts: Arc::new(Semaphore::new(MAX_BACKGROUND_POSTS)),
            stream_ends: Arc::new(Semaphore::new(MAX_STREAM_ENDS)),
            retry_ms: Arc::default(),
            answer_timeout: settings.timeout,
        })
    }

    /// Returns the endpoint for another session, which has no cookies yet.
    pub(crate) fn for_session(&self) -> Arc<Self> {
        Arc::new(Self { sender: self.sender.for_session(), ..self.clone() })
    }

    /// Returns the headers of each request.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns the credentials that may change from one request to the next.
    pub fn authorization(&self) -> Option<&Authorization> {
        self.sender.authorization()
    }

    /// Posts a request and waits for the response to `id`. Messages that come before it on its
    /// event stream go to the correlator.
    ///
    /// # Errors
    /// See [`super::UpstreamTransport::request`]. Also [`Kind::SessionLost`] if the upstream
    /// reports it by other means than a 404 and the session has worked before.
    pub async fn request(
        self: &Arc<Self>,
        id: &Id,
        headers: HeaderMap,
        body: String,
        correlator: &Correlator,
    ) -> Result<HttpReply, Kind> {
        let has_session = headers.contains_key(SESSION_ID);
        let reply = self.exchange(id, &headers, body, correlator).await;
        match &reply {
            Ok(_) if has_session => correlator.session().note_success(),
            Err(error @ Kind::Error { .. })
                if boxed(self.tells_of_lost_session(error, id, &headers, correlator)).await =>
            {
                correlator.note_lost_session();
                return Err(Kind::SessionLost);
            }
            _ => {}
        }
        reply
    }

    async fn exchange(
        self: &Arc<Self>,
        id: &Id,
        headers: &HeaderMap,
        body: String,
        correlator: &Correlator,
    ) -> Result<HttpReply, Kind> {
        let (head, body) = self.post(headers, body).await?.into_parts();
        if head.status.is_success() {
            check_encoding(&head.headers).map_err(encoded)?;
        }
        let result = match (head.status, media_type(&head.headers)) {
            (StatusCode::ACCEPTED | StatusCode::NO_CONTENT, _) => {
                Err(Kind::Protocol(format!("HTTP {} to a request", head.status.as_u16())))
            }
            (status, Some("text/event-stream")) if status.is_success() => {
                boxed(self.read_stream(id, headers, body, correlator)).await
            }
            (status, Some("application/json")) if status.is_success() => {
                let message = reply::document(self.read_body(body).await?)?;
                let whole = message.clone();
                let response = reply::read_response(id, message);
                response.ok_or_else(|| reply::misfit(whole.json()))?
            }
            (status, _) if status.is_success() => Err(other_media(&head.headers)),
            (StatusCode::NOT_FOUND, _) if headers.contains_key(SESSION_ID) => {
                Err(Kind::SessionLost)
            }
            _ => {
                let has_session = has_working_session(headers, correlator);
                let refusal = Box::pin(self.read_refusal(id, &head, body, has_session)).await;
                if refusal == Kind::SessionLost {
                    correlator.note_lost_session();
                }
                Err(refusal)
            }
        };
        Ok(HttpReply { result: result?, headers: head.headers })
    }

    /// Reads a response with an error status. A JSON-RPC error in the body of a 4xx is more precise
    /// than the status; a 5xx may come from a proxy, whose body is not about the request.
    async fn read_refusal(
        &self,
        id: &Id,
        head: &Parts,
        body: ResponseBody,
        has_session: bool,
    ) -> Kind {
        let refusal = self.refusal(head.status, &head.headers);
        let may_be_lost = has_session && lost_session::may_be_meant(head);
        let has_error = media_type(&head.headers) == Some("application/json")
            && matches!(refusal, Kind::Status { .. })
            && head.status.is_client_error();
        if !has_error && !may_be_lost {
            return with_beginning(refusal, head, body).await;
        }
        let Ok(body) = self.read_body(body).await else { return refusal };
        let refusal = showing(refusal, &body);
        if may_be_lost && lost_session::is_said_by(&String::from_utf8_lossy(&body)) {
            return Kind::SessionLost;
        }
        match reply::document(body).ok().and_then(|error| reply::read_response(id, error)) {
            Some(Err(error @ Kind::Error { .. })) if has_error => error,
            _ => refusal,
        }
    }

    /// Opens the notification stream of a session by GET, and reads it to its end. The next GET
    /// resumes a stream that has ended. Returns once the stream may be reopened.
    ///
    /// # Errors
    /// When the upstream has no such stream, or the stream breaks.
    pub async fn listen(
        self: &Arc<Self>,
        mut headers: HeaderMap,
        correlator: &Correlator,
        on_event: impl FnMut(UpstreamEvent<'_>),
    ) -> Result<(), Kind> {
        let session = correlator.session();
        let last_event_id = session.last_event_id();
        let is_resumed = last_event_id.is_some();
        headers.extend(last_event_id.map(|id| (LAST_EVENT_ID, id)));
        let response = self.sender.send(Method::GET, &self.url, &headers, Bytes::new()).await?;
        let ended = match self.events(response) {
            Ok(mut events) => {
                let ended = self.read_notifications(&mut events, on_event).await;
                // Without a new id, the stream continues after the previous id.
                events.last_event_id().into_iter().for_each(|id| session.set_last_event_id(id));
                ended
            }
            Err(_) if is_resumed => {
                session.forget_last_event_id();
                Err(Kind::Reset("the notification stream cannot be resumed".to_owned()))
            }
            Err((head, body)) => Err(self.refused_stream(&head, body, &headers, correlator).await),
        };
        self.wait_to_reopen(ended).await
    }

    /// Opens the notification stream of a POSTed request, and reads it to its end. Returns once the
    /// stream may be reopened.
    ///
    /// # Errors
    /// When the upstream refuses the request, or the stream breaks.
    pub async fn subscribe(
        &self,
        headers: HeaderMap,
        body: String,
        on_event: impl FnMut(UpstreamEvent<'_>),
    ) -> Result<(), Kind> {
        let ended = match self.events(self.post(&headers, body).await?) {
            Ok(mut events) => self.read_notifications(&mut events, on_event).await,
            Err((head, _)) => Err(self.refusal(head.status, &head.headers)),
        };
        self.wait_to_reopen(ended).await
    }

    /// Waits until a notification stream may be reopened. The delay applies until the upstream
    /// sends another (WHATWG HTML, section 9.2.6).
    async fn wait_to_reopen(&self, ended: Result<(), Kind>) -> Result<(), Kind> {
        let retry = Duration::from_millis(self.retry_ms.load(Ordering::Relaxed));
        let is_final =
            ended.as_ref().is_err_and(|kind| *kind == Kind::SessionLost || kind.refuses_streams());
        if !retry.is_zero() && !is_final {
            sleep(retry.min(LONGEST_RETRY)).await;
        }
        ended
    }

    async fn read_notifications(
        &self,
        events: &mut SseReader,
        mut on_event: impl FnMut(UpstreamEvent<'_>),
    ) -> Result<(), Kind> {
        on_event(UpstreamEvent::Opened);
        let ended = loop {
            match events.next().await {
                Ok(Some(Ok(message))) => on_event(UpstreamEvent::Message(message.json())),
                Ok(Some(Err(unreadable))) => {
                    debug!(
                        why = &*unreadable.why,
                        "an event of the notification stream is no message"
                    );
                }
                Ok(None) => break Ok(()),
                Err(kind) => break Err(kind),
            }
        };
        on_event(UpstreamEvent::Closed);
        if let Some(retry) = events.retry() {
            let millis = u64::try_from(retry.as_millis()).unwrap_or(u64::MAX);
            self.retry_ms.store(millis, Ordering::Relaxed);
        }
        ended
    }

    /// Returns the fault of a refused GET. A 404 does not mean [`Kind::SessionLost`]: many servers
    /// answer 404 because they have no such stream, and the next request shows whether the session
    /// exists.
    async fn refused_stream(
        self: &Arc<Self>,
        head: &Parts,
        body: ResponseBody,
        headers: &HeaderMap,
        correlator: &Correlator,
    ) -> Kind {
        let refusal = self.refusal(head.status, &head.headers);
        if !has_working_session(headers, correlator) || !lost_session::may_be_meant(head) {
            return refusal;
        }
        let said = self.read_body(body).await.unwrap_or_default();
        let get = Id::of_text("GET");
        if lost_session::is_said_by(&String::from_utf8_lossy(&said))
            && boxed(self.has_lost_session(&get, headers, correlator)).await
        {
            correlator.note_lost_session();
            return Kind::SessionLost;
        }
        refusal
    }

    /// Opens the event stream of HTTP+SSE (MCP 2024-11-05, transports).
    ///
    /// # Errors
    /// When the upstream has no such stream.
    pub async fn open_stream(&self) -> Result<SseReader, Kind> {
        let get = self.sender.send(Method::GET, &self.url, &self.headers, Bytes::new());
        self.events(get.await?).map_err(|(head, _)| self.refusal(head.status, &head.headers))
    }

    /// Fetches a JSON document of an interface that is not MCP, at a path below the configured URL.
    ///
    /// # Errors
    /// When the upstream cannot be reached, refuses, or the document is no JSON or too large.
    pub async fn get(&self, path: &str) -> Result<Document, Kind> {
        let base = self.url.to_string();
        let url: Uri = [base.trim_end_matches('/'), path].concat().parse().map_err(|_| {
            Kind::Protocol("the upstream names a part of a URL that is none".into())
        })?;
        let get = self.sender.send(Method::GET, &url, &self.headers, Bytes::new());
        let (head, body) = get.await?.into_parts();
        let refusal = self.refusal(head.status, &head.headers);
        if !head.status.is_success() || check_encoding(&head.headers).is_err() {
            return Err(with_beginning(refusal, &head, body).await);
        }
        Ok(reply::document(self.read_body(body).await?)?)
    }

    /// Resolves a URL reference of the upstream; nothing unless the target has the same origin.
    pub fn resolve(&self, reference: &str) -> Option<Uri> {
        origin::resolve(&self.url, reference)
    }

    /// Returns the reader of an event stream.
    fn events(
        &self,
        response: Response<ResponseBody>,
    ) -> Result<SseReader, (Box<Parts>, ResponseBody)> {
        let (head, body) = response.into_parts();
        match (head.status, media_type(&head.headers)) {
            (status, Some("text/event-stream"))
                if status.is_success() && check_encoding(&head.headers).is_ok() =>
            {
                Ok(SseReader::new(body, self.max_message))
            }
            _ => Err((Box::new(head), body)),
        }
    }

    fn refusal(&self, status: StatusCode, headers: &HeaderMap) -> Kind {
        match check_encoding(headers) {
            Err(shown) if status.is_success() => encoded(shown),
            _ => refusal(&self.url, status, headers, wall_clock()),
        }
    }

    /// Posts a notification or a response, and waits until the upstream has accepted it.
    ///
    /// # Errors
    /// When the upstream cannot be reached.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        self.post(&headers, body).await.map(drop)
    }

    /// Posts a message to `url`, such as the endpoint that an HTTP+SSE upstream names.
    ///
    /// # Errors
    /// [`Kind::SessionLost`] for a 404, or if the upstream reports a lost session; otherwise when
    /// the upstream cannot be reached or refuses the message.
    pub async fn post_to(&self, url: &Uri, headers: HeaderMap, body: String) -> Result<(), Kind> {
        let response = self.sender.send(Method::POST, url, &headers, Bytes::from(body)).await?;
        match response.status() {
            status if status.is_success() => Ok(()),
            // The upstream does not know the event stream that carries the responses.
            StatusCode::NOT_FOUND => Err(Kind::SessionLost),
            _ => Err(boxed(self.refused_post(response)).await),
        }
    }

    async fn refused_post(&self, response: Response<ResponseBody>) -> Kind {
        let (head, body) = response.into_parts();
        let refusal = self.refusal(head.status, &head.headers);
        if !lost_session::may_be_meant(&head) {
            return refusal;
        }
        let said = self.read_body(body).await.unwrap_or_default();
        if lost_session::is_said_by(&String::from_utf8_lossy(&said)) {
            Kind::SessionLost
        } else {
            refusal
        }
    }

    /// Posts the reply to a message of the upstream in the background: at once, or after the client
    /// has answered a server request.
    pub fn send_followup(self: &Arc<Self>, url: &Uri, headers: HeaderMap, followup: Followup) {
        match followup {
            Followup::None | Followup::Misfit(_) => {}
            Followup::Reply(body) => self.post_and_forget(url, headers, body),
            Followup::ReplyLater(id, answer) => {
                let endpoint = self.clone();
                let url = url.clone();
                self.tasks.spawn(async move {
                    // Without an answer the call has ended, and was cancelled upstream.
                    if let Ok(answer) = answer.await {
                        let body = reply::client_answer(&id, &answer);
                        let posting = endpoint.post_to(&url, headers, body);
                        let _ = timeout(endpoint.answer_timeout, posting).await;
                    }
                });
            }
        }
    }

    /// Posts a message in the background, within a second. Drops it when too many are being posted.
    pub fn post_and_forget(self: &Arc<Self>, url: &Uri, headers: HeaderMap, body: String) {
        // Without a runtime the process and its connections are about to end.
        if Handle::try_current().is_err() {
            return;
        }
        let Ok(permit) = self.background_posts.clone().try_acquire_owned() else {
            return;
        };
        let endpoint = self.clone();
        let url = url.clone();
        self.tasks.spawn(async move {
            let _permit = permit;
            let posting = endpoint.post_to(&url, headers, body);
            let _ = timeout(BACKGROUND_POST_TIMEOUT, posting).await;
        });
    }

    /// Returns the configured URL.
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// Ends a session by DELETE (MCP 2025-11-25, transports, session management).
    ///
    /// # Errors
    /// When the upstream cannot be reached.
    pub async fn delete(&self, headers: HeaderMap) -> Result<(), Kind> {
        self.sender.send(Method::DELETE, &self.url, &headers, Bytes::new()).await.map(drop)
    }

    async fn post(
        &self,
        headers: &HeaderMap,
        body: String,
    ) -> Result<Response<ResponseBody>, Kind> {
        self.sender.send(Method::POST, &self.url, headers, Bytes::from(body)).await
    }

    /// Reads a body to its end.
    async fn read_body(&self, mut body: ResponseBody) -> Result<Vec<u8>, Kind> {
        // The announced length is untrusted: it bounds the first buffer only.
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let first_buffer = announced.min(self.max_message).min(MAX_FIRST_BUFFER);
        let most = body.size_hint().upper().and_then(|most| usize::try_from(most).ok());
        let most = most.unwrap_or(usize::MAX).min(self.max_message);
        let mut bytes = Vec::new();
        while let Some(chunk) = next_chunk(&mut body).await? {
            if chunk.len() > self.max_message - bytes.len() {
                return Err(Kind::TooLarge { limit: self.max_message });
            }
            let needed = bytes.len() + chunk.len();
            if needed > bytes.capacity() {
                // Doubled, but not beyond the announced length: memory is bounded for large bodies.
                let doubled = (2 * bytes.len()).min(most).max(first_buffer);
                let capacity = needed.max(doubled);
                result_memory::grow_to(capacity)?;
                bytes.reserve_exact(capacity - bytes.len());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// Reads events until the response to `id`. A stream that ends before the response is resumed,
    /// if the upstream has sent an event id.
    async fn read_stream(
        self: &Arc<Self>,
        id: &Id,
        headers: &HeaderMap,
        body: ResponseBody,
        correlator: &Correlator,
    ) -> Result<Document, Kind> {
        let mut events = SseReader::new(body, self.max_message);
        let mut resumption = Resumption { headers: None, retry: DEFAULT_RETRY };
        loop {
            let ended = match self.read_events(id, headers, &mut events, correlator).await {
                Ok(response) => {
                    self.read_end(events);
                    return response;
                }
                Err(kind @ Kind::Reset(_)) => kind,
                Err(kind) => return Err(kind),
            };
            resumption.note(&events, headers);
            // Modern streams cannot be resumed.
            events = match resumption.headers.as_ref().filter(|_| correlator.accepts_requests()) {
                Some(headers) => self.resume(headers, resumption.retry, ended).await?,
                None => return Err(ended),
            };
        }
    }

    /// Reads a stream to its end after the response, so that its connection can be reused. Many
    /// servers send the end in a separate packet, and some cancel the request of a client that
    /// closes before the end (LiteLLM 1.110).
    fn read_end(&self, events: SseReader) {
        let mut reading = Box::pin(timeout(END_TIMEOUT, events.skip_to_end(MAX_END)));
        let Ok(permit) = self.stream_ends.clone().try_acquire_owned() else { return };
        // Usually the end has arrived with the response.
        if reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        self.tasks.spawn(async move {
            let _permit = permit;
            let _ = reading.await;
        });
    }

    /// Returns the response to `id`. Requests and notifications go to the correlator; malformed
    /// messages with another id are skipped.
    async fn read_events(
        self: &Arc<Self>,
        id: &Id,
        headers: &HeaderMap,
        events: &mut SseReader,
        correlator: &Correlator,
    ) -> Result<Result<Document, Kind>, Kind> {
        let mut ended = "the event stream ended without the response".to_owned();
        while let Some(message) = events.next().await? {
            let message = match message {
                Ok(message) => message,
                Err(unreadable) if unreadable.is_response_to(id) => {
                    return Ok(Err(unreadable.into()));
                }
                Err(unreadable) => {
                    ended = format!("the event stream ended after {}", unreadable.why);
                    continue;
                }
            };
            match Frame::read(message.json()) {
                Ok(Frame::Response { .. }) => {}
                Err(_) if reply::answers(message.json(), id) => {}
                Err(_) => continue,
                Ok(frame) => {
                    let followup = correlator.dispatch(frame, Some(id));
                    self.send_followup(&self.url, headers.clone(), followup);
                    continue;
                }
            }
            let whole = message.clone();
            if let Some(response) = reply::read_response(id, message) {
                return Ok(response);
            }
            ended = format!("the event stream ended: {}", reply::misfit(whole.json()).diagnosis());
        }
        Err(Kind::Reset(ended))
    }

    /// Reopens a response stream by GET, `retry` after its end (MCP 2025-11-25, transports,
    /// resumability). The deadline of the call limits the number of attempts; `ended` is the fault
    /// if the upstream cannot resume the stream.
    async fn resume(
        &self,
        headers: &HeaderMap,
        retry: Duration,
        ended: Kind,
    ) -> Result<SseReader, Kind> {
        for _ in 0..MAX_FAILED_RESUMPTIONS {
            sleep(retry.clamp(SHORTEST_RETRY, LONGEST_RETRY)).await;
            let Ok(response) =
                self.sender.send(Method::GET, &self.url, headers, Bytes::new()).await
            else {
                continue;
            };
            match self.events(response) {
                Ok(events) => return Ok(events),
                Err((head, _)) if self.refusal(head.status, &head.headers).refuses_streams() => {
                    break;
                }
                Err(_) => {}
            }
        }
        Err(ended)
    }
}

/// Parameters for resuming a response stream.
struct Resumption {
    /// The headers of the GET; `None` before the first event id.
    headers: Option<HeaderMap>,
    /// The wait before the GET.
    retry: Duration,
}

impl Resumption {
    /// Notes the last event of an ended stream; `headers` are the headers of its request.
    fn note(&mut self, ended: &SseReader, headers: &HeaderMap) {
        if let Some(id) = ended.last_event_id() {
            self.headers.get_or_insert_with(|| headers.clone()).insert(LAST_EVENT_ID, id);
        }
        self.retry = ended.retry().unwrap_or(self.retry);
    }
}

/// Returns `Host` for the requests to a URL (RFC 9110, section 7.2), which the HTTP client would
/// otherwise write for each request. `None` over TLS, where HTTP/2 may be negotiated, which does
/// not use `Host`.
fn host(url: &Uri) -> Option<HeaderValue> {
    let authority = url.authority().filter(|_| url.scheme() == Some(&Scheme::HTTP))?;
    let host = match authority.port_u16() {
        Some(port) if port != 80 => format!("{}:{port}", authority.host()),
        _ => authority.host().to_owned(),
    };
    HeaderValue::try_from(host).ok()
}

/// Returns the media type without parameters, if MCP uses this type.
fn media_type(headers: &HeaderMap) -> Option<&'static str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next()?.trim();
    let known = ["application/json", "text/event-stream"];
    known.into_iter().find(|known| essence.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_port_unless_it_is_that_of_http_and_is_left_to_the_client_over_tls() {
        for (url, expected) in [
            ("http://a.example/mcp", Some("a.example")),
            ("http://a.example:80/mcp", Some("a.example")),
            ("http://a.example:8080/mcp", Some("a.example:8080")),
            ("http://user:secret@a.example:443/", Some("a.example:443")),
            ("http://[::1]:8080/", Some("[::1]:8080")),
            ("https://a.example/mcp", None),
        ] {
            let host = host(&url.parse().unwrap());
            assert_eq!(host.as_ref().map(|host| host.to_str().unwrap()), expected, "{url}");
        }
    }
}
