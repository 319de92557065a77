//! The composite cursor: a place in the merged order of all upstreams. This file is its codec;
//! `seal` makes it unforgeable and binds it to its kind and endpoint.
//!
//! A place names the last prompt that was served. Whatever comes or goes in between, the next page
//! starts right behind that name, so what stayed is neither repeated nor skipped.

use std::time::Duration;

use super::unix_time::UnixSeconds;

/// Where a page ended, and for whom.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Place {
    /// Id of the caller that was served.
    pub caller: String,
    pub scope: CacheScope,
    pub issued_at: UnixSeconds,
    /// Public name of the last prompt on the page.
    pub last: String,
    /// Id of the upstream that owns it.
    pub owner: String,
}

/// Who may share a cached answer (2026-07-28, caching). All pages of one list have the same.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum CacheScope {
    #[default]
    Public,
    /// Greater, so that the maximum of the merged parts is theirs together.
    Private,
}

/// How long a cursor opens. A client walks its pages within seconds; a day covers one that was
/// suspended in between.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

impl CacheScope {
    pub fn as_str(self) -> &'static str {
        match self {
            CacheScope::Public => "public",
            CacheScope::Private => "private",
        }
    }
}

impl Place {
    /// Scope, time, then each text led by its length in two bytes.
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
        let (caller, last, owner) = (text()?, text()?, text()?);
        rest.is_empty().then_some(Self {
            caller,
            scope,
            issued_at: UnixSeconds::from_be_bytes(*time),
            last,
            owner,
        })
    }

    /// Whether the cursor may be used now; a small step back of the clock does no harm.
    pub fn is_fresh(&self, now: UnixSeconds) -> bool {
        now.saturating_since(self.issued_at) <= LIFETIME
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        let scope = prop::sample::select(vec![CacheScope::Public, CacheScope::Private]);
        (scope, any::<u64>(), ".{0,9}", ".{1,40}", "[a-z]{1,9}").prop_map(
            |(scope, issued_at, caller, last, owner)| Place {
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
        fn places_come_back(place in place()) {
            prop_assert_eq!(Place::decode(&place.encode()), Some(place));
        }

        #[test]
        fn cut_or_padded_bytes_are_no_place(place in place(), cut in 1usize..20) {
            let bytes = place.encode();
            prop_assert_eq!(Place::decode(&bytes[..bytes.len() - cut.min(bytes.len())]), None);
            prop_assert_eq!(Place::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }

    #[test]
    fn a_cursor_is_fresh_for_a_day() {
        let place = Place {
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
