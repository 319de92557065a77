//! Counts of calls: outcomes, sums and latencies.

use serde::{Deserialize, Serialize};

/// The outcome of a call, as usage counts it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OutcomeKind {
    /// A result was sent, or the caller cancelled the call.
    Used,
    /// The call ended with a fault.
    Failed,
    /// The caller may not use the prompt or skill, no prompt or skill has this name, or a guard has
    /// refused a text.
    Denied,
    /// A rate limit refused the call.
    Limited,
}

impl OutcomeKind {
    /// Reads the outcome of a record: `ok`, `cancelled`, or the reason of a fault.
    pub(crate) fn of(outcome: &str) -> Self {
        match outcome {
            "ok" | "cancelled" => Self::Used,
            "unknown_prompt" | "unknown_tool" | "unknown_resource" | "guard_denied" => Self::Denied,
            "rate_limited" => Self::Limited,
            _ => Self::Failed,
        }
    }
}

/// One call, or several equal calls that the audit log joins in one record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedCall<'a> {
    /// Public name of a prompt or skill; `None` if the name does not exist.
    pub prompt: Option<&'a str>,
    pub upstream: Option<&'a str>,
    /// Id of the caller; `None` if it was not known yet.
    pub caller: Option<&'a str>,
    pub groups: &'a [String],
    /// Path of the endpoint.
    pub endpoint: Option<&'a str>,
    pub kind: OutcomeKind,
    pub count: u64,
    /// Duration in microseconds, if a prompt was asked for.
    pub micros: Option<u64>,
}

impl CountedCall<'_> {
    /// Returns the duration of a use in microseconds: that of a refusal says nothing about prompts.
    pub(crate) fn use_micros(&self) -> Option<u64> {
        self.micros.filter(|_| matches!(self.kind, OutcomeKind::Used | OutcomeKind::Failed))
    }
}

/// Sums of calls.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Counts {
    /// Calls that reached their prompt; failures are among them.
    pub uses: u64,
    pub failures: u64,
    pub denied: u64,
    pub limited: u64,
    /// The duration of all uses, in microseconds.
    pub micros: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, seen: &CountedCall<'_>) {
        let uses = match seen.kind {
            OutcomeKind::Used | OutcomeKind::Failed => seen.count,
            OutcomeKind::Denied | OutcomeKind::Limited => 0,
        };
        let of = |kind| if seen.kind == kind { seen.count } else { 0 };
        let micros = if uses > 0 { seen.micros.unwrap_or_default() } else { 0 };
        let (failures, denied, limited) =
            (of(OutcomeKind::Failed), of(OutcomeKind::Denied), of(OutcomeKind::Limited));
        self.merge(&Self { uses, failures, denied, limited, micros });
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.uses = self.uses.saturating_add(other.uses);
        self.failures = self.failures.saturating_add(other.failures);
        self.denied = self.denied.saturating_add(other.denied);
        self.limited = self.limited.saturating_add(other.limited);
        self.micros = self.micros.saturating_add(other.micros);
    }

    /// Returns the mean duration of a use in milliseconds; `None` without uses.
    pub(crate) fn mean_ms(&self) -> Option<f64> {
        let mean = self.micros.checked_div(self.uses)?;
        #[expect(clippy::cast_precision_loss, reason = "a mean duration is far below 2^53 µs")]
        let mean = mean as f64;
        Some(mean / 1000.0)
    }

    /// Returns a quantile of the uses with these latencies, in milliseconds, so that it does not
    /// contradict the mean: of a single use it is its duration, and in the highest step it is not
    /// below the mean.
    pub(crate) fn quantile_ms(&self, latencies: &Histogram, quantile: f64) -> Option<f64> {
        let estimate = latencies.quantile_ms(quantile)?;
        let mean = self.mean_ms()?;
        let is_highest = latencies.quantile_ms(1.0) <= Some(estimate);
        Some(match self.uses {
            1 => mean,
            _ if is_highest => estimate.max(mean),
            _ => estimate,
        })
    }
}

/// Latencies in steps of half an octave: a quantile is exact within a fifth. Only steps that occur
/// take memory.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Histogram {
    /// Steps with their counts, in ascending order.
    steps: Vec<(u8, u64)>,
}

/// The highest step: from about 68 s on.
const LAST_STEP: u8 = 41;

/// The upper bound of step 0, in microseconds.
const FIRST_BOUND: f64 = 64.0;

impl Histogram {
    /// The number of steps.
    pub const STEPS: usize = LAST_STEP as usize + 1;

    /// Returns a histogram of one step.
    pub(crate) fn of(step: u8, count: u64) -> Self {
        let mut histogram = Self::default();
        histogram.add_step(step.into(), count);
        histogram
    }

