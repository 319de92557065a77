//! Authorization server metadata (RFC 8414, OpenID Connect Discovery 1.0).

use http::Uri;
use serde_json::Value;

use super::egress::{Egress, FetchError};
use super::origin::with_path;
use crate::config::is_https_or_loopback;
use crate::domain::fault::excerpt;

/// The members of authorization server metadata that the gateway uses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Metadata {
    pub jwks_uri: Option<Uri>,
    pub token_endpoint: Option<Uri>,
    /// `token_endpoint_auth_methods_supported`
    pub auth_methods: Vec<String>,
}

/// Fetches the metadata of an issuer, and checks that it names this issuer.
///
/// # Errors
/// When no well-known URL has the document, or when its `issuer` differs (RFC 8414, section 3.3).
pub(crate) async fn discover(egress: &Egress, issuer: &str) -> Result<Metadata, String> {
    let mut last = format!("{:?} is no https URL, and no URL on this machine", excerpt(issuer));
    for url in metadata_urls(issuer) {
        match egress.get_json(&url).await {
            Ok(document) => return parse(&document, issuer).map_err(|e| format!("{url}: {e}")),
            Err(error @ FetchError::Broken(_)) => return Err(format!("{url}: {error}")),
            Err(error @ FetchError::Status { .. }) => last = format!("{url}: {error}"),
        }
    }
    Err(last)
}

/// Returns the well-known URLs in the order of MCP 2025-11-25, authorization server metadata discovery:
/// the path of the issuer comes behind the well-known name, and for OpenID Connect also before it.
fn metadata_urls(issuer: &str) -> Vec<Uri> {
    let Some(url) = safe_url(issuer) else {
        return Vec::new();
    };
    let path = url.path().trim_end_matches('/');
    let oauth = "/.well-known/oauth-authorization-server";
    let openid = "/.well-known/openid-configuration";
    let mut paths = vec![format!("{oauth}{path}"), format!("{openid}{path}")];
    if !path.is_empty() {
        paths.push(format!("{path}{openid}"));
    }
    paths.iter().filter_map(|path| with_path(&url, path)).collect()
}

fn parse(document: &Value, issuer: &str) -> Result<Metadata, String> {
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
            url.ok_or_else(|| format!("its {name} must be an https URL, or a URL on this machine"))
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

/// Parses a URL from which keys or tokens may be requested: `https`, or `http` on a loopback address.
pub(crate) fn safe_url(text: &str) -> Option<Uri> {
    text.parse().ok().filter(is_https_or_loopback)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_metadata_urls_of_an_issuer_follow_the_specifications() {
        let all = |issuer| metadata_urls(issuer).iter().map(Uri::to_string).collect::<Vec<_>>();
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
        let metadata = parse(&good, "https://a").unwrap();
        assert_eq!(metadata.jwks_uri.unwrap(), "https://a/k");
        assert_eq!(metadata.auth_methods, ["client_secret_post"]);
        assert!(parse(&good, "https://a/").unwrap_err().contains("its issuer is \"https://a\""));
        let with = |name: &str, value: &str| {
            let mut document = good.clone();
            document[name] = json!(value);
            parse(&document, "https://a")
        };
        for unsafe_url in ["http://a/k", "file:///etc/passwd", "http://169.254.169.254/", "k"] {
            assert!(with("jwks_uri", unsafe_url).is_err(), "{unsafe_url}");
            assert!(with("token_endpoint", unsafe_url).is_err(), "{unsafe_url}");
        }
        assert!(with("issuer", "https://b").is_err());
    }
}
