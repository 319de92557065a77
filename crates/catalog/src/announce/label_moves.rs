//! Moves of labels that the gateway sees in a file, a store or a commit. Commands record their
//! moves themselves.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use audit::record::AuditEvent;
use config::Transport;
use config::labels::LATEST;
use library::prompt_list::PromptList;

/// A label that names another version than in the list before.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenMove {
    pub upstream: String,
    /// Name of the prompt at its upstream.
    pub prompt: String,
    pub label: String,
    /// `None`: the label is new.
    pub from: Option<String>,
    /// `None`: the label was removed.
    pub to: Option<String>,
    /// Where the label was moved: `file`, `store` or `commit`.
    pub via: &'static str,
    /// The commit that moved the label.
    pub commit: Option<Arc<str>>,
}

/// The moves by commands that are not yet seen in the file of their library. Such a move has its
/// record, with the person.
#[derive(Debug, Default)]
pub struct CommandedMoves(Mutex<Vec<(CommandedMove, Instant)>>);

/// A move by a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CommandedMove {
    pub upstream: String,
    pub prompt: String,
    pub label: String,
    /// `None`: the label is removed.
    pub to: Option<String>,
}

/// Longest time in which a command's move is seen: a folder is read far sooner. A move that was
/// never seen, because the next command followed at once, must not hide a later one.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

impl CommandedMoves {
    /// Notes a move before the file is written, because the file may be read at once.
    pub fn expect(&self, wanted: CommandedMove, now: Instant) {
        let mut moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moves.retain(|(_, until)| *until > now);
        moves.push((wanted, now + SEEN_WITHIN));
    }

    /// Forgets a move that is seen, or that failed. Returns whether a command made it.
    pub fn take(&self, seen: &CommandedMove, now: Instant) -> bool {
        let mut moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moves.retain(|(_, until)| *until > now);
        let at = moves.iter().position(|(wanted, _)| wanted == seen);
        at.map(|at| moves.remove(at)).is_some()
    }
}

impl SeenMove {
    /// The moves between two lists of an upstream, whose labels are moved by `via`. The newest
    /// version has no label that moves; a prompt that is new or gone moves none.
    pub(crate) fn between(
        before: &PromptList,
        now: &PromptList,
        (upstream, via): (&str, &'static str),
    ) -> Vec<Self> {
        let old = labels(before);
        let new = labels(now);
        let was_known = prompts(before);
        let is_known = prompts(now);
        let seen = |key: &(&str, &str)| {
            let (prompt, label) = *key;
            let from = old.get(key).copied();
            let to = new.get(key).copied();
            let is_move = from != to && was_known.contains(prompt) && is_known.contains(prompt);
            is_move.then(|| Self {
                upstream: upstream.to_owned(),
                prompt: prompt.to_owned(),
                label: label.to_owned(),
                from: from.map(str::to_owned),
                to: to.map(str::to_owned),
                via,
                commit: now.commit.clone(),
            })
        };
        let removed = old.keys().filter(|key| !new.contains_key(*key));
        new.keys().chain(removed).filter_map(seen).collect()
    }

    /// The same move, as a command makes it.
    pub(super) fn as_commanded(&self) -> CommandedMove {
        let Self { upstream, prompt, label, to, .. } = self.clone();
        CommandedMove { upstream, prompt, label, to }
    }

    /// The record of the move.
    pub(super) fn event(&self) -> AuditEvent {
        let kind = if self.to.is_some() { "label_moved" } else { "label_removed" };
        let event = AuditEvent::new(kind).text("upstream", &self.upstream);
        let event = event.text("prompt", &self.prompt).text("label", &self.label);
        let version = |event: AuditEvent, key, version: &Option<String>| match version {
            // Stores may have names for versions; libraries number them, as commands record them.
            Some(text) => match text.parse() {
                Ok(number) => event.number(key, number),
                Err(_) => event.text(key, text),
            },
            None => event,
        };
        let event = version(version(event, "from", &self.from), "to", &self.to);
        event.text("via", self.via).optional_text("commit", self.commit.as_deref())
    }
}

/// Where the labels of an upstream move; `server` for an upstream without labels.
pub(crate) fn via(transport: &Transport) -> &'static str {
    match transport {
        Transport::Library(_) => "file",
        Transport::Git(_) => "commit",
        Transport::Store(_) => "store",
        _ => "server",
    }
}

/// The version of each label, by the names of the prompts and labels.
fn labels(list: &PromptList) -> BTreeMap<(&str, &str), &str> {
    let versions = list.prompts.iter().filter_map(|prompt| prompt.version.as_ref());
    let labelled = versions.filter_map(|version| {
        let label = version.label.as_deref().filter(|label| *label != LATEST)?;
        Some(((&*version.of, label), &*version.version))
    });
    labelled.collect()
}

/// The names of the prompts that have versions.
fn prompts(list: &PromptList) -> HashSet<&str> {
    let versions = list.prompts.iter().filter_map(|prompt| prompt.version.as_ref());
    versions.map(|version| &*version.of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::prompts::prompt::Prompt;
    use domain::prompts::prompt_version::PromptVersion;

    fn list(labels: &[(&str, &str, &str)]) -> PromptList {
        let prompts = labels.iter().map(|(of, version, label)| {
            let mut prompt = Prompt::named(&format!("{of}@{label}"));
            let label = Some(*label).filter(|label| !label.is_empty()).map(Arc::from);
            prompt.version =
                Some(PromptVersion::new((*of).into(), (*version).into(), label).into());
            prompt
        });
        PromptList { prompts: prompts.collect(), ..PromptList::default() }
    }

    #[test]
    fn only_labels_of_prompts_that_were_and_are_listed_move() {
        let before = [("a", "1", "production"), ("a", "1", ""), ("a", "2", ""), ("b", "1", "beta")];
        let before = list(&[&before[..], &[("gone", "1", "beta"), ("n", "1", "latest")]].concat());
        let now = [("a", "2", "production"), ("a", "1", "beta"), ("b", "1", ""), ("new", "1", "x")];
        let now = list(&[&now[..], &[("n", "2", "latest")]].concat());
        let seen = SeenMove::between(&before, &now, ("up", "store"));
        let seen: Vec<_> = seen
            .iter()
            .map(|seen| (&*seen.prompt, &*seen.label, seen.from.as_deref(), seen.to.as_deref()))
            .collect();
        let expected = [
            ("a", "beta", None, Some("1")),
            ("a", "production", Some("1"), Some("2")),
            ("b", "beta", Some("1"), None),
        ];
        assert_eq!(seen, expected);
        assert_eq!(SeenMove::between(&now, &now, ("up", "store")), []);
    }

    #[tokio::test]
    async fn a_move_by_a_command_is_known_once_and_not_for_long() {
        let moves = CommandedMoves::default();
        let to = |version: &str| CommandedMove {
            upstream: "lib".to_owned(),
            prompt: "refund".to_owned(),
            label: "production".to_owned(),
            to: Some(version.to_owned()),
        };
        let now = Instant::now();
        moves.expect(to("2"), now);
        moves.expect(to("3"), now);
        assert!(moves.take(&to("3"), now) && !moves.take(&to("3"), now));
        assert!(!moves.take(&to("2"), now + SEEN_WITHIN), "it was never seen by itself");
    }
}
