//! Approvals: which version of a prompt was approved, and what becomes of the version that its
//! upstream offers.

mod approver;
mod class;
pub mod decide;
mod decider;
mod form;
pub mod markdown;
pub mod template;
mod text;

pub use approver::{ApproverProof, Attribution, is_same_name};
pub use class::Class;
pub use decide::{Decision, Reason, Serving, decide, decide_skill};
pub use decider::{BadReason, Decider};
pub use form::Form;
pub use template::TemplateArguments;
pub use text::canonical_text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A digest as text: `sha256:` and 64 hexadecimal digits.
pub type DigestText = Arc<str>;

/// The kind of what is approved. Names of one kind say nothing about those of the other.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ApprovalKind {
    #[default]
    Prompt,
    /// Its raw name is the path of its folder.
    Skill,
}

impl ApprovalKind {
    /// Returns the word for it in the lock file, in records and in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Skill => "skill",
        }
    }
}

/// The treatment of prompts that are not approved (`approval`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// Nothing is compared.
    #[default]
    Off,
    /// Everything is served; versions that are not approved are reported.
    Warn,
    /// Only approved versions are served.
    Enforce,
}

impl Mode {
    /// Returns the name of the mode in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

/// The state of a prompt.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ApprovalState {
    /// The mode of its upstream is `off`.
    #[default]
    Unchecked,
    /// No version of it was ever approved.
    Pending,
    /// The offered version is the approved one.
    Approved,
    /// A version other than the approved one is offered, and there is no decision on it.
    Changed,
    /// The offered version was rejected.
    Rejected,
}

impl ApprovalState {
    /// All states, in the order of their names in access rules.
    pub const ALL: [Self; 5] =
        [Self::Approved, Self::Changed, Self::Pending, Self::Rejected, Self::Unchecked];

    /// Returns the name of the state, as access rules and commands use it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unchecked => "unchecked",
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Changed => "changed",
            Self::Rejected => "rejected",
        }
    }
}

/// One version of a prompt, by the digests of its parts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Version {
    /// Of the effective definition.
    pub definition: DigestText,
    /// Of the file of a library prompt, with the files that it embeds.
    pub source: Option<DigestText>,
    /// Of the results for some arguments; empty if the text cannot be had.
    pub texts: Texts,
    /// Of further results for the same arguments, which callers got: each is as good as the text.
    pub variants: BTreeSet<(Arc<str>, DigestText)>,
    /// Of the files of a skill, whose definition has them, too; empty for a prompt.
    pub files: Files,
}

/// The digests of the files of a skill, by their paths in its folder.
pub type Files = BTreeMap<Arc<str>, DigestText>;

/// The digests of texts, by their arguments: an object of strings in canonical form (RFC 8785).
pub(crate) type Texts = BTreeMap<Arc<str>, DigestText>;

/// The arguments of a get that gives none.
pub const NO_ARGUMENTS: &str = "{}";

/// A version with the decision on it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Decided {
    pub version: Version,
    pub attribution: Attribution,
}

/// The entry of one prompt in the lock file. At least one of its parts is there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Approval {
    pub approved: Option<Decided>,
    pub rejected: Option<Decided>,
    /// A version that one of two people has approved. Another version makes it void.
    pub pending: Option<Decided>,
    /// Versions that were approved before, the newest first.
    pub previous: Vec<Decided>,
}

/// Earlier versions that an approval keeps: for `rollback`, and with them their objects.
pub const MAX_PREVIOUS: usize = 5;

/// The known state of a text that an upstream offers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OfferedText {
    Known(DigestText),
    /// Two gets gave different texts.
    Unstable,
}

/// The version that an upstream offers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Offered {
    pub definition: DigestText,
    pub source: Option<DigestText>,
    /// By their arguments, as in [`Texts`]; not there as long as a text was not asked for.
    pub texts: BTreeMap<Arc<str>, OfferedText>,
    /// As in [`Version`].
    pub files: Files,
}

