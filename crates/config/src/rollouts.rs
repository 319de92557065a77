//! Versions of prompts that are served to some callers first: `[[rollouts]]`, and `rollouts.toml`
//! in the folder of a library, which has the rollouts that people start while the gateway runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toml_edit::DocumentMut;

use super::labels::{DEFAULT_LABEL, LabelsMistake, MoveError, readable, rewrite};
use super::reader::{FRACTION, Section};
use domain::calls::rollout::{RollbackRule, Rollout, RolloutStep};
use domain::time::unix_time::UnixSeconds;

/// The name of the file of started rollouts, beside `labels.toml`.
pub const ROLLOUTS_FILE: &str = "rollouts.toml";

/// Rollouts by the names of their prompts in the library.
pub type StartedRollouts = BTreeMap<String, Arc<Rollout>>;

/// A rollout of `rollouts.toml`: a table with the name of the prompt in the library.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RolloutTable {
    #[serde(default = "default_from")]
    from: String,
    to: String,
    share: f64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
    rollback: Option<RollbackTable>,
}

/// The rule of `rollback`, as [`RollbackRule`] has it.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RollbackTable {
    share: f64,
    over: usize,
}

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
paused: Whether all callers get `from` for the time being.
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
pub(super) fn read_all(root: &mut Section<'_>) -> Vec<(String, Arc<Rollout>)> {
    let mut rollouts: Vec<(String, Arc<Rollout>)> = Vec::new();
    for mut section in root.tables("rollouts") {
        if let Some((prompt, rollout)) = read(&mut section) {
            if rollouts.iter().any(|(other, _)| *other == prompt) {
                let what = "has a rollout already: a caller can be in one only; remove one of them";
                section.mistake("prompt", what);
            }
            rollouts.push((prompt, rollout.into()));
        }
        section.finish();
    }
    rollouts
}

fn read(section: &mut Section<'_>) -> Option<(String, Rollout)> {
    section.explain(KEYS);
    section.reject_empty(&["groups"]);
    let rule = "the public name of a prompt, without a version";
    let plain = |name: &str| (!name.is_empty() && !name.contains('@')).then(|| name.to_owned());
    let prompt = section.required("prompt", rule, plain);
    section.record_text("from", LABEL_RULE, Some(DEFAULT_LABEL));
    let from = section.parsed("from", LABEL_RULE, label).unwrap_or_else(|| DEFAULT_LABEL.into());
    let to = section.required("to", LABEL_RULE, label);
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
    let is_paused = section.flag("paused", false);
    if to.as_ref() == Some(&from) {
        section.mistake("to", "is the same version as `from`");
    }
    Some((prompt?, Rollout { from, to: to?, share, groups, steps, rollback, is_paused }))
}

const LABEL_RULE: &str = "a label or a version: 1 to 64 visible ASCII characters other than @";

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

fn default_from() -> String {
    DEFAULT_LABEL.to_owned()
}

impl RolloutTable {
    fn of(rollout: &Rollout) -> Self {
        let rule = |RollbackRule { share, over }: RollbackRule| RollbackTable { share, over };
        Self {
            from: rollout.from.to_string(),
            to: rollout.to.to_string(),
            share: rollout.share,
            groups: rollout.groups.clone(),
            paused: rollout.is_paused,
            rollback: rollout.rollback.map(rule),
        }
    }

    /// Checks the values of the table.
    fn rollout(self) -> Result<Rollout, String> {
        let part = |key: &str, text: &str| {
            label(text).ok_or_else(|| format!("{key} must be {LABEL_RULE}"))
        };
        let (from, to) = (part("from", &self.from)?, part("to", &self.to)?);
        if from == to {
            return Err("`to` is the same version as `from`".to_owned());
        }
        if !(0.0..=1.0).contains(&self.share) {
            return Err(format!("share must be {FRACTION}"));
        }
        let rule = self.rollback.map(|RollbackTable { share, over }| RollbackRule { share, over });
        let is_valid = |rule: RollbackRule| {
            (0.0..1.0).contains(&rule.share) && (2..=10_000).contains(&rule.over)
        };
        if !rule.is_none_or(is_valid) {
            let what = "rollback needs a share from 0 to less than 1, and over from 2 to 10000";
            return Err(what.to_owned());
        }
        Ok(Rollout {
            from,
            to,
            share: self.share,
            groups: self.groups,
            steps: Vec::new(),
            rollback: rule,
            is_paused: self.paused,
        })
    }
}

/// Reads the text of `rollouts.toml`.
///
/// # Errors
/// The first mistake.
pub fn parse_started(text: &str) -> Result<StartedRollouts, LabelsMistake> {
    let tables: BTreeMap<String, RolloutTable> = toml_edit::de::from_str(text)
        .map_err(|error| LabelsMistake::at(ROLLOUTS_FILE, text, error.span(), error.message()))?;
    let rollout = |(prompt, table): (String, RolloutTable)| match table.rollout() {
        Ok(rollout) => Ok((prompt, Arc::new(rollout))),
        Err(why) => {
            let what = format!("[{prompt}]: {why}");
            Err(LabelsMistake { file: ROLLOUTS_FILE, place: None, text: what })
        }
    };
    tables.into_iter().map(rollout).collect()
}

