//! Skills as prompts (`expose_skills`): a served skill becomes a prompt, too, if its upstream is
//! configured so.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::catalog::SkillGroup;
use crate::approval::PromptApproval;
use crate::listed_item::{ListedItem, ListedSkill, StandsFor};
use crate::segment::SegmentWriter;
use crate::snapshot::{LeftOut, LeftOutBy};
use crate::source::composed;
use domain::name::UpstreamId;
use domain::prompts::prompt::Prompt;
use domain::prompts::skill_prompt::prompt_of;

/// The prompts of one upstream of a group, and whether its skills are prompts, too.
pub struct UpstreamPrompts<'a> {
    pub upstream: &'a UpstreamId,
    /// The served prompts.
    pub prompts: &'a [Prompt],
    /// The prompts that the upstream lists; a withheld prompt keeps its name, too.
    pub offered: &'a [Prompt],
    pub skills_as_prompts: bool,
}

/// The prompts derived from skills of one upstream, and the skills in the same order.
#[derive(Default)]
pub(crate) struct SkillPrompts {
    pub prompts: Vec<Prompt>,
    skills: Vec<StandFor>,
}

/// The served skill behind a derived prompt.
struct StandFor {
    listed: Arc<ListedSkill>,
    /// The digest of the skill's entry.
    digest: Arc<str>,
    approval: PromptApproval,
}

impl SkillPrompts {
    /// Derives prompts from the served skills of a group, by source. Also returns the skills whose
    /// prompts would share a name with another prompt.
    pub(crate) fn of(
        group: &SkillGroup,
        sources: &[UpstreamPrompts<'_>],
    ) -> (Vec<Self>, Vec<LeftOut>) {
        let mut all: Vec<Self> = sources.iter().map(|_| Self::default()).collect();
        let mut left_out = Vec::new();
        if !sources.iter().any(|source| source.skills_as_prompts) {
            return (all, left_out);
        }
        let bridged = || {
            let source = |item: &ListedItem| {
                let is_own =
                    |s: &UpstreamPrompts<'_>| s.skills_as_prompts && *s.upstream == item.upstream;
                sources.iter().position(is_own)
            };
            group.served().filter_map(move |(item, listed)| Some((source(item)?, item, listed)))
        };
        let prompts = sources.iter().flat_map(|source| source.prompts.iter().chain(source.offered));
        let taken: HashSet<_> = prompts.map(|prompt| composed(prompt.listed_name())).collect();
        let mut claims: HashMap<&str, usize> = HashMap::new();
        for (_, _, listed) in bridged() {
            *claims.entry(listed.skill.name()).or_default() += 1;
        }
        for (at, item, listed) in bridged() {
            let name = listed.skill.name();
            // Without digests, the text of the prompt could not be checked.
            let why = if listed.skill.is_dynamic() {
                "its files have no digests".to_owned()
            } else if taken.contains(name) || claims[name] > 1 {
                format!("{name:?} has another one")
            } else {
                all[at].push(item, listed);
                continue;
            };
            let upstream = item.upstream.to_string();
            let reason = format!("no prompt stands for the skill: {why}");
            let raw_name = item.raw_name.to_string();
            left_out.push(LeftOut { upstream, raw_name, reason, by: LeftOutBy::Name });
        }
        (all, left_out)
    }

    fn push(&mut self, item: &ListedItem, listed: &ListedSkill) {
        self.prompts.push(prompt_of(&listed.skill));
        self.skills.push(StandFor {
            listed: Arc::new(listed.clone()),
            digest: item.digest.clone(),
            approval: item.approval.clone(),
        });
    }

    /// Writes a derived prompt under its public name.
    pub(crate) fn write(
        &self,
        at: usize,
        upstream: &UpstreamId,
        public_name: &str,
        writer: &mut SegmentWriter,
    ) {
        let prompt = &self.prompts[at];
        let skill = &self.skills[at];
        let item = ListedItem {
            public_name: public_name.into(),
            upstream: upstream.clone(),
            raw_name: prompt.name.as_str().into(),
            arguments: prompt.arguments.as_slice().into(),
            digest: skill.digest.clone(),
            overlay: None,
            approval: skill.approval.clone(),
            version: None,
            stands_for: StandsFor::Skill(skill.listed.clone()),
        };
        writer.push_prompt(item, |out| {
            prompt.via.write_element(out, |out| prompt.write(public_name, out));
        });
    }
}
