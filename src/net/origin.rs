//! Origins of URLs (RFC 6454): credentials never leave the origin that they are for.

use http::Uri;

/// Whether two URLs have the same scheme, host and port.
pub(crate) fn is_same_origin(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && a.authority() == b.authority()
}

/// The URL that a reference leads to, read at `base` (RFC 3986, section 5), if that is the same
/// origin: credentials go nowhere else.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let path = base.path();
    let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
    let target = match reference {
        text if text.starts_with("//") => return None,
        text if text.starts_with('/') => text.to_owned(),
        text if text.starts_with('?') => format!("{path}{text}"),
        text if text.split(['/', '?']).next().is_some_and(|head| head.contains(':')) => {
            let target: Uri = text.parse().ok()?;
            return is_same_origin(&target, base).then_some(target);
        }
        text => format!("{folder}{text}"),
    };
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(target.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// The same origin with another path.
pub(crate) fn with_path(url: &Uri, path: &str) -> Option<Uri> {
    let (scheme, authority) = (url.scheme_str()?, url.authority()?);
    Uri::builder().scheme(scheme).authority(authority.as_str()).path_and_query(path).build().ok()
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
        ] {
            assert_eq!(resolve(reference).as_deref(), Some(target));
        }
        for foreign in
            ["//evil.example/m", "http://a.example/m", "https://a.example:1/m", "file:///m"]
        {
            assert_eq!(resolve(foreign), None, "{foreign}");
        }
    }
}