/// Starts, changes or ends (`None`) the rollout of a prompt in the file of a library's folder, and
/// leaves the rest of its text as it is. `change` gets the present rollout. Blocks.
///
/// # Errors
/// `change` refuses, the new rollout has a mistake, or the file cannot be read or written.
pub fn change_started(
    folder: &Path,
    prompt: &str,
    change: impl FnOnce(Option<&Rollout>) -> Result<Option<Rollout>, String>,
) -> Result<(), MoveError> {
    rewrite(folder, ROLLOUTS_FILE, |text| {
        let text = changed(text, prompt, change).map_err(MoveError::Refused)?;
        Ok((text, ()))
    })
}

fn changed(
    text: &str,
    prompt: &str,
    change: impl FnOnce(Option<&Rollout>) -> Result<Option<Rollout>, String>,
) -> Result<String, String> {
    let started = parse_started(text).map_err(|mistake| mistake.to_string())?;
    let rollout = change(started.get(prompt).map(|rollout| &**rollout))?;
    let mut document: DocumentMut = text.parse().map_err(|_| "it is no TOML".to_owned())?;
    match rollout {
        Some(rollout) => {
            let table = toml_edit::ser::to_document(&RolloutTable::of(&rollout));
            let table = table.map_err(|error| error.to_string())?;
            document.insert(prompt, toml_edit::Item::Table(table.as_table().clone()));
        }
        None => drop(document.remove(prompt)),
    }
    readable(&document, ROLLOUTS_FILE, parse_started)
}

#[cfg(test)]
mod tests {
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
            from: "production".into(),
            to: "4".into(),
            share: 0.05,
            groups: vec!["beta".to_owned()],
            steps: vec![step(1_796_115_600, 0.25), step(1_796_202_000, 1.0)],
            rollback: Some(RollbackRule { share: 0.2, over: 50 }),
            is_paused: false,
        };
        assert_eq!(config.rollouts[0], ("team__refund".to_owned(), refund.into()));
        let reply = &config.rollouts[1].1;
        let RollbackRule { share, over } = reply.rollback.unwrap();
        assert_eq!((&*reply.from, share, over), ("3", 0.1, 100));
    }

    #[test]
    fn a_started_rollout_is_written_changed_and_ended_and_the_rest_stays() {
        let text = "# tried by the support team\n[reply]\nto = \"2\"\nshare = 0.5\n";
        let rollout = Rollout {
            from: "production".into(),
            to: "candidate".into(),
            share: 0.05,
            groups: vec!["beta".to_owned()],
            steps: vec![],
            rollback: Some(RollbackRule { share: 0.2, over: 50 }),
            is_paused: false,
        };
        let started = changed(text, "refund", |now| {
            assert_eq!(now, None);
            Ok(Some(rollout.clone()))
        });
        let started = started.unwrap();
        assert!(started.starts_with(text), "{started}");
        assert_eq!(*parse_started(&started).unwrap()["refund"], rollout);
        let paused = Rollout { is_paused: true, ..rollout.clone() };
        let again = changed(&started, "refund", |now| {
            assert_eq!(now, Some(&rollout));
            Ok(Some(paused.clone()))
        });
        let again = again.unwrap();
        assert_eq!(*parse_started(&again).unwrap()["refund"], paused);
        assert_eq!(changed(&again, "refund", |_| Ok(None)).unwrap(), text);
        assert_eq!(changed(text, "refund", |_| Err("no".to_owned())).unwrap_err(), "no");
    }

    #[test]
    fn mistakes_of_started_rollouts_are_named() {
        for (text, expected) in [
            ("[refund]\nshare = 0.5\n", "rollouts.toml:1:1: missing field `to`"),
            ("[refund]\nto = \"2\"\nshare = 0.5\nshard = 1\n", "rollouts.toml:4:1: unknown field"),
            ("[refund]\nto = \"2\"\nshare = 5\n", "[refund]: share must be a number from 0 to 1"),
            ("[refund]\nto = \"production\"\nshare = 1\n", "`to` is the same version as `from`"),
            ("[refund]\nto = \"a@b\"\nshare = 1\n", "[refund]: to must be a label or a version"),
            (
                "[refund]\nto = \"2\"\nshare = 1\nrollback = { share = 1, over = 1 }\n",
                "rollback needs",
            ),
            ("[refund\n", "rollouts.toml:1:"),
        ] {
            let mistake = parse_started(text).unwrap_err().to_string();
            assert!(mistake.contains(expected), "{text:?}: {mistake}");
        }
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
