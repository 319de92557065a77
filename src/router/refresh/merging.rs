//! The merge of all known lists into one content.

use std::collections::HashSet;
use std::hash::Hash;

use tracing::{info, warn};
use unicode_normalization::UnicodeNormalization;
use unicode_security::confusable_detection::skeleton;

use super::Refresh;
use crate::domain::confusable::{Shown, confusables};
use crate::domain::fault::excerpt;
use crate::domain::merge::{self, Merged};
use crate::router::announce::Redefined;
use crate::router::catalog::{Content, LeftOut, LookAlike, Owner, ShownPrompt};
use crate::router::view::View;
use crate::seal;

/// Prompts, and pairs of prompts, that are named in the log after one merge: an upstream full of bad names must
/// not drown the log.
const LOGGED: usize = 20;

impl Refresh {
    pub(super) fn merge(&self) -> Content {
        let sources: Vec<_> = self
            .upstreams
            .iter()
            .map(|known| merge::Source {
                prefix: &known.source.prefix,
                prompts: self.served(known).map_or(&[][..], |(walked, _)| &walked.listed.prompts),
            })
            .collect();
        let merged = merge::merge(&sources, &self.naming, |name| name.nfc().collect());
        let prompt = |source: usize, prompt: usize| &sources[source].prompts[prompt];
        let view = View::new(merged.entries.iter().map(|e| (e, prompt(e.source, e.prompt))));
        let owners = merged.entries.iter().map(|entry| {
            let definition = prompt(entry.source, entry.prompt);
            Owner {
                public_name: entry.public_name.clone(),
                upstream: self.upstreams[entry.source].source.id.clone(),
                raw_name: definition.name.clone(),
                arguments: definition.arguments.clone(),
                digest: seal::digest_text(&seal::digest(definition.definition())),
            }
        });
        let look_alikes = self.look_alikes(&sources, &merged);
        let named = merged.left_out.into_iter().map(|left_out| LeftOut {
            upstream: self.upstreams[left_out.source].source.id.to_string(),
            raw_name: left_out.raw_name,
            reason: left_out.reason,
        });
        let left_out: Vec<_> = named.chain(self.malformed()).chain(self.blocked()).collect();
        let generation = self.content.generation + 1;
        let content = Content::new(generation, owners.collect(), view, left_out, look_alikes);
        self.log(&content);
        content
    }

    /// Prompts whose definitions differ from the content before.
    pub(super) fn redefined_in(&self, content: &Content) -> Vec<Redefined> {
        let redefined = |now: &Owner| {
            let before = self.content.owner(&now.public_name)?;
            let is_same = before.upstream != now.upstream || before.digest == now.digest;
            (!is_same).then(|| Redefined {
                upstream: now.upstream.to_string(),
                raw_name: now.raw_name.clone(),
                before: before.digest.clone(),
                now: now.digest.clone(),
            })
        };
        content.owners().iter().filter_map(redefined).collect()
    }

    /// Prompts of different upstreams with names or titles that look alike.
    fn look_alikes(&self, sources: &[merge::Source<'_>], merged: &Merged) -> Vec<LookAlike> {
        // Skeletons take a few microseconds each, and one upstream alone needs none.
        let first = merged.entries.first().map(|entry| entry.source);
        if merged.entries.iter().all(|entry| Some(entry.source) == first) {
            return Vec::new();
        }
        let texts = merged.entries.iter().enumerate().flat_map(|(place, entry)| {
            let prompt = &sources[entry.source].prompts[entry.prompt];
            let names = [entry.public_name.as_str(), prompt.name.as_str()];
            let texts = names.into_iter().chain(prompt.title.as_deref());
            texts.map(move |text| Shown { source: entry.source, entry: place, text })
        });
        let described = |shown: Shown<'_>| ShownPrompt {
            upstream: self.upstreams[shown.source].source.id.to_string(),
            name: merged.entries[shown.entry].public_name.clone(),
            text: excerpt(shown.text),
        };
        confusables(texts, |text| skeleton(text).collect())
            .into_iter()
            .map(|pair| LookAlike { one: described(pair.one), other: described(pair.other) })
            .collect()
    }

    fn malformed(&self) -> impl Iterator<Item = LeftOut> {
        self.upstreams.iter().flat_map(|known| {
            let walked = self.served(known).map(|(walked, _)| walked);
            let reasons = walked.into_iter().flat_map(|w| &w.listed.malformed);
            reasons.map(|reason| LeftOut {
                upstream: known.source.id.to_string(),
                raw_name: String::new(),
                reason: reason.clone(),
            })
        })
    }

    fn blocked(&self) -> impl Iterator<Item = LeftOut> {
        self.upstreams.iter().flat_map(|known| {
            known.pins.blocked().map(|raw_name| LeftOut {
                upstream: known.source.id.to_string(),
                raw_name: raw_name.to_owned(),
                reason: "its definition has changed, or there are too many to remember \
                         (on_changed_definition)"
                    .to_owned(),
            })
        })
    }

    /// Logs the change, each prompt that is newly left out, and each new pair of look-alikes.
    fn log(&self, content: &Content) {
        let news = added(&self.content.left_out, &content.left_out);
        for LeftOut { upstream, raw_name, reason } in news.iter().take(LOGGED) {
            warn!(
                upstream,
                name = excerpt(raw_name),
                reason,
                "prompt left out of the list; fix its definition at the upstream"
            );
        }
        if news.len() > LOGGED {
            warn!(more = news.len() - LOGGED, "more prompts left out of the list");
        }
        let news = added(&self.content.look_alikes, &content.look_alikes);
        for LookAlike { one, other } in news.iter().take(LOGGED) {
            warn!(
                upstream = one.upstream,
                name = one.name,
                text = one.text,
                other_upstream = other.upstream,
                other_name = other.name,
                other_text = other.text,
                "prompts of two upstreams look alike; check that neither imitates the other"
            );
        }
        if news.len() > LOGGED {
            warn!(more = news.len() - LOGGED, "more prompts of two upstreams look alike");
        }
        if content.everyone.digest() != self.content.everyone.digest() {
            info!(prompts = content.everyone.len(), "catalog changed");
        }
    }
}

/// What is in `now` and not in `before`.
fn added<'a, T: Eq + Hash>(before: &[T], now: &'a [T]) -> Vec<&'a T> {
    let before: HashSet<_> = before.iter().collect();
    now.iter().filter(|item| !before.contains(item)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_is_not_logged_again() {
        assert_eq!(added(&[1, 2], &[2, 3]), [&3]);
        assert_eq!(added(&[1, 2], &[2, 1]), [&0; 0]);
    }
}