impl Offered {
    /// The version, with only the texts that are known and stable.
    pub fn version(&self) -> Version {
        let known = self.texts.iter().filter_map(|(arguments, text)| match text {
            OfferedText::Known(digest) => Some((arguments.clone(), digest.clone())),
            OfferedText::Unstable => None,
        });
        Version {
            definition: self.definition.clone(),
            source: self.source.clone(),
            texts: known.collect(),
            variants: BTreeSet::new(),
            files: self.files.clone(),
        }
    }
}

impl Version {
    /// Whether this can be the version that is offered: nothing that is known of both differs.
    pub fn matches(&self, offered: &Offered) -> bool {
        let is_same_source = match (&self.source, &offered.source) {
            (Some(ours), Some(theirs)) => ours == theirs,
            (Some(_), None) => false,
            (None, _) => true,
        };
        let is_same_text = |(arguments, text): (&Arc<str>, &DigestText)| {
            offered.texts.get(arguments).is_none_or(|known| match known {
                OfferedText::Known(known) => known == text || self.is_variant(arguments, known),
                OfferedText::Unstable => false,
            })
        };
        self.definition == offered.definition
            && is_same_source
            && self.texts.iter().all(is_same_text)
    }

    /// Whether both can be the same version: nothing that is known of both differs.
    pub fn is_compatible_with(&self, other: &Self) -> bool {
        let is_same_text = |(arguments, text): (&Arc<str>, &DigestText)| {
            other.texts.get(arguments).is_none_or(|known| known == text)
        };
        self.definition == other.definition
            && self.source == other.source
            && self.texts.iter().all(is_same_text)
    }

    /// Whether a text is one of the variants for these arguments.
    pub fn is_variant(&self, arguments: &Arc<str>, text: &DigestText) -> bool {
        // Most versions have none.
        self.variants.iter().any(|(own, variant)| own == arguments && variant == text)
    }

    /// Takes over the variants of an approved version of the same definition, for the arguments for
    /// which both have the same text. A text that is a variant there is one here, too.
    pub fn keep_variants(&mut self, approved: &Self) {
        if self.definition != approved.definition || self.source != approved.source {
            return;
        }
        for (arguments, text) in &mut self.texts {
            if let Some(main) = approved.texts.get(arguments)
                && approved.is_variant(arguments, text)
            {
                *text = main.clone();
            }
        }
        let stay = approved
            .variants
            .iter()
            .filter(|(arguments, _)| self.texts.get(arguments) == approved.texts.get(arguments));
        self.variants = stay.cloned().collect();
    }

    /// Whether one of its texts has places for arguments.
    pub fn has_templates(&self) -> bool {
        self.texts.keys().any(|arguments| TemplateArguments::read(arguments).is_some())
    }

    /// Returns the digests of its texts and their variants.
    pub fn text_digests(&self) -> impl Iterator<Item = &DigestText> {
        self.texts.values().chain(self.variants.iter().map(|(_, text)| text))
    }

    /// Returns all digests, which are the names of the objects that belong to the version.
    pub fn digests(&self) -> impl Iterator<Item = &DigestText> {
        let other = [&self.definition].into_iter().chain(&self.source);
        other.chain(self.text_digests()).chain(self.files.values())
    }
}

impl Approval {
    /// Approves a version. The one that was approved before stays among the previous ones.
    pub fn approve(&mut self, version: Version, attribution: Attribution) {
        self.previous.retain(|previous| previous.version != version);
        if !self.is_approved(&version) {
            self.retire();
        }
        self.rejected = self.rejected.take().filter(|rejected| rejected.version != version);
        self.pending = None;
        self.approved = Some(Decided { version, attribution });
    }

