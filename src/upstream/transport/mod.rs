//! What messages travel on, whatever it is: an HTTP endpoint, the two endpoints of HTTP+SSE, or a
//! child's standard streams.

pub mod streamable_http;
pub mod http_sse;
pub mod sse_reader;
pub mod stdio;
pub mod stderr_tail;

use std::sync::Arc;

use http::{HeaderMap, Method};
use tokio_util::sync::CancellationToken;

use super::call::correlator::{Asides, Mailbox};
use super::call::reply;
use super::transport::http_sse::EventLine;
use super::transport::stdio::Child;
use super::transport::streamable_http::Endpoint;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Frame, Id};

/// A way to one upstream.
pub enum Wire {
    Http { endpoint: Arc<Endpoint>, mailbox: Arc<Mailbox> },
    Sse(EventLine),
    Stdio(Child),
}

impl Wire {
    /// Sends a request and waits for its result; the headers are those of an HTTP answer.
    pub async fn request(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
        asides: Option<Asides>,
    ) -> Result<(Document, HeaderMap), Kind> {
        let listening = self.mailbox().listen(id, asides);
        let without_headers = |result: Document| (result, HeaderMap::new());
        let answer = match self {
            Wire::Http { endpoint, mailbox } => {
                let answer = endpoint.request(id, headers, body, mailbox).await;
                answer.map(|answer| (answer.result, answer.headers))
            }
            Wire::Sse(line) => line.request(id, headers, body).await.map(without_headers),
            Wire::Stdio(child) => child.request(id, body).await.map(without_headers),
        };
        listening.is_over();
        answer
    }

    /// Sends a message that has no answer.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        match self {
            Wire::Http { endpoint, .. } => endpoint.notify(headers, body).await,
            Wire::Sse(line) => line.notify(headers, body).await,
            Wire::Stdio(child) => child.notify(body).await,
        }
    }

    /// Tells the upstream that nobody waits for the answer to a request any more. A wire that all
    /// requests share does so by itself.
    pub fn cancel(&self, id: &Id, headers: HeaderMap) {
        if let Wire::Http { endpoint, .. } = self {
            endpoint.post_and_forget(endpoint.url(), headers, reply::cancellation(id));
        }
    }

    /// Reads a stream of notices that a GET opens. On a wire that all requests share they come by
    /// themselves.
    pub async fn listen(
        &self,
        headers: HeaderMap,
        mut heard: impl FnMut(Option<Json<'_>>),
    ) -> Result<(), Kind> {
        match self {
            Wire::Http { endpoint, mailbox } => {
                let on_message = |message: Option<Json<'_>>| {
                    if let Some(Ok(frame)) = message.map(Frame::read) {
                        let heard = mailbox.hear(frame, None);
                        endpoint.say(endpoint.url(), headers.clone(), heard);
                    }
                    heard(message);
                };
                endpoint.listen(Method::GET, headers.clone(), String::new(), on_message).await
            }
            Wire::Sse(_) | Wire::Stdio(_) => listen_for_ever(heard).await,
        }
    }

    /// Reads a stream of notices that a request opens; the request ends with the stream.
    pub async fn subscribe(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
        mut heard: impl FnMut(Option<Json<'_>>),
    ) -> Result<(), Kind> {
        match self {
            Wire::Http { endpoint, .. } => {
                endpoint.listen(Method::POST, headers, body, heard).await
            }
            Wire::Sse(line) => {
                heard(None);
                line.request(id, headers, body).await.map(drop)
            }
            Wire::Stdio(child) => {
                heard(None);
                child.request(id, body).await.map(drop)
            }
        }
    }

    /// Ends a session.
    pub async fn delete(&self, headers: HeaderMap) -> Result<(), Kind> {
        match self {
            Wire::Http { endpoint, .. } => endpoint.delete(headers).await,
            Wire::Sse(_) | Wire::Stdio(_) => Ok(()),
        }
    }

    /// Whether an upstream that does not answer a question can be taken not to understand it: over
    /// a network silence means nothing.
    pub fn silence_is_an_answer(&self) -> bool {
        matches!(self, Wire::Stdio(_))
    }

    /// Whether all that the upstream says comes on one stream, whichever request it belongs to.
    pub fn is_shared(&self) -> bool {
        !matches!(self, Wire::Http { .. })
    }

    /// Who waits for what on it.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        match self {
            Wire::Http { mailbox, .. } => mailbox,
            Wire::Sse(line) => line.mailbox(),
            Wire::Stdio(child) => child.mailbox(),
        }
    }

    /// Waits until nothing can be sent on it any more; an endpoint can always be asked again.
    pub async fn gone(&self) {
        match self {
            Wire::Http { .. } => std::future::pending().await,
            Wire::Sse(line) => line.gone().await,
            Wire::Stdio(child) => child.gone().await,
        }
    }

    /// Cancelled when nothing of the upstream's process is left, where there is one.
    pub fn ended(&self) -> Option<CancellationToken> {
        match self {
            Wire::Stdio(child) => Some(child.ended()),
            Wire::Http { .. } | Wire::Sse(_) => None,
        }
    }

    /// As the configuration names it.
    pub fn name(&self) -> &'static str {
        match self {
            Wire::Http { .. } => "http",
            Wire::Sse(_) => "sse",
            Wire::Stdio(_) => "stdio",
        }
    }
}

async fn listen_for_ever(mut heard: impl FnMut(Option<Json<'_>>)) -> Result<(), Kind> {
    heard(None);
    std::future::pending().await
}
