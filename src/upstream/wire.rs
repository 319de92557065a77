//! What messages travel on, whatever it is: an HTTP endpoint or a child's standard streams.

use std::sync::Arc;

use http::{HeaderMap, Method};

use super::answer;
use super::http::Endpoint;
use super::stdio::Child;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;

/// A way to one upstream.
pub enum Wire {
    Http(Arc<Endpoint>),
    Stdio(Child),
}

impl Wire {
    /// Sends a request and waits for its result; the headers are those of an HTTP answer.
    pub async fn request(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
    ) -> Result<(Document, HeaderMap), Kind> {
        match self {
            Wire::Http(endpoint) => {
                let answer = endpoint.request(id, headers, body).await?;
                Ok((answer.result, answer.headers))
            }
            Wire::Stdio(child) => Ok((child.request(id, body).await?, HeaderMap::new())),
        }
    }

    /// Sends a message that has no answer.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        match self {
            Wire::Http(endpoint) => endpoint.notify(headers, body).await,
            Wire::Stdio(child) => child.notify(body).await,
        }
    }

    /// Tells the upstream that nobody waits for the answer to a request any more. A child's wire does
    /// so by itself.
    pub fn cancel(&self, id: &Id, headers: HeaderMap) {
        if let Wire::Http(endpoint) = self {
            endpoint.post_and_forget(headers, answer::cancellation(id));
        }
    }

    /// Reads a stream of notices that a GET opens. Over standard streams they come by themselves.
    pub async fn listen(
        &self,
        headers: HeaderMap,
        heard: impl FnMut(Option<Json<'_>>),
    ) -> Result<(), Kind> {
        match self {
            Wire::Http(endpoint) => {
                endpoint.listen(Method::GET, headers, String::new(), heard).await
            }
            Wire::Stdio(_) => listen_for_ever(heard).await,
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
            Wire::Http(endpoint) => endpoint.listen(Method::POST, headers, body, heard).await,
            Wire::Stdio(child) => {
                heard(None);
                child.request(id, body).await.map(drop)
            }
        }
    }

    /// Ends a session.
    pub async fn delete(&self, headers: HeaderMap) -> Result<(), Kind> {
        match self {
            Wire::Http(endpoint) => endpoint.delete(headers).await,
            Wire::Stdio(_) => Ok(()),
        }
    }

    /// Whether an upstream that does not answer a question can be taken not to understand it: over
    /// a network silence means nothing.
    pub fn silence_is_an_answer(&self) -> bool {
        matches!(self, Wire::Stdio(_))
    }

    /// Says whether requests of the upstream are answered: legacy ones may ask, modern ones may not.
    pub fn set_answers(&self, answers: bool) {
        match self {
            Wire::Http(endpoint) => endpoint.set_answers(answers),
            Wire::Stdio(child) => child.set_answers(answers),
        }
    }

    /// Waits until nothing can be sent on it any more; an endpoint can always be asked again.
    pub async fn gone(&self) {
        match self {
            Wire::Http(_) => std::future::pending().await,
            Wire::Stdio(child) => child.gone().await,
        }
    }

    /// As the configuration names it.
    pub fn name(&self) -> &'static str {
        match self {
            Wire::Http(_) => "http",
            Wire::Stdio(_) => "stdio",
        }
    }
}

async fn listen_for_ever(mut heard: impl FnMut(Option<Json<'_>>)) -> Result<(), Kind> {
    heard(None);
    std::future::pending().await
}
