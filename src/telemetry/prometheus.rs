//! The Prometheus text exposition format of the metrics (version 0.0.4; OpenTelemetry specification,
//! Prometheus and OpenMetrics compatibility).

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, Pipeline, Temporality};

/// The one reader of all metrics, shared by scrapes and pushes: a second reader would aggregate everything
/// a second time.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader(Arc<ManualReader>);

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, all: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(all)
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, _: InstrumentKind) -> Temporality {
        Temporality::Cumulative
    }
}

impl Reader {
    /// Returns the current values of all metrics as text.
    pub(crate) fn text(&self) -> String {
        let mut all = ResourceMetrics::default();
        // Without a provider there are no metrics.
        let _ = self.collect(&mut all);
        encode(&all)
    }
}

/// Writes all metric families in the order of their names, so that two scrapes can be compared.
fn encode(all: &ResourceMetrics) -> String {
    let resource: Vec<_> =
        all.resource().iter().map(|(k, v)| KeyValue::new(k.clone(), v.clone())).collect();
    let mut families = BTreeMap::new();
    for metric in all.scope_metrics().flat_map(|scope| scope.metrics()) {
        let (name, text) = match metric.data() {
            AggregatedMetrics::F64(data) => family(metric, data),
            AggregatedMetrics::U64(data) => family(metric, data),
            AggregatedMetrics::I64(data) => family(metric, data),
        };
        families.entry(name).or_insert(text);
    }
    let mut out = String::from("# HELP target_info Target metadata\n# TYPE target_info gauge\n");
    let _ = writeln!(out, "target_info{{{}}} 1", labels(resource.iter()));
    out.extend(families.into_values());
    out
}

/// Returns the name of a metric family, and its lines.
fn family<T: Copy + Display>(metric: &Metric, data: &MetricData<T>) -> (String, String) {
    let is_counter = matches!(data, MetricData::Sum(sum) if sum.is_monotonic());
    let name = family_name(metric.name(), metric.unit(), is_counter);
    // Sorted by labels: the SDK has them in hash order.
    let mut points: BTreeMap<String, String> = BTreeMap::new();
    let mut single = |attributes: String, value: T| {
        let line = format!("{name}{} {value}\n", braces(&attributes, None));
        points.insert(attributes, line);
    };
    let kind = match data {
        MetricData::Sum(sum) => {
            sum.data_points().for_each(|p| single(labels(p.attributes()), p.value()));
            if is_counter { "counter" } else { "gauge" }
        }
        MetricData::Gauge(gauge) => {
            gauge.data_points().for_each(|p| single(labels(p.attributes()), p.value()));
            "gauge"
        }
        MetricData::Histogram(histogram) => {
            for point in histogram.data_points() {
                let attributes = labels(point.attributes());
                let (mut block, mut seen) = (String::new(), 0);
                let bounds = point.bounds().map(|bound| bound.to_string());
                for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(point.bucket_counts()) {
                    seen += count;
                    let inside = braces(&attributes, Some(&bound));
                    let _ = writeln!(block, "{name}_bucket{inside} {seen}");
                }
                let outside = braces(&attributes, None);
                let _ = writeln!(block, "{name}_sum{outside} {}", point.sum());
                let _ = writeln!(block, "{name}_count{outside} {seen}");
                points.insert(attributes, block);
            }
            "histogram"
        }
        // The gateway has no such instrument.
        MetricData::ExponentialHistogram(_) => return (name, String::new()),
    };
    let mut text = format!("# HELP {name} ");
    escape(metric.description(), &mut text);
    let _ = writeln!(text, "\n# TYPE {name} {kind}");
    text.extend(points.into_values());
    (name, text)
}

fn family_name(name: &str, unit: &str, is_counter: bool) -> String {
    let mut out = legal(name);
    let unit = match unit {
        "s" => "_seconds",
        "By" => "_bytes",
        _ => "",
    };
    out.push_str(unit);
    if is_counter {
        out.push_str("_total");
    }
    out
}

/// Replaces characters that Prometheus does not allow in names; OpenTelemetry names contain dots.
fn legal(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_")
}

/// Returns labels as `a="b",c="d"`, in the order of their names.
fn labels<'a>(pairs: impl Iterator<Item = &'a KeyValue>) -> String {
    let named = pairs.map(|pair| (legal(pair.key.as_str()), pair.value.as_str()));
    let mut out = String::new();
    for (key, value) in named.collect::<BTreeMap<_, _>>() {
        let comma = if out.is_empty() { "" } else { "," };
        let _ = write!(out, "{comma}{key}=\"");
        escape(&value, &mut out);
        out.push('"');
    }
    out
}

fn braces(labels: &str, bound: Option<&str>) -> String {
    match (labels, bound) {
        ("", None) => String::new(),
        (labels, None) => format!("{{{labels}}}"),
        ("", Some(bound)) => format!("{{le=\"{bound}\"}}"),
        (labels, Some(bound)) => format!("{{{labels},le=\"{bound}\"}}"),
    }
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    #[test]
    fn families_have_names_units_and_kinds_and_labels_are_escaped() {
        let reader = Reader::default();
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
