//! `/api/v1/rollouts`: the rollouts of this replica, and their restart after a rollback.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminState;
use calls::rollouts::RolloutStatus;
use domain::rollout::{RollbackRule, RolloutStep};
use domain::unix_time::UnixSeconds;
use front::downstream::clock::now;

/// The rollout to restart, as the body of a POST.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RearmRequest {
    /// Public name of its prompt.
    pub prompt: String,
}

/// Returns the document of `/api/v1/rollouts`, in the order of the prompts.
pub(super) fn all(state: &AdminState) -> Value {
    json!({ "rollouts": status(state).iter().map(rollout_json).collect::<Vec<_>>() })
}

/// The rollouts of this replica, in the order of their prompts.
pub(super) fn status(state: &AdminState) -> Vec<RolloutStatus> {
    state.router.rollouts().status(&state.router.catalog(), now())
}

fn rollout_json(status: &RolloutStatus) -> Value {
    let RolloutStatus { rollout, share, next, gets, failed, rolled_back, .. } = status;
    let step = |RolloutStep { at, share }: RolloutStep| json!({"at": time(at), "share": share});
    let rule = |RollbackRule { share, over }: RollbackRule| json!({"share": share, "over": over});
    json!({
        "prompt": rollout.prompt,
        "from": &*rollout.from,
        "to": &*rollout.to,
        "state": status.state(),
        "why": why(status),
        "share": share,
        "nextStep": next.map(step),
        "groups": rollout.groups,
        "gets": gets,
        "failed": failed,
        "rollback": rollout.rollback.map(rule),
        "rolledBackAt": rolled_back.map(time),
    })
}

/// Why `to`, or else `from`, is not served.
pub(super) fn why(status: &RolloutStatus) -> Option<String> {
    let fallback = |why| format!("in the place of `from`, the plain prompt is served: {why}");
    let problem = status.problem.as_ref().map(ToString::to_string);
    problem.or_else(|| status.fallback.as_ref().map(fallback))
}

fn time(at: UnixSeconds) -> String {
    humantime::format_rfc3339_seconds(SystemTime::from(at.writable())).to_string()
}
