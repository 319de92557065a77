//! The normal form of resource URIs, for access rules, limits and records: the spellings that
//! servers read as one resource have one normal form (RFC 3986, section 6.2; RFC 8089).
//!
//! The form is for comparisons only. A server gets the client's spelling, because many servers
//! compare texts, and may use uppercase letters in the host.

use super::{is_encoded, is_scheme};
use crate::text::percent;

/// The reserved characters of a path that mean the same plain and percent-encoded, as unreserved
/// characters do: servers compare decoded paths. A star stays encoded, since it has another meaning
/// in patterns.
const PATH: &[u8] = b"!$&'()+,;=:@/";

/// The characters of a query and a fragment whose meaning depends on their encoding.
const TAIL: &[u8] = b"!$&'()+,;=:@/?#[]";

/// The characters of a host, and the colon before its port.
const HOST: &[u8] = b"!$&'()+,;=:[]";

/// Returns the normal form of a URI: scheme and host in lowercase, without `localhost` of a file
/// and a default port, and each character in one spelling. The function is idempotent. `None` if
/// servers could read the URI differently:
/// - control characters, outer spaces, backslashes, broken encodings, bytes that are not UTF-8;
/// - in the path, segments `.` and `..`, empty segments, slashes that are encoded, and characters
///   that are encoded twice;
/// - user information, a dot at the end of the host, a file of another host, or with a query.
///
/// Takes time linear in the length.
pub fn normal(uri: &str) -> Option<String> {
    form(uri, Stars::Literal)
}

/// The meaning of a star in a text.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Stars {
    Literal,
    /// The star stands for any text.
    Pattern,
}

/// The spelling of a resource URI, or of a pattern of URIs, in a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Spelling {
    /// In normal form, or not a URI.
    Normal,
    /// In a form other than this normal form.
    Other(String),
    /// A URI without a normal form, which no rule matches: see [`normal`].
    Ambiguous,
}

impl Spelling {
    /// Returns the spelling of a URI in a rule.
    pub fn of_name(name: &str) -> Self {
        Self::of(name, Stars::Literal)
    }

    /// Returns the spelling of a pattern in a rule, where `*` stands for any text.
    pub fn of_pattern(pattern: &str) -> Self {
        Self::of(pattern, Stars::Pattern)
    }

    fn of(text: &str, stars: Stars) -> Self {
        match (text.split_once(':'), form(text, stars)) {
            (Some((scheme, _)), Some(normal)) if is_scheme(scheme) && normal != text => {
                Self::Other(normal)
            }
            // Names of prompts may have a colon, too.
            (Some((scheme, rest)), None) if is_scheme(scheme) && rest.starts_with("//") => {
                Self::Ambiguous
            }
            _ => Self::Normal,
        }
    }
}

fn form(text: &str, stars: Stars) -> Option<String> {
    if text.contains(|c: char| c.is_control() || c == '\\') || text.trim() != text {
        return None;
    }
    let Some((scheme, rest)) = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
        // Not a URI, but a name that some servers use instead.
        return path(text, stars).filter(|_| !text.contains('%')).map(|_| text.to_owned());
    };
    let scheme = scheme.to_ascii_lowercase();
    let (hierarchy, tail) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let (host, rest) = match hierarchy.strip_prefix("//") {
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Some(authority(&scheme, host, stars)?), path)
        }
        None if scheme == "file" && hierarchy.starts_with('/') => (Some(String::new()), hierarchy),
        None => (None, hierarchy),
    };
    let is_open = stars == Stars::Pattern && (rest.starts_with('*') || hierarchy.ends_with('*'));
    let has_host = scheme == "file" || default_port(&scheme).is_some();
    if (has_host && host.is_none() && !is_open) || (scheme == "file" && !tail.is_empty()) {
        return None;
    }
    let mut path = path(rest, stars)?;
    if path.is_empty() && default_port(&scheme).is_some() && !is_open {
        path.push('/');
    }
    let slashes = if host.is_some() { "//" } else { "" };
    let tail = percent::respelled(tail, b"", &kept(TAIL, stars))?;
    Some([&scheme, ":", slashes, &host.unwrap_or_default(), &path, &tail].concat())
}

