//! Rollouts that people start, change and end while the gateway runs. `rollouts.toml` beside the
//! labels of a library has them.

use std::panic::resume_unwind;

use serde::Deserialize;
use tokio::time::timeout;

use crate::labels::{LabelledPrompt, LabelledPrompts, READ_TIMEOUT};
use audit::record::AuditEvent;
use catalog::blocking::run_blocking;
use config::labels::MoveError;
use config::rollouts::change_started;
use domain::approval::{Attribution, Decider};
use domain::calls::rollout::{RollbackRule, Rollout};
use domain::time::unix_time::UnixSeconds;

/// A change of a rollout that is asked for.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    pub action: RolloutAction,
    /// Label or number of the new version; `start` needs it.
    pub to: Option<String>,
    /// Label or number of the old version [default: the version under the plain name].
    pub from: Option<String>,
    /// Share of the callers that get `to`; `start` and `share` need it.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1)))]
    pub share: Option<f64>,
    /// With `start`: groups whose members can be in the share; empty for all callers.
    #[serde(default)]
    pub groups: Vec<String>,
    /// With `start`: the share of failures among the last 100 gets of `to` above which the gateway
    /// rolls back by itself.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 0.99)))]
    pub rollback: Option<f64>,
    /// The person who asks; counts only where the credential is a token.
    pub by: Option<String>,
    pub why: Option<String>,
}

/// The kinds of changes of a rollout.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RolloutAction {
    Start,
    Share,
    Pause,
    Resume,
    End,
    /// Serves no new version until `rearm`.
    RollBack,
    /// Begins again after a rollback.
    Rearm,
}

/// Gets over which the share of failures of a started rollout is counted.
const ROLLBACK_OVER: usize = 100;

