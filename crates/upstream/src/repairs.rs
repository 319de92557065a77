//! Counters of the repairs to the messages of one upstream.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{debug, warn};

use domain::json::repair::{RepairKind, RepairKinds};
use telemetry::Telemetry;

/// The repairs to the messages of one upstream since its driver was started.
pub struct Repairs {
    /// Id of the upstream.
    upstream: Arc<str>,
    telemetry: Telemetry,
    /// By the index of their kind in [`RepairKind::ALL`].
    counts: [AtomicU64; RepairKind::ALL.len()],
}

impl Repairs {
    pub fn new(upstream: &str, telemetry: Telemetry) -> Arc<Self> {
        Arc::new(Self { upstream: upstream.into(), telemetry, counts: Default::default() })
    }

    /// Counts one repair, and logs its description `what`: the first of each kind as a warning.
    pub fn note(&self, kind: RepairKind, what: &str) {
        let upstream = &*self.upstream;
        let repair = kind.as_str();
        if self.add(kind) == 0 {
            warn!(upstream, repair, "repaired a message of the upstream: {what}");
        } else {
            debug!(upstream, repair, "repaired a message of the upstream: {what}");
        }
    }

    /// Counts and logs one repair of which only the kind is known.
    pub fn count(&self, kind: RepairKind) {
        self.note(kind, kind.what());
    }

    /// Counts one repair. Returns the count before it.
    fn add(&self, kind: RepairKind) -> u64 {
        let before = self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.telemetry.metrics().repaired(&self.upstream, kind.as_str());
        before
    }

    /// Counts the repairs to one message, each kind once.
    pub fn count_all(&self, kinds: RepairKinds) {
        kinds.iter().for_each(|kind| self.count(kind));
    }

    /// Returns how many repairs of each kind were made; a kind without any is absent.
    pub fn counted(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let counted = RepairKind::ALL.iter().map(|kind| kind.as_str()).zip(counts);
        counted.filter(|(_, count)| *count > 0).collect()
    }
}

impl fmt::Debug for Repairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Repairs").field(&self.counted()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_counted_by_kind_and_in_the_metrics() {
        let telemetry = Telemetry::silent();
        let repairs = Repairs::new("odd", telemetry.clone());
        let mut kinds = RepairKinds::default();
        kinds.add(RepairKind::Uri);
        repairs.count_all(kinds);
        repairs.note(RepairKind::Uri, "a blank");
        assert_eq!(repairs.counted(), BTreeMap::from([("uri", 2)]));
        let metrics = telemetry.prometheus();
        let series = metrics.lines().find(|line| line.starts_with("promptgate_repairs_total{"));
        let series = series.unwrap_or_else(|| panic!("{metrics}"));
        assert!(series.contains(r#"promptgate_upstream="odd""#), "{series}");
        assert!(series.contains(r#"promptgate_kind="uri""#), "{series}");
        assert!(series.ends_with(" 2"), "{series}");
    }
}
