//! The Prometheus text exposition format of the metrics (version 0.0.4; OpenTelemetry
//! specification, Prometheus and OpenMetrics compatibility).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry::metrics::Meter;
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, Pipeline, Temporality};
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{Registry, TextEncoder};

/// The one reader of all metrics, shared by scrapes and pushes: a second reader would aggregate
/// everything a second time.
#[derive(Clone, Debug)]
pub(super) struct PrometheusReader {
    exporter: Arc<PrometheusExporter>,
    /// Collects from the exporter.
    registry: Registry,
    /// Lines of the last reading.
    series: Arc<AtomicU64>,
}

impl MetricReader for PrometheusReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.exporter.register_pipeline(pipeline);
    }

    fn collect(&self, all: &mut ResourceMetrics) -> OTelSdkResult {
        self.exporter.collect(all)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.exporter.temporality(kind)
    }
}

impl Default for PrometheusReader {
    fn default() -> Self {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            // There is one scope, and it would stand on every line.
            .scope_info_enabled(false)
            .build()
            .expect("a new registry takes its first collector");
        Self { exporter: Arc::new(exporter), registry, series: Arc::default() }
    }
}

impl PrometheusReader {
    /// Returns the current values of all metrics as text, ordered by names and labels, so that two
    /// scrapes can be compared.
    pub(crate) fn text(&self) -> String {
        let families = self.registry.gather();
        self.count(&families);
        // Every family has a name and a value, so encoding cannot fail.
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }

    /// Counts the series, where nothing but the collector reads the metrics.
    pub(super) fn count_series(&self) {
        self.count(&self.registry.gather());
    }

    fn count(&self, families: &[MetricFamily]) {
        let lines = |metric: &Metric| match metric.get_histogram().get_bucket() {
            [] => 1,
            // The bucket without a bound, the sum and the count.
            buckets => buckets.len() + 3,
        };
        let count = families.iter().flat_map(MetricFamily::get_metric).map(lines).sum::<usize>();
        self.series.store(count as u64, Ordering::Relaxed);
    }

    /// Registers the gauge of the series, which has their number at the reading before.
    pub(super) fn gauge_of_series(&self, meter: &Meter) {
        let series = self.series.clone();
        let gauge = meter.u64_observable_gauge("promptgate.metrics.series");
        let gauge = gauge.with_unit("{series}").with_description("Series of all metrics");
        // The meter's provider keeps the gauge.
        let _ =
            gauge.with_callback(move |o| o.observe(series.load(Ordering::Relaxed), &[])).build();
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::KeyValue;
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    #[test]
    fn families_have_names_units_and_kinds_and_labels_are_escaped() {
        let reader = PrometheusReader::default();
        let provider = SdkMeterProvider::builder().with_reader(reader.clone()).build();
        let meter = provider.meter("test");
        let calls =
            meter.u64_counter("a.calls").with_unit("{call}").with_description("Calls").build();
        calls.add(2, &[KeyValue::new("b.c", "x\"\\\n"), KeyValue::new("a", true)]);
        let took =
            meter.f64_histogram("a.took").with_unit("s").with_boundaries(vec![0.5, 1.0]).build();
        [0.25, 0.75, 2.0].into_iter().for_each(|seconds| took.record(seconds, &[]));
        let _ = meter.f64_observable_gauge("a.open").with_callback(|o| o.observe(1.5, &[])).build();
        let text = reader.text();
        for wanted in [
            "# HELP a_calls_total Calls\n# TYPE a_calls_total counter\n\
             a_calls_total{a=\"true\",b_c=\"x\\\"\\\\\\n\"} 2\n",
            "a_open 1.5\n",
            "# TYPE a_took_seconds histogram\na_took_seconds_bucket{le=\"0.5\"} 1\n\
             a_took_seconds_bucket{le=\"1\"} 2\na_took_seconds_bucket{le=\"+Inf\"} 3\n\
             a_took_seconds_sum 3\na_took_seconds_count 3\n",
        ] {
            assert!(text.contains(wanted), "{wanted}\n--- is not in\n{text}");
        }
    }
}
