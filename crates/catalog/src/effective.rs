//! The effective list of an upstream: the offered definitions after overlays and approvals.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::approval::{ApprovalRow, ApprovalSettings, Availability, OfferedPrompt, PromptApproval};
use super::approval_rows::ApprovalRows;
use super::item_approvals::ItemApprovals;
use super::skills::approved::{EffectiveSkills, SkillMaker};
use super::snapshot::{LeftOut, LeftOutBy};
use super::version_contents::{HeldVersion, NamedVersion, VersionContents};
use base::seal;
use domain::approval::{
    Approval, ApprovalKind, ApprovalState, Class, Decision, Files, Mode, Offered, OfferedText,
    Serving, decide,
};
use domain::json::Json;
use domain::name::{Naming, Prefix, UpstreamId};
use domain::prompts::overlay::{self, Overlaid, Overlay};
use domain::prompts::prompt::Prompt;
use domain::prompts::skill::Skill;

/// The effective list of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Effective {
    pub prompts: Vec<Prompt>,
    /// The approvals of `prompts`, by position; empty while approvals are off.
    pub approvals: Vec<PromptApproval>,
    pub skills: Vec<Arc<Skill>>,
    /// The approvals of `skills`, by position; empty while approvals are off.
    pub skill_approvals: Vec<PromptApproval>,
    pub left_out: Vec<LeftOut>,
    /// All prompts and skills that are offered or in the lock file; empty while approvals are off.
    pub rows: Arc<ApprovalRows>,
}

impl Effective {
    /// Whether a decision could not be carried out, such as for a missing object.
    pub(crate) fn has_problem(&self) -> bool {
        self.rows.iter().any(|row| row.problem.is_some())
    }

    /// Returns the digest of the approved source that a prompt is served with.
    pub(crate) fn served_source(&self, raw_name: &str) -> Option<&Arc<str>> {
        let position = self.prompts.iter().position(|prompt| prompt.name == raw_name)?;
        self.approvals.get(position)?.approved.as_ref()?.version.source.as_ref()
    }

    /// Whether both lists serve the same prompts and skills, for the same reasons.
    pub(crate) fn serves_as(&self, other: &Self) -> bool {
        let is_same_approval = |(one, other): (&PromptApproval, &PromptApproval)| {
            one.state == other.state
                && one.is_tolerated == other.is_tolerated
                && one.is_held == other.is_held
                && one.availability == other.availability
                && match (&one.approved, &other.approved) {
                    (Some(one), Some(other)) => one.is_same(other),
                    (None, None) => true,
                    _ => false,
                }
        };
        let are_same_approvals = |one: &[PromptApproval], other: &[PromptApproval]| {
            one.len() == other.len() && one.iter().zip(other).all(is_same_approval)
        };
        self.prompts == other.prompts
            && are_same_approvals(&self.approvals, &other.approvals)
            && self.skills == other.skills
            && are_same_approvals(&self.skill_approvals, &other.skill_approvals)
            && self.left_out == other.left_out
    }
}

/// The known texts of the prompts of one upstream, by raw names.
pub(crate) type KnownTexts = HashMap<Arc<str>, TextsOf>;

/// The texts of one version of a prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextsOf {
    /// Digest of the effective definition at the time of the probe.
    pub definition: Arc<str>,
    pub texts: BTreeMap<Arc<str>, OfferedText>,
    /// When these texts were first found.
    pub since: SystemTime,
}

impl TextsOf {
    /// Whether both have the same texts, regardless of `since`.
    pub fn is_same(&self, other: &Self) -> bool {
        self.definition == other.definition && self.texts == other.texts
    }
}

/// The texts of one prompt that a probe has found.
#[derive(Debug)]
pub struct TextReport {
    pub upstream: UpstreamId,
    pub raw_name: Arc<str>,
    pub texts: TextsOf,
    /// The arguments whose text could not be fetched. Previously known texts stay.
    pub failed: Vec<Arc<str>>,
}

/// The inputs of an effective list, apart from the offered list.
pub(crate) struct Maker<'a> {
    pub upstream: &'a UpstreamId,
    pub prefix: &'a Prefix,
    pub naming: &'a Naming,
    pub overlays: &'a [Overlay],
    pub approvals: &'a ApprovalSettings,
    pub texts: &'a KnownTexts,
    /// The effective list before.
    pub before: Option<&'a Effective>,
}

