//! `[[rollouts]]`: versions of prompts that are served to some callers first.

use std::sync::Arc;

use super::reader::{FRACTION, Section};
use domain::calls::rollout::{RollbackRule, Rollout, RolloutStep};
use domain::time::unix_time::UnixSeconds;

/// The keys of `[[rollouts]]`.
const KEYS: &str = r#"
prompt, such as "team__refund": Public name of the prompt. There is one rollout of each.
from: Label or version for the callers outside the share. Where the upstream does not offer
    `NAME@FROM`, it is the prompt under its plain name.
to, such as "candidate": Label or version for the callers in the share.
share: Share of the callers that get `to`, before the first of the `steps`. A caller that is in
    a share is in each larger one.
groups, such as ["beta"]: Groups whose members can be in the share. Not set: every caller with an
    identity.
sticky: Owner of a place in the share: `caller`, the only choice.
steps: Larger shares from later instants on.
rollback: When the gateway takes `to` back by itself, after failures of several callers. Not set: never.
"#;

/// The keys of `steps`.
const STEP_KEYS: &str = r#"
at, such as "2026-12-01T09:00:00Z": When the share counts from, as RFC 3339 writes it in UTC.
share: Share of the callers that get `to` from then on.
"#;

/// The keys of `rollback`.
const ROLLBACK_KEYS: &str = r#"
share: Share of failed gets that is still accepted.
over: The number of the last gets of `to` that the share is of. A caller counts for at most half of them.
"#;

/// Reads all rollouts, in the order of the file.
pub(super) fn read_all(root: &mut Section<'_>) -> Vec<Rollout> {
    let mut rollouts: Vec<Rollout> = Vec::new();
    for mut section in root.tables("rollouts") {
        if let Some(rollout) = read(&mut section) {
            if rollouts.iter().any(|other| other.prompt == rollout.prompt) {
                let what = "has a rollout already: a caller can be in one only; remove one of them";
                section.mistake("prompt", what);
            }
            rollouts.push(rollout);
        }
        section.finish();
    }
    rollouts
}

fn read(section: &mut Section<'_>) -> Option<Rollout> {
    section.explain(KEYS);
    section.reject_empty(&["groups"]);
    let rule = "the public name of a prompt, without a version";
    let plain = |name: &str| (!name.is_empty() && !name.contains('@')).then(|| name.to_owned());
    let prompt = section.required("prompt", rule, plain);
    let rule = "a label or a version: 1 to 64 visible ASCII characters other than @";
    section.record_text("from", rule, Some("production"));
    let from = section.parsed("from", rule, label).unwrap_or_else(|| "production".into());
    let to = section.required("to", rule, label);
    let has_share = section.has("share");
    let share = section.fraction("share", 0.0);
    let groups = section.texts("groups");
    section.choice("sticky", (), &[("caller", ())]);
    let steps = steps(section);
    if !has_share && steps.is_empty() && !section.is_rejected("steps") {
        section.mistake("share", format!("is required where there are no steps: {FRACTION}"));
    }
    section.reject("step_back", "its name is rollback");
    let rollback = rollback(section);
    if to.as_ref() == Some(&from) {
        section.mistake("to", "is the same version as `from`");
    }
    Some(Rollout { prompt: prompt?, from, to: to?, share, groups, steps, rollback })
}

fn label(text: &str) -> Option<Arc<str>> {
    let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b'@';
    ((1..=64).contains(&text.len()) && text.bytes().all(is_part)).then(|| text.into())
}

fn steps(section: &mut Section<'_>) -> Vec<RolloutStep> {
    let mut steps: Vec<RolloutStep> = Vec::new();
    for mut step in section.tables("steps") {
        step.explain(STEP_KEYS);
        let rule = "an instant such as \"2026-12-01T09:00:00Z\"";
        let parse = |text: &str| humantime::parse_rfc3339(text).ok().map(UnixSeconds::from);
        let at = step.required("at", rule, parse);
        if !step.has("share") {
            step.mistake("share", format!("is required: {FRACTION}"));
        }
        let share = step.fraction("share", 0.0);
        if let Some(at) = at {
            if steps.last().is_some_and(|before| before.at >= at) {
                step.mistake("at", "must be later than the step before");
            }
            steps.push(RolloutStep { at, share });
        }
        step.finish();
    }
    steps
}

