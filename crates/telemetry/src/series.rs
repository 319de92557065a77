//! The series that calls write to, bound to their attributes. The SDK finds a series by building
//! and hashing all of its attributes, which costs a call more than its measurement.

use std::sync::Arc;

use opentelemetry::KeyValue;
use quick_cache::Equivalent;
use quick_cache::sync::Cache;

/// The attributes by which the series of an instrument differ, without those of a failure. Clients
/// choose no attribute.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) struct Labels<T> {
    pub method: &'static str,
    pub revision: Option<&'static str>,
    pub transport: Option<TransportKind>,
    pub upstream: Option<T>,
    /// Host and port.
    pub server: Option<(T, u16)>,
}

/// One series of an instrument.
pub(super) struct Series<B> {
    pub attributes: Vec<KeyValue>,
    /// The instrument for values with these attributes alone.
    pub bound: B,
}

/// The series of one instrument that were written to last.
pub(super) struct KnownSeries<B>(Cache<Labels<Arc<str>>, Arc<Series<B>>>);

/// Capacity of the cache for each instrument: a series that was evicted is bound again within
/// microseconds.
const REMEMBERED: usize = 4_096;

impl<B> KnownSeries<B> {
    pub(super) fn new() -> Self {
        Self(Cache::new(REMEMBERED))
    }

    /// Returns the series with these labels. `bind` binds a series that is not known to its
    /// attributes.
    pub(super) fn find(
        &self,
        labels: Labels<&str>,
        bind: impl FnOnce(&[KeyValue]) -> B,
    ) -> Arc<Series<B>> {
        if let Some(series) = self.0.get(&labels) {
            return series;
        }
        let attributes = labels.attributes();
        let bound = bind(&attributes);
        let series = Arc::new(Series { attributes, bound });
        self.0.insert(labels.owned(), series.clone());
        series
    }
}

impl Labels<&str> {
    fn owned(self) -> Labels<Arc<str>> {
        let Self { method, revision, transport, upstream, server } = self;
        Labels {
            method,
            revision,
            transport,
            upstream: upstream.map(Arc::from),
            server: server.map(|(host, port)| (host.into(), port)),
        }
    }

    pub(super) fn attributes(self) -> Vec<KeyValue> {
        let Self { method, revision, transport, upstream, server } = self;
        let mut attributes = vec![KeyValue::new("mcp.method.name", method)];
        attributes.extend(upstream.map(by_upstream));
        attributes.extend(revision.map(|revision| KeyValue::new("mcp.protocol.version", revision)));
        attributes.extend(transport.into_iter().flat_map(TransportKind::attributes));
        if let Some((host, port)) = server {
            attributes.push(KeyValue::new("server.address", host.to_owned()));
            attributes.push(KeyValue::new("server.port", i64::from(port)));
        }
        attributes
    }
}

impl Equivalent<Labels<Arc<str>>> for Labels<&str> {
    fn equivalent(&self, known: &Labels<Arc<str>>) -> bool {
        let Labels { method, revision, transport, upstream, server } = known;
        let server = server.as_ref().map(|(host, port)| (&**host, *port));
        (self.method, self.revision, self.transport) == (*method, *revision, *transport)
            && self.upstream == upstream.as_deref()
            && self.server == server
    }
}

/// The transport of the messages (OpenTelemetry, `network.transport`).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum TransportKind {
    Http,
    Pipe,
}

impl TransportKind {
    pub(super) fn attributes(self) -> impl Iterator<Item = KeyValue> {
        let (transport, protocol) = match self {
            Self::Http => ("tcp", Some("http")),
            Self::Pipe => ("pipe", None),
        };
        let protocol = protocol.map(|name| KeyValue::new("network.protocol.name", name));
        std::iter::once(KeyValue::new("network.transport", transport)).chain(protocol)
    }
}

/// The label with the id of the upstream.
pub const UPSTREAM: &str = "promptgate.upstream";

pub(super) fn by_upstream(id: &str) -> KeyValue {
    KeyValue::new(UPSTREAM, id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_bound_once_and_only_to_its_own_labels() {
        let known = KnownSeries::new();
        let server = Some(("host", 80));
        let get = Labels { method: "prompts/get", server, ..Labels::default() };
        let others = [
            Labels { method: "completion/complete", ..get },
            Labels { upstream: Some("a"), ..get },
            Labels { server: Some(("host", 81)), ..get },
            Labels { revision: Some("2025-06-18"), ..get },
            Labels { transport: Some(TransportKind::Pipe), ..get },
        ];
        let all = std::iter::once(get).chain(others);
        for (number, labels) in all.clone().enumerate() {
            assert_eq!(known.find(labels, |_| number).bound, number);
        }
        for (number, labels) in all.enumerate() {
            let series = known.find(labels, |_| panic!("it is known"));
            assert_eq!((series.bound, &series.attributes), (number, &labels.attributes()));
        }
    }
}
