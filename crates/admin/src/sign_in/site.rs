//! The site that a browser has asked for, and whether a form comes from its own pages.

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Uri};

use domain::address_policy::is_loopback;

/// The scheme and host of the console, as the browser knows them.
///
/// The admin side has no TLS. A browser that asks for a loopback host is on this machine and uses
/// `http`. Any other host is assumed to be served by a proxy with TLS, so the scheme is `https`. No
/// header of a proxy is believed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Site {
    host: Authority,
    is_loopback: bool,
}

/// The path to which the provider sends browsers back.
const CALLBACK: &str = "/login/callback";

impl Site {
    /// Reads the site of a request whose host is allowed
    /// ([`OriginGuard::check_host`](front::downstream::OriginGuard::check_host)). HTTP/2 has the
    /// host in the URI. `None` if there is no host, or one with user information.
    pub(crate) fn of(uri: &Uri, headers: &HeaderMap) -> Option<Self> {
        let from_header = || headers.get(HOST)?.to_str().ok()?.parse().ok();
        let host = uri.authority().cloned().or_else(from_header)?;
        let is_plain = !host.as_str().contains('@');
        is_plain.then(|| Self { is_loopback: is_loopback(host.host()), host })
    }

    /// Returns whether the browser uses `https`.
    pub(super) fn is_https(&self) -> bool {
        !self.is_loopback
    }

    /// Returns the URI to which the provider sends browsers back. It must be registered there.
    pub(super) fn callback(&self) -> String {
        format!("{}{CALLBACK}", self.origin())
    }

    /// Returns the origin of the site (RFC 6454), such as `https://console.example`.
    pub(super) fn origin(&self) -> String {
        let scheme = if self.is_https() { "https" } else { "http" };
        format!("{scheme}://{}", self.host.as_str().to_ascii_lowercase())
    }
}

/// Returns whether a POST was sent by a page of this site, so that another site cannot sign a
/// person in or out (login CSRF), where no token of a session can protect a form.
///
/// `Sec-Fetch-Site` decides where the browser sends it (Fetch Metadata Request Headers), else the
/// host in `Origin`, which browsers send with every POST. A request without both is refused.
#[must_use]
pub(crate) fn is_same_site_post(site: &Site, headers: &HeaderMap) -> bool {
    if let Some(fetch_site) = headers.get("sec-fetch-site") {
        // `none`: the person has started it, as by reloading a page.
        return fetch_site == "same-origin" || fetch_site == "none";
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else {
        return false;
    };
    let origin = origin.to_str().unwrap_or_default();
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    host.is_some_and(|host| host.eq_ignore_ascii_case(site.host.as_str()))
}

/// Returns whether a page of another site has asked for the content of the request (Fetch Metadata
/// Request Headers), as by a script, an image or a frame. A person who follows a link to a page
/// here navigates.
#[must_use]
pub(crate) fn is_foreign_subresource(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|sent| sent == value);
    let is_foreign = is("sec-fetch-site", "cross-site") || is("sec-fetch-site", "same-site");
    let is_page = !headers.contains_key("sec-fetch-dest") || is("sec-fetch-dest", "document");
    is_foreign && !(is("sec-fetch-mode", "navigate") && is_page)
}

#[cfg(test)]
pub(super) fn site(host: &str) -> Site {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, host.parse().unwrap());
    Site::of(&Uri::from_static("/login"), &headers).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_asked_for_in_plain_text() {
        for (host, origin) in [
            ("localhost:9877", "http://localhost:9877"),
            ("127.0.0.1:9877", "http://127.0.0.1:9877"),
            ("[::1]", "http://[::1]"),
            ("Console.Example", "https://console.example"),
            ("10.0.0.1:9877", "https://10.0.0.1:9877"),
            ("localhost.evil.example", "https://localhost.evil.example"),
        ] {
            assert_eq!(site(host).origin(), origin);
        }
        let uri = Uri::from_static("http://console.example/login");
        let http2 = Site::of(&uri, &HeaderMap::new()).unwrap();
        assert_eq!(http2.origin(), "https://console.example");
        assert_eq!(Site::of(&Uri::from_static("/"), &HeaderMap::new()), None);
        assert_eq!(Site::of(&Uri::from_static("http://a@b/"), &HeaderMap::new()), None);
    }

    #[test]
    fn what_a_page_of_another_site_loads_is_recognised() {
        let is_foreign = |site: &str, mode: &str, to: &str| {
            let headers =
                [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", to)];
            let sent = headers.into_iter().filter(|(_, value)| !value.is_empty());
            let sent = sent.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            is_foreign_subresource(&sent.collect())
        };
        for (site, mode, to) in [
            ("cross-site", "no-cors", "script"),
            ("same-site", "cors", "empty"),
            ("cross-site", "navigate", "iframe"),
            ("cross-site", "navigate", "object"),
            ("same-site", "", ""),
        ] {
            assert!(is_foreign(site, mode, to), "{site} {mode} {to}");
        }
        for (site, mode, to) in [
            ("", "", ""),
            ("same-origin", "cors", "empty"),
            ("none", "navigate", "document"),
            ("cross-site", "navigate", "document"),
            ("same-site", "navigate", ""),
        ] {
            assert!(!is_foreign(site, mode, to), "{site} {mode} {to}");
        }
    }

    #[test]
    fn a_form_of_another_site_is_recognised() {
        let is_own = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            is_same_site_post(&site("console.example"), &headers)
        };
        assert!(is_own(&[("sec-fetch-site", "same-origin")]));
        assert!(is_own(&[("sec-fetch-site", "none")]));
        assert!(is_own(&[("origin", "https://console.example")]));
        assert!(is_own(&[("origin", "https://CONSOLE.example")]));
        // With a strict referrer policy the browser sends no more about its origin.
        assert!(is_own(&[("sec-fetch-site", "same-origin"), ("origin", "null")]));
        let own = ("origin", "https://console.example");
        for foreign in [
            &[][..],
            &[("sec-fetch-site", "cross-site"), own],
            &[("sec-fetch-site", "same-site"), own],
            &[("origin", "null")],
            &[("origin", "https://evil.example")],
            &[("origin", "https://console.example.evil.example")],
            &[("origin", "https://console.example:8443")],
            &[own, own],
        ] {
            assert!(!is_own(foreign), "{foreign:?}");
        }
    }
}
