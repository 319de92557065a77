//! Origins of URLs (RFC 6454): the gateway sends a credential only to the origin that it is for.

use http::Uri;
use url::Url;

/// Returns whether two URLs have the same scheme, host and port, where an absent port is the
/// scheme's default one (RFC 6454, section 5).
pub(crate) fn is_same_origin(a: &Uri, b: &Uri) -> bool {
    matches!((parse(a), parse(b)), (Some(a), Some(b)) if a.origin() == b.origin())
}

/// Resolves a URL reference against `base` (RFC 3986, section 5). Returns nothing unless the target
/// has the origin and the user information of `base`: the credentials of `base` must not go
/// anywhere else.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let base = parse(base)?;
    let target = base.join(reference).ok()?;
    let user_info = |url: &Url| (url.username().to_owned(), url.password().map(str::to_owned));
    let is_same = target.origin() == base.origin() && user_info(&target) == user_info(&base);
    target.as_str().parse().ok().filter(|_| is_same)
}

/// Returns the URL of another path at the same origin.
pub(crate) fn with_path(url: &Uri, path: &str) -> Option<Uri> {
    let scheme = url.scheme_str()?;
    let authority = url.authority()?.as_str();
    Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().ok()
}

fn parse(url: &Uri) -> Option<Url> {
    Url::parse(&url.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_never_leaves_the_origin() {
        let base: Uri = "http://a.example:1/x/sse?k=v".parse().unwrap();
        let resolve = |reference| resolve(&base, reference).map(|uri| uri.to_string());
        for (reference, target) in [
            ("/messages?s=1", "http://a.example:1/messages?s=1"),
            ("messages?s=http://x", "http://a.example:1/x/messages?s=http://x"),
            ("?s=1", "http://a.example:1/x/sse?s=1"),
            ("http://a.example:1/m", "http://a.example:1/m"),
            ("../m", "http://a.example:1/m"),
        ] {
            assert_eq!(resolve(reference).as_deref(), Some(target));
        }
        for foreign in [
            "//evil.example/m",
            "\\\\evil.example/m",
            "\t//evil.example/m",
            "http://a.example/m",
            "https://a.example:1/m",
            "http://user@a.example:1/m",
            "file:///m",
            "data:,m",
        ] {
            assert_eq!(resolve(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn default_ports_are_the_same_origin() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        for (short, long) in [
            ("https://a.example/mcp", "https://A.example:443/other"),
            ("http://a.example/mcp", "http://a.example:80/other"),
        ] {
            assert!(is_same_origin(&uri(short), &uri(long)), "{short} {long}");
            assert!(is_same_origin(&uri(long), &uri(short)), "{long} {short}");
            assert!(resolve(&uri(short), long).is_some(), "{long}");
        }
        for other in
            ["https://a.example:80/", "http://a.example:443/", "https://b.example/", "/mcp"]
        {
            assert!(!is_same_origin(&uri("https://a.example/mcp"), &uri(other)), "{other}");
        }
    }
}
