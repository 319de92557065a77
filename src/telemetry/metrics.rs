//! What is counted and timed: the durations of the semantic conventions, and what is the gateway's own.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashSet;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry::{KeyValue, StringValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};

use super::SCOPE;
use super::prometheus::Reader;

/// The instruments. What is looked at rather than counted is told by [`super::Telemetry::gauge`].
pub struct Metrics {
    meter: Meter,
    reader: Reader,
    /// Keeps the instruments; dropped, they count for nobody.
    _provider: SdkMeterProvider,
    pub(super) server_duration: Histogram<f64>,
    pub(super) client_duration: Histogram<f64>,
    client_session: Histogram<f64>,
    uses: Counter<u64>,
    refused: Counter<u64>,
    denied: Counter<u64>,
    sessions: Counter<u64>,
    changes_heard: Counter<u64>,
    changes_told: Counter<u64>,
    redefined: Counter<u64>,
    reloads: Counter<u64>,
    pub(super) prompts: Labels,
}

/// In seconds (OpenTelemetry, semantic conventions for MCP, `mcp.server.operation.duration`).
const SECONDS: [f64; 14] =
    [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

const SERVER_DURATION: &str = "mcp.server.operation.duration";
const CLIENT_DURATION: &str = "mcp.client.operation.duration";
const USES: &str = "promptgate.prompt.uses";

/// How many series an instrument may have. Those by prompt have some for each name, by method and
/// outcome; room for series is taken at once, so the others get no more than there are upstreams.
fn series(instrument: &str, label_values: usize) -> usize {
    match instrument {
        SERVER_DURATION | CLIENT_DURATION | USES => label_values * 4 + 500,
        _ => 1_000,
    }
}

impl Metrics {
    /// In the name of `resource`; labels that strangers name have up to `label_values` values.
    pub(super) fn new(resource: Resource, label_values: usize) -> Self {
        let reader = Reader::default();
        let provider = SdkMeterProvider::builder()
            .with_reader(reader.clone())
            .with_resource(resource)
            .with_view(move |instrument: &Instrument| {
                let limit = series(instrument.name(), label_values);
                Stream::builder().with_cardinality_limit(limit).build().ok()
            })
            .build();
        let meter = provider.meter(SCOPE);
        let seconds = |name, what| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(what);
            histogram.with_boundaries(SECONDS.to_vec()).build()
        };
        let count = |name: &'static str, unit, what| {
            meter.u64_counter(name).with_unit(unit).with_description(what).build()
        };
        Self {
            server_duration: seconds(
                SERVER_DURATION,
                "Requests of clients, from their reading to their answer",
            ),
            client_duration: seconds(
                CLIENT_DURATION,
                "Requests to upstreams, from their sending to their answer",
            ),
            client_session: seconds(
                "mcp.client.session.duration",
                "Connections to upstreams, at their end",
            ),
            uses: count(USES, "{use}", "Gets and completions that an upstream has answered"),
            refused: count(
                "promptgate.refused",
                "{request}",
                "Requests that were refused before anybody was asked",
            ),
            denied: count(
                "promptgate.denied",
                "{call}",
                "Calls of prompts that their callers may not use",
            ),
            sessions: count(
                "promptgate.sessions.created",
                "{session}",
                "Sessions of legacy clients that were created",
            ),
            changes_heard: count(
                "promptgate.list_changed.received",
                "{notice}",
                "Notices of upstreams that their list has changed",
            ),
            changes_told: count(
                "promptgate.list_changed.sent",
                "{notice}",
                "Notices to clients that their list has changed",
            ),
            redefined: count(
                "promptgate.definitions.changed",
                "{prompt}",
                "Prompts that are other ones under the same names",
            ),
            reloads: count(
                "promptgate.config.reloads",
                "{reload}",
                "Reloads of the configuration, applied or rejected",
            ),
            prompts: Labels::new(label_values),
            meter,
            reader,
            _provider: provider,
        }
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// A request was refused before anybody was asked, by this limit if it was one.
    pub fn refused(&self, reason: &'static str, limit: Option<&str>) {
        let reason = KeyValue::new("error.type", reason);
        match limit {
            Some(limit) => {
                let limit = KeyValue::new("promptgate.limit", limit.to_owned());
                self.refused.add(1, &[reason, limit]);
            }
            None => self.refused.add(1, &[reason]),
        }
    }

    /// Somebody asked for a prompt that it may not use.
    pub fn denied(&self, method: &'static str) {
        self.denied.add(1, &[KeyValue::new("mcp.method.name", method)]);
    }

    pub fn session_created(&self, revision: &'static str) {
        self.sessions.add(1, &[KeyValue::new("mcp.protocol.version", revision)]);
    }

    /// An upstream says that its list has changed.
    pub fn change_heard(&self, upstream: &str) {
        self.changes_heard.add(1, &[by_upstream(upstream)]);
    }

    /// A client is told that its list has changed.
    pub fn change_told(&self) {
        self.changes_told.add(1, &[]);
    }

    /// A prompt of an upstream is another one than before.
    pub fn redefined(&self, upstream: &str) {
        self.redefined.add(1, &[by_upstream(upstream)]);
    }

    /// Counts a reload of the configuration, applied or rejected.
    pub fn reloaded(&self, is_applied: bool) {
        let outcome = if is_applied { "applied" } else { "rejected" };
        self.reloads.add(1, &[KeyValue::new("promptgate.outcome", outcome)]);
    }

    /// An upstream has answered a call for a prompt.
    pub fn used(&self, method: &'static str, upstream: &str, public_name: &str) {
        let labels = [
            KeyValue::new("mcp.method.name", method),
            by_upstream(upstream),
            KeyValue::new("gen_ai.prompt.name", self.prompts.label(public_name)),
        ];
        self.uses.add(1, &labels);
    }

    /// A connection to an upstream has ended.
    pub fn upstream_session(
        &self,
        upstream: &str,
        revision: Option<&'static str>,
        lasted: Duration,
    ) {
        let revision = KeyValue::new("mcp.protocol.version", revision.unwrap_or_default());
        self.client_session.record(lasted.as_secs_f64(), &[by_upstream(upstream), revision]);
    }
}

/// The label that tells upstreams apart.
pub(crate) const UPSTREAM: &str = "promptgate.upstream";

pub(super) fn by_upstream(id: &str) -> KeyValue {
    KeyValue::new(UPSTREAM, id.to_owned())
}

/// Values of one label: the first ones stand for themselves, the rest for "other", so that nobody can
/// make more series than there is room for.
pub(super) struct Labels {
    seen: DashSet<Arc<str>>,
    most: usize,
}

impl Labels {
    fn new(most: usize) -> Self {
        Self { seen: DashSet::new(), most }
    }

    pub(crate) fn label(&self, text: &str) -> Value {
        let known = self.seen.get(text).map(|known| known.clone());
        let label = known.or_else(|| {
            // Two at once may both find the last place: one more does no harm.
            let text: Arc<str> = text.into();
            (self.seen.len() < self.most).then(|| {
                self.seen.insert(text.clone());
                text
            })
        });
        Value::String(label.map_or(StringValue::from("other"), StringValue::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_its_limit_a_label_says_other() {
        let labels = Labels::new(2);
        let label = |text| labels.label(text).as_str().into_owned();
        assert_eq!([label("a"), label("b"), label("c"), label("a")], ["a", "b", "other", "a"]);
    }
}
