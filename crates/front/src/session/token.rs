//! Session ids of the legacy era. They are sealed tokens: an idle session uses no memory, and every
//! replica with the same key can open it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quick_cache::Equivalent;
use quick_cache::sync::Cache;

use base::seal::{Sealer, TokenKind, random};
use domain::calls::caller::Caller;
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ClientCapabilities;
use domain::time::unix_time::UnixSeconds;

/// The content of a session id.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SessionToken {
    pub revision: Revision,
    /// The server requests that the client declared at `initialize`.
    pub capabilities: ClientCapabilities,
    /// Seconds since the Unix epoch.
    pub issued_at: UnixSeconds,
    /// Distinguishes this session from all others.
    pub nonce: Nonce,
    /// The id of the caller to whom the session belongs.
    pub caller: Arc<str>,
}

/// The identity of a session or of a connection: 16 random bytes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Nonce([u8; 16]);

impl Nonce {
    /// Draws a nonce at random.
    pub(crate) fn random() -> Self {
        Self(random())
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl SessionToken {
    /// Creates a session with a new nonce. `now` is the wall-clock time.
    pub(crate) fn new(
        revision: Revision,
        capabilities: ClientCapabilities,
        caller: &Caller,
        now: UnixSeconds,
    ) -> Self {
        let caller = caller.id().into();
        Self { revision, capabilities, issued_at: now, nonce: Nonce::random(), caller }
    }

    /// Returns whether the session belongs to this caller.
    pub(crate) fn belongs_to(&self, caller: &Caller) -> bool {
        *self.caller == *caller.id()
    }

    /// Returns the session id: visible ASCII of at most 1,024 bytes (MCP 2025-11-25, Streamable
    /// HTTP, session management).
    pub(crate) fn seal(&self, sealer: &Sealer, endpoint: &str) -> String {
        let mut plain = vec![self.revision as u8, self.capabilities.bits()];
        plain.extend_from_slice(&self.issued_at.to_be_bytes());
        plain.extend_from_slice(self.nonce.as_bytes());
        plain.extend_from_slice(self.caller.as_bytes());
        sealer.seal(TokenKind::Session, endpoint, &plain)
    }

    /// Opens a session id. `None` if it was not sealed with one of the keys for this endpoint.
    pub(crate) fn open(sealer: &Sealer, endpoint: &str, id: &str) -> Option<Self> {
        let plain = sealer.open(TokenKind::Session, endpoint, id)?;
        let (&[revision, capabilities], rest) = plain.split_first_chunk()?;
        let (issued_at, rest) = rest.split_first_chunk::<8>()?;
        let (nonce, caller) = rest.split_first_chunk::<16>()?;
        Some(Self {
            revision: Revision::ALL.into_iter().find(|r| *r as u8 == revision)?,
            capabilities: ClientCapabilities::from_bits(capabilities),
            issued_at: UnixSeconds::from_be_bytes(*issued_at),
            nonce: Nonce::from_bytes(*nonce),
            caller: std::str::from_utf8(caller).ok()?.into(),
        })
    }
}

/// Opens session ids, and remembers the last ones: each request of a session brings its id.
pub(crate) struct TokenOpener {
    sealer: Arc<Sealer>,
    opened: Cache<SealedToken<Box<str>>, SessionToken>,
}

/// A session id at an endpoint.
#[derive(Clone, Debug)]
struct SealedToken<T> {
    endpoint: T,
    id: T,
}

/// Most session ids that are remembered: to open one takes microseconds.
const REMEMBERED: usize = 1_024;

impl TokenOpener {
    pub(crate) fn new(sealer: Arc<Sealer>) -> Self {
        Self { sealer, opened: Cache::new(REMEMBERED) }
    }

    /// As [`SessionToken::open`].
    pub(crate) fn open(&self, endpoint: &str, id: &str) -> Option<SessionToken> {
        if let Some(token) = self.opened.get(&SealedToken { endpoint, id }) {
            return Some(token);
        }
        let token = SessionToken::open(&self.sealer, endpoint, id)?;
        let sealed = SealedToken { endpoint: endpoint.into(), id: id.into() };
        self.opened.insert(sealed, token.clone());
        Some(token)
    }
}

impl<T: AsRef<str>> Hash for SealedToken<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.endpoint.as_ref(), self.id.as_ref()).hash(state);
    }
}

