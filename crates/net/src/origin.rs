//! Origins of URLs (RFC 6454): the gateway sends a credential only to the origin that it is for.

use http::Uri;
use url::Url;

use domain::fault::excerpt;

/// Returns whether two URLs have the same scheme, host and port, where an absent port is the
/// scheme's default one (RFC 6454, section 5).
pub fn is_same_origin(a: &Uri, b: &Uri) -> bool {
    matches!((parse(a), parse(b)), (Some(a), Some(b)) if a.origin() == b.origin())
}

/// Resolves a URL reference against `base` (RFC 3986, section 5). Returns nothing unless the target
/// has the origin and the user information of `base`: the credentials of `base` must not go
/// anywhere else.
pub fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let base = parse(base)?;
    let target = base.join(reference).ok()?;
    let user_info = |url: &Url| (url.username().to_owned(), url.password().map(str::to_owned));
    let is_same = target.origin() == base.origin() && user_info(&target) == user_info(&base);
    target.as_str().parse().ok().filter(|_| is_same)
}

/// Returns the target of a URL reference for operators: resolved against `base`, without user
/// information, query and fragment, which may be secret.
pub fn shown(base: &Uri, reference: &str) -> String {
    let target = parse(base).and_then(|base| base.join(reference).ok());
    let Some(mut target) = target else {
        return excerpt(reference.split(['?', '#']).next().unwrap_or_default());
    };
    let _ = target.set_username("");
    let _ = target.set_password(None);
    target.set_query(None);
    target.set_fragment(None);
    excerpt(target.as_str())
}

/// Returns whether two URIs are the same after normalisation (RFC 3986, sections 6.2.2.1 and
/// 6.2.3): case of scheme and host, the default port, and `/` for no path. Libraries write either
/// spelling of one URI. Texts that are no URL of `http` or `https` are compared as they are.
pub fn is_same_uri(a: &str, b: &str) -> bool {
    a == b || matches!((normalised(a), normalised(b)), (Some(a), Some(b)) if a == b)
}

fn normalised(text: &str) -> Option<String> {
    let is_plain = !text.contains(['#', '@']);
    let uri: Uri = text.parse().ok().filter(|_| is_plain)?;
    let authority = uri.authority()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let default = match scheme.as_str() {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let port = match authority.as_str().strip_prefix(authority.host())? {
        "" | ":" => default,
        _ => authority.port_u16()?,
    };
    let host = authority.host().to_ascii_lowercase();
    Some(format!("{scheme}://{host}:{port}{}", uri.path_and_query()?))
}

/// Returns the URL of another path at the same origin.
pub fn with_path(url: &Uri, path: &str) -> Option<Uri> {
    let scheme = url.scheme_str()?;
    let authority = url.authority()?.as_str();
    Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build().ok()
}

fn parse(url: &Uri) -> Option<Url> {
    Url::parse(&url.to_string()).ok()
}

/// Returns scheme and authority of a URL: its origin, and the issuer of an authorization server
/// without a path.
pub fn origin_of(url: &Uri) -> String {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    format!("{}://{authority}", url.scheme_str().unwrap_or("https"))
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
    fn a12_a_uri_is_itself_in_each_spelling_and_no_other() {
        let same = [
            ("https://a.example", "https://a.example/"),
            ("https://a.example", "HTTPS://A.example:443/"),
            ("https://a.example:/mcp", "https://a.example/mcp"),
            ("http://[::1]:80/x?a=B", "http://[::1]/x?a=B"),
            ("promptgate", "promptgate"),
            ("https://a.example/#x", "https://a.example/#x"),
        ];
        for (a, b) in same {
            assert!(is_same_uri(a, b) && is_same_uri(b, a), "{a} {b}");
        }
        let others = [
            ("https://a.example/mcp", "https://a.example/mcp/"),
            ("https://a.example/mcp", "https://a.example/MCP"),
            ("https://a.example", "http://a.example"),
            ("https://a.example", "https://a.example:80"),
            ("https://a.example", "https://a.example:99999"),
            ("https://a.example", "https://a.example.evil"),
            ("https://a.example", "https://evil@a.example"),
            ("https://a.example", "https://a.example/#x"),
            ("https://a.example/", "https://a.example/?x"),
            ("https://a.example", "https:a.example"),
            ("https://a.example", "https:\\\\a.example"),
            ("https://a.example", "\thttps://a.example"),
            ("urn:a", "URN:a"),
            ("promptgate", "Promptgate"),
            ("", "/"),
        ];
        for (a, b) in others {
            assert!(!is_same_uri(a, b) && !is_same_uri(b, a), "{a} {b}");
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