    /// Returns the step of a duration in microseconds: the first whose upper bound is not exceeded.
    pub fn step(micros: u64) -> usize {
        // Powers of two of a squared duration are powers of √2 of the duration.
        let ratio = u128::from(micros) * u128::from(micros) / (64 * 64);
        let step = u128::BITS - ratio.leading_zeros();
        usize::try_from(step).unwrap_or(usize::MAX).min(LAST_STEP.into())
    }

    /// Adds a duration in microseconds.
    pub(crate) fn add(&mut self, micros: u64) {
        self.add_step(Self::step(micros), 1);
    }

    /// Adds `count` durations of a step; steps beyond the last count as the last.
    pub fn add_step(&mut self, step: usize, count: u64) {
        if count == 0 {
            return;
        }
        let step = u8::try_from(step).unwrap_or(LAST_STEP).min(LAST_STEP);
        match self.steps.binary_search_by_key(&step, |(step, _)| *step) {
            Ok(at) => self.steps[at].1 = self.steps[at].1.saturating_add(count),
            Err(at) => self.steps.insert(at, (step, count)),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        other.steps.iter().for_each(|(step, count)| self.add_step((*step).into(), *count));
    }

    /// Returns the steps that occur, with their counts.
    pub(crate) fn steps(&self) -> &[(u8, u64)] {
        &self.steps
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.steps.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns a quantile in milliseconds, such as that of 0.95; `None` without durations.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a quantile of counts needs no more")]
        let wanted = quantile * total as f64;
        let mut below = 0.0;
        for (step, count) in &self.steps {
            #[expect(clippy::cast_precision_loss, reason = "a quantile of counts needs no more")]
            let count = *count as f64;
            below += count;
            if below >= wanted {
                return Some(middle_ms(*step));
            }
        }
        self.steps.last().map(|(step, _)| middle_ms(*step))
    }
}

/// Returns the middle of a step, in milliseconds, rounded to microseconds.
fn middle_ms(step: u8) -> f64 {
    let upper = FIRST_BOUND * 2_f64.powf(f64::from(step) / 2.0);
    let middle = if step == 0 { upper / 2.0 } else { upper / 2_f64.powf(0.25) };
    middle.round() / 1000.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_call_counts_as_what_became_of_it() {
        let mut counts = Counts::default();
        for outcome in [
            "ok",
            "cancelled",
            "upstream_timeout",
            "unknown_prompt",
            "guard_denied",
            "rate_limited",
        ] {
            let kind = OutcomeKind::of(outcome);
            let count = 1;
            let prompt = Some("p");
            let upstream = Some("u");
            let caller = Some("c");
            let seen = CountedCall {
                prompt,
                upstream,
                caller,
                groups: &[],
                endpoint: None,
                kind,
                count,
                micros: Some(10),
            };
            counts.add(&seen);
        }
        let expected = Counts { uses: 3, failures: 1, denied: 2, limited: 1, micros: 30 };
        assert_eq!(counts, expected);
    }

    #[test]
    fn without_durations_there_is_no_quantile() {
        assert_eq!(Histogram::default().quantile_ms(0.5), None);
    }

    #[test]
    fn the_quantile_of_a_single_use_is_its_duration() {
        let mut latencies = Histogram::default();
        latencies.add(3_101_600);
        let counts = Counts { uses: 1, micros: 3_101_600, ..Counts::default() };
        assert_eq!(counts.mean_ms(), Some(3101.6));
        for quantile in [0.5, 0.95] {
            assert_eq!(counts.quantile_ms(&latencies, quantile), Some(3101.6));
        }
        assert_eq!(counts.quantile_ms(&Histogram::default(), 0.95), None, "no latency is kept");
    }

    proptest! {
        #[test]
        fn of_few_uses_the_95th_percentile_is_near_the_slowest_and_not_below_the_mean(
            all in prop::collection::vec(64..60_000_000_u64, 1..20),
        ) {
            let mut latencies = Histogram::default();
            all.iter().for_each(|micros| latencies.add(*micros));
            let uses = all.len() as u64;
            let counts = Counts { uses, micros: all.iter().sum(), ..Counts::default() };
            let found = counts.quantile_ms(&latencies, 0.95).unwrap();
            let slowest = *all.iter().max().unwrap() as f64 / 1000.0;
            prop_assert!(found >= counts.mean_ms().unwrap());
            prop_assert!((found / slowest - 1.0).abs() < 0.2, "{found} {slowest}");
        }

        #[test]
        fn a_quantile_is_near_the_exact_one(mut all in prop::collection::vec(64..60_000_000_u64, 1..200)) {
            let mut histogram = Histogram::default();
            all.iter().for_each(|micros| histogram.add(*micros));
            all.sort_unstable();
            let exact = all[(all.len() * 95).div_ceil(100) - 1] as f64 / 1000.0;
            let found = histogram.quantile_ms(0.95).unwrap();
            prop_assert!((found / exact - 1.0).abs() < 0.2, "{found} {exact}");
        }
    }
}
