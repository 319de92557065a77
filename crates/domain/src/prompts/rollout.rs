//! The rollout of a prompt, as a person has written it.

use std::sync::Arc;

use crate::time::unix_time::UnixSeconds;

/// Serves one version of a prompt to a share of the callers, and another version to the rest. The
/// list shows only the prompt, in one form for all.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    /// Label or version for the callers outside the share.
    pub from: Arc<str>,
    /// Label or version for the callers in the share.
    pub to: Arc<str>,
    /// Share of the callers before the first step, from 0 to 1.
    pub share: f64,
    /// Groups whose members can be in the share; empty: every caller can.
    pub groups: Vec<String>,
    /// The steps in the order of their times.
    pub steps: Vec<RolloutStep>,
    pub rollback: Option<RollbackRule>,
    /// Whether all callers get `from` until a person resumes the rollout.
    pub is_paused: bool,
}

// Shares are numbers from 0 to 1, never NaN.
impl Eq for Rollout {}

/// A new share from an instant on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RolloutStep {
    pub at: UnixSeconds,
    /// The share, from 0 to 1.
    pub share: f64,
}

/// The rule for a rollback: more than `share` of the new version's last `over` gets have failed,
/// for at least two callers. A caller counts for at most half of the failures that are needed, and
/// for at most half of the last gets, so that no single caller who fails or succeeds on purpose can
/// decide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RollbackRule {
    /// The share of failures, from 0 to less than 1.
    pub share: f64,
    /// The number of gets, at least 2.
    pub over: usize,
}

impl Rollout {
    /// Returns the share of the callers at this time; 0 while the rollout is paused.
    pub fn share_at(&self, now: UnixSeconds) -> f64 {
        if self.is_paused {
            return 0.0;
        }
        let passed = self.steps.iter().rev().find(|step| step.at <= now);
        passed.map_or(self.share, |step| step.share)
    }

    /// Returns the next step after this time.
    pub fn next_step(&self, now: UnixSeconds) -> Option<RolloutStep> {
        self.steps.iter().find(|step| step.at > now).copied()
    }
}
