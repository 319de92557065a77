//! Cookies of an upstream (RFC 6265): balancers keep a session at one replica by them.

use std::sync::Mutex;

use cookie::Cookie;
use http::header::SET_COOKIE;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Uri};

use base::platform::Locked;
use domain::time::unix_time::UnixSeconds;

/// The cookies of one session with an upstream, all of the same origin. The jar ends with the
/// session, so that another caller's session never sends these cookies.
#[derive(Default)]
pub(super) struct CookieJar(Mutex<Vec<KeptCookie>>);

struct KeptCookie {
    name: String,
    /// `name=value`, in the form for the `Cookie` header.
    pair: String,
    path: String,
    /// Whether the cookie is sent over TLS only.
    is_secure: bool,
    /// When the cookie expires; `None`: at the end of the session.
    expires: Option<UnixSeconds>,
}

/// Most cookies of one session; the oldest are evicted. Balancers set one or two.
const MAX_COOKIES: usize = 16;

/// Longest cookie, as in browsers (RFC 6265, section 6.1), and total size of a session's cookies,
/// in bytes: servers refuse larger headers.
const MAX_COOKIE: usize = 4 << 10;
const MAX_SIZE: usize = 8 << 10;

impl CookieJar {
    /// Stores the cookies of a response from `url` (RFC 6265, section 5.3). Skips cookies for
    /// another host, and malformed or long cookies.
    pub(super) fn keep(&self, url: &Uri, response: &HeaderMap, now: UnixSeconds) {
        for value in response.get_all(SET_COOKIE) {
            let cookie = value.to_str().ok().and_then(|text| Cookie::parse(text).ok());
            if let Some(cookie) = cookie.filter(|cookie| is_acceptable(cookie, url)) {
                let kept = KeptCookie::new(&cookie, url, now);
                let mut cookies = self.0.locked();
                let is_same =
                    |other: &KeptCookie| (&other.name, &other.path) == (&kept.name, &kept.path);
                cookies.retain(|other| !is_same(other));
                if kept.lives(now) {
                    cookies.push(kept);
                }
                while cookies.len() > MAX_COOKIES
                    || cookies.iter().map(|cookie| cookie.pair.len() + 2).sum::<usize>() > MAX_SIZE
                {
                    cookies.remove(0);
                }
            }
        }
    }

