//! The export to a collector over OTLP: spans in batches as they end, metrics at each push.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::context::FutureExt;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_otlp::{
    Compression, ExporterBuildError, MetricExporter, RetryPolicy, SpanExporter, WithExportConfig,
    WithHttpConfig,
};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::time::timeout;

use super::export_health::HealthChange;
use super::exporter::Exporter;
use super::{Metrics, SCOPE, resource};
use base::platform::blocking;

/// The exporters of spans and metrics to one collector.
pub(super) struct OtlpPipeline {
    tracer: SdkTracer,
    tracers: SdkTracerProvider,
    metrics: MetricExporter,
    exporter: Arc<Exporter>,
}

/// The timeout of a metrics push, and of the last export at a shutdown.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

impl OtlpPipeline {
    /// Creates the exporters; `None` if no collector is configured. Needs a tokio runtime.
    pub(crate) fn new(config: &config::TelemetrySettings) -> Result<Option<Self>, String> {
        let Some(otlp) = &config.otlp else {
            return Ok(None);
        };
        let exporter = Arc::new(Exporter::new(&config.proxies)?);
        let failed = |error: ExporterBuildError| error.to_string();
        let spans = SpanExporter::builder().with_http().with_compression(Compression::Gzip);
        let spans = spans.with_shared_http_client(exporter.clone());
        let spans = spans.with_endpoint(format!("{otlp}/v1/traces")).build().map_err(failed)?;
        let sampler = Sampler::TraceIdRatioBased(config.trace_sample);
        let tracers = SdkTracerProvider::builder()
            .with_batch_exporter(spans)
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_resource(resource(config))
            .build();
        let version = env!("CARGO_PKG_VERSION");
        let scope = InstrumentationScope::builder(SCOPE).with_version(version).build();
        let tracer = tracers.tracer_with_scope(scope);
        // The waits between retries would block a worker thread; the next push has the same data.
        let metrics = MetricExporter::builder().with_http().with_compression(Compression::Gzip);
        let metrics = metrics.with_retry_policy(RetryPolicy::disabled());
        let metrics = metrics.with_shared_http_client(exporter.clone());
        let metrics = metrics.with_endpoint(format!("{otlp}/v1/metrics"));
        let metrics = metrics.build().map_err(failed)?;
        Ok(Some(Self { tracer, tracers, metrics, exporter }))
    }

    /// Returns the tracer, which creates the spans.
    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }

    /// Returns the change in the health of the export since the last call.
    pub(super) fn report_health(&self) -> Option<HealthChange> {
        self.exporter.report_health()
    }

    /// Exports the current values of all metrics, within [`EXPORT_TIMEOUT`]. A failure is counted
    /// by the exporter. When the future is dropped, the export is lost; the next one has the same
    /// data.
    pub(crate) async fn push(&self, metrics: &Metrics) {
        metrics.reader().count_series();
        let mut all = ResourceMetrics::default();
        if metrics.reader().collect(&mut all).is_ok() {
            let quiet = Context::new().with_telemetry_suppressed();
            let pushed = self.metrics.export(&all).with_context(quiet);
            let _ = timeout(EXPORT_TIMEOUT, pushed).await;
        }
    }

    /// Exports the remaining spans and stops, within [`EXPORT_TIMEOUT`].
    pub(crate) async fn shut_down(&self) {
        let tracers = self.tracers.clone();
        let stopped = blocking(move || tracers.shutdown_with_timeout(EXPORT_TIMEOUT));
        let _ = timeout(EXPORT_TIMEOUT, stopped).await;
    }
}
