//! HTTP+SSE transport (MCP 2024-11-05): a GET opens the event stream that carries all messages of
//! the upstream, and its `endpoint` event names the URL to which the gateway posts.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, Uri};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::sse_reader::SseReader;
use super::streamable_http::HttpEndpoint;
use crate::call::correlator::{Correlator, Followup, NotificationSinks};
use crate::call::reply;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::document::Document;
use domain::json::jsonrpc::Id;

/// An open HTTP+SSE session. Dropping it closes the event stream, which ends the session.
pub struct HttpSse {
    post_endpoint: PostEndpoint,
    correlator: Arc<Correlator>,
    /// Why the stream has ended; set before `closed` is cancelled.
    cause: Arc<OnceLock<Kind>>,
    /// Cancelled when the stream has ended.
    closed: CancellationToken,
    _stop: DropGuard,
}

/// The URL to which messages are posted.
#[derive(Clone)]
struct PostEndpoint {
    endpoint: Arc<HttpEndpoint>,
    url: Uri,
}

impl HttpSse {
    /// Opens the stream and waits for its `endpoint` event.
    ///
    /// # Errors
    /// When the upstream has no such stream, or names an endpoint of another origin.
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
        let foreign = "the `endpoint` event names no URL of the same origin";
        let url = url.ok_or_else(|| Kind::Protocol(foreign.to_owned()))?;
        let post_endpoint = PostEndpoint { endpoint, url };
        let correlator = Correlator::new(sinks);
        let cause: Arc<OnceLock<Kind>> = Arc::default();
        let closed = CancellationToken::new();
        let stop = CancellationToken::new();
        let session = Self {
            post_endpoint: post_endpoint.clone(),
            correlator: correlator.clone(),
            cause: cause.clone(),
            closed: closed.clone(),
            _stop: stop.clone().drop_guard(),
        };
        tasks.spawn(async move {
            let reading = read(reader, &correlator, &post_endpoint);
            if let Some(ended) = stop.run_until_cancelled(reading).await {
                let kind = match ended {
                    Ok(()) => stream_ended(),
                    Err(kind @ Kind::Reset(_)) => kind,
                    Err(kind) => Kind::Reset(kind.diagnosis()),
                };
                debug!(error = kind.diagnosis(), "the event stream of HTTP+SSE has ended");
                let _ = cause.set(kind);
            }
            closed.cancel();
            correlator.close();
        });
        Ok(session)
    }

    /// Posts a request and waits for the response to `id` on the stream. Dropping the future before
    /// the response cancels the request upstream.
    ///
    /// # Errors
    /// See [`super::UpstreamTransport::request`].
    pub async fn request(
        &self,
        id: &Id,
        headers: HeaderMap,
        body: String,
    ) -> Result<Document, Kind> {
        let response = self.correlator.expect_response(id);
        let _guard = HttpSseRequest { session: self, id };
        self.post_endpoint.post(headers, body).await.inspect_err(|kind| {
            if *kind == Kind::SessionLost {
                self.correlator.note_lost_session();
            }
        })?;
        // The stream may have ended before the response was expected.
        if self.closed.is_cancelled() {
            return Err(self.cause());
        }
        response.await.unwrap_or_else(|_| Err(self.cause()))
    }

    /// Returns why the stream has ended.
    fn cause(&self) -> Kind {
        self.cause.get().cloned().unwrap_or_else(stream_ended)
    }

    /// Posts a notification or a response.
    ///
    /// # Errors
    /// When the upstream cannot be reached or refuses the message.
    pub async fn notify(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        self.post_endpoint.post(headers, body).await
    }

    /// Returns the headers of each message.
    pub fn headers(&self) -> &HeaderMap {
        self.post_endpoint.endpoint.headers()
    }

    /// Returns the requests in flight on the stream.
    pub fn correlator(&self) -> &Arc<Correlator> {
        &self.correlator
    }

    /// Whether the stream has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until the stream has ended. Cancel safe.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

fn stream_ended() -> Kind {
    Kind::Reset("the event stream ended".to_owned())
}

impl PostEndpoint {
    async fn post(&self, headers: HeaderMap, body: String) -> Result<(), Kind> {
        self.endpoint.post_to(&self.url, headers, body).await
    }
}

/// Delivers the messages of the stream until it ends, and posts the gateway's responses to requests
/// among them.
async fn read(
    mut reader: SseReader,
    correlator: &Correlator,
    target: &PostEndpoint,
) -> Result<(), Kind> {
    while let Some(message) = reader.next().await? {
        let PostEndpoint { endpoint, url } = target;
        match message {
            Ok(message) => {
                let followup = correlator.deliver(message);
                if let Followup::Misfit(misfit) = followup {
                    return Err(misfit);
                }
                endpoint.send_followup(url, endpoint.headers().clone(), followup);
            }
            Err(unreadable) => correlator.deliver_unreadable(unreadable),
        }
    }
    Ok(())
}

/// Guard of a request in flight. Dropped before the response, it cancels the request upstream
/// (`notifications/cancelled`).
struct HttpSseRequest<'a> {
    session: &'a HttpSse,
    id: &'a Id,
}

impl Drop for HttpSseRequest<'_> {
    fn drop(&mut self) {
        let session = self.session;
        if session.correlator.forget_response(self.id)
            && !session.closed.is_cancelled()
            && let Some(body) = reply::cancellation(self.id)
        {
            let PostEndpoint { endpoint, url } = &session.post_endpoint;
            endpoint.post_and_forget(url, endpoint.headers().clone(), body);
        }
    }
}
