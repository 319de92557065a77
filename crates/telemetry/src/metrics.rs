//! The metric instruments: durations of the OpenTelemetry semantic conventions for MCP, and
//! counters of the gateway.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashSet;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundHistogram, Histogram, Meter, MeterProvider};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};

use super::SCOPE;
use super::counters::Counters;
use super::prometheus::PrometheusReader;
use super::prompts::{self, PromptMetrics};
use super::series::{KnownSeries, Labels, Series, by_upstream};
use domain::protocol::method::Method;

/// The counters and histograms. Gauges are registered with [`super::Telemetry::gauge`].
pub struct Metrics {
    meter: Meter,
    reader: PrometheusReader,
    /// Owns the instruments, which are no longer read once it is dropped.
    _provider: SdkMeterProvider,
    pub(super) server_duration: Durations,
    pub(super) client_duration: Durations,
    client_session: Histogram<f64>,
    counters: Counters,
    prompts: PromptMetrics,
}

/// Durations of operations by their labels and by how they failed.
pub(super) struct Durations {
    histogram: Histogram<f64>,
    known: KnownSeries<BoundHistogram<f64>>,
    /// The upstreams in `known`.
    upstreams: DashSet<Arc<str>>,
}

/// The durations of operations with the same labels.
pub(super) type DurationSeries = Arc<Series<BoundHistogram<f64>>>;

impl Durations {
    fn new(histogram: Histogram<f64>) -> Self {
        Self { histogram, known: KnownSeries::new(), upstreams: DashSet::new() }
    }

    pub(super) fn series(&self, labels: Labels<&str>) -> DurationSeries {
        self.known.find(labels, |attributes| {
            if let Some(upstream) = labels.upstream {
                self.upstreams.insert(upstream.into());
            }
            self.histogram.bind(attributes)
        })
    }

    /// Records a duration with the attributes of a failure, if there are any.
    pub(super) fn record(
        &self,
        took: Duration,
        series: &DurationSeries,
        failure: impl Iterator<Item = KeyValue>,
    ) {
        let seconds = took.as_secs_f64();
        let mut failure = failure.peekable();
        if failure.peek().is_none() {
            return series.bound.record(seconds);
        }
        let attributes: Vec<_> = series.attributes.iter().cloned().chain(failure).collect();
        self.histogram.record(seconds, &attributes);
    }
}

/// The bounds of the histogram buckets, in seconds: those of the semantic conventions for MCP
/// (OpenTelemetry, `mcp.server.operation.duration`), and smaller ones, as a get takes about one
/// millisecond.
const SECONDS: [f64; 18] = [
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
    30.0, 60.0, 300.0,
];

const SERVER_DURATION: &str = "mcp.server.operation.duration";
const CLIENT_DURATION: &str = "mcp.client.operation.duration";

/// Returns the limit of series of an instrument. Further series are merged into one series with
/// `otel_metric_overflow`. The SDK allocates the series in advance, so the limit is no larger than
/// upstreams need: only instruments of prompts have a series for each prompt.
fn series(instrument: &str, max_prompts: usize) -> usize {
    match instrument {
        // By method, revision, transport and outcome.
        SERVER_DURATION => 500,
        // By upstream, method and outcome.
        CLIENT_DURATION => 2_000,
        // Two methods for each labelled prompt; other prompts by upstream.
        prompts::USES => 2 * max_prompts + 1_000,
        prompts::DURATION => max_prompts + 100,
        _ => 1_000,
    }
}

