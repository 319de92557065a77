//! What messages travel on, whatever it is: an HTTP endpoint, the two endpoints of HTTP+SSE, or a
//! child's standard streams.

pub(crate) mod streamable_http;
pub(crate) mod http_sse;
pub(crate) mod sse_reader;
pub(crate) mod stdio;
pub(crate) mod stderr_tail;

use std::sync::Arc;

use http::{HeaderMap, Method};
use tokio_util::sync::CancellationToken;

use super::call::correlator::{Correlator, InterimSender};
use super::call::reply;
use super::transport::http_sse::HttpSse;
use super::transport::stdio::Child;
use super::transport::streamable_http::HttpEndpoint;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Frame, Id};

/// A way to one upstream.
pub enum Transport {
    Http { endpoint: Arc<HttpEndpoint>, correlator: Arc<Correlator> },
    Sse(HttpSse),
    Stdio(Child),
}

impl Transport {
    /// Sends a request and waits for its result; the headers are those of an HTTP answer.
    pub async fn request(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
        interim: Option<InterimSender>,
    ) -> Result<(Document, HeaderMap), Kind> {
        let listening = self.correlator().register(id, interim);
        let without_headers = |result: Document| (result, HeaderMap::new());
        let answer = match self {
            Transport::Http { endpoint, correlator } => {
                let answer = endpoint.request(id, headers, body, correlator).await;
                answer.map(|answer| (answer.result, answer.headers))
            }
            Transport::Sse(line) => line.request(id, headers, body).await.map(without_headers),
            Transport::Stdio(child) => child.request(id, body).await.map(without_headers),
        };
        listening.finish();
        answer
    }

    /// Sends a message that has no answer.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        match self {
            Transport::Http { endpoint, .. } => endpoint.notify(headers, body).await,
            Transport::Sse(line) => line.notify(headers, body).await,
            Transport::Stdio(child) => child.notify(body).await,
        }
    }

    /// Tells the upstream that nobody waits for the answer to a request any more. A wire that all
    /// requests share does so by itself.
    pub fn cancel(&self, id: &Id, headers: HeaderMap) {
        if let Transport::Http { endpoint, .. } = self {
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
            Transport::Http { endpoint, correlator } => {
                let on_message = |message: Option<Json<'_>>| {
                    if let Some(Ok(frame)) = message.map(Frame::read) {
                        let heard = correlator.dispatch(frame, None);
                        endpoint.say(endpoint.url(), headers.clone(), heard);
                    }
                    heard(message);
                };
                endpoint.listen(Method::GET, headers.clone(), String::new(), on_message).await
            }
            Transport::Sse(_) | Transport::Stdio(_) => listen_for_ever(heard).await,
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
            Transport::Http { endpoint, .. } => {
                endpoint.listen(Method::POST, headers, body, heard).await
            }
            Transport::Sse(line) => {
                heard(None);
                line.request(id, headers, body).await.map(drop)
            }
            Transport::Stdio(child) => {
                heard(None);
                child.request(id, body).await.map(drop)
            }
        }
    }

    /// Ends a session.
    pub async fn delete(&self, headers: HeaderMap) -> Result<(), Kind> {
        match self {
            Transport::Http { endpoint, .. } => endpoint.delete(headers).await,
            Transport::Sse(_) | Transport::Stdio(_) => Ok(()),
        }
    }

    /// Whether an upstream that does not answer a question can be taken not to understand it: over
    /// a network silence means nothing.
    pub fn times_out_unknown_methods(&self) -> bool {
        matches!(self, Transport::Stdio(_))
    }

    /// Whether all that the upstream says comes on one stream, whichever request it belongs to.
    pub fn is_shared(&self) -> bool {
        !matches!(self, Transport::Http { .. })
    }

    /// Who waits for what on it.
    pub fn correlator(&self) -> &Arc<Correlator> {
        match self {
            Transport::Http { correlator, .. } => correlator,
            Transport::Sse(line) => line.correlator(),
            Transport::Stdio(child) => child.correlator(),
        }
    }

    /// Waits until nothing can be sent on it any more; an endpoint can always be asked again.
    pub async fn gone(&self) {
        match self {
            Transport::Http { .. } => std::future::pending().await,
            Transport::Sse(line) => line.gone().await,
            Transport::Stdio(child) => child.gone().await,
        }
    }

    /// Cancelled when nothing of the upstream's process is left, where there is one.
    pub fn ended(&self) -> Option<CancellationToken> {
        match self {
            Transport::Stdio(child) => Some(child.ended()),
            Transport::Http { .. } | Transport::Sse(_) => None,
        }
    }

    /// As the configuration names it.
    pub fn name(&self) -> &'static str {
        match self {
            Transport::Http { .. } => "http",
            Transport::Sse(_) => "sse",
            Transport::Stdio(_) => "stdio",
        }
    }
}

async fn listen_for_ever(mut heard: impl FnMut(Option<Json<'_>>)) -> Result<(), Kind> {
    heard(None);
    std::future::pending().await
}
