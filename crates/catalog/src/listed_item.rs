//! A prompt or a skill as the catalog lists it.

use std::sync::Arc;

use super::approval::{ApprovalRow, PromptApproval};
use domain::calls::rights::PromptRef;
use domain::json::document::Document;
use domain::name::{Prefix, UpstreamId};
use domain::prompts::call_overlay::CallOverlay;
use domain::prompts::prompt::Argument;
use domain::prompts::prompt_version::PromptVersion;
use domain::prompts::skill::Skill;

/// A listed prompt or skill: the upstream and raw name behind a public name, and its approval.
#[derive(Debug)]
pub struct ListedItem {
    pub public_name: Arc<str>,
    pub upstream: UpstreamId,
    pub raw_name: Arc<str>,
    pub arguments: Box<[Argument]>,
    /// `sha256:…` of the effective definition, before prefixes.
    pub digest: Arc<str>,
    /// Changes by overlays to calls; `None` if no overlay matches the prompt.
    pub overlay: Option<Arc<CallOverlay>>,
    pub approval: PromptApproval,
    /// The version behind a library prompt, if it has one.
    pub version: Option<Arc<PromptVersion>>,
    pub stands_for: StandsFor,
}

/// The counterpart of a listed item of the other kind: upstreams may offer skills as prompts, and
/// prompts as skills.
#[derive(Debug, Default)]
pub enum StandsFor {
    #[default]
    Itself,
    /// The skill of a prompt, whose path is the raw name of the item.
    Skill(Arc<ListedSkill>),
    /// The public name of the prompt of a skill, which has the raw name, approval and digest of the
    /// item.
    Prompt(Arc<str>),
}

/// A skill behind the prefix of its upstream.
#[derive(Clone, Debug)]
pub struct ListedSkill {
    /// The public URI of its `SKILL.md`.
    pub uri: Arc<str>,
    pub prefix: Prefix,
    pub skill: Arc<Skill>,
    /// The result of reading its `SKILL.md`, if the skill is derived from a prompt.
    pub text: Option<Document>,
}

// `text` is not compared: the skill holds its digest.
impl PartialEq for ListedSkill {
    fn eq(&self, other: &Self) -> bool {
        self.prefix == other.prefix && self.skill == other.skill
    }
}

impl Eq for ListedSkill {}

impl ListedItem {
    /// The offered version of a prompt, as it would be listed; `None` if it is not offered.
    pub fn offered(row: &ApprovalRow) -> Option<Self> {
        let offered = row.offered.as_ref()?;
        Some(Self {
            public_name: row.public_name.as_str().into(),
            upstream: row.upstream.clone(),
            raw_name: row.raw_name.clone(),
            arguments: offered.prompt.arguments.as_slice().into(),
            digest: offered.version.definition.clone(),
            overlay: offered.prompt.overlay.clone(),
            approval: PromptApproval { state: row.decision.state, ..PromptApproval::default() },
            version: offered.prompt.version.clone(),
            stands_for: StandsFor::Itself,
        })
    }

    /// Whether the prompt is a version of another prompt (`NAME@LABEL`, `NAME@3`). Only views with
    /// `versions` list and serve versions.
    pub fn is_version(&self) -> bool {
        self.version.as_ref().is_some_and(|version| version.is_apart(&self.raw_name))
    }

    /// The skill that the prompt stands for.
    pub fn skill(&self) -> Option<&Arc<ListedSkill>> {
        match &self.stands_for {
            StandsFor::Skill(skill) => Some(skill),
            StandsFor::Itself | StandsFor::Prompt(_) => None,
        }
    }

    /// The public name of the prompt that the skill stands for.
    pub fn prompt_name(&self) -> Option<&Arc<str>> {
        match &self.stands_for {
            StandsFor::Prompt(name) => Some(name),
            StandsFor::Itself | StandsFor::Skill(_) => None,
        }
    }

    /// The public name in views, metrics and usage: that of the prompt that a skill stands for, or
    /// its own.
    pub fn known_name(&self) -> &Arc<str> {
        self.prompt_name().unwrap_or(&self.public_name)
    }

    /// The public name under which uses are counted: that of the skill that a prompt stands for, or
    /// its own.
    pub fn counted_name(&self) -> &Arc<str> {
        self.skill().map_or(&self.public_name, |skill| &skill.uri)
    }

    /// The prompt in the form that access decisions use.
    pub fn prompt(&self) -> PromptRef<'_> {
        PromptRef {
            upstream: self.upstream.as_str(),
            raw_name: &self.raw_name,
            state: self.approval.state,
        }
    }
}
