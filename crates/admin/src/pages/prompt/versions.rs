//! The tab of versions: all approved ones, and the difference between two of them.

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::pages::message::ContentView;
use crate::pages::version::{Comparison, MessageChange};
use crate::sign_in::Role;
use approvals::VersionParts;
use catalog::blocking::run_blocking;
use domain::approval::{Decided, DigestText, Version};

/// The versions of one prompt, the newest first.
#[derive(Template)]
#[template(path = "prompt_versions.html")]
pub(super) struct VersionsTab {
    name: String,
    versions: Vec<VersionRow>,
    is_waiting: bool,
    /// The numbers of the versions that are compared.
    between: Option<(usize, usize)>,
    /// `None` for visitors who read no texts, and where there is nothing to compare.
    comparison: Option<Comparison>,
    places: Vec<String>,
    can_decide: bool,
    csrf: String,
    /// The entity tag to which a decision is bound.
    tag: String,
}

/// A version that is or was approved.
struct VersionRow {
    /// From 1 for the oldest one that is kept.
    number: usize,
    /// A digest that no other approved version of the prompt has; empty without such a digest.
    digest: String,
    by: String,
    at: String,
    why: Option<String>,
    /// The parts that are compared with it.
    class: &'static str,
    is_approved: bool,
}

impl VersionsTab {
    fn is_chosen(&self, number: &usize, is_later: bool) -> bool {
        self.between.is_some_and(|(from, to)| *number == if is_later { to } else { from })
    }
}

/// Returns the versions; the parameters `from` and `to` are the numbers of two that are compared,
/// without them the newest and the one before.
pub(super) async fn versions(looked: &Looked<'_>) -> VersionsTab {
    let Looked { state, request, visitor, name, .. } = *looked;
    let approval = looked.row.as_ref().and_then(|row| row.approval.as_ref());
    let decided: Vec<(bool, &Decided)> = approval
        .into_iter()
        .flat_map(|own| {
            let approved = own.approved.iter().map(|decided| (true, decided));
            approved.chain(own.previous.iter().map(|decided| (false, decided)))
        })
        .collect();
    let count = decided.len();
    let number = |key: &str, usual: usize| {
        let chosen = request.params.get(key).parse().ok();
        chosen.filter(|number| (1..=count).contains(number)).unwrap_or(usual)
    };
    let may_read = visitor.role >= Role::Tester;
    let between = (count > 1).then(|| (number("from", count - 1), number("to", count)));
    let comparison = match between.filter(|_| may_read) {
        Some((from, to)) => {
            let approvals = state.approvals.clone();
            let version = |number: usize| decided[count - number].1.version.clone();
            let (from, to) = (version(from), version(to));
            let compare = move || {
                let parts: [VersionParts; 2] =
                    [from, to].map(|version| approvals.version_parts(&version));
                Comparison::of(&parts[0], &parts[1], &[])
            };
            Some(run_blocking(compare).await)
        }
        None => None,
    };
    let decided_versions: Vec<_> = decided.iter().map(|(_, decided)| &decided.version).collect();
    let row = |(index, (is_approved, decided)): (usize, &(bool, &Decided))| VersionRow {
        number: count - index,
        digest: own_digest(index, &decided_versions),
        by: decided.attribution.by.clone(),
        at: decided.attribution.at.clone(),
        why: decided.attribution.why.clone(),
        class: decided.version.class().as_str(),
        is_approved: *is_approved,
    };
    VersionsTab {
        name: name.to_owned(),
        versions: decided.iter().enumerate().map(row).collect(),
        is_waiting: looked.is_waiting(),
        between,
        comparison,
        places: looked.definition.places(),
        can_decide: visitor.role >= Role::Approver,
        csrf: visitor.csrf_token(),
        tag: looked.row.as_ref().map(crate::approvals::row_tag).unwrap_or_default(),
    }
}

/// Returns a digest that identifies one version among `versions`, by which a decision names it.
fn own_digest(index: usize, versions: &[&Version]) -> String {
    let has = |version: &Version, digest: &DigestText| version.digests().any(|own| own == digest);
    let is_own = |digest: &&DigestText| {
        let mut others = versions.iter().enumerate().filter(|(other, _)| *other != index);
        !others.any(|(_, version)| has(version, digest))
    };
    versions[index].digests().find(is_own).map(ToString::to_string).unwrap_or_default()
}
