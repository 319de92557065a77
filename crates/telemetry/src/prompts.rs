//! The series of prompts: how often each was used and how long its gets took. Callers choose which
//! prompts they use, so the number of series is bounded, and no other label is chosen by callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashSet;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram};
use quick_cache::Equivalent;
use quick_cache::sync::Cache;

use super::series::by_upstream;
use domain::protocol::method::Method;

/// The instruments of prompts, bound for the prompts that were used last.
pub(super) struct PromptMetrics {
    uses: Counter<u64>,
    durations: Histogram<f64>,
    known: Cache<PromptKey<Arc<str>>, Arc<PromptSeries>>,
    /// Prompts that have an individual label, at most `max`.
    labels: DashSet<Arc<str>>,
    max: usize,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct PromptKey<T> {
    method: &'static str,
    upstream: T,
    /// The public name.
    prompt: T,
}

/// The bound instruments of one prompt.
struct PromptSeries {
    is_labelled: bool,
    /// Uses counted before the prompt gets an individual label.
    uses: AtomicU64,
    counter: BoundCounter<u64>,
    /// `None` for completions, whose duration is not that of the prompt.
    duration: Option<BoundHistogram<f64>>,
}

/// The shared label of all prompts without an individual label.
const OTHER: &str = "_other";

/// The names and bucket bounds (in seconds) of the instruments.
pub(super) const USES: &str = "promptgate.prompt.uses";
pub(super) const DURATION: &str = "promptgate.prompt.duration";
pub(super) const SECONDS: [f64; 7] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0];

impl PromptMetrics {
    /// At most `max` prompts get an individual label.
    pub(super) fn new(uses: Counter<u64>, durations: Histogram<f64>, max: usize) -> Self {
        // Twice as many: unlabelled prompts are counted here, too.
        let known = Cache::new(2 * max + 1_000);
        Self { uses, durations, known, labels: DashSet::new(), max }
    }

    /// Counts a use that took this long.
    pub(super) fn used(&self, method: Method, upstream: &str, prompt: &str, took: Duration) {
        let key = PromptKey { method: method.as_str(), upstream, prompt };
        let series = match self.known.get(&key) {
            Some(series) if series.is_labelled => series,
            Some(series) => {
                let uses = series.uses.fetch_add(1, Ordering::Relaxed) + 1;
                if self.has_label(prompt, uses) { self.bind(key, method, true) } else { series }
            }
            None => {
                let is_labelled = self.has_label(prompt, 1);
                self.bind(key, method, is_labelled)
            }
        };
        series.counter.add(1);
        if let Some(duration) = &series.duration {
            duration.record(took.as_secs_f64());
        }
    }

    /// Whether a prompt with this number of uses has a label, or gets one now. The first half of
    /// the labels is given at the first use, the rest only after many uses: a caller who uses each
    /// prompt once leaves labels for the most used prompts.
    fn has_label(&self, prompt: &str, uses: u64) -> bool {
        if self.labels.contains(prompt) {
            return true;
        }
        let needed = match self.labels.len() {
            taken if taken < self.max.div_ceil(2) => 1,
            taken if taken < self.max - self.max / 4 => FEW,
            taken if taken < self.max => MANY,
            _ => return false,
        };
        // Two threads can both take the last label: an extra label does no harm.
        uses >= needed && self.labels.insert(prompt.into())
    }

    fn bind(&self, key: PromptKey<&str>, method: Method, is_labelled: bool) -> Arc<PromptSeries> {
        let label = if is_labelled { key.prompt } else { OTHER };
        let prompt = KeyValue::new("gen_ai.prompt.name", label.to_owned());
        let duration =
            (method == Method::Get).then(|| self.durations.bind(std::slice::from_ref(&prompt)));
        let by_method = KeyValue::new("mcp.method.name", key.method);
        let counter = self.uses.bind(&[by_method, by_upstream(key.upstream), prompt]);
        let uses = AtomicU64::new(1);
        let series = Arc::new(PromptSeries { is_labelled, uses, counter, duration });
        let PromptKey { method, upstream, prompt } = key;
        let key = PromptKey { method, upstream: upstream.into(), prompt: prompt.into() };
        self.known.insert(key, series.clone());
        series
    }
}

/// Uses for which a prompt gets one of the labels of the third quarter, and of the last.
const FEW: u64 = 16;
const MANY: u64 = 256;

impl Equivalent<PromptKey<Arc<str>>> for PromptKey<&str> {
    fn equivalent(&self, known: &PromptKey<Arc<str>>) -> bool {
        let PromptKey { method, upstream, prompt } = known;
        (self.method, self.upstream, self.prompt) == (*method, &**upstream, &**prompt)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    #[test]
    fn half_of_the_labels_are_for_prompts_that_are_used_often() {
        let meter = SdkMeterProvider::builder().build().meter("test");
        let uses = meter.u64_counter("a").build();
        let took = meter.f64_histogram("b").build();
        let metrics = PromptMetrics::new(uses, took, 8);
        let used = |prompt: &str| metrics.used(Method::Get, "up", prompt, Duration::ZERO);
        let has = |prompt: &str| metrics.labels.contains(prompt);
        (0..100).for_each(|n| used(&format!("once{n}")));
        assert_eq!(metrics.labels.len(), 4);
        assert!(has("once0") && has("once3"));
        (1..FEW).for_each(|_| used("often"));
        assert!(!has("often"));
        used("often");
        assert!(has("often"), "and the one before was the last for which it was another");
        for name in ["a", "b", "c", "d"] {
            (0..MANY).for_each(|_| used(name));
        }
        assert_eq!(metrics.labels.len(), 8);
        assert!(has("a") && has("b") && has("c") && !has("d"), "there are no more than eight");
    }
}
