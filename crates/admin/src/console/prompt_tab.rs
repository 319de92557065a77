//! The tabs of the page of a prompt or skill.

use domain::prompts::skill::is_skill_uri;
use domain::text::percent::encoded_segment;

/// A tab of the page, with a separate address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PromptTab {
    Text,
    Try,
    Versions,
    Access,
    Uses,
}

impl PromptTab {
    /// The tabs of a prompt.
    pub(crate) const ALL: [Self; 5] =
        [Self::Text, Self::Try, Self::Versions, Self::Access, Self::Uses];

    /// The tabs of a skill.
    pub(crate) const OF_SKILL: [Self; 4] = [Self::Text, Self::Versions, Self::Access, Self::Uses];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Text => "Text",
            Self::Try => "Try",
            Self::Versions => "Versions",
            Self::Access => "Access",
            Self::Uses => "Uses",
        }
    }

    /// The end of its address.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Text => "",
            Self::Try => "/try",
            Self::Versions => "/versions",
            Self::Access => "/access",
            Self::Uses => "/uses",
        }
    }
}

/// Returns the path of the page of a prompt or skill, by its public name.
pub(crate) fn page_of(name: &str) -> String {
    let folder = if is_skill_uri(name) { "skills" } else { "prompts" };
    format!("/{folder}/{}", encoded_segment(name))
}