fn rollback(section: &mut Section<'_>) -> Option<RollbackRule> {
    let is_set = section.has("rollback");
    let mut rollback = section.section("rollback");
    rollback.explain(ROLLBACK_KEYS);
    let share = rollback.fraction("share", 0.1);
    if share >= 1.0 {
        rollback.mistake("share", "must be less than 1, which failures never pass");
    }
    let over = rollback.count("over", 100, 2..=10_000);
    rollback.finish();
    is_set.then_some(RollbackRule { share, over })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Config, ConfigError, schema_check};

    fn parse(toml: &str) -> Result<Config, ConfigError> {
        schema_check::parse("g", toml, Path::new("."), &[])
    }

    #[test]
    fn a_rollout_is_read_with_its_steps_and_its_rule() {
        let toml = "[[rollouts]]\nprompt = \"team__refund\"\nto = \"4\"\nshare = 0.05\n\
            groups = [\"beta\"]\nsticky = \"caller\"\nrollback = { share = 0.2, over = 50 }\n\
            steps = [{ at = \"2026-12-01T09:00:00Z\", share = 0.25 }, { at = \"2026-12-02T09:00:00Z\", share = 1 }]\n\
            [[rollouts]]\nprompt = \"team__reply\"\nfrom = \"3\"\nto = \"4\"\nshare = 0.5\nrollback = {}\n";
        let config = parse(toml).unwrap_or_else(|error| panic!("{error}"));
        let step = |at, share| RolloutStep { at: UnixSeconds(at), share };
        let refund = Rollout {
            prompt: "team__refund".to_owned(),
            from: "production".into(),
            to: "4".into(),
            share: 0.05,
            groups: vec!["beta".to_owned()],
            steps: vec![step(1_796_115_600, 0.25), step(1_796_202_000, 1.0)],
            rollback: Some(RollbackRule { share: 0.2, over: 50 }),
        };
        assert_eq!(config.rollouts[0], refund);
        let RollbackRule { share, over } = config.rollouts[1].rollback.unwrap();
        assert_eq!((&*config.rollouts[1].from, share, over), ("3", 0.1, 100));
    }

    #[test]
    fn mistakes_are_found_at_once_each_at_its_key() {
        let toml = "[[rollouts]]\nprompt = \"a\"\nto = \"b\"\nshare = 1.5\nstep_back = {}\n\
            [[rollouts]]\nprompt = \"a\"\nto = \"production\"\nshare = 0.1\n\
            [[rollouts]]\nprompt = \"c@d\"\nto = \"x y\"\n\
            [[rollouts]]\nprompt = \"e\"\nto = \"f\"\nsticky = \"session\"\nrollback = { share = 1, over = 0 }\n\
            steps = [{ at = \"2026-12-02T09:00:00Z\", share = 0.1 }, { at = \"2026-12-01T09:00:00Z\", share = 0.2 }, { at = \"soon\" }]\n";
        let error = parse(toml).unwrap_err().to_string();
        for expected in [
            "rollouts.1.share: must be a number from 0 to 1: 0.05 is 5 %",
            "rollouts.1.step_back: its name is rollback",
            "rollouts.2.to: is the same version as `from`",
            "rollouts.2.prompt: has a rollout already",
            "rollouts.3.prompt: must be the public name of a prompt, without a version",
            "rollouts.3.to: must be a label or a version",
            "rollouts.3.share: is required where there are no steps",
            "rollouts.4.sticky: must be one of \"caller\"",
            "rollouts.4.rollback.share: must be less than 1",
            "rollouts.4.rollback.over: must be a whole number from 2 to 10000",
            "rollouts.4.steps.2.at: must be later than the step before",
            "rollouts.4.steps.3.at: must be an instant",
            "rollouts.4.steps.3.share: is required",
        ] {
            assert!(error.contains(expected), "{expected}\n{error}");
        }
    }
}
