//! What the gateway says about itself: logs, spans and metrics (OpenTelemetry, semantic conventions for
//! MCP).
//!
//! There is one set of aggregates, read by whoever scrapes and by the task that pushes. Spans are made by
//! hand at the two places that know an operation whole, so that a call costs two of them and no more.

mod exporter;
pub mod log;
mod metrics;
mod operation;
mod prometheus;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use opentelemetry::context::FutureExt;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::{
    MetricExporter, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config;
use crate::seal::hex::hex;
use crate::seal::random;
use exporter::Exporter;
pub use metrics::{Metrics, UPSTREAM};
pub use operation::{Asked, Asking, ClientOperation, End, ServerOperation, Wire};
use prometheus::Reader;

/// A handle on what is measured, cheap to copy.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    /// Absent where spans go nowhere: then traces of clients pass through as they are.
    tracing: Option<(SdkTracer, SdkTracerProvider)>,
    meters: SdkMeterProvider,
    reader: Reader,
    metrics: Metrics,
    push: Option<(MetricExporter, Arc<Exporter>)>,
}

/// The name of the gateway among all that is instrumented.
const SCOPE: &str = "promptgate";

/// How often metrics are pushed, unless OTEL_METRIC_EXPORT_INTERVAL says otherwise, in milliseconds.
const PUSH_EVERY: Duration = Duration::from_secs(60);

/// How long the last export may hold up the end.
const LAST_EXPORT: Duration = Duration::from_secs(3);

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Telemetry")
    }
}

impl Telemetry {
    /// Where a collector is named this needs a tokio runtime, on which it is spoken with.
    ///
    /// # Errors
    /// When there is no way to the collector.
    pub fn new(config: &config::Telemetry) -> Result<Self, String> {
        let (reader, resource) = (Reader::default(), resource(config));
        let most = config.label_values;
        let meters = SdkMeterProvider::builder()
            .with_reader(reader.clone())
            .with_resource(resource.clone())
            .with_view(move |instrument: &Instrument| {
                let limit = metrics::series(instrument.name(), most);
                Stream::builder().with_cardinality_limit(limit).build().ok()
            })
            .build();
        let metrics = Metrics::new(&meters.meter(SCOPE), most);
        let (mut tracing, mut push) = (None, None);
        if let Some(otlp) = &config.otlp {
            let exporter = Arc::new(Exporter::new()?);
            let failed = |error: opentelemetry_otlp::ExporterBuildError| error.to_string();
            let spans = SpanExporter::builder().with_http();
            let spans = spans.with_shared_http_client(exporter.clone());
            let spans = spans.with_endpoint(format!("{otlp}/v1/traces")).build().map_err(failed)?;
            let sampler = Sampler::TraceIdRatioBased(config.trace_sample);
            let tracers = SdkTracerProvider::builder()
                .with_batch_exporter(spans)
                .with_sampler(Sampler::ParentBased(Box::new(sampler)))
                .with_resource(resource)
                .build();
            let version = env!("CARGO_PKG_VERSION");
            let scope = InstrumentationScope::builder(SCOPE).with_version(version).build();
            tracing = Some((tracers.tracer_with_scope(scope), tracers));
            // Its waits between tries would block a thread that serves; the next push tells the same.
            let pushed = MetricExporter::builder().with_http();
            let pushed = pushed.with_retry_policy(RetryPolicy::disabled());
            let pushed = pushed.with_shared_http_client(exporter.clone());
            let pushed = pushed.with_endpoint(format!("{otlp}/v1/metrics"));
            push = Some((pushed.build().map_err(failed)?, exporter));
        }
        Ok(Self(Arc::new(Inner { tracing, meters, reader, metrics, push })))
    }

    /// Measures, and tells nobody.
    pub fn silent() -> Self {
        let reader = Reader::default();
        let meters = SdkMeterProvider::builder().build();
        let metrics = Metrics::new(&meters.meter(SCOPE), 1);
        Self(Arc::new(Inner { tracing: None, meters, reader, metrics, push: None }))
    }

    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    fn tracer(&self) -> Option<&SdkTracer> {
        self.0.tracing.as_ref().map(|(tracer, _)| tracer)
    }

    /// A value that is looked at whenever somebody wants to know: `look` tells it, for each set of labels
    /// that there is. It must not block.
    pub fn gauge(
        &self,
        (name, unit, description): (&'static str, &'static str, &'static str),
        look: impl Fn(&mut dyn FnMut(f64, &[(&'static str, &str)])) + Send + Sync + 'static,
    ) {
        let meter = self.0.meters.meter(SCOPE);
        let gauge = meter.f64_observable_gauge(name).with_unit(unit).with_description(description);
        let callback = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
            look(&mut |value, labels| {
                let labels = labels.iter().map(|(key, text)| KeyValue::new(*key, text.to_string()));
                observer.observe(value, &labels.collect::<Vec<_>>());
            });
        };
        // The provider keeps it.
        let _ = gauge.with_callback(callback).build();
    }

    /// All metrics by now, as Prometheus reads them.
    pub fn prometheus(&self) -> String {
        self.0.reader.text()
    }

    /// Pushes metrics once in a while, until `stop`.
    pub async fn push(self, stop: CancellationToken) {
        if self.0.push.is_none() {
            return;
        }
        let every =
            std::env::var("OTEL_METRIC_EXPORT_INTERVAL").ok().and_then(|ms| ms.parse().ok());
        let every = every.map_or(PUSH_EVERY, Duration::from_millis).max(Duration::from_millis(10));
        let mut was_failing = false;
        while stop.run_until_cancelled(sleep(every)).await.is_some() {
            if stop.run_until_cancelled(self.push_once()).await.is_none() {
                return;
            }
            let is_failing =
                self.0.push.as_ref().is_some_and(|(_, exporter)| exporter.is_failing());
            if is_failing && !was_failing {
                warn!("the collector of telemetry.otlp_endpoint does not take what is sent to it");
            }
            was_failing = is_failing;
        }
    }

    async fn push_once(&self) {
        let Some((exporter, _)) = &self.0.push else {
            return;
        };
        let mut all = ResourceMetrics::default();
        if self.0.reader.collect(&mut all).is_ok() {
            let quiet = Context::new().with_telemetry_suppressed();
            // Whether it has arrived, the exporter counts.
            let _ = exporter.export(&all).with_context(quiet).await;
        }
    }

    /// Sends what was not sent yet, and ends; within a few seconds, whatever the collector does.
    pub async fn end(&self) {
        let inner = self.0.clone();
        let ending = spawn_blocking(move || {
            if let Some((_, tracers)) = &inner.tracing {
                let _ = tracers.shutdown_with_timeout(LAST_EXPORT);
            }
        });
        // Neither waits for the other.
        let ending = async { tokio::join!(ending, self.push_once()) };
        let _ = timeout(LAST_EXPORT, ending).await;
    }
}

/// Tells this process from others, in all that it sends.
static INSTANCE: LazyLock<String> = LazyLock::new(|| hex(&random::<16>()));

/// Who speaks.
fn resource(config: &config::Telemetry) -> Resource {
    Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", INSTANCE.as_str()),
        ])
        .build()
}