    /// Returns the value of `Cookie` for a request to `url` that has `own` cookies (RFC 6265,
    /// section 5.4); `None` if the jar has no cookie for this URL.
    pub(super) fn header(
        &self,
        url: &Uri,
        own: Option<&HeaderValue>,
        now: UnixSeconds,
    ) -> Option<HeaderValue> {
        let mut cookies = self.0.locked();
        cookies.retain(|cookie| cookie.lives(now));
        let mut sent: Vec<_> = cookies.iter().filter(|cookie| cookie.is_for(url)).collect();
        if sent.is_empty() {
            return None;
        }
        sent.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let own = own.and_then(|own| own.to_str().ok());
        let pairs: Vec<&str> =
            own.into_iter().chain(sent.iter().map(|cookie| cookie.pair.as_str())).collect();
        let mut value = HeaderValue::try_from(pairs.join("; ")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl KeptCookie {
    fn new(cookie: &Cookie<'_>, url: &Uri, now: UnixSeconds) -> Self {
        let until = cookie.expires_datetime().map(|at| at.unix_timestamp());
        let lifetime = cookie.max_age().map(|age| age.whole_seconds());
        // The lifetime takes precedence over the date.
        let expires = match (lifetime, until) {
            (Some(secs), _) => Some(now.0.saturating_add(u64::try_from(secs).unwrap_or_default())),
            (None, until) => until.map(|at| u64::try_from(at).unwrap_or_default()),
        };
        let default_path = || match url.path().rsplit_once('/') {
            None | Some(("", _)) => "/",
            Some((folder, _)) => folder,
        };
        let path = cookie.path().filter(|path| path.starts_with('/'));
        Self {
            name: cookie.name().to_owned(),
            pair: format!("{}={}", cookie.name(), cookie.value()),
            path: path.unwrap_or_else(default_path).to_owned(),
            is_secure: cookie.secure().unwrap_or_default(),
            expires: expires.map(UnixSeconds),
        }
    }

    fn lives(&self, now: UnixSeconds) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Whether the cookie is sent to a URL of its origin (RFC 6265, section 5.1.4).
    fn is_for(&self, url: &Uri) -> bool {
        let below = url.path().strip_prefix(self.path.as_str());
        let is_below = below.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('/') || self.path.ends_with('/')
        });
        is_below && (!self.is_secure || is_tls(url))
    }
}

/// Whether a response from `url` may set a cookie. A cookie with a domain must match the host's
/// domain, and is still sent to the host alone.
fn is_acceptable(cookie: &Cookie<'_>, url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().to_ascii_lowercase();
    let is_of_host = cookie.domain().is_none_or(|domain| {
        let above = host.strip_suffix(&domain.to_ascii_lowercase());
        above.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    let size = cookie.name().len() + cookie.value().len();
    is_of_host
        && !cookie.name().is_empty()
        && size < MAX_COOKIE
        && (is_tls(url) || !cookie.secure().unwrap_or_default())
}

fn is_tls(url: &Uri) -> bool {
    url.scheme() == Some(&Scheme::HTTPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

    fn jar(url: &str, cookies: &[&str]) -> CookieJar {
        let jar = CookieJar::default();
        keep(&jar, url, cookies);
        jar
    }

    fn keep(jar: &CookieJar, url: &str, cookies: &[&str]) {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(SET_COOKIE, HeaderValue::from_str(cookie).unwrap());
        }
        jar.keep(&url.parse().unwrap(), &headers, NOW);
    }

    fn sent(jar: &CookieJar, url: &str, now: u64) -> String {
        let header = jar.header(&url.parse().unwrap(), None, UnixSeconds(NOW.0 + now));
        header.map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    }

    const URL: &str = "https://a.example/team/mcp";

    #[test]
    fn a_cookie_is_sent_until_it_expires_or_is_removed() {
        let jar = jar(
            URL,
            &[
                "LB=r1; Path=/; HttpOnly",
                "a=1; Max-Age=10",
                "b=\"x y\"; Expires=Wed, 09 Jun 2100 10:18:14 GMT",
            ],
        );
        assert_eq!(sent(&jar, URL, 0), "a=1; b=\"x y\"; LB=r1", "longer paths first");
        assert_eq!(sent(&jar, URL, 10), "b=\"x y\"; LB=r1");
        keep(
            &jar,
            URL,
            &["LB=r2; Path=/", "b=; Max-Age=0", "c=1; Expires=Wed, 09-Jun-2021 10:18:14 GMT"],
        );
        assert_eq!(sent(&jar, URL, 10), "LB=r2");
        let own = HeaderValue::from_static("mine=1");
        let header = jar.header(&URL.parse().unwrap(), Some(&own), NOW).unwrap();
        assert_eq!(header, "mine=1; LB=r2");
        assert!(header.is_sensitive());
    }

    #[test]
    fn a12_a_cookie_keeps_to_its_host_its_path_and_tls() {
        let jar = jar(
            URL,
            &[
                "s=1; Secure; Path=/team",
                "d=1; Domain=example; Path=/",
                "e=1; Domain=.a.example; Path=/x",
                "evil=1; Domain=b.example",
                "evil=1; Domain=xa.example",
                "=nameless",
                "no pair",
            ],
        );
        assert_eq!(sent(&jar, URL, 0), "s=1; d=1");
        assert_eq!(sent(&jar, "http://a.example/team/mcp", 0), "d=1");
        assert_eq!(sent(&jar, "https://a.example/teams", 0), "d=1");
        assert_eq!(sent(&jar, "https://a.example/x/y", 0), "e=1; d=1");
        let plain = self::jar("http://a.example/mcp", &["s=1; Secure"]);
        assert_eq!(sent(&plain, URL, 0), "", "one that came in the clear is not secure");
    }

    #[test]
    fn the_cookies_of_a_session_are_bounded_in_number_and_bytes() {
        let many: Vec<_> = (0..100).map(|n| format!("c{n}=1")).collect();
        let jar = jar(URL, &many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(sent(&jar, URL, 0).split("; ").count(), MAX_COOKIES);
        assert!(sent(&jar, URL, 0).ends_with("c99=1"), "the oldest give way");
        let long = format!("l={}", "x".repeat(MAX_COOKIE));
        let large: Vec<_> = (0..4).map(|n| format!("l{n}={}", "x".repeat(3000))).collect();
        keep(&jar, URL, &[&long]);
        assert!(!sent(&jar, URL, 0).contains("l="));
        keep(&jar, URL, &large.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(sent(&jar, URL, 0).len() <= MAX_SIZE);
    }
}
