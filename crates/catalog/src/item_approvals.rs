//! The approvals of the prompts, or of the skills, of one upstream.

use std::collections::HashSet;
use std::sync::Arc;

use super::approval::{ApprovalRow, ApprovalSettings, ApprovedTexts, Availability, PromptApproval};
use super::snapshot::{LeftOut, LeftOutBy};
use domain::approval::{
    Approval, ApprovalKind, ApprovalState, Decision, Mode, Reason, Serving, Version,
};
use domain::name::{UpstreamId, version_name};

/// The approvals of one kind of items of one upstream.
#[derive(Clone, Copy)]
pub(crate) struct ItemApprovals<'a> {
    pub kind: ApprovalKind,
    pub upstream: &'a UpstreamId,
    pub settings: &'a ApprovalSettings,
}

impl<'a> ItemApprovals<'a> {
    /// Finds the approval of an item.
    pub(crate) fn of(self, raw_name: &str) -> Option<&'a Approval> {
        self.settings.lock.approval(self.kind, self.upstream.as_str(), raw_name)
    }

    /// Returns the approvals under the plain name of a prompt with versions, and under the names of
    /// its versions and labels.
    pub(crate) fn versions_of(self, of: &str) -> impl Iterator<Item = &'a Approval> {
        let known = self.settings.lock.of_upstream(self.kind, self.upstream.as_str());
        let begin = version_name(of, "");
        let versions = known.into_iter().flat_map({
            let begin = begin.clone();
            move |known| known.range(begin.clone()..)
        });
        let versions = versions.take_while(move |(name, _)| name.starts_with(&begin));
        self.of(of).into_iter().chain(versions.map(|(_, approval)| approval))
    }

    /// Returns the row of an item, without an offered version.
    pub(crate) fn row(
        self,
        raw_name: &str,
        public_name: String,
        decision: Decision,
    ) -> ApprovalRow {
        ApprovalRow {
            kind: self.kind,
            upstream: self.upstream.clone(),
            raw_name: raw_name.into(),
            public_name,
            mode: self.settings.mode,
            offered: None,
            approval: self.of(raw_name).cloned(),
            decision,
            problem: None,
            variants: Vec::new(),
            aliases: Vec::new(),
        }
    }

    /// Returns the approvals of items that no row offers, with the decision on them. `is_alias`
    /// tells other names of the offered versions.
    pub(crate) fn unoffered(
        self,
        rows: &[ApprovalRow],
        is_alias: impl Fn(&str) -> bool,
    ) -> Vec<(&'a str, &'a Approval, Decision)> {
        let of_kind = rows.iter().filter(|row| row.kind == self.kind);
        let offered: HashSet<&str> = of_kind.map(|row| &*row.raw_name).collect();
        let known = self.settings.lock.of_upstream(self.kind, self.upstream.as_str());
        let unoffered = known
            .into_iter()
            .flatten()
            .filter(|(name, _)| !offered.contains(&***name) && !is_alias(name));
        let decided = unoffered.map(|(name, approval)| {
            let state = match approval.approved {
                Some(_) => ApprovalState::Approved,
                None => ApprovalState::Rejected,
            };
            let reason = Reason::NotOffered;
            (&**name, approval, Decision { state, reason, serving: Serving::Nothing })
        });
        decided.collect()
    }

    /// Returns the approval of a served item, with the approved version that its results are
    /// compared with.
    pub(crate) fn served(
        self,
        state: ApprovalState,
        availability: Availability,
        version: Option<&Version>,
    ) -> PromptApproval {
        let approved = version.map(|version| Arc::new(ApprovedTexts::new(version, self.settings)));
        let is_tolerated = !self.is_enforced() && state != ApprovalState::Approved;
        PromptApproval { state, is_tolerated, availability, approved, is_held: false }
    }

    pub(crate) fn is_enforced(self) -> bool {
        self.settings.mode == Mode::Enforce
    }

    /// Says why an offered item is not served.
    pub(crate) fn held_back(self, row: &ApprovalRow) -> LeftOut {
        let Decision { state, reason, .. } = row.decision;
        let why = row.problem.as_deref().unwrap_or(reason.as_str());
        LeftOut {
            upstream: row.upstream.to_string(),
            raw_name: row.raw_name.to_string(),
            reason: format!("held back ({}): {why}", state.as_str()),
            by: LeftOutBy::Approval,
        }
    }
}