impl Maker<'_> {
    /// Whether neither overlays nor approvals can change a list.
    pub(crate) fn is_idle(&self) -> bool {
        self.overlays.is_empty() && self.approvals.mode == Mode::Off
    }

    /// Makes the effective list from the upstream's list (`None` without a list). Blocks, because
    /// it reads objects.
    pub(crate) fn make(
        &self,
        offered: Option<&[Prompt]>,
        skills: Option<&[Arc<Skill>]>,
    ) -> Effective {
        let Self { upstream, prefix, approvals, .. } = *self;
        let made = SkillMaker { upstream, prefix, approvals }.make(skills);
        let EffectiveSkills { skills, approvals: skill_approvals, mut rows, left_out } = made;
        let mut effective = Effective { skills, skill_approvals, left_out, ..Effective::default() };
        let prompts = self.overlaid(offered.unwrap_or_default(), &mut effective);
        if self.approvals.mode == Mode::Off {
            effective.prompts = prompts;
        } else {
            let names: HashSet<String> = prompts.iter().map(|prompt| prompt.name.clone()).collect();
            self.compare_all(prompts, &mut rows, &mut effective);
            let is_offered = |name: &str| names.contains(name);
            self.add_unoffered(offered.is_some(), is_offered, &mut rows, &mut effective);
        }
        effective.rows = Arc::new(ApprovalRows::new(rows));
        effective
    }

    /// Applies the overlays to a list.
    fn overlaid(&self, offered: &[Prompt], effective: &mut Effective) -> Vec<Prompt> {
        let mut prompts = Vec::with_capacity(offered.len());
        for prompt in offered {
            match overlay::apply(self.overlays, prompt) {
                Overlaid::Unchanged => prompts.push(prompt.clone()),
                Overlaid::Changed(prompt) => prompts.push(prompt),
                Overlaid::Dropped(number) => {
                    let reason = format!("dropped by {}", overlay::key(number));
                    let raw_name = prompt.name.clone();
                    let by = LeftOutBy::Overlay;
                    let upstream = self.upstream.to_string();
                    effective.left_out.push(LeftOut { upstream, raw_name, reason, by });
                }
            }
        }
        prompts
    }

    /// Decides on all prompts of a list, and adds the versions to serve.
    fn compare_all(
        &self,
        prompts: Vec<Prompt>,
        rows: &mut Vec<ApprovalRow>,
        effective: &mut Effective,
    ) {
        let versions: Vec<_> = prompts.iter().map(NamedVersion::of).collect();
        let contents = VersionContents::of(&prompts, &versions, self.items());
        let mut version_rows = BTreeMap::<String, ApprovalRow>::new();
        for (prompt, version) in prompts.into_iter().zip(versions) {
            let Some(version) = version.filter(|version| contents.has(version)) else {
                rows.push(self.compare(prompt, effective));
                continue;
            };
            let name = version.content.name.clone();
            let new = || self.version_row(version, &contents);
            let row = version_rows.entry(name).or_insert_with(new);
            self.add_version(prompt, row, &contents, effective);
        }
        rows.extend(version_rows.into_values());
    }

    /// Returns the row of a version, which all its names share.
    fn version_row(&self, version: NamedVersion, contents: &VersionContents) -> ApprovalRow {
        let NamedVersion { content, definition } = version;
        let offered = self.offered(content.into(), definition);
        let name = &offered.prompt.name;
        let approval = contents.approval(name, self.items());
        let decision = decide(self.approvals.mode, approval, &offered.version, || true);
        let mut row = self.row(name, name, decision);
        row.approval = approval.cloned();
        row.offered = Some(offered);
        row
    }

    /// Returns the offered version of a prompt, with the texts that are known of its definition.
    fn offered(&self, prompt: Arc<Prompt>, definition: Arc<str>) -> OfferedPrompt {
        let known = self.texts.get(prompt.name.as_str());
        let known = known.filter(|known| known.definition == definition);
        let texts_since = known.map(|known| known.since);
        let version = Offered {
            definition,
            source: prompt.source.as_ref().map(|source| source.digest.clone()),
            texts: known.map(|known| known.texts.clone()).unwrap_or_default(),
            files: Files::new(),
        };
        OfferedPrompt { prompt, skill: None, version, texts_since }
    }

    /// Adds a name of a version. Where the version is not approved and approvals are enforced, the
    /// name serves the last approved version.
    fn add_version(
        &self,
        prompt: Prompt,
        row: &mut ApprovalRow,
        contents: &VersionContents,
        effective: &mut Effective,
    ) {
        let public_name = self.public_name(prompt.listed_name());
        if public_name != row.public_name {
            row.aliases.push(public_name);
        }
        let state = row.decision.state;
        if state == ApprovalState::Approved || !self.items().is_enforced() {
            let approval = self.prompt_approval(state, row.approval.as_ref());
            effective.approvals.push(approval);
            effective.prompts.push(in_canonical_form(prompt));
            return;
        }
        let served = self.before.and_then(|before| before.served_source(&prompt.name));
        match contents.held(&prompt, &row.raw_name, served, self.items()) {
            Some(Ok(HeldVersion { prompt, approval })) => {
                // The state of the served version: rules for approved prompts go on to allow it.
                let approval = self.prompt_approval(ApprovalState::Approved, Some(approval));
                effective.approvals.push(PromptApproval { is_held: true, ..approval });
                effective.prompts.push(prompt);
                return;
            }
            Some(Err(problem)) => row.problem = Some(problem),
            None => {}
        }
        let raw_name = prompt.name;
        effective.left_out.push(LeftOut { raw_name, ..self.items().held_back(row) });
    }

    /// Decides on one prompt, and adds the version to serve.
    fn compare(&self, prompt: Prompt, effective: &mut Effective) -> ApprovalRow {
        let prompt = Arc::new(in_canonical_form(prompt));
        let definition = seal::definition_digest(&prompt).into();
        let offered = self.offered(prompt.clone(), definition);
        let approval = self.items().of(&prompt.name);
        let approved = approval
            .and_then(|approval| approval.approved.as_ref())
            .map(|decided| &decided.version);
        // The approved form is read only if the offered form differs.
        let mut form = None;
        let decision = decide(self.approvals.mode, approval, &offered.version, || {
            let version = approved.expect("only an approved form is compared");
            let read = self.approvals.approved_form(version, &prompt);
            let fits = read.as_ref().map_or(true, |form| requires_no_more(&prompt, form));
            form = Some(read);
            fits
        });
        let mut row = self.row(&prompt.name, prompt.listed_name(), decision);
        row.offered = Some(offered);
        let served = match (decision.serving, form) {
            (Serving::Offered, _) => Some((*prompt).clone()),
            (Serving::Approved, Some(Ok(form))) => Some(form),
            (Serving::Approved, Some(Err(problem))) => {
                row.problem = Some(problem);
                None
            }
            (Serving::Approved, None) | (Serving::Nothing, _) => None,
        };
        match served {
            Some(served) => {
                effective.prompts.push(served);
                effective.approvals.push(self.prompt_approval(decision.state, approval));
            }
            None => effective.left_out.push(self.items().held_back(&row)),
        }
        row
    }

    /// Adds the approvals of prompts that are not offered. Without a list, prompts with a snapshot
    /// are served.
    fn add_unoffered(
        &self,
        has_list: bool,
        is_offered: impl Fn(&str) -> bool,
        rows: &mut Vec<ApprovalRow>,
        effective: &mut Effective,
    ) {
        for (raw_name, approval, decision) in self.items().unoffered(rows, is_offered) {
            let known = Prompt::named(raw_name);
            let known = match overlay::apply(self.overlays, &known) {
                Overlaid::Changed(prompt) => prompt,
                Overlaid::Unchanged => known,
                Overlaid::Dropped(_) => continue,
            };
            let mut row = self.row(raw_name, known.listed_name(), decision);
            let version = approval.approved.as_ref().map(|decided| &decided.version);
            let has_snapshot = !has_list && self.approvals.snapshot && self.items().is_enforced();
            let version = version.filter(|version| has_snapshot && !version.texts.is_empty());
            if let Some(version) = version {
                match self.approvals.approved_form(version, &known) {
                    Ok(form) => {
                        row.decision.serving = Serving::Approved;
                        effective.prompts.push(form);
                        let approval =
                            self.prompt_approval(ApprovalState::Approved, Some(approval));
                        effective.approvals.push(PromptApproval {
                            availability: Availability::SnapshotOnly,
                            ..approval
                        });
                    }
                    Err(problem) => row.problem = Some(problem),
                }
            }
            rows.push(row);
        }
    }

    fn prompt_approval(&self, state: ApprovalState, approval: Option<&Approval>) -> PromptApproval {
        let version = approval
            .and_then(|approval| approval.approved.as_ref())
            .map(|decided| &decided.version);
        let version = version.filter(|version| version.class() != Class::Definition);
        self.items().served(state, Availability::Listed, version)
    }

    fn items(&self) -> ItemApprovals<'_> {
        let kind = ApprovalKind::Prompt;
        ItemApprovals { kind, upstream: self.upstream, settings: self.approvals }
    }

    fn row(&self, raw_name: &str, listed_name: &str, decision: Decision) -> ApprovalRow {
        self.items().row(raw_name, self.public_name(listed_name), decision)
    }

    fn public_name(&self, listed_name: &str) -> String {
        let public_name = self.naming.public(self.prefix, listed_name);
        public_name.unwrap_or_else(|_| listed_name.to_owned())
    }
}

/// Returns the prompt in the form that would be approved, so that the list is the same, byte for
/// byte, whichever form is served.
fn in_canonical_form(prompt: Prompt) -> Prompt {
    Prompt::approved(Json::accepted(&prompt.canonical()), &prompt).unwrap_or(prompt)
}

/// Whether an approved form can replace the offered form: it has every argument that the upstream
/// requires, and no argument that an overlay now presets.
fn requires_no_more(offered: &Prompt, approved: &Prompt) -> bool {
    let mut required = offered.arguments.iter().filter(|argument| argument.required);
    let overlay = offered.overlay.as_deref();
    let is_preset = |name: &str| overlay.is_some_and(|overlay| overlay.is_preset(name));
    required.all(|argument| approved.arguments.iter().any(|known| known.name == argument.name))
        && !approved.arguments.iter().any(|argument| is_preset(&argument.name))
}
