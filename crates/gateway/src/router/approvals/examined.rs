//! Examinations: what an upstream offers of a prompt, at the moment at which a person looks at it.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde_json::json;

use super::json::row_json;
use super::probe::{ProbedText, ProbedTexts};
use crate::router::approval::{ApprovalRow, SeenOtherwise};
use crate::upstream::library::FileChange;
use base::seal;
use config::lock::Objects;
use domain::approval::{Approval, ApprovalState, Class, Mode, OfferedText, Version};

/// A prompt with the texts and the source of its offered version, as far as they could be fetched.
#[derive(Clone, Debug)]
pub struct Examined {
    pub row: ApprovalRow,
    /// `None` if the upstream does not offer the prompt.
    pub offered: Option<OfferedVersion>,
    /// Texts that the gateway has seen by itself, and that this examination did not get.
    pub seen_otherwise: Vec<SeenOtherwise>,
    /// The last change of its library file, if two people must approve and the person who decides
    /// has made it.
    pub own_change: Option<FileChange>,
}

#[derive(Clone, Debug)]
pub struct OfferedVersion {
    pub version: Version,
    /// The canonical texts that belong to it, by their digests.
    pub objects: Objects,
    pub texts: ProbedTexts,
}

impl Examined {
    /// A prompt as the gateway knows it without a probe.
    pub fn known(row: &ApprovalRow) -> Self {
        let offered = row.offered.as_ref().map(|offered| {
            let texts = offered.version.texts.iter().filter_map(|(arguments, text)| match text {
                OfferedText::Unstable => Some((arguments.clone(), ProbedText::Unstable)),
                OfferedText::Known(_) => None,
            });
            let mut version = offered.version.version();
            row.keep_variants(&mut version);
            OfferedVersion { version, objects: Objects::new(), texts: texts.collect() }
        });
        Self { row: row.clone(), offered, seen_otherwise: Vec::new(), own_change: None }
    }

    /// Whether the offered version is not approved.
    pub fn is_unapproved(&self) -> bool {
        let state = self.row.decision.state;
        self.offered.is_some()
            && !matches!(state, ApprovalState::Approved | ApprovalState::Unchecked)
    }

    /// Whether exactly the offered version is approved, with all of its texts.
    pub fn is_approved_so(&self) -> bool {
        let approved = self.row.approval.as_ref().and_then(|approval| approval.approved.as_ref());
        let offered = self.offered.as_ref().map(|offered| &offered.version);
        approved.is_some_and(|approved| Some(&approved.version) == offered)
    }

    /// Whether this is the version that was shown to the person who decides.
    pub fn is_as_seen(&self, seen: &Self) -> bool {
        let version = |examined: &Self| Some(examined.offered.as_ref()?.version.clone());
        version(self) == version(seen)
    }

    /// The arguments of a text that the approval covers, and that could not be had now, with
    /// the reason.
    pub fn unverified(&self) -> Option<(&str, &str)> {
        let approved = self.row.approval.as_ref()?.approved.as_ref()?;
        let texts = &self.offered.as_ref()?.texts;
        approved.version.texts.keys().find_map(|arguments| match texts.get(arguments) {
            Some(ProbedText::Failed(why)) => Some((&**arguments, why.as_str())),
            _ => None,
        })
    }

    /// Why no text of the offered version is known, so that an approval covers the definition
    /// alone, and how to approve it nevertheless. `None` if a text is known.
    pub fn unseen_text(&self) -> Option<String> {
        let offered = self.offered.as_ref()?;
        if offered.version.class() != Class::Definition || self.row.mode == Mode::Off {
            return None;
        }
        let why = offered.texts.values().find_map(|text| match text {
            ProbedText::Failed(why) => Some(why.as_str()),
            ProbedText::Unstable => Some("it differs each time"),
            ProbedText::Stable { .. } => None,
        });
        let why = why.unwrap_or("its arguments are not made up (approval_probes)");
        Some(format!(
            "only its definition can be compared, and its upstream can answer with any text, which cannot be known: \
             {why}. Approve it with --unseen (`unseen` over the API) if that is meant"
        ))
    }

    /// The entity tag of what this examination shows (RFC 9110, section 8.8.3): the digests of the
    /// definition, the source and the texts, and the decisions on the prompt. A decision names it.
    pub fn tag(&self) -> String {
        let texts = self.offered.iter().flat_map(|offered| &offered.texts);
        let unknown = texts.filter_map(|(arguments, text)| match text {
            ProbedText::Stable { .. } => None,
            ProbedText::Unstable => Some((&**arguments, "unstable")),
            ProbedText::Failed(_) => Some((&**arguments, "failed")),
        });
        let shown = json!([row_json(self), unknown.collect::<Vec<_>>()]);
        format!("\"{}\"", seal::sha256_text(shown.to_string().as_bytes()))
    }

    /// Whether it is of this prompt, on which the decisions are still the same.
    fn is_current(&self, row: &ApprovalRow, approval: Option<&Approval>) -> bool {
        self.row.upstream == row.upstream
            && self.row.raw_name == row.raw_name
            && self.row.approval.as_ref() == approval
    }

    /// About the memory that it takes, in bytes.
    fn size(&self) -> usize {
        let objects = self.offered.iter().flat_map(|offered| offered.objects.values());
        let texts = self.offered.iter().flat_map(|offered| offered.texts.values());
        let texts = texts.map(|text| match text {
            ProbedText::Stable { text, .. } => text.len(),
            ProbedText::Unstable => 0,
            ProbedText::Failed(why) => why.len(),
        });
        let variants = self.row.variants.iter().map(|found| found.text.len());
        BARE_EXAMINATION
            + objects.map(|object| object.json().len()).chain(texts).chain(variants).sum::<usize>()
    }
}

/// Memory of an examination without texts, in bytes: generous.
const BARE_EXAMINATION: usize = 4 << 10;

/// Examinations that were shown to a person, by their tags, so that the decision is on the same
/// objects, whatever the upstream answers meanwhile. The least recently used are forgotten; then
/// the decision examines again, and demands the same digests.
pub(crate) struct Examinations(Cache<String, Arc<Examined>, ExaminationSize>);

/// Memory for examinations, in bytes.
const MEMORY: u64 = 32 << 20;

/// About how many examinations there are; more only cost a resize.
const EXPECTED: usize = 64;

#[derive(Clone)]
struct ExaminationSize;

impl Weighter<String, Arc<Examined>> for ExaminationSize {
    fn weight(&self, tag: &String, examined: &Arc<Examined>) -> u64 {
        (tag.len() + examined.size()) as u64
    }
}

impl Default for Examinations {
    fn default() -> Self {
        Self(Cache::with_weighter(EXPECTED, MEMORY, ExaminationSize))
    }
}

impl Examinations {
    /// Keeps what is shown, and returns its tag.
    pub(crate) fn keep(&self, examined: &Arc<Examined>) -> String {
        let tag = examined.tag();
        self.0.insert(tag.clone(), examined.clone());
        tag
    }

    /// Returns the examination of a prompt that has this tag, unless it is forgotten or there was a
    /// decision on the prompt since.
    pub(crate) fn shown(
        &self,
        tag: &str,
        row: &ApprovalRow,
        approval: Option<&Approval>,
    ) -> Option<Arc<Examined>> {
        self.0.get(tag).filter(|examined| examined.is_current(row, approval))
    }
}
