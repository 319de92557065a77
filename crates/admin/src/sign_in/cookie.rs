//! The cookies of the console (RFC 6265; the prefixes are those of draft-ietf-httpbis-rfc6265bis,
//! section 4.1.3).

use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

use super::site::Site;

/// The cookies of the console. Scripts cannot read them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Cookie {
    /// The session. Other sites never cause it to be sent.
    Session,
    /// A sign-in at the provider that has begun. It is sent when the provider sends the browser
    /// back.
    Flow,
}

/// A value of the response header `Set-Cookie`. Add it, do not insert it: a response may have
/// several.
#[derive(Clone, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) struct SetCookie(HeaderValue);

/// Cookies of one name that are tried; a browser sends several if they were set for several paths.
const MAX_TRIED: usize = 4;

impl Cookie {
    /// Returns the name. Over `https` its prefix makes the browser refuse a cookie that another
    /// host of the domain, or a page without TLS, has set.
    fn name(self, site: &Site) -> &'static str {
        match (self, site.is_https()) {
            (Self::Session, true) => "__Host-promptgate_session",
            (Self::Session, false) => "promptgate_session",
            (Self::Flow, true) => "__Host-promptgate_login",
            (Self::Flow, false) => "promptgate_login",
        }
    }

    /// Sets the cookie to base64url text, for `age`.
    pub(super) fn set(self, site: &Site, value: &str, age: Duration) -> SetCookie {
        let scope = match self {
            Self::Session => "Path=/; HttpOnly; SameSite=Strict",
            Self::Flow => "Path=/; HttpOnly; SameSite=Lax",
        };
        let secure = if site.is_https() { "; Secure" } else { "" };
        let (name, age) = (self.name(site), age.as_secs());
        let text = format!("{name}={value}; Max-Age={age}; {scope}{secure}");
        // Base64url is always a header value.
        let mut value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        SetCookie(value)
    }

    /// Deletes the cookie.
    pub(super) fn delete(self, site: &Site) -> SetCookie {
        self.set(site, "", Duration::ZERO)
    }

    /// Returns the values that a request has for this cookie: at most four.
    pub(super) fn values<'a>(
        self,
        site: &Site,
        headers: &'a HeaderMap,
    ) -> impl Iterator<Item = &'a str> + use<'a> {
        let name = self.name(site);
        let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
        pairs
            .filter(move |(own, _)| own.trim() == name)
            .map(|(_, value)| value.trim())
            .take(MAX_TRIED)
    }
}

impl From<SetCookie> for HeaderValue {
    fn from(cookie: SetCookie) -> Self {
        cookie.0
    }
}

#[cfg(test)]
impl SetCookie {
    /// Returns the whole value of the header.
    pub(super) fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Returns `name=value`, as the browser sends it back.
    pub(super) fn pair(&self) -> &str {
        self.text().split(';').next().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign_in::site::site;

    #[test]
    fn cookies_have_the_attributes_of_their_kind_and_scheme() {
        let (plain, https) = (site("localhost:9877"), site("console.example"));
        let hour = Duration::from_secs(3600);
        let text = |cookie: SetCookie| cookie.text().to_owned();
        assert_eq!(
            text(Cookie::Session.set(&plain, "x", hour)),
            "promptgate_session=x; Max-Age=3600; Path=/; HttpOnly; SameSite=Strict"
        );
        assert_eq!(
            text(Cookie::Session.set(&https, "x", hour)),
            "__Host-promptgate_session=x; Max-Age=3600; Path=/; HttpOnly; SameSite=Strict; Secure"
        );
        assert_eq!(
            text(Cookie::Flow.delete(&https)),
            "__Host-promptgate_login=; Max-Age=0; Path=/; HttpOnly; SameSite=Lax; Secure"
        );
        let debug = format!("{:?}", Cookie::Session.set(&plain, "secret", hour));
        assert!(!debug.contains("secret"), "{debug}");
    }

    #[test]
    fn values_are_found_in_any_order_and_number() {
        let mut headers = HeaderMap::new();
        for line in ["a=1; promptgate_session=x;b", "promptgate_session=y=; promptgate_sessionx=z"]
        {
            headers.append(COOKIE, line.parse().unwrap());
        }
        let values = |site: &Site| -> Vec<_> { Cookie::Session.values(site, &headers).collect() };
        assert_eq!(values(&site("localhost")), ["x", "y="]);
        // A cookie without the prefix may have been set by another site.
        assert_eq!(values(&site("console.example")), [""; 0]);
        let many = "promptgate_session=x;".repeat(100);
        headers.insert(COOKIE, many.parse().unwrap());
        assert_eq!(Cookie::Session.values(&site("localhost"), &headers).count(), MAX_TRIED);
    }
}