/// Returns the normal form of a host with its port.
fn authority(scheme: &str, text: &str, stars: Stars) -> Option<String> {
    let decoded = percent::decoded(text)?;
    let is_foreign = |c: char| c.is_control() || " /\\?#@%".contains(c);
    // A host contains no star; in a pattern a decoded star would match any text.
    let stands_for_text = if stars == Stars::Pattern { text.matches('*').count() } else { 0 };
    if decoded.contains(is_foreign) || decoded.matches('*').count() != stands_for_text {
        return None;
    }
    let lower: String = decoded.chars().flat_map(char::to_lowercase).collect();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = match (lower.rsplit_once(':'), default_port(scheme)) {
        (Some((host, port)), Some(default)) if is_port(port) => {
            let port: u16 = if port.is_empty() { default } else { port.parse().ok()? };
            (host, (port != default).then_some(port))
        }
        _ => (lower.as_str(), None),
    };
    let is_open = stars == Stars::Pattern && host.contains('*');
    let host = match scheme {
        "file" if matches!(host, "" | "localhost") => "",
        "file" if !is_open => return None,
        _ if host.ends_with('.') || (host.is_empty() && default_port(scheme).is_some()) => {
            return None;
        }
        _ => host,
    };
    let host = percent::respelled(host, HOST, &kept(b"", stars))?;
    Some(port.map_or(host.clone(), |port| format!("{host}:{port}")))
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        "ftp" => Some(21),
        _ => None,
    }
}

fn path(text: &str, stars: Stars) -> Option<String> {
    let decoded = percent::decoded(text)?;
    // Some servers drop the text from a semicolon on.
    let is_dots = |part: &str| matches!(part.split(';').next(), Some("." | ".."));
    let is_ambiguous = decoded.matches('/').count() != text.matches('/').count()
        || decoded.contains(|c: char| c.is_control() || c == '\\')
        || decoded.contains("//")
        || decoded.split('/').any(is_dots)
        || decoded.match_indices('%').any(|(at, _)| is_encoded(&decoded[at..]));
    if is_ambiguous { None } else { percent::respelled(text, PATH, &kept(b"", stars)) }
}

