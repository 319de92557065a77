//! What an authorization server says about itself (RFC 8414, OpenID Connect Discovery 1.0).

use http::Uri;
use serde_json::Value;

use super::egress::{Egress, NoDocument};
use super::origin::with_path;
use crate::config::is_https_or_loopback;
use crate::domain::fault::excerpt;

/// The parts of it that matter here.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Metadata {
    pub jwks_uri: Option<Uri>,
    pub token_endpoint: Option<Uri>,
    /// `token_endpoint_auth_methods_supported`
    pub auth_methods: Vec<String>,
}

/// Asks an issuer, and checks that it is the one.
///
/// # Errors
/// When it says nothing, or is another one than it was asked as (RFC 8414, section 3.3).
pub(crate) async fn discover(egress: &Egress, issuer: &str) -> Result<Metadata, String> {
    let mut last = format!("{:?} is no URL that may be asked for metadata", excerpt(issuer));
    for url in places(issuer) {
        match egress.get_json(&url).await {
            Ok(document) => return read(&document, issuer).map_err(|e| format!("{url}: {e}")),
            Err(error @ NoDocument::Broken(_)) => return Err(format!("{url}: {error}")),
            Err(error @ NoDocument::Status { .. }) => last = format!("{url}: {error}"),
        }
    }
    Err(last)
}

/// Where an issuer may have put it (2025-11-25, authorization server metadata discovery): with a
/// path, it comes behind the well-known name, or, in OpenID Connect, before it.
fn places(issuer: &str) -> Vec<Uri> {
    let Some(url) = safe_url(issuer) else {
        return Vec::new();
    };
    let path = url.path().trim_end_matches('/');
    let (oauth, openid) =
        ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration");
    let mut paths = vec![format!("{oauth}{path}"), format!("{openid}{path}")];
    if !path.is_empty() {
        paths.push(format!("{path}{openid}"));
    }
    paths.iter().filter_map(|path| with_path(&url, path)).collect()
}

fn read(document: &Value, issuer: &str) -> Result<Metadata, String> {
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    match text("issuer") {
        Some(named) if named == issuer => {}
        named => {
            let named = excerpt(named.unwrap_or_default());
            return Err(format!("its issuer is {named:?}, not {issuer:?}"));
        }
    }
    let url = |name: &str| match text(name) {
        None => Ok(None),
        Some(text) => {
            let url = safe_url(text).map(Some);
            url.ok_or_else(|| format!("its {name} must have https, or be on this machine"))
        }
    };
    let methods = document.get("token_endpoint_auth_methods_supported").and_then(Value::as_array);
    let methods = methods.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Ok(Metadata {
        jwks_uri: url("jwks_uri")?,
        token_endpoint: url("token_endpoint")?,
        auth_methods: methods.collect(),
    })
}

/// A URL that may be asked for keys or tokens.
pub(crate) fn safe_url(text: &str) -> Option<Uri> {
    text.parse().ok().filter(is_https_or_loopback)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_issuer_is_looked_for_where_the_specifications_say() {
        let all = |issuer| places(issuer).iter().map(Uri::to_string).collect::<Vec<_>>();
        assert_eq!(
            all("https://id.example/"),
            [
                "https://id.example/.well-known/oauth-authorization-server",
                "https://id.example/.well-known/openid-configuration",
            ]
        );
        assert_eq!(
            all("https://id.example/realms/a"),
            [
                "https://id.example/.well-known/oauth-authorization-server/realms/a",
                "https://id.example/.well-known/openid-configuration/realms/a",
                "https://id.example/realms/a/.well-known/openid-configuration",
            ]
        );
        assert_eq!(all("http://id.example/"), Vec::<String>::new());
    }

    #[test]
    fn a12_another_issuer_and_unsafe_endpoints_are_refused() {
        let good = json!({"issuer": "https://a", "jwks_uri": "https://a/k",
            "token_endpoint": "http://127.0.0.1:1/t",
            "token_endpoint_auth_methods_supported": ["client_secret_post"]});
        let metadata = read(&good, "https://a").unwrap();
        assert_eq!(metadata.jwks_uri.unwrap(), "https://a/k");
        assert_eq!(metadata.auth_methods, ["client_secret_post"]);
        assert!(read(&good, "https://a/").unwrap_err().contains("its issuer is \"https://a\""));
        let with = |name: &str, value: &str| {
            let mut document = good.clone();
            document[name] = json!(value);
            read(&document, "https://a")
        };
        for unsafe_url in ["http://a/k", "file:///etc/passwd", "http://169.254.169.254/", "k"] {
            assert!(with("jwks_uri", unsafe_url).is_err(), "{unsafe_url}");
            assert!(with("token_endpoint", unsafe_url).is_err(), "{unsafe_url}");
        }
        assert!(with("issuer", "https://b").is_err());
    }
}
