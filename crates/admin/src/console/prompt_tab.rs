//! The tabs of a prompt's page.

/// A part of a prompt's page, with an address of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PromptTab {
    Text,
    Try,
    Versions,
    Access,
    Uses,
}

impl PromptTab {
    pub(crate) const ALL: [Self; 5] =
        [Self::Text, Self::Try, Self::Versions, Self::Access, Self::Uses];

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
