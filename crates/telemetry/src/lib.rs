//! Logs, spans and metrics of the gateway (OpenTelemetry, semantic conventions for MCP).
//!
//! There is one set of metric aggregates, read by Prometheus scrapes and by the task that pushes.
//! Spans are created by hand at the two places that know a whole operation, so that a call has
//! exactly two.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod exporter;
mod export_health;
pub mod log;
mod counters;
mod metrics;
mod operation;
mod prometheus;
mod series;
mod prompts;
mod otlp;

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use opentelemetry_sdk::Resource;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use base::seal::hex::hex;
use base::seal::random;
use export_health::HealthChange;
pub use metrics::Metrics;
pub use operation::{ClientAttributes, ClientOperation, End, ServerAttributes, ServerOperation};
use otlp::OtlpPipeline;
pub use series::{TransportKind, UPSTREAM};

/// A handle on spans and metrics, cheap to clone.
#[derive(Clone)]
pub struct Telemetry(Arc<TelemetryState>);

struct TelemetryState {
    metrics: ArcSwap<Metrics>,
    /// `None` without a collector: then the trace context of clients passes through unchanged.
    otlp: ArcSwapOption<OtlpPipeline>,
    /// All gauges, to be registered again when the metrics are renewed.
    gauges: Mutex<Vec<Gauge>>,
}

/// Registers an observable gauge with a meter.
type Gauge = Box<dyn Fn(&Meter) + Send + Sync>;

/// The parts that a changed configuration replaces.
#[derive(Default)]
pub struct RenewedTelemetry {
    /// `None`: the metrics continue.
    metrics: Option<Metrics>,
    /// `None`: the export continues; `Some(None)`: it ends.
    otlp: Option<Option<OtlpPipeline>>,
}

/// The instrumentation scope of spans, metrics and logs.
const SCOPE: &str = "promptgate";

/// The default interval of metric pushes (OpenTelemetry, `OTEL_METRIC_EXPORT_INTERVAL`, in
/// milliseconds).
const PUSH_INTERVAL: Duration = Duration::from_secs(60);

/// The shortest interval of metric pushes: a shorter one would only keep a worker thread busy.
const MIN_PUSH_INTERVAL: Duration = Duration::from_millis(10);

/// How long open spans may still end and be exported to the previous collector after a reload.
const OLD_SPANS_GRACE: Duration = Duration::from_secs(60);

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Telemetry")
    }
}

impl Telemetry {
    /// Creates spans and metrics as configured. With a collector this needs a tokio runtime.
    ///
    /// # Errors
    /// When the exporters cannot be created.
    pub fn new(config: &config::TelemetrySettings) -> Result<Self, String> {
        let metrics = Metrics::new(resource(config), config.max_prompts);
        Ok(Self::with(metrics, OtlpPipeline::new(config)?))
    }

    /// Counts without export, for tests and commands that serve no one.
    pub fn silent() -> Self {
        Self::with(Metrics::new(Resource::builder_empty().build(), 1), None)
    }

    fn with(metrics: Metrics, otlp: Option<OtlpPipeline>) -> Self {
        Self(Arc::new(TelemetryState {
            metrics: ArcSwap::from_pointee(metrics),
            otlp: ArcSwapOption::from(otlp.map(Arc::new)),
            gauges: Mutex::default(),
        }))
    }

    /// Creates the parts that differ between two configurations; [`Telemetry::apply`] switches to
    /// them.
    ///
    /// # Errors
    /// As [`Telemetry::new`].
    pub fn prepare(
        &self,
        config: &config::TelemetrySettings,
        before: &config::TelemetrySettings,
    ) -> Result<RenewedTelemetry, String> {
        let config::TelemetrySettings { otlp, trace_sample, service_name, max_prompts, .. } =
            config;
        let is_same_service = *service_name == before.service_name;
        let keeps_metrics = is_same_service && *max_prompts == before.max_prompts;
        let keeps_otlp = is_same_service
            && *otlp == before.otlp
            && *trace_sample == before.trace_sample
            && config.proxies == before.proxies;
        let metrics = (!keeps_metrics).then(|| Metrics::new(resource(config), *max_prompts));
        let otlp = (!keeps_otlp).then(|| OtlpPipeline::new(config)).transpose()?;
        Ok(RenewedTelemetry { metrics, otlp })
    }

