//! Presents a private list under the overlays, approvals and names of the configuration.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use tracing::debug;

use crate::approval::PromptApproval;
use crate::blocking::{MERGED_AT_ONCE, run_blocking};
use crate::effective::{Effective, KnownTexts, Maker};
use crate::segment::{Segment, SegmentWriter};
use crate::skills::catalog::{SkillGroup, SkillSource};
use crate::skills::prompts::{SkillPrompts, UpstreamPrompts};
use crate::source::{UpstreamSource, composed};
use domain::fault::UpstreamFaultKind as Kind;
use domain::name::Naming;
use domain::prompts::merge;
use domain::prompts::skill::Skill;
use library::prompt_list::PromptList;

/// The prompts of a list with the prompts derived from its skills, and the skills.
pub(super) struct Presented {
    pub prompts: Segment,
    pub skills: SkillGroup,
    /// The skills in the form that the upstream listed.
    pub listed_skills: Arc<[Arc<Skill>]>,
    /// Why the skills could not be listed.
    pub skills_failure: Option<Kind>,
}

impl Presented {
    /// Presents a list. Large lists are merged outside the threads of calls.
    pub(super) async fn of(
        source: Arc<UpstreamSource>,
        naming: Naming,
        listed: PromptList,
    ) -> Self {
        let are_few = listed.prompts.len() + listed.skills.len() <= MERGED_AT_ONCE;
        let merge = move || Self::merge(&source, &naming, &listed);
        if are_few { merge() } else { run_blocking(merge).await }
    }

    fn merge(source: &UpstreamSource, naming: &Naming, listed: &PromptList) -> Self {
        let effective = effective(source, naming, listed);
        let effective = effective.as_ref();
        let prompts = effective.map_or(&*listed.prompts, |effective| &effective.prompts);
        let skills = effective.map_or(&*listed.skills, |effective| &effective.skills);
        let approvals = effective.map_or(&[][..], |effective| &effective.skill_approvals);
        let offered_skills = SkillSource::own(source, skills, approvals);
        // The prefix belongs to this upstream alone, so neither a URI nor a name collides.
        let (skills, mut left_out) = SkillGroup::merge(&[offered_skills], &HashSet::new());
        let (of_skills, unnamed) = SkillPrompts::of(
            &skills,
            &[UpstreamPrompts {
                upstream: &source.id,
                prompts,
                offered: &listed.prompts,
                skills_as_prompts: source.skills_as_prompts,
            }],
        );
        left_out.extend(unnamed);
        let bridged = of_skills.iter().flat_map(|of_skills| &of_skills.prompts);
        let all: Cow<'_, [_]> = match bridged.clone().next() {
            None => prompts.into(),
            Some(_) => prompts.iter().chain(bridged).cloned().collect(),
        };
        let sources = [merge::MergeSource { prefix: &source.prefix, prompts: &all }];
        let merged = merge::merge(&sources, &HashSet::new(), naming, composed);
        let mut writer = SegmentWriter::new(Some(source.id.clone()));
        for entry in &merged.entries {
            match (entry.prompt.checked_sub(prompts.len()), of_skills.first()) {
                (Some(at), Some(of_skills)) => {
                    of_skills.write(at, &source.id, &entry.public_name, &mut writer);
                }
                _ => {
                    let prompt = &all[entry.prompt];
                    writer.push_merged(&source.id, entry, prompt, PromptApproval::default());
                }
            }
        }
        let left_out = merged.left_out.len() + left_out.len();
        if left_out > 0 {
            debug!(upstream = %source.id, left_out, "prompts left out of the list of a caller");
        }
        let skills_failure = listed.skills_failure.clone();
        let listed_skills = listed.skills.as_slice().into();
        Self { prompts: writer.finish(), skills, listed_skills, skills_failure }
    }
}

/// Applies overlays and approvals to the list; `None` without overlays and approvals.
fn effective(source: &UpstreamSource, naming: &Naming, listed: &PromptList) -> Option<Effective> {
    let maker = Maker {
        upstream: &source.id,
        prefix: &source.prefix,
        naming,
        overlays: &source.overlays,
        approvals: &source.approvals,
        texts: &KnownTexts::new(),
        before: None,
    };
    (!maker.is_idle()).then(|| maker.make(Some(&listed.prompts), Some(&listed.skills)))
}
