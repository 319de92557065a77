//! Streamable HTTP towards an upstream: one POST, one answer, as JSON or as the event of a stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::sse_reader::{SseReader, next_piece};
use crate::config;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Frame, Id};
use crate::net::egress::Egress;
use crate::net::origin;
use crate::upstream::auth::client_credentials::TokenSource;
use crate::upstream::call::correlator::{Correlator, Followup};
use crate::upstream::call::reply;

/// An endpoint that messages are posted to.
pub struct HttpEndpoint {
    egress: Egress,
    url: Uri,
    /// The operator's headers, the credential among them.
    headers: HeaderMap,
    /// Tokens that are sent beside them.
    tokens: Option<TokenSource>,
    /// Bytes of one message.
    max_message: usize,
    /// Farewells to requests that nobody waits for any more, and answers to questions.
    tasks: TaskTracker,
    interim: Arc<Semaphore>,
    /// How long an answer of a user may take to be taken in.
    patience: Duration,
}

/// How long an upstream may take to take in what has no answer, and of how much of it at once: an
/// upstream that asks and asks must not make us hoard what it does not take in.
const SAYING: Duration = Duration::from_secs(1);
const ASIDES: usize = 64;

/// What an answer brought beside its result.
pub struct HttpReply {
    pub result: Document,
    pub headers: HeaderMap,
}

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub(crate) const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(crate) const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Redirects followed, within the same origin only: enough for a server that adds a slash.
const REDIRECTS: usize = 2;

