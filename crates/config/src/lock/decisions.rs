//! Counts of the decisions between two contents of a lock file.

use std::collections::BTreeMap;
use std::fmt;

use super::{Entry, Lock};
use domain::approval::{Approval, ApprovalKind, Decided};

/// Decisions of one kind by one person.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Decisions {
    pub kind: ApprovalKind,
    pub count: usize,
    /// Such as `approved`.
    pub what: &'static str,
    /// `None` where the file does not say it.
    pub by: Option<String>,
}

impl fmt::Display for Decisions {
    /// Such as `7 prompts approved by ada`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, what, by } = self;
        write!(f, "{count} {}{} {what}", kind.as_str(), if *count == 1 { "" } else { "s" })?;
        by.as_ref().map_or(Ok(()), |by| write!(f, " by {by}"))
    }
}

/// Returns what was decided since the content `before`, by kind and person.
pub fn decisions(before: &Lock, after: &Lock) -> Vec<Decisions> {
    let none = Approval::default();
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for Entry { kind, upstream, raw_name, approval } in after.approvals() {
        let old = before.approval(kind, upstream, raw_name);
        if let Some((what, decided)) = decision(old.unwrap_or(&none), approval) {
            *counts.entry((kind, what, Some(decided.attribution.by.clone()))).or_default() += 1;
        }
    }
    for Entry { kind, upstream, raw_name, .. } in before.approvals() {
        if after.approval(kind, upstream, raw_name).is_none() {
            *counts.entry((kind, "forgotten", None)).or_default() += 1;
        }
    }
    let counts = counts.into_iter();
    counts.map(|((kind, what, by), count)| Decisions { kind, count, what, by }).collect()
}

/// Returns the decision that has changed an approval, and its record.
fn decision<'a>(old: &Approval, new: &'a Approval) -> Option<(&'static str, &'a Decided)> {
    fn changed<'a>(old: Option<&Decided>, new: Option<&'a Decided>) -> Option<&'a Decided> {
        new.filter(|new| old != Some(new))
    }
    if let Some(approved) = changed(old.approved.as_ref(), new.approved.as_ref()) {
        let was_before = |earlier: &Decided| earlier.version == approved.version;
        let is_rolled_back = old.previous.iter().any(was_before);
        return Some((if is_rolled_back { "rolled back" } else { "approved" }, approved));
    }
    if let Some(rejected) = changed(old.rejected.as_ref(), new.rejected.as_ref()) {
        let is_withdrawn = old.approved.is_some() && new.approved.is_none();
        return Some((if is_withdrawn { "withdrawn" } else { "rejected" }, rejected));
    }
    let pending = changed(old.pending.as_ref(), new.pending.as_ref())?;
    Some(("approved by the first of two people,", pending))
}

#[cfg(test)]
mod tests {
    use domain::approval::{Attribution, Version};

    use super::*;

    fn decided(version: u8, by: &str) -> Decided {
        let version = Version {
            definition: format!("sha256:{version:064x}").into(),
            source: None,
            texts: BTreeMap::new(),
            variants: Default::default(),
            files: Default::default(),
        };
        let at = "2026-11-22T10:00:00Z".to_owned();
        Decided {
            version,
            attribution: Attribution { by: by.to_owned(), at, ..Attribution::default() },
        }
    }

    fn lock(approvals: Vec<(&str, Approval)>) -> Lock {
        let mut lock = Lock::none();
        for (prompt, approval) in approvals {
            *lock.approval_mut(ApprovalKind::Prompt, "a", prompt) = approval;
        }
        lock
    }

    fn words(before: Vec<(&str, Approval)>, after: Vec<(&str, Approval)>) -> Vec<String> {
        decisions(&lock(before), &lock(after)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn decisions_are_counted_by_kind_and_person() {
        let approved =
            |version, by| Approval { approved: Some(decided(version, by)), ..Approval::default() };
        let rejected = |by| Approval { rejected: Some(decided(9, by)), ..Approval::default() };
        let pending = || Approval { pending: Some(decided(1, "bob")), ..Approval::default() };
        assert_eq!(
            words(vec![("x", approved(1, "ada"))], vec![("x", approved(1, "ada"))]),
            [""; 0]
        );
        assert_eq!(
            words(
                vec![("x", approved(1, "ada")), ("w", approved(9, "ada"))],
                vec![
                    ("x", approved(2, "ada")),
                    ("y", approved(1, "ada")),
                    ("z", rejected("bob")),
                    ("w", rejected("cid")),
                    ("v", pending()),
                ],
            ),
            [
                "2 prompts approved by ada",
                "1 prompt approved by the first of two people, by bob",
                "1 prompt rejected by bob",
                "1 prompt withdrawn by cid",
            ]
        );
        let mut twice = approved(2, "ada");
        twice.previous = vec![decided(1, "ada")];
        assert_eq!(
            words(vec![("x", twice)], vec![("x", approved(1, "bob"))]),
            ["1 prompt rolled back by bob"]
        );
        assert_eq!(words(vec![("x", approved(1, "ada"))], vec![]), ["1 prompt forgotten"]);
    }
}
