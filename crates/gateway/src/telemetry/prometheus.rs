//! The Prometheus text exposition format of the metrics (version 0.0.4; OpenTelemetry
//! specification, Prometheus and OpenMetrics compatibility).

use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, Pipeline, Temporality};
use prometheus::{Registry, TextEncoder};

/// The one reader of all metrics, shared by scrapes and pushes: a second reader would aggregate
/// everything a second time.
#[derive(Clone, Debug)]
pub(super) struct PrometheusReader {
    exporter: Arc<PrometheusExporter>,
    /// Collects from the exporter.
    registry: Registry,
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
        Self { exporter: Arc::new(exporter), registry }
    }
}

impl PrometheusReader {
    /// Returns the current values of all metrics as text, ordered by names and labels, so that two
    /// scrapes can be compared.
    pub(crate) fn text(&self) -> String {
        // Every family has a name and a value, so encoding cannot fail.
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
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
