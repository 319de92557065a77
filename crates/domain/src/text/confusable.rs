//! Confusable prompts: prompts of different upstreams whose names or titles look alike (UTS 39,
//! Unicode Security Mechanisms, "Confusable Detection").

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A text that a client displays for a listed prompt: its public name, its raw name or its title.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DisplayedText<'a> {
    /// Index of the prompt's upstream among the merged sources.
    pub source: usize,
    /// Index of the prompt in the merged list.
    pub entry: usize,
    pub text: &'a str,
}

/// Two different texts with the same skeleton, of prompts of different upstreams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Confusable<'a> {
    pub one: DisplayedText<'a>,
    pub other: DisplayedText<'a>,
}

/// The limit of reported pairs of one merged list. People read the pairs, and a list that imitates
/// another list could have as many pairs as the product of both lengths.
pub(crate) const MAX_PAIRS: usize = 1_000;

/// Returns the confusable pairs among `shown`, each pair of prompts once, at most [`MAX_PAIRS`].
/// `skeleton` maps a text to its skeleton (UTS 39, section 4): texts that look alike have the same
/// skeleton.
pub fn confusables<'a>(
    shown: impl IntoIterator<Item = DisplayedText<'a>>,
    skeleton: impl Fn(&str) -> String,
) -> Vec<Confusable<'a>> {
    let mut groups: BTreeMap<String, Vec<DisplayedText<'a>>> = BTreeMap::new();
    for shown in shown {
        groups.entry(skeleton(shown.text)).or_default().push(shown);
    }
    let mut pairs = Vec::new();
    let mut seen = HashSet::new();
    for group in groups.values_mut() {
        // Drops repeated texts of one source, so that nearly every comparison finds a pair.
        group.sort_unstable_by_key(|shown| (shown.source, shown.text, shown.entry));
        group.dedup_by_key(|shown| (shown.source, shown.text));
        for (at, one) in group.iter().enumerate() {
            let others = &group[at..];
            let others = &others[others.partition_point(|other| other.source == one.source)..];
            for other in others.iter().filter(|other| other.text != one.text) {
                if pairs.len() == MAX_PAIRS {
                    return pairs;
                }
                if seen.insert((one.entry, other.entry)) {
                    pairs.push(Confusable { one: *one, other: *other });
                }
            }
        }
    }
    pairs
}

/// Hashes of a shown text and of its skeleton.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct HashedText {
    pub skeleton: u64,
    pub text: u64,
}

/// Finds skeletons that several different texts have, while sources come and go. Only these texts
/// can be confusable.
#[derive(Debug, Default)]
pub struct SkeletonIndex {
    /// For each skeleton its texts, and how often each is shown.
    texts: HashMap<u64, HashMap<u64, u32>>,
    ambiguous: BTreeSet<u64>,
}

impl SkeletonIndex {
    /// Adds a text that is shown.
    pub fn add(&mut self, HashedText { skeleton, text }: HashedText) {
        let texts = self.texts.entry(skeleton).or_default();
        *texts.entry(text).or_default() += 1;
        if texts.len() > 1 {
            self.ambiguous.insert(skeleton);
        }
    }

    /// Removes a text that was added.
    pub fn remove(&mut self, HashedText { skeleton, text }: HashedText) {
        let Some(texts) = self.texts.get_mut(&skeleton) else {
            return;
        };
        if let Entry::Occupied(mut count) = texts.entry(text) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if texts.len() < 2 {
            self.ambiguous.remove(&skeleton);
        }
        if texts.is_empty() {
            self.texts.remove(&skeleton);
        }
    }

    /// Returns the skeletons that several texts share, in order.
    pub fn ambiguous(&self) -> &BTreeSet<u64> {
        &self.ambiguous
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn skeleton(text: &str) -> String {
        text.replace('1', "l").replace('0', "O")
    }

    fn shown(source: usize, entry: usize, text: &str) -> DisplayedText<'_> {
        DisplayedText { source, entry, text }
    }

    fn pairs<'a>(all: &[DisplayedText<'a>]) -> Vec<(&'a str, &'a str)> {
        let found = confusables(all.iter().copied(), skeleton);
        found.iter().map(|pair| (pair.one.text, pair.other.text)).collect()
    }

    #[test]
    fn different_texts_of_different_sources_with_one_skeleton_are_a_pair() {
        assert_eq!(pairs(&[shown(0, 0, "al"), shown(1, 1, "a1")]), [("al", "a1")]);
        assert_eq!(pairs(&[shown(0, 0, "al"), shown(0, 1, "a1")]), [], "one source");
        assert_eq!(pairs(&[shown(0, 0, "al"), shown(1, 1, "al")]), [], "one text");
        assert_eq!(pairs(&[shown(0, 0, "al"), shown(1, 1, "bl")]), []);
    }

    #[test]
    fn two_prompts_with_several_confusable_texts_are_one_pair() {
        let a = ["al", "Al"];
        let b = ["a1", "A1"];
        let all = [(0, a), (1, b)].map(|(source, texts)| texts.map(|t| shown(source, source, t)));
        assert_eq!(pairs(all.as_flattened()).len(), 1);
        let three = [shown(0, 0, "l0"), shown(1, 1, "10"), shown(2, 2, "1O")];
        assert_eq!(pairs(&three), [("l0", "10"), ("l0", "1O"), ("10", "1O")]);
    }

    #[test]
    fn pairs_are_bounded() {
        let texts: Vec<_> = (0..64u32).map(|n| format!("{n:06b}").replace('0', "l")).collect();
        let all = texts.iter().enumerate();
        let all: Vec<_> = all.flat_map(|(at, t)| [shown(0, at, t), shown(1, 64 + at, t)]).collect();
        assert_eq!(pairs(&all).len(), MAX_PAIRS);
    }

    proptest! {
        #[test]
        fn a_skeleton_is_ambiguous_while_it_has_several_texts(
            steps in prop::collection::vec((any::<bool>(), 0_u64..3, 0_u64..3), 0..60),
        ) {
            let mut index = SkeletonIndex::default();
            let mut shown = Vec::new();
            for (adds, skeleton, text) in steps {
                let hashed = HashedText { skeleton, text };
                if adds {
                    index.add(hashed);
                    shown.push(hashed);
                } else if let Some(at) = shown.iter().position(|known| *known == hashed) {
                    index.remove(hashed);
                    shown.swap_remove(at);
                }
                let texts = |skeleton: &u64| {
                    let of = shown.iter().filter(|hashed| hashed.skeleton == *skeleton);
                    of.map(|hashed| hashed.text).collect::<BTreeSet<_>>().len()
                };
                let expected: BTreeSet<u64> = (0..3).filter(|skeleton| texts(skeleton) > 1).collect();
                prop_assert_eq!(index.ambiguous(), &expected);
            }
            shown.into_iter().for_each(|hashed| index.remove(hashed));
            prop_assert!(index.texts.is_empty() && index.ambiguous.is_empty());
        }
    }
}
