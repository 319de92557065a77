//! The merge of the upstreams' prompt lists into one ordered list without name collisions.
//!
//! Names of upstreams with a prefix cannot collide, so each of these lists is merged separately.
//! Upstreams without a prefix are merged together.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::name::{Naming, Prefix};
use crate::prompts::prompt::Prompt;

/// The checked prompts of one upstream, with its prefix.
#[derive(Clone, Copy, Debug)]
pub struct MergeSource<'a> {
    pub prefix: &'a Prefix,
    pub prompts: &'a [Prompt],
}

/// A listed prompt: its public name, the index of its source, and its index in that source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MergedPrompt {
    pub public_name: String,
    pub source: usize,
    pub prompt: usize,
}

/// A prompt that is left out of the merged list, with the reason.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnmergedPrompt {
    pub source: usize,
    /// The prompt's name at its upstream.
    pub raw_name: String,
    pub reason: String,
}

/// The merged list, in byte order of the public names, and the prompts that are left out of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Merged {
    pub entries: Vec<MergedPrompt>,
    pub left_out: Vec<UnmergedPrompt>,
}

/// Merges the prompts of `sources`. `prefixes` are the non-empty prefixes of all upstreams,
/// including upstreams that are not in `sources`. `fold` maps a name to the form in which
/// look-alikes are equal (NFC).
///
/// Within one source, prompts with the same name are listed once if their definitions are equal,
/// and left out if the definitions differ. Between sources, only bare names can collide: a name
/// that two bare sources list is left out of both. A bare name within the prefix of another source
/// is left out; the prefixed name stays.
pub fn merge(
    sources: &[MergeSource<'_>],
    prefixes: &HashSet<&str>,
    naming: &Naming,
    fold: impl Fn(&str) -> Cow<'_, str>,
) -> Merged {
    let mut merged = Merged::default();
    for (index, source) in sources.iter().enumerate() {
        let duplicates = duplicates(source.prompts, &fold);
        for (position, prompt) in source.prompts.iter().enumerate() {
            let public_name = match duplicates.get(&position) {
                Some(Duplicate::Repeated) => continue,
                Some(Duplicate::Conflicting) => Err(CONFLICT.to_owned()),
                None => public_name(source.prefix, prompt, naming, prefixes),
            };
            match public_name {
                Ok(public_name) => {
                    merged.entries.push(MergedPrompt {
                        public_name,
                        source: index,
                        prompt: position,
                    });
                }
                Err(reason) => merged.leave_out(index, prompt, reason),
            }
        }
    }
    if sources.len() > 1 {
        merged.leave_out_shared(sources, fold);
    }
    merged.entries.sort_unstable_by(|a, b| a.public_name.cmp(&b.public_name));
    merged
}

const CONFLICT: &str = "the upstream lists this name twice with different definitions, or an overlay gives one name to \
                        two prompts";

const SHARED: &str = "another upstream lists the same bare name: set `prefix` on one of them";

impl Merged {
    fn leave_out(&mut self, source: usize, prompt: &Prompt, reason: String) {
        self.left_out.push(UnmergedPrompt { source, raw_name: prompt.name.clone(), reason });
    }

    /// Leaves out the names that several sources list.
    fn leave_out_shared(
        &mut self,
        sources: &[MergeSource<'_>],
        fold: impl Fn(&str) -> Cow<'_, str>,
    ) {
        let entries = std::mem::take(&mut self.entries);
        let mut claims: HashMap<Cow<'_, str>, usize> = HashMap::with_capacity(entries.len());
        for entry in &entries {
            *claims.entry(fold(&entry.public_name)).or_default() += 1;
        }
        let is_shared: Vec<_> =
            entries.iter().map(|entry| claims[&fold(&entry.public_name)] > 1).collect();
        drop(claims);
        for (entry, is_shared) in entries.into_iter().zip(is_shared) {
            if is_shared {
                let prompt = &sources[entry.source].prompts[entry.prompt];
                self.leave_out(entry.source, prompt, SHARED.to_owned());
            } else {
                self.entries.push(entry);
            }
        }
    }
}

/// The kind of duplicate, for a prompt whose name its source lists more than once.
enum Duplicate {
    /// The definition is equal to an earlier one, which is listed for both.
    Repeated,
    /// The definitions differ.
    Conflicting,
}

fn duplicates(
    prompts: &[Prompt],
    fold: impl Fn(&str) -> Cow<'_, str>,
) -> HashMap<usize, Duplicate> {
    let mut first: HashMap<Cow<'_, str>, usize> = HashMap::with_capacity(prompts.len());
    // The positions of repeated names, by their first position.
    let mut again: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (position, prompt) in prompts.iter().enumerate() {
        let at = *first.entry(fold(prompt.listed_name())).or_insert(position);
        if at != position {
            again.entry(at).or_default().push(position);
        }
    }
    let mut found = HashMap::new();
    for (first, others) in again {
        if others.iter().all(|&other| prompts[other] == prompts[first]) {
            found.extend(others.into_iter().map(|other| (other, Duplicate::Repeated)));
        } else {
            found.insert(first, Duplicate::Conflicting);
            found.extend(others.into_iter().map(|other| (other, Duplicate::Conflicting)));
        }
    }
    found
}

fn public_name(
    prefix: &Prefix,
    prompt: &Prompt,
    naming: &Naming,
    prefixes: &HashSet<&str>,
) -> Result<String, String> {
    let public = naming.public(prefix, prompt.listed_name()).map_err(|e| e.to_string())?;
    let claimed = naming.claimed(&public).map(|(claimed, _)| claimed);
    match claimed.filter(|_| prefix.is_bare()) {
        Some(claimed) if prefixes.contains(claimed) => {
            Err(format!("the bare name lies inside the prefix of upstream `{claimed}`"))
        }
        _ => Ok(public),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::Json;

    fn prompts(names: &[&str]) -> Vec<Prompt> {
        names
            .iter()
            .map(|n| n.split_once('=').unwrap_or((n, "")))
            .map(|(name, title)| serde_json::json!({"name": name, "title": title}).to_string())
            .map(|text| Prompt::read(Json::parse(text.as_bytes(), 8).unwrap()).unwrap())
            .collect()
    }

    fn run(lists: &[(&str, &[&str])]) -> (Vec<String>, Vec<(usize, String)>) {
        let lists: Vec<_> =
            lists.iter().map(|(p, names)| (Prefix::parse(p).unwrap(), prompts(names))).collect();
        let sources: Vec<_> =
            lists.iter().map(|(prefix, prompts)| MergeSource { prefix, prompts }).collect();
        let prefixed =
            sources.iter().map(|source| source.prefix).filter(|prefix| !prefix.is_bare());
        let prefixes: HashSet<&str> = prefixed.map(Prefix::as_str).collect();
        let naming = Naming::new("__", 128);
        let merged = merge(&sources, &prefixes, &naming, |name| name.to_lowercase().into());
        let names: Vec<String> = merged.entries.into_iter().map(|e| e.public_name).collect();
        // Each upstream with a prefix by itself, and all others together, give the same list.
        let (bare, prefixed): (Vec<_>, Vec<_>) =
            sources.iter().copied().partition(|source| source.prefix.is_bare());
        let mut parts: Vec<String> = prefixed
            .chunks(1)
            .chain([bare.as_slice()])
            .flat_map(|part| {
                merge(part, &prefixes, &naming, |name| name.to_lowercase().into()).entries
            })
            .map(|entry| entry.public_name)
            .collect();
        parts.sort_unstable();
        assert_eq!(parts, names);
        (names, merged.left_out.into_iter().map(|l| (l.source, l.raw_name)).collect())
    }

    #[test]
    fn names_are_in_byte_order() {
        let (names, left_out) = run(&[("b", &["z", "a"]), ("a", &["z", "B", "b-"])]);
        assert_eq!(names, ["a__B", "a__b-", "a__z", "b__a", "b__z"]);
        assert_eq!(left_out, []);
    }

    #[test]
    fn u10_duplicates_in_one_upstream() {
        let (names, left_out) = run(&[("a", &["x=1", "x=1", "y=1", "y=2", "z"])]);
        assert_eq!(names, ["a__x", "a__z"]);
        assert_eq!(left_out, [(0, "y".into()), (0, "y".into())]);
    }

    #[test]
    fn u11_look_alikes_count_as_duplicates() {
        let (names, left_out) = run(&[("a", &["x", "X"]), ("", &["y"]), ("b", &["Y"])]);
        assert_eq!(names, ["b__Y", "y"]);
        assert_eq!(left_out.len(), 2);
    }

    #[test]
    fn u12_bare_names_never_shadow() {
        let (names, left_out) =
            run(&[("", &["x", "a__y", "c__z", "__v"]), ("", &["x", "w"]), ("a", &["y"])]);
        assert_eq!(names, ["__v", "a__y", "c__z", "w"]);
        assert_eq!(left_out, [(0, "a__y".into()), (0, "x".into()), (1, "x".into())]);
    }

    proptest! {
        #[test]
        fn the_list_does_not_depend_on_the_order_of_upstreams(
            a in prop::collection::btree_set("[a-z_]{1,6}", 0..20),
            b in prop::collection::btree_set("[a-z_]{1,6}", 0..20),
        ) {
            let (a, b): (Vec<&str>, Vec<&str>) = (
                a.iter().map(String::as_str).collect(),
                b.iter().map(String::as_str).collect(),
            );
            let (one, _) = run(&[("p", &a), ("q", &b)]);
            let (other, _) = run(&[("q", &b), ("p", &a)]);
            prop_assert_eq!(one.len(), a.iter().chain(&b).filter(|n| n.trim() == **n).count());
            prop_assert!(one.is_sorted());
            prop_assert_eq!(one, other);
        }
    }
}