    /// Approves a version as one of two people: the first approval is kept, and the second one, by
    /// another person, approves. Returns whether the version is approved now.
    ///
    /// # Errors
    /// The first approval of this version is by the same person.
    pub fn approve_by_two(
        &mut self,
        version: Version,
        attribution: Attribution,
    ) -> Result<bool, String> {
        let first = self.pending.take().filter(|first| first.version == version);
        let Some(first) = first else {
            self.pending = Some(Decided { version, attribution });
            return Ok(false);
        };
        if first.attribution.is_by_same(&attribution) {
            let by = first.attribution.by.clone();
            let hint = match attribution.proof {
                ApproverProof::SharedToken => {
                    ", by a sign-in or a token of that person (admin.tokens)"
                }
                _ => "",
            };
            self.pending = Some(first);
            return Err(format!(
                "{by} has approved it already; another person must approve it, too{hint} (approvals.approvers = 2)"
            ));
        }
        self.approve(version, first.attribution.with_second(attribution));
        Ok(true)
    }

    /// Takes an approval back: no version is approved afterwards, and the one that was is rejected.
    /// Returns it; `None` if none is approved.
    pub fn withdraw(&mut self, attribution: Attribution) -> Option<Version> {
        let version = self.approved.as_ref()?.version.clone();
        self.retire();
        self.rejected = Some(Decided { version: version.clone(), attribution });
        Some(version)
    }

    /// Rejects a version. If it is the approved one, as far as both are known, no version is
    /// approved afterwards. Returns the version with all its known texts.
    pub fn reject(&mut self, version: Version, attribution: Attribution) -> Version {
        let approved = self.approved.as_ref().map(|approved| &approved.version);
        let approved = approved.filter(|approved| approved.is_compatible_with(&version)).cloned();
        if approved.is_some() {
            self.retire();
        }
        // With all of its texts, also where they could not be had now.
        let version = approved.unwrap_or(version);
        self.pending = self.pending.take().filter(|pending| pending.version != version);
        self.rejected = Some(Decided { version: version.clone(), attribution });
        version
    }

    /// Returns the previous version that has a digest which begins with `prefix`, or the newest
    /// previous version that is not rejected.
    ///
    /// # Errors
    /// Why there is no such version.
    pub fn earlier(&self, prefix: Option<&str>) -> Result<&Version, &'static str> {
        let prefix = prefix.map(|prefix| prefix.strip_prefix("sha256:").unwrap_or(prefix));
        let has = |version: &Version, prefix: &str| {
            version.digests().any(|digest| digest["sha256:".len()..].starts_with(prefix))
        };
        let rejected = self.rejected.as_ref().map(|rejected| &rejected.version);
        let is_open = |decided: &&Decided| {
            Some(&decided.version) != rejected && !self.is_approved(&decided.version)
        };
        let found: Vec<_> = match prefix {
            None => self.previous.iter().filter(|decided| is_open(decided)).take(1).collect(),
            Some(prefix) if prefix.len() < MIN_PREFIX => {
                return Err("the digest needs at least 8 hexadecimal digits");
            }
            Some(prefix) => {
                self.previous.iter().filter(|decided| has(&decided.version, prefix)).collect()
            }
        };
        match found.as_slice() {
            [only] => Ok(&only.version),
            [] if prefix.is_none() => Err("no other version of it was approved before"),
            [] => Err("no version with this digest was approved before"),
            _ => Err("several versions have a digest that begins so; give more of it"),
        }
    }

    /// Returns all versions whose objects are needed.
    pub fn versions(&self) -> impl Iterator<Item = &Version> {
        let decided = self.approved.iter().chain(&self.rejected).chain(&self.pending);
        let decided = decided.chain(&self.previous);
        decided.map(|decided| &decided.version)
    }

    fn is_approved(&self, version: &Version) -> bool {
        self.approved.as_ref().is_some_and(|approved| approved.version == *version)
    }

    fn retire(&mut self) {
        if let Some(approved) = self.approved.take() {
            self.previous.insert(0, approved);
            self.previous.truncate(MAX_PREVIOUS);
        }
    }
}

/// Shortest part of a digest that names a version, in hexadecimal digits.
pub const MIN_PREFIX: usize = 8;

#[cfg(test)]
mod tests;