impl PartialEq for SealedToken<Box<str>> {
    fn eq(&self, other: &Self) -> bool {
        (&self.endpoint, &self.id) == (&other.endpoint, &other.id)
    }
}

impl Eq for SealedToken<Box<str>> {}

impl Equivalent<SealedToken<Box<str>>> for SealedToken<&str> {
    fn equivalent(&self, key: &SealedToken<Box<str>>) -> bool {
        (self.endpoint, self.id) == (&*key.endpoint, &*key.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::seal::SealKeys;
    use domain::calls::caller::{MAX_ID, is_id};
    use domain::calls::cursor::{CacheScope, PagePosition};
    use domain::name::MAX_LENGTH_LIMIT;

    #[test]
    fn a_session_id_opens_on_replicas_with_the_same_key_and_endpoint_only() {
        let keys = || SealKeys::new(vec![[1; 32]]).unwrap();
        let here = Sealer::new(&keys());
        let there = Sealer::new(&keys());
        let token = SessionToken::new(
            Revision::V2025_06_18,
            ClientCapabilities::FORM,
            &Caller::new("a"),
            UnixSeconds(7),
        );
        let id = token.seal(&here, "/mcp");
        assert!(id.len() <= 512 && id.bytes().all(|b| b.is_ascii_graphic()));
        assert_eq!(SessionToken::open(&there, "/mcp", &id), Some(token.clone()));
        assert_eq!(SessionToken::open(&there, "/mcp/x", &id), None);
        let opener = TokenOpener::new(Arc::new(there));
        for _ in 0..2 {
            assert_eq!(opener.open("/mcp", &id), Some(token.clone()));
            assert_eq!(opener.open("/mcp/x", &id), None);
            assert_eq!(opener.open("/mcp", &id[1..]), None);
        }
        assert_eq!(SessionToken::open(&Sealer::new(&SealKeys::ephemeral()), "/mcp", &id), None);
        let another = SessionToken::new(
            Revision::V2025_06_18,
            ClientCapabilities::FORM,
            &Caller::new("a"),
            UnixSeconds(7),
        );
        assert_ne!(token.nonce, another.nonce);
    }

    #[test]
    fn f19_the_longest_id_of_a_caller_fits_a_session_id_and_a_cursor() {
        let id = "\u{20000}".repeat(MAX_ID);
        assert!(is_id(&id));
        let sealer = Sealer::new(&SealKeys::ephemeral());
        let path = format!("/{}", "p".repeat(127));
        let caller = Caller::new(&id);
        let token = SessionToken::new(
            Revision::V2025_06_18,
            ClientCapabilities::FORM,
            &caller,
            UnixSeconds(7),
        );
        let session = token.seal(&sealer, &path);
        assert_eq!(SessionToken::open(&sealer, &path, &session), Some(token));
        let place = PagePosition {
            caller: id,
            scope: CacheScope::Private,
            issued_at: UnixSeconds(7),
            last: "\u{20000}".repeat(MAX_LENGTH_LIMIT),
            owner: "u".repeat(64),
        };
        let cursor = sealer.seal(TokenKind::Cursor, &path, &place.encode());
        let opened = sealer.open(TokenKind::Cursor, &path, &cursor).expect("it opens");
        assert_eq!(PagePosition::decode(&opened), Some(place));
    }

    #[test]
    fn session_ids_and_cursors_of_earlier_releases_open() {
        let sealer = Sealer::new(&SealKeys::new(vec![[7; 32]]).unwrap());
        let token = SessionToken {
            revision: Revision::V2025_06_18,
            capabilities: ClientCapabilities::FORM,
            issued_at: UnixSeconds(7),
            nonce: Nonce::from_bytes([3; 16]),
            caller: "ada".into(),
        };
        let id = include_str!("../../../../tests/formats/session-2");
        assert_eq!(SessionToken::open(&sealer, "/mcp", id), Some(token));
        let place = PagePosition {
            caller: "ada".into(),
            scope: CacheScope::Private,
            issued_at: UnixSeconds(7),
            last: "team__review".into(),
            owner: "team".into(),
        };
        let cursor = include_str!("../../../../tests/formats/cursor-1");
        let opened = sealer.open(TokenKind::Cursor, "/mcp", cursor).expect("it opens");
        assert_eq!(PagePosition::decode(&opened), Some(place));
    }
}
