//! The rollout of a prompt: who gets which version, and how the new one does.

use std::time::SystemTime;

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::rollouts::{status, why};
use calls::rollouts::RolloutStatus;
use domain::calls::rollout::{RollbackRule, RolloutStep};

/// A rollout in this replica.
#[derive(Template)]
#[template(path = "prompt_rollout.html")]
pub(super) struct RolloutPart {
    rollout: RolloutStatus,
    /// Why a version is not served.
    why: Option<String>,
}

impl RolloutPart {
    /// A share in percent.
    fn percent(share: &f64) -> String {
        format!("{} %", (share * 10_000.0).round() / 100.0)
    }

    fn next(&self) -> Option<(String, SystemTime)> {
        let RolloutStep { at, share } = self.rollout.next?;
        Some((Self::percent(&share), at.writable().into()))
    }

    fn rule(&self) -> Option<String> {
        let RollbackRule { share, over } = self.rollout.rollout.rollback?;
        Some(format!("{} of {over} gets", Self::percent(&share)))
    }

    fn rolled_back(&self) -> Option<SystemTime> {
        Some(self.rollout.rolled_back?.writable().into())
    }
}

/// Returns the rollout of the prompt, if it has one.
pub(super) fn rollout(looked: &Looked<'_>) -> Option<RolloutPart> {
    let rollout = status(looked.state).into_iter().find(|own| own.rollout.prompt == looked.name)?;
    Some(RolloutPart { why: why(&rollout), rollout })
}
