//! The HTTP client of the OTLP exporters: OTLP over HTTP with protobuf, with TLS for an `https`
//! URL.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use opentelemetry::Context;
use opentelemetry::context::FutureExt;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::export_health::{ExportHealth, HealthChange};
use config::Proxies;
use domain::address_policy::AddressPolicy;
use net::egress::Egress;
use net::root_cause;

/// The HTTP client with which the OpenTelemetry SDK sends its requests. The threads of the SDK have
/// no tokio runtime, so each request runs on the runtime of the gateway.
pub(super) struct Exporter {
    client: Arc<Egress>,
    runtime: Handle,
    health: Mutex<ExportHealth>,
}

/// The timeout of one attempt. The SDK retries a few times, and sets no timeout.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Idle connections that are kept: one for each kind of data.
const CONNECTIONS: usize = 3;

/// The limit of a response of the collector, in bytes: far above the largest partial-success
/// message.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl Exporter {
    /// Creates a client that uses the current tokio runtime.
    pub(crate) fn new(proxies: &Proxies) -> Result<Self, String> {
        let runtime = Handle::try_current().map_err(|error| error.to_string())?;
        let executor = SuppressedExecutor(runtime.clone());
        let policy = AddressPolicy::NotLinkLocal;
        let client =
            Egress::on(executor, CONNECTIONS, ATTEMPT_TIMEOUT, None, policy, Some(proxies))?;
        Ok(Self { client: Arc::new(client), runtime, health: Mutex::default() })
    }

    /// Returns the change in the health of the export since the last call.
    pub(super) fn report_health(&self) -> Option<HealthChange> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).report()
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
            let sent = client.send(request.map(Full::new)).await;
            let (head, body) = sent.map_err(|fault| fault.diagnosis())?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        let sending = async move { timeout(ATTEMPT_TIMEOUT, sending).await? };
        // Spans and logs of the request itself are not exported.
        let sent = self.runtime.spawn(sending.with_context(Context::current())).await;
        let sent = sent.map_err(HttpError::from).and_then(|response| response);
        let outcome = match &sent {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(format!("HTTP {}", response.status().as_u16())),
            Err(error) => Err(root_cause(error.as_ref())),
        };
        self.health.lock().unwrap_or_else(PoisonError::into_inner).record(outcome);
        sent
    }
}

/// An executor for connection tasks that suppresses their spans and logs, which would be exported
/// in turn.
#[derive(Clone)]
struct SuppressedExecutor(Handle);

impl<F> hyper::rt::Executor<F> for SuppressedExecutor
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, task: F) {
        drop(self.0.spawn(task.with_context(Context::new().with_telemetry_suppressed())));
    }
}