impl LabelledPrompts<'_> {
    /// Changes the rollout of a prompt, and records the person. Returns whether that changed
    /// anything, once the gateway has read the file again or after [`READ_TIMEOUT`].
    ///
    /// # Errors
    /// The change is refused, or the file cannot be written.
    pub async fn change_rollout(
        &self,
        name: &str,
        request: &RolloutRequest,
        decider: &Decider,
        now: UnixSeconds,
    ) -> Result<bool, MoveError> {
        let attribution = decider.attribution(self.router.approval_rules.requires_reason);
        let attribution = attribution.map_err(|why| refused(why.to_string()))?;
        let rollouts = self.router.rollouts();
        let back_at = match request.action {
            RolloutAction::RollBack => Some(now),
            RolloutAction::Rearm => None,
            _ => {
                let prompt = self.rolled_out(name)?;
                return self.rewrite(prompt, request, attribution, decider.via).await;
            }
        };
        let stepped = rollouts.step(name, back_at, now, &attribution);
        stepped.ok_or_else(|| refused(format!("{name} has no rollout")))
    }

    /// Returns a prompt whose rollout can be changed.
    fn rolled_out(&self, name: &str) -> Result<LabelledPrompt, MoveError> {
        if self.router.rollouts().is_configured(name) {
            let why = "is in the configuration ([[rollouts]]): change it there";
            return Err(refused(format!("the rollout of {name} {why}")));
        }
        let without = || {
            refused(format!(
                "no prompt {name} of a library has versions (docs/versions.md); rollouts of other \
                 prompts are written in the configuration ([[rollouts]])"
            ))
        };
        self.prompt(name).ok_or_else(without)
    }

    /// Changes the file, and records the change.
    async fn rewrite(
        &self,
        prompt: LabelledPrompt,
        request: &RolloutRequest,
        attribution: Attribution,
        via: &'static str,
    ) -> Result<bool, MoveError> {
        let folder = prompt.library()?.folder.clone();
        let started = match request.action {
            RolloutAction::Start => Some(self.new_rollout(&prompt, request)?),
            _ => None,
        };
        let deps = &self.router.shared.upstream_deps;
        let audit = deps.audit.clone();
        let owned = prompt.clone();
        let change = (request.action, request.share);
        // A spawned task finishes the change and its record even if the client disconnects.
        let changing = deps.tasks.spawn(run_blocking(move || {
            let (mut before, mut after) = (None, None);
            change_started(&folder, &owned.raw_name, |now| {
                before = now.cloned();
                after = changed(&owned.name, now, change, started)?;
                Ok(after.clone())
            })?;
            if before != after {
                let event = event(&owned, before.as_ref(), after.as_ref());
                let event = event.text("by", &attribution.by).text("via", via);
                audit.note(event.optional_text("why", attribution.why.as_deref()));
            }
            Ok((before != after, after))
        }));
        let changed = changing.await.unwrap_or_else(|error| resume_unwind(error.into_panic()));
        let (has_changed, after) = changed?;
        let _ = timeout(READ_TIMEOUT, self.until_served(&prompt.name, after.as_ref())).await;
        Ok(has_changed)
    }

    /// Waits until the catalog has the rollout of a prompt, so that the next get follows it.
    async fn until_served(&self, name: &str, rollout: Option<&Rollout>) {
        let mut published = self.router.published();
        loop {
            let catalog = self.router.catalog();
            let listed = catalog.content.item(name).and_then(|listed| listed.version.as_ref());
            let served = listed.and_then(|version| version.rollout.as_deref());
            if served == rollout || published.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the rollout to start. Its new version must be approved where approvals are enforced.
    fn new_rollout(
        &self,
        prompt: &LabelledPrompt,
        request: &RolloutRequest,
    ) -> Result<Rollout, MoveError> {
        let name = &prompt.name;
        let Some(to) = &request.to else {
            return Err(refused(format!("name the new version of {name} (`to`)")));
        };
        let from = request.from.clone().unwrap_or_else(|| prompt.plain_label());
        let [old, new] = [&from, to].map(|version| prompt.number(version));
        let new = new?;
        if old? == new {
            return Err(refused(format!("{from} and {to} of {name} are both version {new}")));
        }
        self.check_approved(prompt, new)?;
        let rule = |share| RollbackRule { share, over: ROLLBACK_OVER };
        Ok(Rollout {
            from: from.into(),
            to: to.as_str().into(),
            share: request.share.ok_or_else(without_share)?,
            groups: request.groups.clone(),
            steps: Vec::new(),
            rollback: request.rollback.map(rule),
            is_paused: false,
        })
    }
}

/// Returns the rollout after a change; `None` if it has ended.
fn changed(
    name: &str,
    now: Option<&Rollout>,
    (action, share): (RolloutAction, Option<f64>),
    started: Option<Rollout>,
) -> Result<Option<Rollout>, String> {
    let running = || {
        let none = format!("{name} has no rollout: begin with `promptgate rollouts start {name}`");
        now.cloned().ok_or(none)
    };
    let changed = match action {
        RolloutAction::Start => {
            if let Some(Rollout { from, to, .. }) = now {
                return Err(format!(
                    "{name} has a rollout from {from} to {to}: end it first, or change its share"
                ));
            }
            return Ok(started);
        }
        RolloutAction::End => return running().map(|_| None),
        RolloutAction::Share => {
            Rollout { share: share.ok_or("name the share (`share`)")?, ..running()? }
        }
        RolloutAction::Pause => Rollout { is_paused: true, ..running()? },
        _ => Rollout { is_paused: false, ..running()? },
    };
    Ok(Some(changed))
}

/// The record of a change, without the person.
fn event(prompt: &LabelledPrompt, before: Option<&Rollout>, after: Option<&Rollout>) -> AuditEvent {
    let kind = match (before, after) {
        (None, _) => "rollout_started",
        (_, None) => "rollout_ended",
        _ => "rollout_changed",
    };
    let event = AuditEvent::new(kind).text("upstream", &prompt.upstream);
    let mut event = event.text("prompt", &prompt.name);
    if let Some(Rollout { from, to, share, is_paused, .. }) = after.or(before) {
        // A rollout that has ended or is paused has no share.
        let share = if after.is_none() || *is_paused { 0.0 } else { *share };
        event = event.text("from", from).text("to", to).json("share", &share.to_string());
    }
    event
}

fn without_share() -> MoveError {
    refused("name the share of the callers that get the new version (`share`)".to_owned())
}

fn refused(why: String) -> MoveError {
    MoveError::Refused(why)
}
