//! The rollout of a prompt: who gets which version, how the new one does, and the form that starts
//! and changes it.

use std::time::SystemTime;

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::rollouts::{status, why};
use crate::sign_in::Role;
use calls::rollouts::RolloutStatus;
use domain::calls::rollout::{RollbackRule, RolloutStep};

/// A rollout in this replica, or the form that starts one.
#[derive(Template)]
#[template(path = "prompt_rollout.html")]
pub(super) struct RolloutPart {
    /// Public name of the prompt.
    name: String,
    rollout: Option<RolloutStatus>,
    /// Why a version is not served.
    why: Option<String>,
    /// Labels and numbers of versions that a rollout may have as its new version.
    choices: Vec<String>,
    can_change: bool,
    csrf: String,
}

impl RolloutPart {
    /// A share in percent.
    fn percent(share: &f64) -> String {
        format!("{} %", Self::percentage(share))
    }

    fn percentage(share: &f64) -> f64 {
        (share * 10_000.0).round() / 100.0
    }

    fn next(rollout: &RolloutStatus) -> Option<(String, SystemTime)> {
        let RolloutStep { at, share } = rollout.next?;
        Some((Self::percent(&share), at.writable().into()))
    }

    fn rule(rollout: &RolloutStatus) -> Option<String> {
        let RollbackRule { share, over } = rollout.rollout.rollback?;
        Some(format!("{} of {over} gets", Self::percent(&share)))
    }

    fn rolled_back(rollout: &RolloutStatus) -> Option<SystemTime> {
        Some(rollout.rolled_back?.writable().into())
    }
}

/// Returns the rollout of the prompt; without a rollout the form for visitors who may start one.
pub(super) fn rollout(looked: &Looked<'_>) -> Option<RolloutPart> {
    let rollout = status(looked.state).into_iter().find(|own| own.prompt == looked.name);
    let may_change = looked.state.admin.write && looked.visitor.role >= Role::Approver;
    let versions = looked.state.router.labels().prompt(looked.name);
    let versions = versions.filter(|own| may_change && own.read_only().is_none());
    if rollout.is_none() && versions.is_none() {
        return None;
    }
    let choices = versions.iter().flat_map(|own| {
        let numbers = own.versions.numbers.iter().rev().map(u32::to_string);
        own.versions.labels.keys().cloned().chain(numbers)
    });
    Some(RolloutPart {
        name: looked.name.to_owned(),
        why: rollout.as_ref().and_then(why),
        choices: choices.collect(),
        can_change: may_change,
        csrf: looked.visitor.csrf_token(),
        rollout,
    })
}
