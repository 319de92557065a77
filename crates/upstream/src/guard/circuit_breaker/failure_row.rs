//! Consecutive failures by caller, which open a circuit.

use super::CallKey;

/// Failures in a row.
#[derive(Debug, Default)]
pub(super) struct FailureRow {
    pub total: usize,
    /// Failures of the first [`COUNTED_CALLERS`] callers, by caller.
    callers: Vec<(u64, usize)>,
    /// Failures of further callers.
    others: usize,
    first_prompt: Option<u64>,
    pub has_several_prompts: bool,
}

/// Most callers whose failures are counted separately.
const COUNTED_CALLERS: usize = 16;

impl FailureRow {
    pub(super) fn push(&mut self, key: CallKey) {
        self.total += 1;
        let first = *self.first_prompt.get_or_insert(key.prompt);
        self.has_several_prompts |= first != key.prompt;
        let is_full = self.callers.len() == COUNTED_CALLERS;
        match self.callers.iter_mut().find(|(caller, _)| *caller == key.caller) {
            Some((_, count)) => *count += 1,
            None if is_full => self.others += 1,
            None => self.callers.push((key.caller, 1)),
        }
    }

    /// The caller of all failures, if a single caller has met them.
    pub(super) fn only_caller(&self) -> Option<u64> {
        match self.callers.as_slice() {
            [(caller, _)] => Some(*caller),
            _ => None,
        }
    }

    /// Whether several callers have met `failures` failures. Each caller counts for at most half,
    /// so that one caller alone cannot open the circuit for all callers.
    pub(super) fn is_of_several_callers(&self, failures: usize) -> bool {
        let most = failures.div_ceil(2);
        let counted = self.callers.iter().map(|(_, count)| (*count).min(most));
        self.callers.len() > 1 && counted.sum::<usize>() + self.others >= failures
    }
}
