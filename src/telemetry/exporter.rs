//! The way to a collector: OTLP over HTTP, protobuf, encrypted where its URL says so.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use opentelemetry::Context;
use opentelemetry::context::FutureExt;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::net::tls;

/// Sends what the SDK has put together. The SDK calls from threads of its own, which have no runtime:
/// what is sent is sent on ours.
pub(super) struct Exporter {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    is_failing: AtomicBool,
    was_failing: AtomicBool,
}

/// How long one try may take. The SDK tries again a few times, and has no limit of its own.
const TRY: Duration = Duration::from_secs(2);

/// Largest answer of a collector that is read.
const ANSWER: usize = 64 << 10;

impl Exporter {
    /// # Errors
    /// When there is no runtime, or no certificate can be trusted.
    pub(crate) fn new() -> Result<Self, String> {
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(TRY));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls::client(None)?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client =
            Client::builder(Quiet(runtime.clone())).pool_timer(TokioTimer::new()).build(https);
        Ok(Self {
            client,
            runtime,
            is_failing: AtomicBool::new(false),
            was_failing: AtomicBool::new(false),
        })
    }

    /// Whether the last thing that was sent did not arrive, unlike what was sent when this was last asked.
    pub(crate) fn has_begun_to_fail(&self) -> bool {
        let is_failing = self.is_failing.load(Ordering::Relaxed);
        !self.was_failing.swap(is_failing, Ordering::Relaxed) && is_failing
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

#[async_trait]
impl HttpClient for Exporter {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sending = async move {
            let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        let sending = async move { timeout(TRY, sending).await? };
        // What is said on the way is not sent in its turn.
        let sent = self.runtime.spawn(sending.with_context(Context::current())).await;
        let sent = sent.map_err(HttpError::from).and_then(|answer| answer);
        let is_taken = sent.as_ref().is_ok_and(|answer| answer.status().is_success());
        self.is_failing.store(!is_taken, Ordering::Relaxed);
        sent
    }
}

/// Runs the tasks of connections without telemetry of their own.
#[derive(Clone)]
struct Quiet(Handle);

impl<F> hyper::rt::Executor<F> for Quiet
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, task: F) {
        drop(self.0.spawn(task.with_context(Context::new().with_telemetry_suppressed())));
    }
}
