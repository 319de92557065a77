//! Approvals of versions: a decision is on the content of a version, whichever names offer it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::item_approvals::ItemApprovals;
use base::seal;
use domain::approval::{Approval, Decided, Files, Offered, Version};
use domain::name::VERSION_MARK;
use domain::prompts::prompt::Prompt;

/// The contents of the versions that one upstream offers.
#[derive(Debug, Default)]
pub(crate) struct VersionContents {
    /// The definitions by the names of the contents.
    definitions: HashMap<String, Arc<str>>,
    /// The digests of the sources.
    sources: HashSet<Arc<str>>,
    /// Approvals that a lock file has under other names of the contents.
    former: HashMap<String, Approval>,
}

/// A version of a prompt under one of its names.
pub(crate) struct NamedVersion {
    /// The form on which people decide.
    pub content: Prompt,
    pub definition: Arc<str>,
}

impl NamedVersion {
    /// Returns the version of a prompt; `None` if the prompt has none.
    pub(crate) fn of(prompt: &Prompt) -> Option<Self> {
        let content = prompt.content()?;
        let definition = seal::definition_digest(&content).into();
        Some(Self { content, definition })
    }
}

/// An approved version that a name serves in place of an unapproved version.
pub(crate) struct HeldVersion<'a> {
    pub prompt: Prompt,
    pub approval: &'a Approval,
}

impl VersionContents {
    /// `versions` are those of the prompts, by position.
    pub(crate) fn of(
        prompts: &[Prompt],
        versions: &[Option<NamedVersion>],
        items: ItemApprovals<'_>,
    ) -> Self {
        let mut contents = Self::default();
        let versions = prompts.iter().zip(versions);
        let versions = versions.filter_map(|(prompt, version)| Some((prompt, version.as_ref()?)));
        let (own, aliases): (Vec<_>, Vec<_>) =
            versions.partition(|(prompt, version)| prompt.name == version.content.name);
        for (prompt, NamedVersion { content, definition }) in own.iter().chain(&aliases) {
            let is_labelled = prompt.version.as_ref().is_some_and(|own| own.label.is_some());
            let is_known = contents.definitions.contains_key(&content.name);
            // The `version` of a plain file is a remark: the prompt has no other versions.
            if !(is_labelled || is_known || prompt.name == content.name) {
                continue;
            }
            contents.sources.extend(prompt.source.as_ref().map(|source| source.digest.clone()));
            let name = content.name.clone();
            contents.definitions.entry(name).or_insert_with(|| definition.clone());
        }
        for (prompt, version) in aliases {
            let name = &version.content.name;
            if items.of(name).is_none()
                && let Some(approval) = former(prompt, version, items)
            {
                contents.former.entry(name.clone()).or_insert(approval);
            }
        }
        contents
    }

    /// Whether a version is decided on together with its other names. A plain file is not, nor a
    /// name to which overlays give another definition.
    pub(crate) fn has(&self, version: &NamedVersion) -> bool {
        self.definitions.get(&version.content.name) == Some(&version.definition)
    }

    /// Returns the approval of a content.
    pub(crate) fn approval<'a>(
        &'a self,
        content: &str,
        items: ItemApprovals<'a>,
    ) -> Option<&'a Approval> {
        items.of(content).or_else(|| self.former.get(content))
    }

    /// Returns the approved version that a name serves while the version that it offers is not
    /// approved: the version with the source that it has `served`, else the version that was
    /// approved last. A name such as `NAME@3` serves no other version.
    pub(crate) fn held<'a>(
        &'a self,
        prompt: &Prompt,
        content: &str,
        served: Option<&Arc<str>>,
        items: ItemApprovals<'a>,
    ) -> Option<Result<HeldVersion<'a>, String>> {
        let of = &*prompt.version.as_ref()?.of;
        let own = self.approval(content, items);
        if own.is_some_and(is_withdrawn) {
            return None;
        }
        let others = items.versions_of(of).chain(self.former_of(of));
        let others = others.filter(|_| prompt.name != content);
        // A lock file of before may approve under a label the text that was withdrawn since.
        let rejected: HashSet<_> = items.versions_of(of).filter_map(rejected_source).collect();
        let candidates = own.into_iter().chain(others).filter_map(approved).filter(|candidate| {
            candidate.decided.version.source.as_ref().is_some_and(|own| !rejected.contains(own))
        });
        let chosen = candidates.max_by_key(|candidate| {
            let source = candidate.decided.version.source.as_ref();
            let is_served = source.is_some() && source == served;
            let is_offered = source.is_some_and(|source| self.sources.contains(source));
            (is_served, is_offered, &candidate.decided.attribution.at)
        })?;
        let form = items.settings.approved_version(&chosen.decided.version, prompt);
        Some(form.map(|prompt| HeldVersion { prompt, approval: chosen.approval }))
    }

    fn former_of(&self, of: &str) -> impl Iterator<Item = &Approval> {
        let is_of = move |name: &str| {
            name.strip_prefix(of).is_some_and(|rest| rest.starts_with(VERSION_MARK))
        };
        self.former.iter().filter(move |(name, _)| is_of(name)).map(|(_, approval)| approval)
    }
}

/// An approval with its approved version.
struct Candidate<'a> {
    approval: &'a Approval,
    decided: &'a Decided,
}

/// Whether the rejected version was approved before: a withdrawn version is withdrawn at every name
/// that offers it.
fn is_withdrawn(approval: &Approval) -> bool {
    let rejected = approval.rejected.as_ref().map(|rejected| &rejected.version);
    let mut previous = approval.previous.iter();
    approval.approved.is_none() && previous.any(|previous| Some(&previous.version) == rejected)
}

fn rejected_source(approval: &Approval) -> Option<&Arc<str>> {
    approval.rejected.as_ref()?.version.source.as_ref()
}

fn approved(approval: &Approval) -> Option<Candidate<'_>> {
    let decided = approval.approved.as_ref()?;
    Some(Candidate { approval, decided })
}

/// Returns the approval of a version that a lock file has under a label or the plain name, as an
/// earlier promptgate wrote it.
fn former(prompt: &Prompt, version: &NamedVersion, items: ItemApprovals<'_>) -> Option<Approval> {
    let decided = items.of(&prompt.name)?.approved.as_ref()?;
    let source = prompt.source.as_ref().map(|source| source.digest.clone());
    let definition = seal::definition_digest(prompt).into();
    let texts = Default::default();
    let offered = Offered { definition, source, texts, files: Files::new() };
    let version = Version { definition: version.definition.clone(), ..decided.version.clone() };
    let attribution = decided.attribution.clone();
    let approval =
        Approval { approved: Some(Decided { version, attribution }), ..Approval::default() };
    decided.version.matches(&offered).then_some(approval)
}
