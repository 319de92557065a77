//! Links in prompts: the codec of capabilities to read an upstream's resource that a prompt links
//! to, and the URIs that become such links. `seal` makes a capability unforgeable, and binds it to
//! its endpoint.

use std::time::Duration;

use crate::text::token_fields::{TokenFields, write};
use crate::time::unix_time::UnixSeconds;

/// A resource of an upstream, for one caller, as long as the caller may get the prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    /// The id of the caller.
    pub caller: String,
    /// The public name of the prompt.
    pub name: String,
    /// The id of the upstream that owns the prompt.
    pub upstream: String,
    /// The raw name of the prompt: another prompt may have its public name later.
    pub prompt: String,
    /// The URI, as the upstream has it.
    pub uri: String,
    pub issued_at: UnixSeconds,
}

/// The beginning of the gateway's own URIs.
pub const OWN: &str = "promptgate://";

/// The beginning of a sealed link. Its token is in the path, because some clients write the
/// authority of a URI in lower case.
const SEALED: &str = "promptgate://link/";

/// Longest URI that is sealed, in bytes. A longer URI is data rather than an address.
const MAX_URI: usize = 2 << 10;

/// The lifetime of a link: it covers a conversation of a day.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Schemes of URIs that clients resolve themselves, and the scheme of skill files, which are read
/// by other rules.
const UNSEALED: [&str; 4] = ["http", "https", "data", "skill"];

impl Link {
    /// Encodes the link; see [`crate::text::token_fields`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.issued_at.to_be_bytes().to_vec();
        for text in [&self.caller, &self.name, &self.upstream, &self.prompt, &self.uri] {
            write(text, &mut out);
        }
        out
    }

    /// Decodes the bytes that [`Link::encode`] returned; `None` for any other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = TokenFields(bytes);
        let issued_at = UnixSeconds::from_be_bytes(rest.chunk()?);
        let caller = rest.text()?;
        let name = rest.text()?;
        let upstream = rest.text()?;
        let prompt = rest.text()?;
        let uri = rest.text()?;
        let link = Self { caller, name, upstream, prompt, uri, issued_at };
        rest.0.is_empty().then_some(link)
    }

    /// Returns whether the link has not expired at `now`. A link from the future, as after the
    /// clock was set back, is fresh.
    pub fn is_fresh(&self, now: UnixSeconds) -> bool {
        now.saturating_since(self.issued_at) <= LIFETIME
    }
}

/// Whether a URI belongs to the gateway. Schemes are case-insensitive (RFC 3986, section 3.1).
pub fn is_own(uri: &str) -> bool {
    uri.get(..OWN.len()).is_some_and(|start| start.eq_ignore_ascii_case(OWN))
}

/// Returns the URI of a sealed token.
pub fn sealed_uri(token: &str) -> String {
    [SEALED, token].concat()
}

/// Returns the sealed token of a URI.
pub fn token(uri: &str) -> Option<&str> {
    uri.strip_prefix(SEALED)
}

/// Whether only its upstream can resolve a URI, and the URI is short enough.
pub fn is_of_upstream(uri: &str) -> bool {
    let scheme = uri.split(':').next().unwrap_or_default();
    uri.len() <= MAX_URI && !UNSEALED.iter().any(|known| known.eq_ignore_ascii_case(scheme))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link() -> impl Strategy<Value = Link> {
        let texts = (".{0,9}", ".{1,40}", "[a-z]{1,9}", ".{1,40}", "[a-z]+:.{0,40}");
        (texts, any::<u64>()).prop_map(|((caller, name, upstream, prompt, uri), issued_at)| Link {
            caller,
            name,
            upstream,
            prompt,
            uri,
            issued_at: UnixSeconds(issued_at),
        })
    }

    proptest! {
        #[test]
        fn encoded_links_decode_to_the_same_link(link in link()) {
            prop_assert_eq!(Link::decode(&link.encode()), Some(link));
        }

        #[test]
        fn truncated_or_padded_bytes_are_refused(link in link(), cut in 1usize..40) {
            let bytes = link.encode();
            prop_assert_eq!(Link::decode(&bytes[..bytes.len().saturating_sub(cut)]), None);
            prop_assert_eq!(Link::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }

    fn example() -> Link {
        Link {
            caller: "ada".to_owned(),
            name: "team__review".to_owned(),
            upstream: "team".to_owned(),
            prompt: "review".to_owned(),
            uri: "file:///a.md".to_owned(),
            issued_at: UnixSeconds(1_000),
        }
    }

    #[test]
    fn a_link_is_fresh_for_a_day() {
        assert!(example().is_fresh(UnixSeconds(900)));
        assert!(example().is_fresh(UnixSeconds(1_000 + LIFETIME.as_secs())));
        assert!(!example().is_fresh(UnixSeconds(1_001 + LIFETIME.as_secs())));
    }

    #[test]
    fn links_of_earlier_releases_decode() {
        let bytes = include_bytes!("../../../../tests/formats/link-1");
        assert_eq!(Link::decode(bytes), Some(example()));
    }

    #[test]
    fn only_short_uris_that_mean_something_to_the_upstream_are_sealed() {
        for uri in ["file:///a", "crm://1", "a:b", "promptgate://link/x", "javascript:x", "httpx:a"]
        {
            assert!(is_of_upstream(uri), "{uri}");
        }
        for uri in ["https://a.example/", "HTTP://a", "data:,x", "skill://a/b", "Skill://a/b"] {
            assert!(!is_of_upstream(uri), "{uri}");
        }
        let long = |length: usize| format!("a:{}", "x".repeat(length - 2));
        assert!(is_of_upstream(&long(MAX_URI)) && !is_of_upstream(&long(MAX_URI + 1)));
    }

    #[test]
    fn uris_of_the_gateway_are_known_by_their_scheme() {
        for own in ["promptgate://", "PromptGate://link/x", "promptgate://link/x"] {
            assert!(is_own(own), "{own}");
        }
        for other in ["promptgate:", "promptgate:/x", "xpromptgate://x", "", "promptgaté://"] {
            assert!(!is_own(other), "{other}");
        }
        assert_eq!(token(&sealed_uri("x")), Some("x"));
        assert_eq!(token("promptgate://x"), None);
    }
}