impl HttpEndpoint {
    /// # Errors
    /// When a header or the certificates cannot be used.
    pub fn new(
        http: &config::Http,
        settings: &config::Settings,
        tasks: TaskTracker,
    ) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, secret) in &http.headers {
            let mut value = HeaderValue::from_str(secret.expose()).map_err(|e| e.to_string())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let tokens = http.oauth.as_ref();
        let tokens = tokens.map(|oauth| TokenSource::new(oauth, &http.url, http.ca.as_deref()));
        Ok(Self {
            tokens: tokens.transpose()?,
            egress: Egress::new(settings.connect, http.ca.as_deref(), http.address_policy)?,
            url: http.url.clone(),
            headers,
            max_message: settings.max_message,
            tasks,
            interim: Arc::new(Semaphore::new(ASIDES)),
            patience: settings.timeout,
        })
    }

    /// Posts a request and waits for the answer to `id`. What is said before it goes to `mailbox`.
    pub async fn request(
        self: &Arc<Self>,
        id: &Id,
        headers: HeaderMap,
        body: String,
        correlator: &Correlator,
    ) -> Result<HttpReply, Kind> {
        let has_session = headers.contains_key(SESSION_ID);
        let response = self.post(headers.clone(), body).await?;
        let (head, body) = response.into_parts();
        if head.headers.get(CONTENT_ENCODING).is_some_and(|e| e != "identity") {
            return Err(Kind::Protocol("the answer is compressed, which was not asked for".into()));
        }
        let result = match (head.status, media_type(&head.headers)) {
            (StatusCode::ACCEPTED | StatusCode::NO_CONTENT, _) => {
                Err(Kind::Protocol(format!("HTTP {} to a request", head.status.as_u16())))
            }
            (status, Some("text/event-stream")) if status.is_success() => {
                self.read_stream(id, &headers, body, correlator).await
            }
            (status, Some("application/json")) if status.is_success() => {
                reply::read_response(id, self.read_body(body).await?)
                    .ok_or_else(|| Kind::Protocol("the answer is to another request".into()))?
            }
            (status, _) if status.is_success() => {
                Err(Kind::Protocol("the answer is neither JSON nor an event stream".into()))
            }
            (StatusCode::NOT_FOUND, _) if has_session => Err(Kind::SessionLost),
            (status, media) => {
                let refusal = refusal(status, &head.headers);
                // A JSON-RPC error says more than a 4xx; what a 5xx says is not about us.
                match media {
                    Some("application/json")
                        if status.is_client_error() && matches!(refusal, Kind::Status { .. }) =>
                    {
                        let body = self.read_body(body).await.ok();
                        Err(body
                            .and_then(|body| reply::read_error_body(id, &body))
                            .unwrap_or(refusal))
                    }
                    _ => Err(refusal),
                }
            }
        };
        Ok(HttpReply { result: result?, headers: head.headers })
    }

    /// Opens a stream of notices, by GET or by a request of its own, and calls `heard` for each
    /// message, and once before the first. Ends when the stream does.
    pub async fn listen(
        &self,
        method: Method,
        headers: HeaderMap,
        body: String,
        mut heard: impl FnMut(Option<Json<'_>>),
    ) -> Result<(), Kind> {
        let response = self.send(method, &self.url, headers, Bytes::from(body)).await?;
        let mut events = self.events(response)?;
        heard(None);
        while let Some(message) = events.next().await? {
            heard(Some(message.json()));
        }
        Ok(())
    }

    /// Opens the stream of HTTP+SSE (2024-11-05).
    pub async fn open_stream(&self) -> Result<SseReader, Kind> {
        let get = self.send(Method::GET, &self.url, HeaderMap::new(), Bytes::new());
        self.events(get.await?)
    }

    /// The URL that a reference of the upstream leads to, if that is the same origin: credentials go
    /// nowhere else.
    pub fn resolve(&self, reference: &str) -> Option<Uri> {
        origin::resolve(&self.url, reference)
    }

    /// Many servers have no such stream and say so by 404: what that means for a session, the next
    /// request finds out.
    fn events(&self, response: Response<Incoming>) -> Result<SseReader, Kind> {
        let (head, body) = response.into_parts();
        match (head.status, media_type(&head.headers)) {
            (status, Some("text/event-stream")) if status.is_success() => {
                Ok(SseReader::new(body, self.max_message))
            }
            (status, _) => Err(refusal(status, &head.headers)),
        }
    }

    /// Posts a notification or a response; there is nothing to wait for but its acceptance.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        self.post(headers, body).await.map(drop)
    }

    /// Posts a message of HTTP+SSE to the endpoint that the upstream named.
    pub async fn post_to(&self, url: &Uri, headers: HeaderMap, body: String) -> Result<(), Kind> {
        let response = self.send(Method::POST, url, headers, Bytes::from(body)).await?;
        match response.status() {
            status if status.is_success() => Ok(()),
            // The stream that the answers would come on is not known there any more.
            StatusCode::NOT_FOUND => Err(Kind::SessionLost),
            status => Err(refusal(status, response.headers())),
        }
    }

    /// Says what there is to say to something that was heard, now or as soon as it is known.
    pub fn say(self: &Arc<Self>, url: &Uri, headers: HeaderMap, heard: Followup) {
        match heard {
            Followup::None => {}
            Followup::Reply(body) => self.post_and_forget(url, headers, body),
            Followup::ReplyLater(id, answer) => {
                let (endpoint, url) = (self.clone(), url.clone());
                self.tasks.spawn(async move {
                    // Without an answer the call itself has ended, which the upstream hears of.
                    if let Ok(answer) = answer.await {
                        let body = reply::client_answer(&id, &answer);
                        let saying = endpoint.post_to(&url, headers, body);
                        let _ = timeout(endpoint.patience, saying).await;
                    }
                });
            }
        }
    }

    /// Posts a message of whose fate nobody hears.
    pub fn post_and_forget(self: &Arc<Self>, url: &Uri, headers: HeaderMap, body: String) {
        let (endpoint, url) = (self.clone(), url.clone());
        // Without a runtime the process is about to end, and its connections with it.
        let (Ok(_), Ok(place)) = (Handle::try_current(), self.interim.clone().try_acquire_owned())
        else {
            return;
        };
        self.tasks.spawn(async move {
            let _place = place;
            let _ = timeout(SAYING, endpoint.post_to(&url, headers, body)).await;
        });
    }

    /// The URL that it is configured with.
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// Ends a session.
    pub async fn delete(&self, headers: HeaderMap) -> Result<(), Kind> {
        self.send(Method::DELETE, &self.url, headers, Bytes::new()).await.map(drop)
    }

    async fn post(&self, headers: HeaderMap, body: String) -> Result<Response<Incoming>, Kind> {
        self.send(Method::POST, &self.url, headers, Bytes::from(body)).await
    }

    /// Sends a request, with a token where one is needed. What is refused for want of a good one
    /// was not looked at, so that it is safe to be sent again, once.
    async fn send(
        &self,
        method: Method,
        url: &Uri,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Kind> {
        let Some(tokens) = &self.tokens else {
            return self.send_once(method, url, headers, body).await;
        };
        let token = tokens.header().await?;
        headers.extend(token.clone().map(|token| (AUTHORIZATION, token)));
        let response = self.send_once(method.clone(), url, headers.clone(), body.clone()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        let another = tokens.refused(token.as_ref(), response.headers()).await?;
        headers.insert(AUTHORIZATION, another);
        self.send_once(method, url, headers, body).await
    }

    async fn send_once(
        &self,
        method: Method,
        url: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Kind> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = url.clone();
            let all = request.headers_mut();
            all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let accept = HeaderValue::from_static("application/json, text/event-stream");
            all.insert(ACCEPT, accept);
            all.extend(self.headers.clone());
            all.extend(headers.clone());
            let response = self.egress.send(request).await?;
            match same_origin_redirect(&url, &response) {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(Kind::Protocol("redirects without end".into()))
    }

    async fn read_body(&self, mut body: Incoming) -> Result<Document, Kind> {
        let mut bytes = Vec::new();
        while let Some(piece) = next_piece(&mut body).await? {
            if bytes.len() + piece.len() > self.max_message {
                return Err(Kind::TooLarge { limit: self.max_message });
            }
            bytes.extend_from_slice(&piece);
        }
        reply::document(bytes)
    }

    /// Reads events until one answers `id`. What else is said goes to the mailbox; what is not for
    /// us may be as odd as it likes.
    async fn read_stream(
        self: &Arc<Self>,
        id: &Id,
        headers: &HeaderMap,
        body: Incoming,
        correlator: &Correlator,
    ) -> Result<Document, Kind> {
        let mut events = SseReader::new(body, self.max_message);
        while let Some(message) = events.next().await? {
            match Frame::read(message.json()) {
                Ok(Frame::Response { .. }) => {}
                Err(error) if error.id.as_ref() == Some(id) => {}
                Err(_) => continue,
                Ok(frame) => {
                    self.say(&self.url, headers.clone(), correlator.dispatch(frame, Some(id)));
                    continue;
                }
            }
            if let Some(answer) = reply::read_response(id, message) {
                return answer;
            }
        }
        Err(Kind::Reset("the event stream ended without the response".to_owned()))
    }
}

fn refusal(status: StatusCode, headers: &HeaderMap) -> Kind {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Kind::AuthFailed { status: status.as_u16() }
        }
        StatusCode::TOO_MANY_REQUESTS => {
            let value = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok());
            Kind::RateLimited { retry_after_secs: value.and_then(|v| v.trim().parse().ok()) }
        }
        _ => Kind::Status { status: status.as_u16() },
    }
}

/// The media type without parameters, if it is one of the two that MCP uses.
fn media_type(headers: &HeaderMap) -> Option<&'static str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next()?.trim();
    let known = ["application/json", "text/event-stream"];
    known.into_iter().find(|known| essence.eq_ignore_ascii_case(known))
}

/// Where a 307 or 308 leads, if that is the same origin.
fn same_origin_redirect(url: &Uri, response: &Response<Incoming>) -> Option<Uri> {
    let status = response.status();
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    origin::resolve(url, response.headers().get(LOCATION)?.to_str().ok()?)
}
