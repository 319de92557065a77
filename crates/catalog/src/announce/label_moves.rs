//! Moves of labels that the gateway sees in a file, a store or a commit. Commands record their
//! moves themselves.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use audit::record::AuditEvent;
use config::labels::LATEST;
use library::prompt_list::PromptList;

/// A label that names another version than in the list before.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenMove {
    pub names: MoveNames,
    /// The version before; empty for a new label.
    pub from: String,
    /// Where the label was moved: `file`, `store` or `commit`.
    pub via: &'static str,
    /// The commit that moved the label.
    pub commit: Option<Arc<str>>,
}

/// The upstream, the prompt's name there, the label, and its version, which is empty for a label
/// that is removed.
pub type MoveNames = [String; 4];

/// The moves by commands that are not yet seen in the file of their library. Such a move has its
/// record, with the person.
#[derive(Debug, Default)]
pub struct CommandedMoves(Mutex<Vec<(MoveNames, Instant)>>);

/// Longest time in which a command's move is seen: a folder is read far sooner. A move that was
/// never seen, because the next command followed at once, must not hide a later one.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

impl CommandedMoves {
    /// Notes a move before the file is written, because the file may be read at once.
    pub fn expect(&self, wanted: MoveNames, now: Instant) {
        self.waiting(now).push((wanted, now + SEEN_WITHIN));
    }

    /// Forgets a move that is seen, or that failed. Returns whether a command made it.
    pub fn take(&self, seen: &MoveNames, now: Instant) -> bool {
        let mut moves = self.waiting(now);
        let at = moves.iter().position(|(wanted, _)| wanted == seen);
        at.map(|at| moves.remove(at)).is_some()
    }

    fn waiting(&self, now: Instant) -> MutexGuard<'_, Vec<(MoveNames, Instant)>> {
        let mut moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moves.retain(|(_, until)| *until > now);
        moves
    }
}

impl SeenMove {
    /// The moves between two lists of an upstream, whose labels are moved by `via`. The newest
    /// version has no label that moves; a prompt that is new or gone moves none.
    pub(crate) fn between(
        before: &PromptList,
        now: &PromptList,
        upstream: &str,
        via: &'static str,
    ) -> Vec<Self> {
        let labels = [labels(before), labels(now)];
        let prompts = [prompts(before), prompts(now)];
        let all: BTreeSet<_> = labels.iter().flat_map(BTreeMap::keys).collect();
        let seen = |key: &(&str, &str)| {
            let [from, to] = labels.each_ref().map(|labels| labels.get(key).copied().unwrap_or(""));
            let is_move = from != to && prompts.iter().all(|prompts| prompts.contains(key.0));
            is_move.then(|| Self {
                names: [upstream, key.0, key.1, to].map(str::to_owned),
                from: from.to_owned(),
                via,
                commit: now.commit.clone(),
            })
        };
        all.into_iter().filter_map(seen).collect()
    }

    /// The record of the move. Stores may have names for versions; libraries number them.
    pub(super) fn event(&self) -> AuditEvent {
        let [upstream, prompt, label, to] = &self.names;
        let kind = if to.is_empty() { "label_removed" } else { "label_moved" };
        let event = AuditEvent::new(kind).text("upstream", upstream);
        let event = event.text("prompt", prompt).text("label", label);
        let versions = [("from", &self.from), ("to", to)].into_iter();
        let versions = versions.filter(|(_, version)| !version.is_empty());
        let event = versions.fold(event, |event, (key, version)| match version.parse() {
            Ok(number) => event.number(key, number),
            Err(_) => event.text(key, version),
        });
        event.text("via", self.via).optional_text("commit", self.commit.as_deref())
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
        let seen = SeenMove::between(&before, &now, "up", "store");
        let shown = |seen: &SeenMove| format!("{} from {}", seen.names.join(" "), seen.from);
        let seen: Vec<_> = seen.iter().map(shown).collect();
        let expected = ["up a beta 1 from ", "up a production 2 from 1", "up b beta  from 1"];
        assert_eq!(seen, expected);
        assert_eq!(SeenMove::between(&now, &now, "up", "store"), []);
    }

    #[tokio::test]
    async fn a_move_by_a_command_is_known_once_and_not_for_long() {
        let moves = CommandedMoves::default();
        let to = |version: &str| ["lib", "refund", "production", version].map(str::to_owned);
        let now = Instant::now();
        moves.expect(to("2"), now);
        moves.expect(to("3"), now);
        assert!(moves.take(&to("3"), now) && !moves.take(&to("3"), now));
        assert!(!moves.take(&to("2"), now + SEEN_WITHIN), "it was never seen by itself");
    }
}
