//! The merge of the upstreams' prompt lists into one ordered list without name collisions.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::name::{Naming, Prefix};
use super::prompt::Prompt;

/// The checked prompts of one upstream, with its prefix.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub prefix: &'a Prefix,
    pub prompts: &'a [Prompt],
}

/// A listed prompt: its public name, the index of its source, and its index in that source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    pub public_name: String,
    pub source: usize,
    pub prompt: usize,
}

/// A prompt that is left out of the merged list, with the reason.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeftOut {
    pub source: usize,
    /// The prompt's name at its upstream.
    pub raw_name: String,
    pub reason: String,
}

/// The merged list, in byte order of the public names, and the prompts that are left out of it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Merged {
    pub entries: Vec<Entry>,
    pub left_out: Vec<LeftOut>,
}

/// Merges the prompts of `sources`. `fold` maps a name to the form in which look-alikes are equal (NFC).
///
/// Within one source, prompts with the same name are listed once if their definitions are equal, and left
/// out if the definitions differ. Between sources, only bare names can collide: a name that two bare sources
/// list is left out of both; a bare name within the prefix of another source is left out alone.
pub fn merge(sources: &[Source<'_>], naming: &Naming, fold: impl Fn(&str) -> String) -> Merged {
    let mut merged = Merged::default();
    let mut claims: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let prefixes: HashSet<&str> =
        sources.iter().filter(|s| !s.prefix.is_bare()).map(|s| s.prefix.as_str()).collect();
    for (index, source) in sources.iter().enumerate() {
        let duplicates = duplicates(source.prompts, &fold);
        for (position, prompt) in source.prompts.iter().enumerate() {
            let public_name = match duplicates.get(&position) {
                Some(Duplicate::Repeated) => continue,
                Some(Duplicate::Conflicting) => Err(CONFLICT.to_owned()),
                None => public_name(source.prefix, prompt, naming, &prefixes),
            };
            match public_name {
                Ok(public_name) => claims.entry(fold(&public_name)).or_default().push(Entry {
                    public_name,
                    source: index,
                    prompt: position,
                }),
                Err(reason) => merged.leave_out(index, prompt, reason),
            }
        }
    }
    for mut claim in claims.into_values() {
        if claim.len() == 1 {
            merged.entries.append(&mut claim);
            continue;
        }
        for Entry { source, prompt, .. } in claim {
            let reason = "another upstream lists the same bare name: set `prefix` on one of them";
            merged.leave_out(source, &sources[source].prompts[prompt], reason.to_owned());
        }
    }
    merged.entries.sort_unstable_by(|a, b| a.public_name.cmp(&b.public_name));
    merged
}

const CONFLICT: &str = "the upstream lists this name twice with different definitions";

impl Merged {
    fn leave_out(&mut self, source: usize, prompt: &Prompt, reason: String) {
        self.left_out.push(LeftOut { source, raw_name: prompt.name.clone(), reason });
    }
}

/// The kind of duplicate, for a prompt whose name its source lists more than once.
enum Duplicate {
    /// The definition is equal to an earlier one, which is listed for both.
    Repeated,
    /// The definitions differ.
    Conflicting,
}

fn duplicates(prompts: &[Prompt], fold: impl Fn(&str) -> String) -> HashMap<usize, Duplicate> {
    let mut by_name: HashMap<String, Vec<usize>> = HashMap::with_capacity(prompts.len());
    for (position, prompt) in prompts.iter().enumerate() {
        by_name.entry(fold(&prompt.name)).or_default().push(position);
    }
    let mut found = HashMap::new();
    for positions in by_name.into_values().filter(|p| p.len() > 1) {
        let first = &prompts[positions[0]];
        if positions.iter().all(|&p| prompts[p] == *first) {
            found.extend(positions[1..].iter().map(|&p| (p, Duplicate::Repeated)));
        } else {
            found.extend(positions.iter().map(|&p| (p, Duplicate::Conflicting)));
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
    let public = naming.public(prefix, &prompt.name).map_err(|e| e.to_string())?;
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

    use super::super::json::Json;
    use super::*;

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
            lists.iter().map(|(prefix, prompts)| Source { prefix, prompts }).collect();
        let merged = merge(&sources, &Naming::new("__", 128), str::to_lowercase);
        (
            merged.entries.into_iter().map(|e| e.public_name).collect(),
            merged.left_out.into_iter().map(|l| (l.source, l.raw_name)).collect(),
        )
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