    /// Switches to the renewed parts at once. The returned future pushes the last values of the
    /// metrics to the previous collector, and keeps its span export for [`OLD_SPANS_GRACE`] or
    /// until `stop`. When the future is dropped, spans that are not exported yet are lost.
    pub fn apply(
        &self,
        RenewedTelemetry { metrics, otlp }: RenewedTelemetry,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let is_same = metrics.is_none() && otlp.is_none();
        let keeps_otlp = otlp.is_none();
        let previous = self.0.otlp.load_full();
        let counted = match metrics {
            Some(metrics) => {
                self.gauges().iter().for_each(|gauge| gauge(metrics.meter()));
                self.0.metrics.swap(Arc::new(metrics))
            }
            None => self.0.metrics.load_full(),
        };
        if let Some(otlp) = otlp {
            self.0.otlp.store(otlp.map(Arc::new));
        }
        async move {
            let Some(previous) = previous.filter(|_| !is_same) else {
                return;
            };
            previous.push(&counted).await;
            if !keeps_otlp {
                let _ = stop.run_until_cancelled(sleep(OLD_SPANS_GRACE)).await;
                previous.shut_down().await;
            }
        }
    }

    /// Returns the current instruments.
    pub fn metrics(&self) -> Guard<Arc<Metrics>> {
        self.0.metrics.load()
    }

    fn otlp(&self) -> Guard<Option<Arc<OtlpPipeline>>> {
        self.0.otlp.load()
    }

    /// Registers an observable gauge with its name, unit (UCUM) and description. `look` reports a
    /// value for each set of labels whenever the metrics are read. It must not block.
    pub fn gauge(
        &self,
        (name, unit, description): (&'static str, &'static str, &'static str),
        look: impl Fn(&mut dyn FnMut(f64, &[(&'static str, &str)])) + Send + Sync + 'static,
    ) {
        let look = Arc::new(look);
        let gauge: Gauge = Box::new(move |meter| {
            let gauge = meter.f64_observable_gauge(name).with_unit(unit);
            let look = look.clone();
            let callback = move |observer: &dyn AsyncInstrument<f64>| {
                look(&mut |value, labels| {
                    let labels =
                        labels.iter().map(|(key, text)| KeyValue::new(*key, text.to_string()));
                    observer.observe(value, &labels.collect::<Vec<_>>());
                });
            };
            // The meter's provider keeps the gauge.
            let _ = gauge.with_description(description).with_callback(callback).build();
        });
        gauge(self.metrics().meter());
        self.gauges().push(gauge);
    }

    fn gauges(&self) -> std::sync::MutexGuard<'_, Vec<Gauge>> {
        self.0.gauges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current values of all metrics in the Prometheus text exposition format.
    pub fn prometheus(&self) -> String {
        self.metrics().reader().text()
    }

    /// Pushes metrics at each interval, until `stop`, and logs changes in the health of the export.
    pub async fn push(self, stop: CancellationToken) {
        let every =
            std::env::var("OTEL_METRIC_EXPORT_INTERVAL").ok().and_then(|ms| ms.parse().ok());
        let every = every.map_or(PUSH_INTERVAL, Duration::from_millis).max(MIN_PUSH_INTERVAL);
        while stop.run_until_cancelled(sleep(every)).await.is_some() {
            if stop.run_until_cancelled(self.push_once()).await.is_none() {
                return;
            }
            self.log_health();
        }
    }

    fn log_health(&self) {
        match self.otlp().as_ref().and_then(|otlp| otlp.report_health()) {
            Some(HealthChange::Failing(error)) => {
                warn!(
                    error,
                    "telemetry export failed; check telemetry.otlp_endpoint and its collector"
                );
            }
            Some(HealthChange::StillFailing(error)) => {
                debug!(error, "telemetry export still fails")
            }
            Some(HealthChange::Recovered) => info!("telemetry export works again"),
            None => {}
        }
    }

    async fn push_once(&self) {
        if let Some(otlp) = self.0.otlp.load_full() {
            otlp.push(&self.0.metrics.load_full()).await;
        }
    }

    /// Exports the remaining spans and the last values of the metrics, within three seconds,
    /// whether or not the collector responds.
    pub async fn end(&self) {
        if let Some(otlp) = self.0.otlp.load_full() {
            tokio::join!(otlp.shut_down(), self.push_once());
        }
    }
}

/// The `service.instance.id` of this process.
static INSTANCE: LazyLock<String> = LazyLock::new(|| hex(&random::<16>()));

/// Returns the resource of all spans, metrics and logs.
pub fn resource(config: &config::TelemetrySettings) -> Resource {
    Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", INSTANCE.as_str()),
        ])
        .build()
}
