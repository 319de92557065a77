//! A prompt or a skill as the catalog lists it.

use std::sync::Arc;

use super::approval::PromptApproval;
use domain::call_overlay::CallOverlay;
use domain::document::Document;
use domain::name::{Prefix, UpstreamId};
use domain::prompt::Argument;
use domain::prompt_version::PromptVersion;
use domain::rights::PromptRef;
use domain::skill::Skill;

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
    /// The skill that the prompt stands for. Its path is then the raw name.
    pub skill: Option<Arc<ListedSkill>>,
    /// The public name of the prompt that the skill stands for, which has its raw name, approval
    /// and digest.
    pub prompt_name: Option<Arc<str>>,
}

/// A skill behind the prefix of its upstream.
#[derive(Clone, Debug)]
pub struct ListedSkill {
    /// The public URI of its `SKILL.md`.
    pub uri: Arc<str>,
    pub prefix: Prefix,
    pub skill: Arc<Skill>,
    /// The result of reading its `SKILL.md`, if it stands for a prompt.
    pub text: Option<Document>,
}

// The digest of the text is in the skill.
impl PartialEq for ListedSkill {
    fn eq(&self, other: &Self) -> bool {
        self.prefix == other.prefix && self.skill == other.skill
    }
}

impl Eq for ListedSkill {}

impl ListedItem {
    /// Whether it is a version of another prompt (`NAME@LABEL`, `NAME@3`), which only views with
    /// `versions` list and serve.
    pub fn is_version(&self) -> bool {
        self.version.as_ref().is_some_and(|version| version.is_apart(&self.raw_name))
    }

    /// The public name that views, metrics and usage know it by: that of the prompt, if it is a
    /// skill that stands for one.
    pub fn known_name(&self) -> &Arc<str> {
        self.prompt_name.as_ref().unwrap_or(&self.public_name)
    }

    /// The public name under which its uses are counted: of a prompt that stands for a skill, that
    /// of the skill.
    pub fn counted_name(&self) -> &Arc<str> {
        self.skill.as_ref().map_or(&self.public_name, |skill| &skill.uri)
    }

    /// The prompt, as access decisions see it.
    pub fn prompt(&self) -> PromptRef<'_> {
        PromptRef {
            upstream: self.upstream.as_str(),
            raw_name: &self.raw_name,
            state: self.approval.state,
        }
    }
}
