//! What is sent to a collector: spans as they end, metrics when they are pushed.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::context::FutureExt;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::exporter::Exporter;
use super::{Metrics, SCOPE, resource};
use crate::config;

/// The way to a collector.
pub(super) struct Sending {
    tracer: SdkTracer,
    tracers: SdkTracerProvider,
    metrics: MetricExporter,
    exporter: Arc<Exporter>,
}

/// How long the last export may hold up the end.
const LAST_EXPORT: Duration = Duration::from_secs(3);

impl Sending {
    /// Nothing if no collector is named.
    ///
    /// # Errors
    /// When there is no way to it.
    pub(crate) fn new(config: &config::Telemetry) -> Result<Option<Self>, String> {
        let Some(otlp) = &config.otlp else {
            return Ok(None);
        };
        let exporter = Arc::new(Exporter::new()?);
        let failed = |error: ExporterBuildError| error.to_string();
        let spans = SpanExporter::builder().with_http();
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
        // Its waits between tries would block a thread that serves; the next push tells the same.
        let metrics = MetricExporter::builder().with_http();
        let metrics = metrics.with_retry_policy(RetryPolicy::disabled());
        let metrics = metrics.with_shared_http_client(exporter.clone());
        let metrics = metrics.with_endpoint(format!("{otlp}/v1/metrics"));
        let metrics = metrics.build().map_err(failed)?;
        Ok(Some(Self { tracer, tracers, metrics, exporter }))
    }

    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }

    /// Whether the last thing that was sent did not arrive, unlike what was sent when this was last asked.
    pub(crate) fn has_begun_to_fail(&self) -> bool {
        self.exporter.has_begun_to_fail()
    }

    /// Sends all metrics as they are by now; within a few seconds.
    pub(crate) async fn push(&self, metrics: &Metrics) {
        let mut all = ResourceMetrics::default();
        if metrics.reader().collect(&mut all).is_ok() {
            let quiet = Context::new().with_telemetry_suppressed();
            // Whether it has arrived, the exporter counts.
            let pushed = self.metrics.export(&all).with_context(quiet);
            let _ = timeout(LAST_EXPORT, pushed).await;
        }
    }

    /// Sends the spans that were not sent yet, and no more; within a few seconds, whatever the collector
    /// does.
    pub(crate) async fn end(&self) {
        let tracers = self.tracers.clone();
        let ending = spawn_blocking(move || tracers.shutdown_with_timeout(LAST_EXPORT));
        let _ = timeout(LAST_EXPORT, ending).await;
    }
}
