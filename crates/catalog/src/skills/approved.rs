//! Applies approvals to the skills of an upstream.

use std::sync::Arc;

use crate::approval::{ApprovalRow, ApprovalSettings, Availability, OfferedPrompt, PromptApproval};
use crate::item_approvals::ItemApprovals;
use crate::snapshot::LeftOut;
use base::seal;
use domain::approval::{
    Approval, ApprovalKind, ApprovalState, Decision, Mode, Offered, Serving, decide_skill,
};
use domain::json::Json;
use domain::name::{Prefix, UpstreamId};
use domain::prompts::prompt::Prompt;
use domain::prompts::skill::{SKILL_FILE, Skill, public_uri};
use domain::protocol::via::Via;

/// The served skills of one upstream.
#[derive(Debug, Default)]
pub(crate) struct EffectiveSkills {
    pub skills: Vec<Arc<Skill>>,
    /// The approvals of `skills`, by position; empty while approvals are off.
    pub approvals: Vec<PromptApproval>,
    /// All skills that are offered or in the lock file; empty while approvals are off.
    pub rows: Vec<ApprovalRow>,
    pub left_out: Vec<LeftOut>,
}

/// The inputs of the effective skills of an upstream, apart from the offered skills.
pub(crate) struct SkillMaker<'a> {
    pub upstream: &'a UpstreamId,
    pub prefix: &'a Prefix,
    pub approvals: &'a ApprovalSettings,
}

impl SkillMaker<'_> {
    /// Decides on each offered skill; `None` if the upstream has no list. Blocks, because it reads
    /// objects.
    pub(crate) fn make(&self, offered: Option<&[Arc<Skill>]>) -> EffectiveSkills {
        let mut effective = EffectiveSkills::default();
        if self.approvals.mode == Mode::Off {
            effective.skills = offered.unwrap_or_default().to_vec();
            return effective;
        }
        for skill in offered.unwrap_or_default() {
            self.compare(skill, &mut effective);
        }
        self.add_unoffered(offered.is_some(), &mut effective);
        effective
    }

    /// Decides on one skill, and adds the version to serve.
    fn compare(&self, skill: &Arc<Skill>, effective: &mut EffectiveSkills) {
        // Compared in the form that would be approved, as for prompts.
        let canonical = skill.canonical();
        let read = Skill::read(Json::accepted(&canonical)).ok();
        let read = read.map(|read| Arc::new(read.through(skill.via.clone())));
        let skill = read.unwrap_or_else(|| skill.clone());
        let offered = Offered {
            definition: seal::sha256_text(canonical.as_bytes()).into(),
            source: None,
            texts: Default::default(),
            files: skill.digests(),
        };
        let approval = self.items().of(&skill.path);
        let has_snapshot = self.has_snapshot(approval);
        let decision = decide_skill(self.approvals.mode, approval, &offered, has_snapshot);
        let mut row = self.row(&skill.path, decision);
        let prompt = Arc::new(Prompt::named(&skill.path));
        let kept = Some(skill.clone());
        row.offered =
            Some(OfferedPrompt { prompt, skill: kept, version: offered, texts_since: None });
        let served = match decision.serving {
            Serving::Offered => Some(skill.clone()),
            Serving::Approved => self.approved_form(&mut row, skill.via.clone()),
            Serving::Nothing => None,
        };
        let availability = match decision.serving {
            Serving::Approved => Availability::SnapshotOnly,
            _ => Availability::Listed,
        };
        match served {
            Some(skill) => self.add(skill, decision.state, availability, &row, effective),
            None => effective.left_out.push(self.items().held_back(&row)),
        }
        effective.rows.push(row);
    }

    /// Adds the approvals of skills that are not offered. Without a list, skills with a snapshot
    /// are served.
    fn add_unoffered(&self, has_list: bool, effective: &mut EffectiveSkills) {
        for (path, approval, decision) in self.items().unoffered(&effective.rows, |_| false) {
            let state = decision.state;
            let mut row = self.row(path, decision);
            if !has_list && self.has_snapshot(Some(approval)) {
                row.decision.serving = Serving::Approved;
                if let Some(skill) = self.approved_form(&mut row, Via::NONE) {
                    self.add(skill, state, Availability::SnapshotOnly, &row, effective);
                }
            }
            effective.rows.push(row);
        }
    }

    /// The approved form of a skill that came `via` other gateways; `None`, with a problem in
    /// `row`, if its object cannot be read.
    fn approved_form(&self, row: &mut ApprovalRow, via: Via) -> Option<Arc<Skill>> {
        let version = &row.approved()?.version;
        match self.approvals.approved_skill(version, &row.raw_name) {
            Ok(skill) => Some(Arc::new(skill.through(via))),
            Err(problem) => {
                row.problem = Some(problem);
                row.decision.serving = Serving::Nothing;
                None
            }
        }
    }

    fn add(
        &self,
        skill: Arc<Skill>,
        state: ApprovalState,
        availability: Availability,
        row: &ApprovalRow,
        effective: &mut EffectiveSkills,
    ) {
        let approved = row.approved().map(|decided| &decided.version);
        effective.skills.push(skill);
        effective.approvals.push(self.items().served(state, availability, approved));
    }

    /// Whether the approved version can be served instead of the offered version. The snapshot of a
    /// dynamic skill has no files.
    fn has_snapshot(&self, approval: Option<&Approval>) -> bool {
        let decided = approval.and_then(|approval| approval.approved.as_ref());
        let has_files = decided.is_some_and(|decided| !decided.version.files.is_empty());
        self.approvals.snapshot && self.items().is_enforced() && has_files
    }

    fn row(&self, path: &str, decision: Decision) -> ApprovalRow {
        let public_name = [&public_uri(self.prefix, path), "/", SKILL_FILE].concat();
        self.items().row(path, public_name, decision)
    }

    fn items(&self) -> ItemApprovals<'_> {
        let kind = ApprovalKind::Skill;
        ItemApprovals { kind, upstream: self.upstream, settings: self.approvals }
    }
}
