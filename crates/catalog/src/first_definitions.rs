//! Trust on first use: a prompt whose definition changes after it was first seen is served in its
//! first form, or left out, as `on_changed_definition` configures.

use std::collections::HashMap;

use base::seal;
use config::OnChangedDefinition;
use domain::prompt::Prompt;

/// The first definitions of one upstream's prompts.
#[derive(Debug)]
pub(crate) struct FirstDefinitions {
    mode: OnChangedDefinition,
    /// By raw name.
    first: HashMap<String, FirstDefinition>,
    /// Bytes of all first definitions.
    bytes: usize,
    /// Names of the last walk for which the bound left no room.
    beyond: Vec<String>,
}

#[derive(Debug)]
struct FirstDefinition {
    prompt: Prompt,
    /// Digest of the changed definition that was reported last.
    reported: Option<String>,
    is_blocked: bool,
}

/// Bytes of definitions that are kept for one upstream: an upstream that invents new names with
/// each walk must neither fill the memory nor push definitions out. Several times what a whole list
/// may hold by default.
const MAX_DEFINITIONS: usize = 100_000;
const MAX_BYTES: usize = 64 << 20;

/// A prompt whose definition differs from the first one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ChangedDefinition {
    pub raw_name: String,
    /// `sha256:…` of both definitions.
    pub before: String,
    pub now: String,
}

impl FirstDefinitions {
    pub(crate) fn new(mode: OnChangedDefinition) -> Self {
        Self { mode, first: HashMap::new(), bytes: 0, beyond: Vec::new() }
    }

    /// The first definitions after a reload. Only [`OnChangedDefinition::Allow`] forgets them: a
    /// reload for another reason, such as a rotated secret, must not release what is held.
    pub(crate) fn with_mode(self, mode: OnChangedDefinition) -> Self {
        if mode == OnChangedDefinition::Allow { Self::new(mode) } else { Self { mode, ..self } }
    }

    /// Replaces changed definitions by their first ones, or removes them; returns those that
    /// changed since the last report. With `Allow`, nothing is kept.
    pub(crate) fn apply(&mut self, prompts: &mut Vec<Prompt>) -> Vec<ChangedDefinition> {
        let mut changes = Vec::new();
        if self.mode == OnChangedDefinition::Allow {
            return changes;
        }
        self.first.values_mut().for_each(|first| first.is_blocked = false);
        self.beyond.clear();
        prompts.retain_mut(|prompt| {
            let Some(first) = self.first.get_mut(&prompt.name) else {
                let bytes = self.bytes + prompt.size();
                if self.first.len() >= MAX_DEFINITIONS || bytes > MAX_BYTES {
                    self.beyond.push(prompt.name.clone());
                    return false;
                }
                self.bytes = bytes;
                let first =
                    FirstDefinition { prompt: prompt.clone(), reported: None, is_blocked: false };
                self.first.insert(prompt.name.clone(), first);
                return true;
            };
            if first.prompt == *prompt {
                first.reported = None;
                return true;
            }
            let now = digest(prompt);
            if first.reported.as_ref() != Some(&now) {
                first.reported = Some(now.clone());
                let raw_name = prompt.name.clone();
                let before = digest(&first.prompt);
                changes.push(ChangedDefinition { raw_name, before, now });
            }
            first.is_blocked = self.mode == OnChangedDefinition::Block;
            if !first.is_blocked {
                prompt.clone_from(&first.prompt);
            }
            !first.is_blocked
        });
        changes
    }

    /// The names of the prompts that are left out at present.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = &str> {
        let blocked = self.first.iter().filter(|(_, first)| first.is_blocked).map(|(name, _)| name);
        let mut names: Vec<_> = blocked.chain(&self.beyond).map(String::as_str).collect();
        names.sort_unstable();
        names.into_iter()
    }
}

fn digest(prompt: &Prompt) -> String {
    seal::definition_digest(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::json::Json;

    fn prompts(texts: &[(&str, &str)]) -> Vec<Prompt> {
        let prompt = |(name, description): &(&str, &str)| {
            let text = serde_json::json!({"name": name, "description": description}).to_string();
            Prompt::read(Json::parse(text.as_bytes(), 8).unwrap()).unwrap()
        };
        texts.iter().map(prompt).collect()
    }

    #[test]
    fn what_is_held_stays_as_it_was_and_each_change_is_told_once() {
        let mut definitions = FirstDefinitions::new(OnChangedDefinition::Hold);
        let first = prompts(&[("a", "good"), ("b", "good")]);
        let mut listed = first.clone();
        assert_eq!(definitions.apply(&mut listed), []);
        let mut changed = prompts(&[("a", "bad"), ("b", "good"), ("c", "new")]);
        let changes = definitions.apply(&mut changed);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].raw_name, "a");
        assert_ne!(changes[0].before, changes[0].now);
        assert_eq!(changed[..2], first[..]);
        assert_eq!(changed.len(), 3, "what is new is let in");
        assert_eq!(definitions.apply(&mut prompts(&[("a", "bad")])), []);
        assert_eq!(definitions.apply(&mut prompts(&[("a", "worse")])).len(), 1);
        // Gone and back again, it is still known.
        definitions.apply(&mut Vec::new());
        let mut retry = prompts(&[("a", "bad")]);
        definitions.apply(&mut retry);
        assert_eq!(retry, first[..1]);
    }

    #[test]
    fn what_is_blocked_is_left_out_until_it_is_what_it_was() {
        let mut definitions = FirstDefinitions::new(OnChangedDefinition::Block);
        definitions.apply(&mut prompts(&[("a", "good"), ("b", "good")]));
        let mut changed = prompts(&[("a", "bad"), ("b", "good")]);
        assert_eq!(definitions.apply(&mut changed).len(), 1);
        assert_eq!(changed, prompts(&[("b", "good")]));
        assert_eq!(definitions.blocked().collect::<Vec<_>>(), ["a"]);
        let mut mended = prompts(&[("a", "good"), ("b", "good")]);
        definitions.apply(&mut mended);
        assert_eq!((mended.len(), definitions.blocked().count()), (2, 0));
        // More than can be remembered is left out, too.
        let mut full = FirstDefinitions::new(OnChangedDefinition::Hold);
        full.bytes = MAX_BYTES;
        let mut listed = prompts(&[("new", "x")]);
        full.apply(&mut listed);
        assert_eq!((listed.len(), full.blocked().collect::<Vec<_>>()), (0, vec!["new"]));
        // A prompt that is left out takes no memory of what could be kept.
        let (large, small) = (prompts(&[("large", &"x".repeat(100))]), prompts(&[("small", "x")]));
        let mut nearly = FirstDefinitions::new(OnChangedDefinition::Hold);
        nearly.bytes = MAX_BYTES - small[0].size();
        for _ in 0..2 {
            nearly.apply(&mut large.clone());
        }
        let mut listed = small.clone();
        nearly.apply(&mut listed);
        assert_eq!(listed, small);
        let mut all = FirstDefinitions::new(OnChangedDefinition::Allow);
        for text in ["one", "two"] {
            assert_eq!(all.apply(&mut prompts(&[("a", text)])), []);
        }
        assert!(all.first.is_empty());
    }
}
