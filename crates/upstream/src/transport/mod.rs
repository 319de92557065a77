//! Transports of MCP towards upstreams: Streamable HTTP, HTTP+SSE and stdio.

pub mod streamable_http;
pub mod http_sse;
pub(crate) mod sse_reader;
pub mod stdio;
mod child_input;
mod refusal;
mod sender;
mod cookies;

use std::sync::Arc;

use http::HeaderMap;
use tokio_util::sync::CancellationToken;

use super::call::correlator::{Correlator, InterimSender};
use super::call::reply;
use super::transport::http_sse::HttpSse;
use super::transport::stdio::UpstreamChild;
use super::transport::streamable_http::HttpEndpoint;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::document::Document;
use domain::json::jsonrpc::{Frame, Id};

/// An event of a notification stream.
#[derive(Clone, Copy)]
pub enum UpstreamEvent<'a> {
    Opened,
    Message(Json<'a>),
    /// The stream has ended, and is reopened after the time that the upstream requests.
    Closed,
}

/// Transport of one connection to an upstream.
pub enum UpstreamTransport {
    /// Streamable HTTP: each request has a separate response stream.
    Http { endpoint: Arc<HttpEndpoint>, correlator: Arc<Correlator> },
    /// HTTP+SSE (2024-11-05): all requests share one stream.
    Sse(HttpSse),
    /// A child process: all requests share its standard streams.
    Stdio(UpstreamChild),
}

impl UpstreamTransport {
    /// Returns the headers of every message.
    pub fn headers(&self) -> HeaderMap {
        match self {
            UpstreamTransport::Http { endpoint, .. } => endpoint.headers().clone(),
            UpstreamTransport::Sse(session) => session.headers().clone(),
            UpstreamTransport::Stdio(_) => HeaderMap::new(),
        }
    }

    /// Sends a request and waits for its result. `headers` include [`UpstreamTransport::headers`]
    /// and the request's headers; returns the headers of the HTTP response. Messages of the call
    /// before its response go to `interim`. Dropped before the response, the call counts as
    /// abandoned.
    ///
    /// # Errors
    /// When the upstream cannot be reached, refuses the request or violates the protocol, when the
    /// connection breaks, or when the response is a JSON-RPC error.
    pub async fn request(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
        interim: Option<InterimSender>,
    ) -> Result<(Document, HeaderMap), Kind> {
        let registration = self.correlator().register(id, interim);
        let without_headers = |result: Document| (result, HeaderMap::new());
        let response = match self {
            UpstreamTransport::Http { endpoint, correlator } => {
                let reply = endpoint.request(id, headers, body, correlator).await;
                reply.map(|reply| (reply.result, reply.headers))
            }
            UpstreamTransport::Sse(session) => {
                session.request(id, headers, body).await.map(without_headers)
            }
            UpstreamTransport::Stdio(child) => child.request(id, body).await.map(without_headers),
        };
        registration.finish();
        if let Ok((result, _)) = &response {
            self.correlator().repairs().count_all(result.repairs());
        }
        response
    }

