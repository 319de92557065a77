//! What the gateway says about itself: logs, spans and metrics (OpenTelemetry, semantic conventions for
//! MCP).
//!
//! There is one set of aggregates, read by whoever scrapes and by the task that pushes. Spans are made by
//! hand at the two places that know an operation whole, so that a call costs two of them and no more.

mod exporter;
pub(crate) mod log;
mod metrics;
mod operation;
mod prometheus;
mod sending;

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use opentelemetry_sdk::Resource;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config;
use crate::seal::hex::hex;
use crate::seal::random;
pub(crate) use metrics::{Metrics, UPSTREAM};
pub(crate) use operation::{
    ClientAttributes, ClientOperation, End, ServerAttributes, ServerOperation, TransportKind,
};
use sending::Sending;

/// A handle on what is measured, cheap to copy.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    metrics: ArcSwap<Metrics>,
    /// Absent where nothing is sent: then traces of clients pass through as they are.
    sending: ArcSwapOption<Sending>,
    gauges: Mutex<Vec<Gauge>>,
}

/// Lets a meter look at a value.
type Gauge = Box<dyn Fn(&Meter) + Send + Sync>;

/// What another configuration makes anew.
#[derive(Default)]
pub struct Renewed {
    metrics: Option<Metrics>,
    sending: Option<Option<Sending>>,
}

/// The name of the gateway among all that is instrumented.
const SCOPE: &str = "promptgate";

/// How often metrics are pushed, unless OTEL_METRIC_EXPORT_INTERVAL says otherwise, in milliseconds.
const PUSH_EVERY: Duration = Duration::from_secs(60);

/// How long spans that have begun may still end where they would have gone before.
const LINGER: Duration = Duration::from_secs(60);

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
        let metrics = Metrics::new(resource(config), config.label_values);
        Ok(Self::with(metrics, Sending::new(config)?))
    }

    /// Measures, and tells nobody.
    pub fn silent() -> Self {
        Self::with(Metrics::new(Resource::builder_empty().build(), 1), None)
    }

    fn with(metrics: Metrics, sending: Option<Sending>) -> Self {
        Self(Arc::new(Inner {
            metrics: ArcSwap::from_pointee(metrics),
            sending: ArcSwapOption::from(sending.map(Arc::new)),
            gauges: Mutex::default(),
        }))
    }

    /// Makes what is another one under this configuration than under the one before;
    /// [`Telemetry::go_on`] then uses it.
    ///
    /// # Errors
    /// As [`Telemetry::new`].
    pub fn prepare(
        &self,
        config: &config::Telemetry,
        before: &config::Telemetry,
    ) -> Result<Renewed, String> {
        let config::Telemetry { otlp, trace_sample, service_name, label_values, .. } = config;
        let is_same_service = *service_name == before.service_name;
        let counts_on = is_same_service && *label_values == before.label_values;
        let sends_on =
            is_same_service && *otlp == before.otlp && *trace_sample == before.trace_sample;
        let metrics = (!counts_on).then(|| Metrics::new(resource(config), *label_values));
        let sending = (!sends_on).then(|| Sending::new(config)).transpose()?;
        Ok(Renewed { metrics, sending })
    }

    /// From now on this is used. What was counted by now is told where it would have been told before, and spans that
    /// have begun and end soon go there, too; the future that is returned sees to that, until `stop`.
    pub fn go_on(
        &self,
        Renewed { metrics, sending }: Renewed,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let is_same = metrics.is_none() && sending.is_none();
        let (sends_on, was_sent) = (sending.is_none(), self.0.sending.load_full());
        let counted = match metrics {
            Some(metrics) => {
                self.gauges().iter().for_each(|gauge| gauge(metrics.meter()));
                self.0.metrics.swap(Arc::new(metrics))
            }
            None => self.0.metrics.load_full(),
        };
        if let Some(sending) = sending {
            self.0.sending.store(sending.map(Arc::new));
        }
        async move {
            let Some(sent) = was_sent.filter(|_| !is_same) else {
                return;
            };
            sent.push(&counted).await;
            if !sends_on {
                let _ = stop.run_until_cancelled(sleep(LINGER)).await;
                sent.end().await;
            }
        }
    }

    pub fn metrics(&self) -> Guard<Arc<Metrics>> {
        self.0.metrics.load()
    }

    fn sending(&self) -> Guard<Option<Arc<Sending>>> {
        self.0.sending.load()
    }

    /// A value that is looked at whenever somebody wants to know: `look` tells it, for each set of labels
    /// that there is. It must not block.
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
            // The meter's provider keeps it.
            let _ = gauge.with_description(description).with_callback(callback).build();
        });
        gauge(self.metrics().meter());
        self.gauges().push(gauge);
    }

    fn gauges(&self) -> std::sync::MutexGuard<'_, Vec<Gauge>> {
        self.0.gauges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All metrics by now, as Prometheus reads them.
    pub fn prometheus(&self) -> String {
        self.metrics().reader().text()
    }

    /// Pushes metrics once in a while, until `stop`.
    pub async fn push(self, stop: CancellationToken) {
        let every =
            std::env::var("OTEL_METRIC_EXPORT_INTERVAL").ok().and_then(|ms| ms.parse().ok());
        let every = every.map_or(PUSH_EVERY, Duration::from_millis).max(Duration::from_millis(10));
        while stop.run_until_cancelled(sleep(every)).await.is_some() {
            if stop.run_until_cancelled(self.push_once()).await.is_none() {
                return;
            }
            if self.sending().as_ref().is_some_and(|sending| sending.has_begun_to_fail()) {
                warn!("the collector of telemetry.otlp_endpoint does not take what is sent to it");
            }
        }
    }

    async fn push_once(&self) {
        if let Some(sending) = self.0.sending.load_full() {
            sending.push(&self.0.metrics.load_full()).await;
        }
    }

    /// Sends what was not sent yet, and ends; within a few seconds, whatever the collector does.
    pub async fn end(&self) {
        if let Some(sending) = self.0.sending.load_full() {
            // Neither waits for the other.
            tokio::join!(sending.end(), self.push_once());
        }
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