impl Metrics {
    /// Creates the instruments of `resource`. At most `max_prompts` prompts get individual labels.
    pub(super) fn new(resource: Resource, max_prompts: usize) -> Self {
        let reader = PrometheusReader::default();
        let provider = SdkMeterProvider::builder()
            .with_reader(reader.clone())
            .with_resource(resource)
            .with_view(move |instrument: &Instrument| {
                let limit = series(instrument.name(), max_prompts);
                Stream::builder().with_cardinality_limit(limit).build().ok()
            })
            .build();
        let meter = provider.meter(SCOPE);
        let histogram = |name, bounds: &[f64], what| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(what);
            histogram.with_boundaries(bounds.to_vec()).build()
        };
        let seconds = |name, what| histogram(name, &SECONDS, what);
        let uses = meter.u64_counter(prompts::USES).with_unit("{use}");
        let uses = uses.with_description("Gets and completions that an upstream answered").build();
        let what = "Duration of gets that an upstream answered, by prompt";
        let took = histogram(prompts::DURATION, &prompts::SECONDS, what);
        reader.gauge_of_series(&meter);
        Self {
            server_duration: Durations::new(seconds(
                SERVER_DURATION,
                "Duration of client requests, from reading to response",
            )),
            client_duration: Durations::new(seconds(
                CLIENT_DURATION,
                "Duration of requests to upstreams, from sending to response",
            )),
            client_session: seconds(
                "mcp.client.session.duration",
                "Duration of connections to upstreams",
            ),
            counters: Counters::new(&meter),
            prompts: PromptMetrics::new(uses, took, max_prompts),
            meter,
            reader,
            _provider: provider,
        }
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) fn reader(&self) -> &PrometheusReader {
        &self.reader
    }

    /// Counts a request that was refused before an upstream was called, by `limit` if a rate limit
    /// refused it.
    pub fn refused(&self, reason: &'static str, limit: Option<&str>) {
        let reason = KeyValue::new("error.type", reason);
        match limit {
            Some(limit) => {
                let limit = KeyValue::new("promptgate.limit", limit.to_owned());
                self.counters.refused.add(1, &[reason, limit]);
            }
            None => self.counters.refused.add(1, &[reason]),
        }
    }

    /// Counts a get of a prompt or text that was not approved; `outcome` is `served`, `refused` or
    /// `snapshot`.
    pub fn unapproved(&self, upstream: &str, outcome: &'static str) {
        let outcome = KeyValue::new("promptgate.outcome", outcome);
        self.counters.unapproved.add(1, &[by_upstream(upstream), outcome]);
    }

    /// Counts a decision of a guard; `outcome` is `allowed`, `denied`, `masked`, `observed` or
    /// `failed`.
    pub fn guarded(&self, guard: &str, outcome: &'static str) {
        let guard = KeyValue::new("promptgate.guard", guard.to_owned());
        self.counters.guarded.add(1, &[guard, KeyValue::new("promptgate.outcome", outcome)]);
    }

    /// Counts a get whose version a rollout has chosen; `outcome` is `ok` or `failed`. Each
    /// configured prompt has two versions.
    pub fn rolled_out(&self, prompt: &str, version: &str, outcome: &'static str) {
        let labels = [
            KeyValue::new("gen_ai.prompt.name", prompt.to_owned()),
            KeyValue::new("promptgate.version", version.to_owned()),
            KeyValue::new("promptgate.outcome", outcome),
        ];
        self.counters.rolled_out.add(1, &labels);
    }

    /// Counts an attempt to notify the webhook of approvals; `outcome` is `delivered`, `failed` or
    /// `given_up`.
    pub fn approval_notification(&self, outcome: &'static str) {
        self.counters
            .approval_notifications
            .add(1, &[KeyValue::new("promptgate.outcome", outcome)]);
    }

    /// Counts a call of a prompt that the access rules deny.
    pub fn denied(&self, method: &'static str) {
        self.counters.denied.add(1, &[KeyValue::new("mcp.method.name", method)]);
    }

    /// Counts a session that was created for a legacy client.
    pub fn session_created(&self, revision: &'static str) {
        self.counters.sessions.add(1, &[KeyValue::new("mcp.protocol.version", revision)]);
    }

    /// Counts a `list_changed` notification of an upstream.
    pub fn list_changed_received(&self, upstream: &str) {
        self.counters.list_changes_received.add(1, &[by_upstream(upstream)]);
    }

    /// Counts a `list_changed` notification to a client.
    pub fn list_changed_sent(&self) {
        self.counters.list_changes_sent.add(1, &[]);
    }

    /// Counts a prompt definition that changed under the same name.
    pub fn definition_changed(&self, upstream: &str) {
        self.counters.definition_changed.add(1, &[by_upstream(upstream)]);
    }

    /// Counts a changed configuration that was applied.
    pub fn reload_applied(&self) {
        self.count_reload("applied");
    }

    /// Counts a changed configuration that was rejected.
    pub fn reload_rejected(&self) {
        self.count_reload("rejected");
    }

    fn count_reload(&self, outcome: &'static str) {
        self.counters.reloads.add(1, &[KeyValue::new("promptgate.outcome", outcome)]);
    }

    /// Counts a task that has failed; `how` is `panicked` or `returned`.
    pub fn task_failed(&self, task: &'static str, how: &'static str) {
        let labels = [KeyValue::new("promptgate.task", task), KeyValue::new("promptgate.how", how)];
        self.counters.failed_tasks.add(1, &labels);
    }

    /// Counts a driver that has failed and is started again.
    pub fn driver_restarted(&self, upstream: &str) {
        self.counters.driver_restarts.add(1, &[by_upstream(upstream)]);
    }

    /// Counts a repair to a message of an upstream.
    pub fn repaired(&self, upstream: &str, kind: &'static str) {
        self.counters
            .repairs
            .add(1, &[by_upstream(upstream), KeyValue::new("promptgate.kind", kind)]);
    }

    /// Counts a message that was to be handed to another replica.
    pub fn relayed(&self, kind: &'static str, outcome: &'static str) {
        let labels = [
            KeyValue::new("promptgate.message", kind),
            KeyValue::new("promptgate.outcome", outcome),
        ];
        self.counters.relayed.add(1, &labels);
    }

    /// Counts a get or completion that an upstream answered within this time.
    pub fn used(&self, method: Method, upstream: &str, public_name: &str, took: Duration) {
        self.prompts.used(method, upstream, public_name, took);
    }

    /// Whether an upstream was called. An upstream without calls has no series but its state.
    pub(super) fn is_called(&self, upstream: &str) -> bool {
        self.client_duration.upstreams.contains(upstream)
    }

    /// Records the duration of a connection to an upstream at its end, if it was called.
    pub fn upstream_session(
        &self,
        upstream: &str,
        revision: Option<&'static str>,
        lasted: Duration,
    ) {
        if !self.is_called(upstream) {
            return;
        }
        let revision = KeyValue::new("mcp.protocol.version", revision.unwrap_or_default());
        self.client_session.record(lasted.as_secs_f64(), &[by_upstream(upstream), revision]);
    }
}
