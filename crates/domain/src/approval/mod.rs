//! Approvals: the approved versions of prompts and skills, and the treatment of the versions that
//! their upstreams offer.

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

/// The kind of an approved item. Prompts and skills have separate names.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ApprovalKind {
    #[default]
    Prompt,
    /// The raw name of a skill is the path of its folder.
    Skill,
}

impl ApprovalKind {
    /// Returns the word for the kind in the lock file, in records and in the admin API.
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
    /// The mode of the prompt's upstream is `off`.
    #[default]
    Unchecked,
    /// No version of the prompt was ever approved.
    Pending,
    /// The offered version is the approved one.
    Approved,
    /// The offered version differs from the approved one, and no decision on it exists.
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
    /// The digest of the effective definition.
    pub definition: DigestText,
    /// The digest of the file of a library prompt, with the files that it embeds.
    pub source: Option<DigestText>,
    /// The digests of the results for some arguments; empty if the text is unavailable.
    pub texts: Texts,
    /// Further results for the same arguments, which callers got: each is as valid as the text.
    pub variants: BTreeSet<(Arc<str>, DigestText)>,
    /// The digests of the files of a skill, which its definition also contains; empty for a prompt.
    pub files: Files,
}

/// The digests of the files of a skill, by their paths in its folder.
pub type Files = BTreeMap<Arc<str>, DigestText>;

/// The digests of texts, by their arguments: an object of strings in canonical form (RFC 8785).
pub(crate) type Texts = BTreeMap<Arc<str>, DigestText>;

/// The arguments of a get without arguments.
pub const NO_ARGUMENTS: &str = "{}";

/// A version with the decision on it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Decided {
    pub version: Version,
    pub attribution: Attribution,
}

/// The entry of one prompt in the lock file. At least one of its parts is present.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Approval {
    pub approved: Option<Decided>,
    pub rejected: Option<Decided>,
    /// A version that one of two people has approved; void once another version is offered.
    pub pending: Option<Decided>,
    /// Versions that were approved earlier, the newest first.
    pub previous: Vec<Decided>,
}

/// The number of earlier versions that an approval keeps for `rollback`, with their objects.
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
    /// The texts by their arguments, as in [`Texts`]; a text is absent until it was requested.
    pub texts: BTreeMap<Arc<str>, OfferedText>,
    /// The files, as in [`Version`].
    pub files: Files,
}

impl Offered {
    /// Returns the version, with only the texts that are known and stable.
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
    /// Whether this version can be the offered one: no part that is known of both differs.
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

    /// Whether both can be the same version: no part that is known of both differs.
    pub fn is_compatible_with(&self, other: &Self) -> bool {
        let is_same_text = |(arguments, text): (&Arc<str>, &DigestText)| {
            other.texts.get(arguments).is_none_or(|known| known == text)
        };
        self.definition == other.definition
            && self.source == other.source
            && self.texts.iter().all(is_same_text)
    }

    /// Whether a text is a variant for these arguments.
    pub fn is_variant(&self, arguments: &Arc<str>, text: &DigestText) -> bool {
        // Most versions have no variants.
        self.variants.iter().any(|(own, variant)| own == arguments && variant == text)
    }

    /// Takes over the variants of an approved version with the same definition, for arguments with
    /// the same text. A text that is a variant in `approved` becomes the approved text.
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

    /// Whether a text of the version has placeholders for arguments.
    pub fn has_templates(&self) -> bool {
        self.texts.keys().any(|arguments| TemplateArguments::read(arguments).is_some())
    }

    /// Returns the digests of the version's texts and variants.
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
    /// Approves a version. The version that was approved before moves to the previous ones.
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

    /// Withdraws an approval: no version is approved afterwards, and the approved version is
    /// rejected. Returns that version; `None` if no version is approved.
    pub fn withdraw(&mut self, attribution: Attribution) -> Option<Version> {
        let version = self.approved.as_ref()?.version.clone();
        self.retire();
        self.rejected = Some(Decided { version: version.clone(), attribution });
        Some(version)
    }

    /// Rejects a version. If it is compatible with the approved version, no version is approved
    /// afterwards. Returns the version with all its known texts.
    pub fn reject(&mut self, version: Version, attribution: Attribution) -> Version {
        let approved = self.approved.as_ref().map(|approved| &approved.version);
        let approved = approved.filter(|approved| approved.is_compatible_with(&version)).cloned();
        if approved.is_some() {
            self.retire();
        }
        // Rejects all texts of the approved version, including currently unavailable ones.
        let version = approved.unwrap_or(version);
        self.pending = self.pending.take().filter(|pending| pending.version != version);
        self.rejected = Some(Decided { version: version.clone(), attribution });
        version
    }

    /// Returns the previous version that has a digest with this prefix, or the newest previous
    /// version that is neither rejected nor approved.
    ///
    /// # Errors
    /// The reason why no version is found.
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

    /// Returns all versions of the approval, whose objects must be kept.
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

/// Shortest prefix of a digest that identifies a version, in hexadecimal digits.
pub const MIN_PREFIX: usize = 8;

#[cfg(test)]
mod tests;
