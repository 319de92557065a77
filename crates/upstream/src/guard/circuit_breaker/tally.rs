//! Consecutive failures by caller, or by prompt.

use std::collections::HashMap;

/// Consecutive failures by key. A key counts for at most half of the needed failures, rounded up,
/// so that no single caller opens the circuit.
#[derive(Debug, Default)]
pub(super) struct FailureTally {
    /// Bounded by the number of needed failures.
    counts: HashMap<u64, usize>,
    counted: usize,
}

impl FailureTally {
    /// Counts a failure. Returns whether several keys together have the `needed` failures.
    pub(super) fn add(&mut self, key: u64, needed: usize) -> bool {
        // A single failure has a single key.
        let needed = needed.max(2);
        if self.counted < needed {
            let count = self.counts.entry(key).or_default();
            if *count < needed.div_ceil(2) {
                *count += 1;
                self.counted += 1;
            }
        }
        self.counted >= needed
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.counts.len()
    }
}
