//! The gateways that a request or an element of a list has passed, so that gateways refuse requests
//! in a loop, as proxies do with the header `Via` (RFC 9110, section 7.6.3).

use crate::json::Json;
use crate::json::object::write_object;

/// The key of `_meta` with the gateways. The key is in the body, because other gateways rewrite
/// headers, and child processes have no headers.
pub const VIA: &str = "promptgate/via";

/// Most gateways that a request may pass. Gateways further apart do not learn of each other.
const MAX_HOPS: usize = 8;

/// Longest pseudonym, in bytes.
const MAX_PSEUDONYM: usize = 32;

/// The gateways that a request or an element of a list has passed, or the gateways behind an
/// upstream: the pseudonyms of their installations, separated by spaces.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Via(String);

impl Via {
    /// No gateway.
    pub const NONE: Self = Self(String::new());

    /// Reads a `_meta` object. Invalid pseudonyms, and pseudonyms beyond the longest way, are left
    /// out.
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

    /// Adds the gateway that passes the request on; `None` if the request has passed it before, or
    /// has passed too many gateways.
    pub fn through(&self, own: &str) -> Option<Self> {
        let mut way = self.clone();
        way.push(own);
        let is_first = !self.has(own);
        (is_first && self.pseudonyms().count() < MAX_HOPS).then_some(way)
    }

    /// Returns the way of an element of a list that an upstream sent to `own`; `behind` are the
    /// gateways behind the upstream. `None` for an element that came back, and for an element that
    /// no request could reach, because it would pass too many gateways.
    pub fn of_element(element: Json<'_>, behind: &Self, own: &Self) -> Option<Self> {
        let before = Self::read(element.get("_meta"));
        let mut way = Self::NONE;
        for pseudonym in behind.pseudonyms().take(1).chain(before.pseudonyms()) {
            if own.has(pseudonym) {
                return None;
            }
            way.push(pseudonym);
        }
        (way.pseudonyms().count() < MAX_HOPS).then_some(way)
    }

    /// Appends an element of a list that `write` serialises, with this way in its `_meta`.
    pub fn write_element(&self, out: &mut String, write: impl FnOnce(&mut String)) {
        if self.is_none() {
            return write(out);
        }
        let mut element = String::new();
        write(&mut element);
        let element = Json::accepted(&element);
        write_object(out, |out| {
            for (key, value) in element.members().filter(|(key, _)| !key.is("_meta")) {
                out.member(key, value);
            }
            out.object("_meta", |meta| {
                for (key, value) in element.get("_meta").iter().flat_map(|meta| meta.members()) {
                    meta.member(key, value);
                }
                meta.text(VIA, &self.0);
            });
        });
    }

    /// Returns the gateway itself and the gateways behind its upstreams, each once; itself a second
    /// time if its upstreams lead back to it.
    pub fn of_gateway(own: &str, upstreams: impl IntoIterator<Item = Self>) -> Self {
        let mut behind = Self::NONE;
        for upstream in upstreams {
            for pseudonym in upstream.pseudonyms() {
                let is_new = !behind.has(pseudonym);
                if is_new && behind.pseudonyms().count() < MAX_HOPS {
                    behind.push(pseudonym);
                }
            }
        }
        let mut all = Self(own.to_owned());
        all.0.extend(behind.pseudonyms().flat_map(|pseudonym| [" ", pseudonym]));
        all
    }

    /// Whether the gateways behind an upstream form a loop, or lead back to `own`.
    pub fn is_circle(&self, own: &Self) -> bool {
        let mut all = self.pseudonyms();
        let first = all.next();
        first.is_some_and(|first| own.has(first))
            || all.any(|next| Some(next) == first || own.has(next))
    }

    /// Returns the value for `_meta`; empty without gateways.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, pseudonym: &str) -> bool {
        self.pseudonyms().any(|known| known == pseudonym)
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
        assert!(!all.is_circle(&Via::NONE) && !all.is_circle(&via("x")));
        assert!(all.is_circle(&via("a")) && all.is_circle(&via("d")));
        let circle = Via::of_gateway("a", [via("b a")]);
        assert_eq!(circle.as_str(), "a b a");
        assert!(circle.is_circle(&Via::NONE) && !Via::NONE.is_circle(&Via::NONE));
    }

    #[test]
    fn an_element_says_its_way_and_comes_back_to_none_of_it() {
        let plain = r#"{"name":"p","_meta":{"k":1},"x":2}"#;
        let json = |text| Json::parse(text, 8).unwrap();
        let at_a = Via::of_element(json(plain.as_bytes()), &via("b c"), &via("a")).unwrap();
        assert_eq!(at_a.as_str(), "b", "those behind it are on other ways");
        let mut listed = String::new();
        at_a.write_element(&mut listed, |out| out.push_str(plain));
        assert_eq!(listed, r#"{"name":"p","x":2,"_meta":{"k":1,"promptgate/via":"b"}}"#);
        let listed = json(listed.as_bytes());
        let way = |own| Via::of_element(listed, &via("a d"), &via(own));
        assert_eq!(way("d").unwrap().as_str(), "a b");
        assert_eq!((way("a"), way("b")), (None, None));
        let mut unmarked = String::new();
        Via::NONE.write_element(&mut unmarked, |out| out.push_str(plain));
        assert_eq!(unmarked, plain);
        let far = format!("{{\"_meta\":{{\"{VIA}\":\"1 2 3 4 5 6 7\"}}}}");
        let far = |behind| Via::of_element(json(far.as_bytes()), &via(behind), &via("a"));
        assert!(far("").is_some() && far("8").is_none());
    }
}
