//! `/api/v1/rollouts`: the rollouts of this replica, and their changes.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use serde::Serialize;

use super::AdminState;
use super::answer::ErrorDocument;
use super::approvals::Refusal;
use super::sign_in::Visitor;
use calls::rollouts::RolloutStatus;
use calls::rollouts::changes::RolloutRequest;
use domain::calls::rollout::{RollbackRule, RolloutStep};
use domain::time::unix_time::UnixSeconds;
use front::downstream::clock::now;

/// The outcome of a change of a rollout.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ChangedRollout {
    /// Whether the rollout was in another state before.
    changed: bool,
}

/// The document of `/api/v1/rollouts`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RolloutsDocument {
    rollouts: Vec<RolloutRow>,
}

/// A rollout, and what has become of it in this replica.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Rollout"))]
#[serde(rename_all = "camelCase")]
struct RolloutRow {
    /// Public name of the prompt.
    prompt: String,
    from: Arc<str>,
    to: Arc<str>,
    #[cfg_attr(test, schemars(extend("enum" = ["running", "paused", "blocked", "rolled_back"])))]
    state: &'static str,
    /// Whether it is in `rollouts.toml` of a library, not in the configuration.
    started: bool,
    /// Why `to`, or else `from`, cannot be served.
    why: Option<String>,
    /// The share at present.
    #[cfg_attr(test, schemars(range(min = 0, max = 1)))]
    share: f64,
    next_step: Option<NextStep>,
    groups: Vec<String>,
    /// Gets of `to` in this replica since its start or since a person began the rollout again.
    gets: u64,
    failed: u64,
    rollback: Option<RollbackRow>,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    rolled_back_at: Option<String>,
}

/// Another share from an instant on.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NextStep {
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    at: String,
    share: f64,
}

/// The share of failures among the last gets above which the rollout is rolled back.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RollbackRow {
    share: f64,
    #[cfg_attr(test, schemars(range(min = 2, max = 10_000)))]
    over: usize,
}

/// Returns the document of `/api/v1/rollouts`, in the order of the prompts.
pub(super) fn all(state: &AdminState) -> RolloutsDocument {
    RolloutsDocument { rollouts: status(state).iter().map(RolloutRow::of).collect() }
}

/// Changes the rollout of the prompt `name`.
pub(super) async fn change(
    state: &AdminState,
    name: &str,
    request: &RolloutRequest,
    visitor: &Visitor,
) -> Result<ChangedRollout, Refusal> {
    let decider = visitor.decider(request.by.clone(), request.why.clone());
    let labels = state.router.labels();
    let changed = labels.change_rollout(name, request, &decider, now()).await;
    let refusal = |error| (StatusCode::CONFLICT, ErrorDocument::new(format!("{error}")));
    Ok(ChangedRollout { changed: changed.map_err(refusal)? })
}

/// The rollouts of this replica, in the order of their prompts.
pub(super) fn status(state: &AdminState) -> Vec<RolloutStatus> {
    state.router.rollouts().status(&state.router.catalog(), now())
}

impl RolloutRow {
    fn of(status: &RolloutStatus) -> Self {
        let RolloutStatus { rollout, share, next, gets, failed, rolled_back, .. } = status;
        let step = |RolloutStep { at, share }: RolloutStep| NextStep { at: time(at), share };
        let rule = |RollbackRule { share, over }: RollbackRule| RollbackRow { share, over };
        Self {
            prompt: status.prompt.clone(),
            from: rollout.from.clone(),
            to: rollout.to.clone(),
            state: status.state(),
            started: status.is_started,
            why: why(status),
            share: *share,
            next_step: next.map(step),
            groups: rollout.groups.clone(),
            gets: *gets,
            failed: *failed,
            rollback: rollout.rollback.map(rule),
            rolled_back_at: rolled_back.map(time),
        }
    }
}

/// Why `to`, or else `from`, is not served.
pub(super) fn why(status: &RolloutStatus) -> Option<String> {
    let fallback = |why| format!("in the place of `from`, the plain prompt is served: {why}");
    let problem = status.problem.as_ref().map(ToString::to_string);
    problem.or_else(|| status.fallback.as_ref().map(fallback))
}

pub(super) fn time(at: UnixSeconds) -> String {
    humantime::format_rfc3339_seconds(SystemTime::from(at.writable())).to_string()
}
