//! HTTP+SSE (2024-11-05) towards an upstream: a GET opens the one stream on which everything comes,
//! and its first event names the endpoint that messages are posted to.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, Uri};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::sse_reader::SseReader;
use super::streamable_http::HttpEndpoint;
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::jsonrpc::Id;
use crate::upstream::call::correlator::{Correlator, NotificationSinks};
use crate::upstream::call::reply;

/// An open stream. Dropping it ends the session.
pub struct HttpSse {
    posts: Posts,
    correlator: Arc<Correlator>,
    /// Why the stream has ended; set before `gone` is cancelled.
    cause: Arc<OnceLock<Kind>>,
    /// Cancelled when the stream has ended.
    gone: CancellationToken,
    _end: DropGuard,
}

/// Where messages are posted to.
#[derive(Clone)]
struct Posts {
    endpoint: Arc<HttpEndpoint>,
    url: Uri,
}

impl HttpSse {
    /// Opens the stream and waits for its first event.
    ///
    /// # Errors
    /// When there is no such stream, or when the endpoint that it names is at another origin.
    pub async fn open(
        endpoint: Arc<HttpEndpoint>,
        sinks: NotificationSinks,
        tasks: &TaskTracker,
    ) -> Result<Self, Kind> {
        let mut reader = endpoint.open_stream().await?;
        let named = loop {
            let event = reader.next_event().await?.ok_or_else(stream_ended)?;
            if event.name == "endpoint" {
                break String::from_utf8(event.data).ok();
            }
        };
        let url = named.and_then(|named| endpoint.resolve(named.trim()));
        let elsewhere = "its `endpoint` event names no endpoint of the same origin";
        let url = url.ok_or_else(|| Kind::Protocol(elsewhere.to_owned()))?;
        let posts = Posts { endpoint, url };
        let correlator = Correlator::new(sinks);
        let (gone, end) = (CancellationToken::new(), CancellationToken::new());
        let (reading, hearing, done) = (end.clone(), correlator.clone(), gone.clone());
        let replies = posts.clone();
        let cause: Arc<OnceLock<Kind>> = Arc::default();
        let because = cause.clone();
        tasks.spawn(async move {
            let read = read(reader, &hearing, &replies);
            if let Some(ended) = reading.run_until_cancelled(read).await {
                let kind = match ended {
                    Ok(()) => stream_ended(),
                    Err(kind @ Kind::Reset(_)) => kind,
                    Err(kind) => Kind::Reset(kind.to_string()),
                };
                debug!(error = %kind, "the stream has ended");
                let _ = because.set(kind);
            }
            done.cancel();
            hearing.close();
        });
        Ok(Self { posts, correlator, cause, gone, _end: end.drop_guard() })
    }

    /// Posts a request and waits for the answer to `id` on the stream.
    pub async fn request(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
    ) -> Result<Document, Kind> {
        let answer = self.correlator.expect_response(id);
        let _forget = Forget { line: self, id };
        self.posts.post(headers, body).await?;
        // The stream may have ended between the expectation and now.
        if self.gone.is_cancelled() {
            return Err(self.lost());
        }
        answer.await.unwrap_or_else(|_| Err(self.lost()))
    }

    /// Returns why the stream has ended.
    fn lost(&self) -> Kind {
        self.cause.get().cloned().unwrap_or_else(stream_ended)
    }

    /// Posts a message that has no answer.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        self.posts.post(headers, body).await
    }

    /// Who waits for what on the stream.
    pub fn correlator(&self) -> &Arc<Correlator> {
        &self.correlator
    }

    /// Waits until the stream has ended.
    pub async fn gone(&self) {
        self.gone.cancelled().await;
    }
}

fn stream_ended() -> Kind {
    Kind::Reset("the event stream ended".to_owned())
}

impl Posts {
    async fn post(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        self.endpoint.post_to(&self.url, headers, body).await
    }
}

async fn read(mut reader: SseReader, correlator: &Correlator, posts: &Posts) -> Result<(), Kind> {
    while let Some(message) = reader.next().await? {
        posts.endpoint.say(&posts.url, HeaderMap::new(), correlator.deliver(message));
    }
    Ok(())
}

/// Takes a request back when nobody waits for it any more.
struct Forget<'a> {
    line: &'a HttpSse,
    id: &'a Id,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if self.line.correlator.forget_response(self.id) && !self.line.gone.is_cancelled() {
            let (posts, body) = (&self.line.posts, reply::cancellation(self.id));
            posts.endpoint.post_and_forget(&posts.url, HeaderMap::new(), body);
        }
    }
}
