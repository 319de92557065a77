//! The published revisions of MCP, and the two eras that they belong to.

use std::fmt;

/// A published revision of MCP. A later revision compares greater.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

/// The era of a revision: with or without sessions. Other differences leave the message flow alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Era {
    /// An `initialize` handshake opens a session (2024-11-05 to 2025-11-25).
    Legacy,
    /// Every request carries its own metadata; there are no sessions (2026-07-28).
    Modern,
}

impl Revision {
    /// All revisions, oldest first.
    pub const ALL: [Revision; 5] = [
        Revision::V2024_11_05,
        Revision::V2025_03_26,
        Revision::V2025_06_18,
        Revision::V2025_11_25,
        Revision::V2026_07_28,
    ];
    /// The revision that the gateway requests from a legacy upstream, and answers to a client that
    /// requests an unsupported version.
    pub const NEWEST_LEGACY: Revision = Revision::V2025_11_25;
    /// The revision for modern upstreams, and the only modern revision so far.
    pub const NEWEST_MODERN: Revision = Revision::V2026_07_28;

    /// The revision of a legacy request without the `MCP-Protocol-Version` header (MCP 2025-06-18,
    /// transports, protocol version header).
    pub const UNSAID: Revision = Revision::V2025_03_26;

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Revision::V2024_11_05 => "2024-11-05",
            Revision::V2025_03_26 => "2025-03-26",
            Revision::V2025_06_18 => "2025-06-18",
            Revision::V2025_11_25 => "2025-11-25",
            Revision::V2026_07_28 => "2026-07-28",
        }
    }

    pub fn era(self) -> Era {
        match self {
            Revision::V2026_07_28 => Era::Modern,
            _ => Era::Legacy,
        }
    }

    /// Returns "legacy" or "modern".
    pub fn era_name(self) -> &'static str {
        match self.era() {
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        }
    }

    /// Returns the version for the response to an `initialize` that requests `requested`: the same
    /// version if it is a supported legacy revision, otherwise the newest legacy revision (MCP
    /// 2025-11-25, lifecycle).
    pub fn negotiate_legacy(requested: &str) -> Self {
        Self::parse(requested).filter(|r| r.era() == Era::Legacy).unwrap_or(Self::NEWEST_LEGACY)
    }

    /// Returns the supported modern revisions, for `supported` and `supportedVersions`.
    pub fn modern() -> impl Iterator<Item = Revision> {
        Self::ALL.into_iter().filter(|r| r.era() == Era::Modern)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_revision_reads_back() {
        for revision in Revision::ALL {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
        }
        assert_eq!(Revision::parse("2025-06-19"), None);
    }

    #[test]
    fn initialize_is_never_answered_with_a_modern_revision() {
        assert_eq!(Revision::negotiate_legacy("2024-11-05"), Revision::V2024_11_05);
        assert_eq!(Revision::negotiate_legacy("2026-07-28"), Revision::V2025_11_25);
        assert_eq!(Revision::negotiate_legacy("1.0"), Revision::V2025_11_25);
    }
}
