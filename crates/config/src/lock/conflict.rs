//! Lock files that git has left with conflict markers, because two branches approve prompts whose
//! entries are neighbours, and because the digest at the end always differs.

use super::Lock;
use domain::approval::{Approval, ApprovalKind};

/// The side of a conflict that a line belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Both,
    Ours,
    /// The common ancestor, in the style `diff3`.
    Base,
    Theirs,
}

/// Whether git has left a conflict in a file.
pub(super) fn has_conflict(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("<<<<<<< "))
}

/// Returns the texts of both sides of a file with conflict markers (git-merge(1), "How conflicts
/// are presented"); `None` without a marker.
///
/// # Errors
/// A conflict has no end.
fn sides(text: &str) -> Result<Option<[String; 2]>, String> {
    let mut side = Side::Both;
    let (mut ours, mut theirs) = (String::new(), String::new());
    let mut has_marker = false;
    for line in text.split_inclusive('\n') {
        let next = match (side, line.get(..7)) {
            (Side::Both, Some("<<<<<<<")) => Side::Ours,
            (Side::Ours, Some("|||||||")) => Side::Base,
            (Side::Ours | Side::Base, Some("=======")) => Side::Theirs,
            (Side::Theirs, Some(">>>>>>>")) => Side::Both,
            _ => {
                if matches!(side, Side::Both | Side::Ours) {
                    ours.push_str(line);
                }
                if matches!(side, Side::Both | Side::Theirs) {
                    theirs.push_str(line);
                }
                continue;
            }
        };
        (side, has_marker) = (next, true);
    }
    if side != Side::Both {
        return Err("a conflict of git has no end (`>>>>>>>`)".to_owned());
    }
    Ok(has_marker.then_some([ours, theirs]))
}

/// Reads a lock file whose digest does not matter; of a file with conflict markers, the
/// entries of both sides.
///
/// # Errors
/// The first mistake, or the prompts on which the sides have decided differently.
pub(super) fn parse_merged(text: &str) -> Result<Lock, String> {
    let Some([ours, theirs]) = sides(text)? else {
        return Ok(Lock::parse_entries(text)?.0);
    };
    let side = |text: &str, name: &str| {
        let read = Lock::parse_entries(text);
        read.map(|(lock, _)| lock).map_err(|why| format!("in the side {name}: {why}"))
    };
    let (mut merged, theirs) = (side(&ours, "<<<<<<<")?, side(&theirs, ">>>>>>>")?);
    let mut disputed = Vec::new();
    for kind in [ApprovalKind::Prompt, ApprovalKind::Skill] {
        for (upstream, approvals) in theirs.of_kind(kind) {
            for (name, their) in approvals {
                let ours = merged.approval_mut(kind, upstream, name);
                if *ours == Approval::default() || is_earlier(ours, their) {
                    *ours = their.clone();
                } else if ours != their && !is_earlier(their, ours) {
                    disputed.push(format!("{name} of {upstream}"));
                }
            }
        }
    }
    if disputed.is_empty() {
        return Ok(merged);
    }
    let names = disputed.join(", ");
    Err(format!(
        "both sides have decided on {names}: leave the entry of one side in the file, without \
         the markers around it, and run the command again"
    ))
}
/// Whether the approved version of one approval is among the earlier versions of the other.
fn is_earlier(one: &Approval, other: &Approval) -> bool {
    one.rejected.is_none()
        && one.pending.is_none()
        && one.approved.as_ref().is_some_and(|approved| other.previous.contains(approved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::approval::{Attribution, Decided, Version};

    fn decided(digest: char, by: &str) -> Decided {
        let digest = format!("sha256:{}", digest.to_string().repeat(64));
        let (texts, variants, files) = Default::default();
        let definition = digest.as_str().into();
        let attribution = Attribution {
            by: by.to_owned(),
            at: "2026-11-22T00:00:00Z".to_owned(),
            ..Attribution::default()
        };
        Decided {
            version: Version { definition, source: None, texts, variants, files },
            attribution,
        }
    }

    fn lock(entries: &[(&str, char)]) -> Lock {
        let mut lock = Lock::default();
        for (name, digest) in entries {
            let entry = lock.approval_mut(ApprovalKind::Prompt, "up", name);
            entry.approve(decided(*digest, "ada").version, decided(*digest, "ada").attribution);
        }
        lock
    }

    fn conflict(ours: &str, theirs: &str) -> String {
        format!("<<<<<<< HEAD\n{ours}||||||| base\n=======\n{theirs}>>>>>>> branch\n")
    }

    fn approved(lock: &Lock) -> Vec<(String, String)> {
        let all = lock.of_kind(ApprovalKind::Prompt)["up"].iter();
        let digest = |approval: &Approval| {
            approval
                .approved
                .as_ref()
                .map(|own| own.version.definition.to_string()[7..8].to_owned())
        };
        all.map(|(name, approval)| (name.clone(), digest(approval).unwrap_or_default())).collect()
    }

    #[test]
    fn approvals_of_different_prompts_on_two_branches_are_all_kept() {
        let (ours, theirs) = (lock(&[("a", '1'), ("b", '2')]), lock(&[("a", '1'), ("c", '3')]));
        let merged = parse_merged(&conflict(&ours.to_text(), &theirs.to_text())).unwrap();
        let expected = [("a", "1"), ("b", "2"), ("c", "3")];
        let expected = expected.map(|(name, digest)| (name.to_owned(), digest.to_owned()));
        assert_eq!(approved(&merged), expected);
    }

    #[test]
    fn the_side_that_has_gone_on_from_the_other_counts_and_a_dispute_is_named() {
        let (old, mut new) = (lock(&[("a", '1')]), lock(&[("a", '1')]));
        let Decided { version, attribution } = decided('2', "bob");
        new.approval_mut(ApprovalKind::Prompt, "up", "a").approve(version, attribution);
        for (ours, theirs) in [(&old, &new), (&new, &old)] {
            let merged = parse_merged(&conflict(&ours.to_text(), &theirs.to_text()));
            assert_eq!(approved(&merged.unwrap()), [("a".to_owned(), "2".to_owned())]);
        }
        let other = lock(&[("a", '3')]);
        let disputed = parse_merged(&conflict(&new.to_text(), &other.to_text()));
        assert!(disputed.unwrap_err().contains("both sides have decided on a of up"));
    }

    #[test]
    fn a_file_without_markers_is_read_as_it_is() {
        let text = lock(&[("a", '1')]).to_text();
        assert_eq!(approved(&parse_merged(&text).unwrap()).len(), 1);
        assert!(parse_merged(&(text + "<<<<<<< HEAD\n")).is_err(), "no end");
    }
}