/// Returns the characters that stay unchanged.
fn kept(own: &[u8], stars: Stars) -> Vec<u8> {
    let star: &[u8] = if stars == Stars::Pattern { b"*" } else { b"" };
    [own, star].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::glob::Glob;

    #[test]
    fn spellings_of_one_resource_have_one_form() {
        for (form, spellings) in [
            (
                "file:///private/b",
                &[
                    "FILE:///private/b",
                    "file:///%70rivate/b",
                    "file://localhost/private/b",
                    "file://LOCAL%68ost/private/b",
                    "file:/private/b",
                ][..],
            ),
            ("file:///a%20b(1)", &["file:///a b(1)", "file:///a%20b%281%29"]),
            ("file:///priv%C3%A9/%2A", &["file:///privé/*", "file:///priv%c3%a9/%2a"]),
            (
                "https://a.example/x?q=%2F~",
                &["HTTPS://A.example:443/x?q=%2f%7e", "https://a%2Eexample:/x?q=%2F~"],
            ),
            ("http://a/", &["http://a", "http://a:80", "http://A:080/"]),
            ("http://a:8080/", &["http://a:8080"]),
            ("notes://%C3%BCber/A", &["notes://Über/A", "NOTES://%c3%9cber/%41"]),
            ("memo:Insights", &["MEMO:Insights", "memo:%49nsights"]),
            ("a:1", &["A:1", "a:%31"]),
        ] {
            assert_eq!(normal(form).as_deref(), Some(form));
            for spelling in spellings {
                assert_eq!(normal(spelling).as_deref(), Some(form), "{spelling}");
            }
        }
        assert_eq!(normal("notes/todo.md").as_deref(), Some("notes/todo.md"), "no URI");
        assert_ne!(normal("a://x/?q=a%26b"), normal("a://x/?q=a&b"));
    }

    #[test]
    fn a_uri_that_servers_read_differently_has_no_form() {
        for ambiguous in [
            "file:///private%2fb",
            "file:///private%5Cb",
            "file:///private\\b",
            "file:///a/../private/b",
            "file:///a/%2e%2E/private/b",
            "file:///a/..;x/private/b",
            "file:///%2570rivate/b",
            "file:////private/b",
            "file:///a//b",
            "file://other/private/b",
            "file:private/b",
            "file:///private/b?x",
            "file:///private/b#x",
            "file:///private/%zz",
            "file:///private/100%",
            "file:///private/%c0%ae",
            "file:///private/%00b",
            "file:///private/\tb",
            " file:///private/b",
            "file:///private/b\u{a0}",
            "http:/a/b",
            "http:///a/b",
            "http://user@a/b",
            "http://a./b",
            "http://a%2Fb/",
            "http://*.a/b",
            "http://%2A.a/b",
            "http://a:99999/",
            "notes/%74odo",
        ] {
            assert_eq!(normal(ambiguous), None, "{ambiguous}");
        }
    }

    #[test]
    fn patterns_are_spelled_as_the_uris_that_they_are_meant_for() {
        let other = |normal: &str| Spelling::Other(normal.to_owned());
        for (pattern, spelling) in [
            ("FILE:///Private/*", other("file:///Private/*")),
            ("file://localhost/%70rivate/*", other("file:///private/*")),
            ("file:///a%2a/*", other("file:///a%2A/*")),
            ("https://A.example/*", other("https://a.example/*")),
            ("Memo:*", other("memo:*")),
            ("file:///a/../b/*", Spelling::Ambiguous),
            ("file://server/share/*", Spelling::Ambiguous),
        ] {
            assert_eq!(Spelling::of_pattern(pattern), spelling, "{pattern}");
        }
        for normal in [
            "*",
            "search_*",
            "file:*",
            "file://*",
            "file:///*",
            "https:*",
            "https://*",
            "https://*.example/*",
            "*:///private/*",
            "a:*",
            "Team review: 100 %",
        ] {
            assert_eq!(Spelling::of_pattern(normal), Spelling::Normal, "{normal}");
        }
        assert_eq!(Spelling::of_name("file:///a*b"), other("file:///a%2Ab"));
    }

    proptest! {
        #[test]
        fn a_normal_form_is_its_own(uri in "(file|HTTP|a|)(:|%3a)?(/{0,3})([a-bA-B.%*é:@;?#/\\\\ ]|%[2-7][0-9a-fA-F]){0,12}") {
            if let Some(form) = normal(&uri) {
                prop_assert_eq!(normal(&form), Some(form));
            }
        }

        #[test]
        fn an_encoded_letter_changes_no_form(before in "(file://|x://h|x:)(/[a-z!(]{1,4}){0,3}/", c in "[a-z0-9~._()-]") {
            let letter = c.as_bytes()[0];
            let [plain, encoded] = [format!("{before}x{c}"), format!("{before}x%{letter:02x}")];
            prop_assert!(normal(&plain).is_some());
            prop_assert_eq!(normal(&plain), normal(&encoded));
        }

        #[test]
        fn a_pattern_matches_what_it_was_written_for(tail in "[a-zA-Z(%~-]{0,4}", name in "[a-z(~-]{1,4}") {
            let pattern = format!("FILE:///{tail}*");
            if let Spelling::Other(form) = Spelling::of_pattern(&pattern) {
                let uri = normal(&format!("FILE:///{tail}{name}"));
                let matches = |uri: String| Glob::parse(&form).is_some_and(|glob| glob.matches(&uri));
                prop_assert!(uri.is_none_or(matches));
            }
        }
    }
}
