//! Where a browser goes after a sign-in: a page of this site, whatever the address says.

use http::HeaderValue;

use domain::text::percent;

/// A path of this site with its query, in visible ASCII. No browser reads it as another site.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LocalPath(String);

/// Longest path, in bytes: it travels in a cookie.
const MAX: usize = 512;

impl LocalPath {
    /// Returns the path in a request; `/` for a text that is no path, or may lead to another site.
    pub(crate) fn or_root(text: &str) -> Self {
        Self::parse(text).unwrap_or_default()
    }

    /// Parses a path that starts with one `/`. `None` for everything that a browser could read as
    /// another site, and for control characters and backslashes, encoded ones among them.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_local = text.starts_with('/')
            && text.len() <= MAX
            && text.bytes().all(|byte| byte.is_ascii_graphic())
            && is_harmless(text)
            && is_harmless(&String::from_utf8_lossy(&percent::decoded_bytes(text).0));
        is_local.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the value of the header `Refresh` that moves on to this path at once.
    pub(crate) fn refresh(&self) -> HeaderValue {
        // Visible ASCII is always a header value.
        HeaderValue::try_from(format!("0; url={}", self.0))
            .unwrap_or(HeaderValue::from_static("0; url=/"))
    }
}

impl Default for LocalPath {
    fn default() -> Self {
        Self("/".to_owned())
    }
}

fn is_harmless(text: &str) -> bool {
    !text.starts_with("//") && !text.contains(|c: char| c == '\\' || c.is_control())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use url::Url;

    use super::*;

    #[test]
    fn only_paths_of_this_site_are_followed() {
        for good in
            ["/", "/approvals", "/prompts/a__b?q=x%20y&to=//x#top", "/a//b", "/%C3%A9", "/..//x"]
        {
            assert_eq!(LocalPath::or_root(good).as_str(), good);
        }
        for bad in [
            "",
            "approvals",
            "//evil.example",
            "///evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "/a\\b",
            "https:evil.example",
            "https://evil.example",
            "javascript:alert(1)",
            " /approvals",
            "/\t/evil.example",
            "/\n/evil.example",
            "/a\r\nSet-Cookie: x",
            "/%0d%0aSet-Cookie:x",
            "/%00",
            "/%5cevil.example",
            "/%2fevil.example",
            "/%2Fevil.example",
            "/\u{e9}",
            "/a b",
            "/a\u{7f}",
        ] {
            assert_eq!(LocalPath::or_root(bad).as_str(), "/", "{bad:?}");
        }
        assert_eq!(LocalPath::parse(&format!("/{}", "a".repeat(MAX))), None);
        assert_eq!(LocalPath::parse("/approvals").unwrap().refresh(), "0; url=/approvals");
    }

    proptest! {
        #[test]
        fn no_accepted_text_leaves_the_site(text in "[/\\\\%a0-9:.@?#dDfF25\t\n]{0,12}") {
            if let Some(path) = LocalPath::parse(&text) {
                let base = Url::parse("https://console.example/login").unwrap();
                let target = base.join(path.as_str()).unwrap();
                prop_assert_eq!(target.origin(), base.origin());
            }
        }
    }
}
