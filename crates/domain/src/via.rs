//! The gateways that a request has passed, so that those in a circle refuse it, as proxies do by
//! the header `Via` (RFC 9110, section 7.6.3).

use super::json::Json;

/// The key of `_meta` that has them. It is in the body, and no header: gateways of others make
/// headers of their own, and child processes have none.
pub const VIA: &str = "promptgate/via";

/// Most gateways that a request may pass. Those of a longer way do not know each other.
const MAX_HOPS: usize = 8;

/// Longest pseudonym, in bytes.
const MAX_PSEUDONYM: usize = 32;

/// The gateways that a request has passed, or those that stand behind an upstream: the pseudonyms
/// of their installations, separated by spaces.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Via(String);

impl Via {
    /// No gateway.
    pub const NONE: Self = Self(String::new());

    /// Reads a `_meta` object. Whatever is not a pseudonym is left out, and more than the longest
    /// way has.
    pub fn read(meta: Option<Json<'_>>) -> Self {
        let text = meta.and_then(|meta| meta.get(VIA)).and_then(Json::as_str);
        let mut read = Self::NONE;
        for pseudonym in text.as_deref().unwrap_or_default().split(' ').take(2 * MAX_HOPS) {
            let is_pseudonym = (1..=MAX_PSEUDONYM).contains(&pseudonym.len())
                && pseudonym.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if is_pseudonym {
                read.push(pseudonym);
            }
        }
        read
    }

    /// Adds the gateway that passes the request on; `None` for a request that it has passed before,
    /// and for one that has passed too many.
    pub fn through(&self, own: &str) -> Option<Self> {
        let mut way = self.clone();
        way.push(own);
        let is_first = !self.pseudonyms().any(|passed| passed == own);
        (is_first && self.pseudonyms().count() < MAX_HOPS).then_some(way)
    }

    /// The gateway itself, and those behind its upstreams, each once; itself again where it is one
    /// of them.
    pub fn of_gateway(own: &str, upstreams: impl IntoIterator<Item = Self>) -> Self {
        let mut behind = Self::NONE;
        for upstream in upstreams {
            for pseudonym in upstream.pseudonyms() {
                let is_new = !behind.pseudonyms().any(|known| known == pseudonym);
                if is_new && behind.pseudonyms().count() < MAX_HOPS {
                    behind.push(pseudonym);
                }
            }
        }
        let mut all = Self(own.to_owned());
        all.0.extend(behind.pseudonyms().flat_map(|pseudonym| [" ", pseudonym]));
        all
    }

    /// Whether the gateways behind an upstream form a circle, or lead back to `own`.
    pub fn is_circle(&self, own: Option<&str>) -> bool {
        let mut all = self.pseudonyms();
        let first = all.next();
        first.is_some_and(|first| Some(first) == own)
            || all.any(|next| Some(next) == first || Some(next) == own)
    }

    /// As `_meta` has it; empty for none.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    fn pseudonyms(&self) -> impl Iterator<Item = &str> {
        self.0.split(' ').filter(|pseudonym| !pseudonym.is_empty())
    }

    fn push(&mut self, pseudonym: &str) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(pseudonym);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn via(text: &str) -> Via {
        let meta = format!("{{\"{VIA}\":\"{text}\"}}");
        Via::read(Some(Json::parse(meta.as_bytes(), 8).unwrap()))
    }

    #[test]
    fn a_request_passes_each_gateway_once_and_not_too_many() {
        let passed = via("").through("a").unwrap().through("b").unwrap();
        assert_eq!(passed.as_str(), "a b");
        assert_eq!((passed.through("a"), passed.through("b")), (None, None));
        assert_eq!(via("1 2 3 4 5 6 7").through("8").unwrap().through("9"), None);
    }

    #[test]
    fn what_others_wrote_is_bounded_and_never_more_than_pseudonyms() {
        assert_eq!(via("a  é b\\n c-d \\u0000").as_str(), "a");
        assert_eq!(via(&"x ".repeat(1000)).pseudonyms().count(), 2 * MAX_HOPS);
        assert_eq!(via(&"x".repeat(1000)), Via::NONE);
        let meta = format!("{{\"{VIA}\":[\"a\"]}}");
        assert_eq!(Via::read(Some(Json::parse(meta.as_bytes(), 8).unwrap())), Via::NONE);
    }

    #[test]
    fn a_circle_is_seen_by_those_in_it_and_from_outside() {
        let all = Via::of_gateway("a", [via("b c"), via("c d")]);
        assert_eq!(all.as_str(), "a b c d");
        assert!(!all.is_circle(None) && !all.is_circle(Some("x")));
        assert!(all.is_circle(Some("a")) && all.is_circle(Some("d")));
        let circle = Via::of_gateway("a", [via("b a")]);
        assert_eq!(circle.as_str(), "a b a");
        assert!(circle.is_circle(None) && !Via::NONE.is_circle(None));
    }
}