    /// Sends a notification or a response.
    ///
    /// # Errors
    /// When the upstream cannot be reached, or the connection is closed.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        match self {
            UpstreamTransport::Http { endpoint, .. } => endpoint.notify(headers, body).await,
            UpstreamTransport::Sse(session) => session.notify(headers, body).await,
            UpstreamTransport::Stdio(child) => child.notify(body).await,
        }
    }

    /// Sends `notifications/cancelled` for an abandoned request over Streamable HTTP. HTTP+SSE and
    /// stdio do so when the future of the request is dropped.
    pub fn cancel(&self, id: &Id, headers: HeaderMap) {
        if let (UpstreamTransport::Http { endpoint, .. }, Some(body)) =
            (self, reply::cancellation(id))
        {
            endpoint.post_and_forget(endpoint.url(), headers, body);
        }
    }

    /// Reads the notification stream that a GET opens (MCP 2025-11-25, transports) to its end. On a
    /// shared stream, whose messages go to the correlator, it only calls `on_event` once and never
    /// returns.
    ///
    /// # Errors
    /// When the upstream has no such stream, or the stream breaks.
    pub async fn listen(
        &self,
        headers: HeaderMap,
        mut on_event: impl FnMut(UpstreamEvent<'_>),
    ) -> Result<(), Kind> {
        match self {
            UpstreamTransport::Http { endpoint, correlator } => {
                let dispatch = |event: UpstreamEvent<'_>| {
                    if let UpstreamEvent::Message(message) = event
                        && let Ok(frame) = Frame::read(message)
                    {
                        let followup = correlator.dispatch(frame, None);
                        endpoint.send_followup(endpoint.url(), headers.clone(), followup);
                    }
                    on_event(event);
                };
                endpoint.listen(headers.clone(), correlator, dispatch).await
            }
            UpstreamTransport::Sse(_) | UpstreamTransport::Stdio(_) => {
                on_event(UpstreamEvent::Opened);
                std::future::pending().await
            }
        }
    }

    /// Reads the notification stream that a request opens (MCP 2026-07-28, subscriptions) to its
    /// end. Calls `on_event` as [`UpstreamTransport::listen`] does.
    ///
    /// # Errors
    /// When the upstream refuses the request, or the stream breaks.
    pub async fn subscribe(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
        mut on_event: impl FnMut(UpstreamEvent<'_>),
    ) -> Result<(), Kind> {
        match self {
            UpstreamTransport::Http { endpoint, .. } => {
                endpoint.subscribe(headers, body, on_event).await
            }
            UpstreamTransport::Sse(session) => {
                session.correlator().add_subscription(id);
                on_event(UpstreamEvent::Opened);
                session.request(id, headers, body).await.map(drop)
            }
            UpstreamTransport::Stdio(child) => {
                child.correlator().add_subscription(id);
                on_event(UpstreamEvent::Opened);
                child.request(id, body).await.map(drop)
            }
        }
    }

    /// Ends a session by DELETE; sessions of the other transports end with their connection.
    ///
    /// # Errors
    /// When the upstream cannot be reached.
    pub async fn delete(&self, headers: HeaderMap) -> Result<(), Kind> {
        match self {
            UpstreamTransport::Http { endpoint, .. } => endpoint.delete(headers).await,
            UpstreamTransport::Sse(_) | UpstreamTransport::Stdio(_) => Ok(()),
        }
    }

    /// Whether a request without a response means that the upstream does not know the method: true
    /// on stdio; over a network a missing response means nothing.
    pub fn times_out_unknown_methods(&self) -> bool {
        matches!(self, UpstreamTransport::Stdio(_))
    }

    /// Whether all messages of the upstream come on one stream, whichever request they belong to.
    pub fn is_shared(&self) -> bool {
        !matches!(self, UpstreamTransport::Http { .. })
    }

    /// Returns the requests in flight.
    pub fn correlator(&self) -> &Arc<Correlator> {
        match self {
            UpstreamTransport::Http { correlator, .. } => correlator,
            UpstreamTransport::Sse(session) => session.correlator(),
            UpstreamTransport::Stdio(child) => child.correlator(),
        }
    }

    /// Waits until the connection is closed; never returns for Streamable HTTP, which has no
    /// lasting connection. Cancel safe.
    pub async fn closed(&self) {
        match self {
            UpstreamTransport::Http { .. } => std::future::pending().await,
            UpstreamTransport::Sse(session) => session.closed().await,
            UpstreamTransport::Stdio(child) => child.closed().await,
        }
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        match self {
            UpstreamTransport::Http { .. } => false,
            UpstreamTransport::Sse(session) => session.is_closed(),
            UpstreamTransport::Stdio(child) => child.is_closed(),
        }
    }

    /// Returns a token that is cancelled when the child process and its descendants have ended;
    /// nothing for other transports.
    pub fn terminated(&self) -> Option<CancellationToken> {
        match self {
            UpstreamTransport::Stdio(child) => Some(child.terminated()),
            UpstreamTransport::Http { .. } | UpstreamTransport::Sse(_) => None,
        }
    }

    /// Returns the configured name of the transport.
    pub fn name(&self) -> &'static str {
        match self {
            UpstreamTransport::Http { .. } => "http",
            UpstreamTransport::Sse(_) => "sse",
            UpstreamTransport::Stdio(_) => "stdio",
        }
    }
}
