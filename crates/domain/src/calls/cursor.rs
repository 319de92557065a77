//! Pagination cursors: positions in the merged list of all upstreams (MCP 2025-11-25, pagination).
//! This module is the codec; `seal` encrypts and authenticates the bytes and binds them to their
//! kind and endpoint.
//!
//! A position names the last prompt that was served, and the next page starts right after that
//! name. Prompts that are added or removed between two pages therefore cause no repeated and no
//! skipped prompt.

use std::time::Duration;

use crate::time::unix_time::UnixSeconds;

/// The position at which a page ended, and the caller of this page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PagePosition {
    /// Id of the caller that may use the cursor.
    pub caller: String,
    /// Cache scope of the page.
    pub scope: CacheScope,
    pub issued_at: UnixSeconds,
    /// Public name of the last prompt on the page.
    pub last: String,
    /// Id of the upstream that owns the last prompt.
    pub owner: String,
}

/// The scope in which a cached response may be shared (MCP 2026-07-28, caching). All pages of one
/// list have the same scope.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum CacheScope {
    /// The response may be shared among callers.
    #[default]
    Public,
    /// The response is for one caller only. Greater than `Public`, so that the maximum of all parts
    /// is the scope of the merged list.
    Private,
}

/// The lifetime of a cursor. A client reads all pages within seconds; a day also covers a client
/// that was suspended meanwhile.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

impl CacheScope {
    pub fn as_str(self) -> &'static str {
        match self {
            CacheScope::Public => "public",
            CacheScope::Private => "private",
        }
    }
}

impl PagePosition {
    /// Encodes the scope (1 byte), the time (8 bytes), then each text after its length (2 bytes),
    /// all big-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.scope as u8];
        out.extend_from_slice(&self.issued_at.to_be_bytes());
        for text in [&self.caller, &self.last, &self.owner] {
            // Names, ids and paths are bounded far below 64 KiB by configuration.
            out.extend_from_slice(&(text.len() as u16).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out
    }

    /// Decodes the bytes of [`PagePosition::encode`]; `None` if they are truncated, have trailing
    /// bytes or are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&scope, rest) = bytes.split_first()?;
        let scope = match scope {
            0 => CacheScope::Public,
            1 => CacheScope::Private,
            _ => return None,
        };
        let (time, mut rest) = rest.split_first_chunk::<8>()?;
        let mut text = || {
            let (length, tail) = rest.split_first_chunk::<2>()?;
            let (text, tail) = tail.split_at_checked(u16::from_be_bytes(*length).into())?;
            rest = tail;
            String::from_utf8(text.to_vec()).ok()
        };
        let caller = text()?;
        let last = text()?;
        let owner = text()?;
        rest.is_empty().then_some(Self {
            caller,
            scope,
            issued_at: UnixSeconds::from_be_bytes(*time),
            last,
            owner,
        })
    }

    /// Whether the cursor is still valid. A cursor from the future is valid, so a clock that steps
    /// back does no harm.
    pub fn is_fresh(&self, now: UnixSeconds) -> bool {
        now.saturating_since(self.issued_at) <= LIFETIME
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = PagePosition> {
        let scope = prop::sample::select(vec![CacheScope::Public, CacheScope::Private]);
        (scope, any::<u64>(), ".{0,9}", ".{1,40}", "[a-z]{1,9}").prop_map(
            |(scope, issued_at, caller, last, owner)| PagePosition {
                caller,
                scope,
                issued_at: UnixSeconds(issued_at),
                last,
                owner,
            },
        )
    }

    proptest! {
        #[test]
        fn places_survive_encoding_and_decoding(place in place()) {
            prop_assert_eq!(PagePosition::decode(&place.encode()), Some(place));
        }

        #[test]
        fn truncated_or_padded_bytes_are_refused(place in place(), cut in 1usize..20) {
            let bytes = place.encode();
            prop_assert_eq!(PagePosition::decode(&bytes[..bytes.len() - cut.min(bytes.len())]), None);
            prop_assert_eq!(PagePosition::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }

    #[test]
    fn a_cursor_is_fresh_for_a_day() {
        let place = PagePosition {
            caller: "a".into(),
            scope: CacheScope::Public,
            issued_at: UnixSeconds(1_000),
            last: "x".into(),
            owner: "y".into(),
        };
        assert!(place.is_fresh(UnixSeconds(900)));
        assert!(place.is_fresh(UnixSeconds(1_000 + LIFETIME.as_secs())));
        assert!(!place.is_fresh(UnixSeconds(1_001 + LIFETIME.as_secs())));
    }
}
