//! Authorization server metadata (RFC 8414, OpenID Connect Discovery 1.0).

use http::Uri;
use serde_json::Value;

use super::egress::{Egress, FetchError};
use super::origin::{is_same_uri, with_path};
use config::is_https_or_loopback;
use domain::fault::excerpt;

/// The members of authorization server metadata that the gateway uses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IssuerMetadata {
    /// As the document spells it.
    pub issuer: String,
    /// This endpoint and those below are `None` also for an unsafe URL (neither `https` nor on this
    /// machine): most uses of metadata need one or two of them.
    pub authorization_endpoint: Option<Uri>,
    pub jwks_uri: Option<Uri>,
    pub token_endpoint: Option<Uri>,
    /// For dynamic registration (RFC 7591).
    pub registration_endpoint: Option<Uri>,
    /// For the device flow (RFC 8628).
    pub device_authorization_endpoint: Option<Uri>,
    /// For the revocation of tokens (RFC 7009).
    pub revocation_endpoint: Option<Uri>,
    /// `code_challenge_methods_supported` (RFC 8414, section 2)
    pub challenge_methods: Vec<String>,
    /// Whether a client id may be the URL of a document about the client
    /// (`client_id_metadata_document_supported`).
    pub reads_client_documents: bool,
    /// `token_endpoint_auth_methods_supported`
    pub auth_methods: Vec<String>,
    /// `scopes_supported`
    pub scopes: Vec<String>,
    /// `authorization_response_iss_parameter_supported` (RFC 9207, section 3)
    pub sends_issuer: bool,
    /// `authorization_grant_profiles_supported` (draft-ietf-oauth-identity-assertion-authz-grant)
    pub grant_profiles: Vec<String>,
}

impl IssuerMetadata {
    /// Returns whether a client with a secret sends it by `client_secret_post`.
    /// `client_secret_basic` is the default, and preferred (RFC 6749, section 2.3.1).
    pub fn posts_secret(&self) -> bool {
        let supports = |method: &str| self.auth_methods.iter().any(|own| own == method);
        supports("client_secret_post") && !supports("client_secret_basic")
    }
}

/// Fetches the metadata of an issuer, and checks that it names this issuer.
///
/// # Errors
/// When no well-known URL has the document with this `issuer` (RFC 8414, section 3.3).
pub async fn discover(egress: &Egress, issuer: &str) -> Result<IssuerMetadata, String> {
    let mut last = format!("{:?} is no https URL, and no URL on this machine", excerpt(issuer));
    // Some hosts answer all paths, and some paths are another issuer's.
    let mut unusable = None;
    for url in metadata_urls(issuer) {
        match egress.get_json(&url).await {
            Ok(document) => match parse(&document, issuer) {
                Ok(metadata) => return Ok(metadata),
                Err(error) => unusable = unusable.or(Some(format!("{url}: {error}"))),
            },
            Err(error @ FetchError::NotJson) => {
                unusable = unusable.or(Some(format!("{url}: {error}")));
            }
            Err(error @ FetchError::Status { .. }) => last = format!("{url}: {error}"),
            Err(error) => return Err(format!("{url}: {error}")),
        }
    }
    Err(unusable.unwrap_or(last))
}

/// Returns the well-known URLs in the order of MCP 2025-11-25, authorization server metadata
/// discovery: the path of the issuer comes behind the well-known name, and for OpenID Connect also
/// before it.
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

fn parse(document: &Value, issuer: &str) -> Result<IssuerMetadata, String> {
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    let named = text("issuer").unwrap_or_default();
    if !is_same_uri(named, issuer) {
        return Err(format!("its issuer is {:?}, not {issuer:?}", excerpt(named)));
    }
    let texts = |name: &str| {
        let texts = document.get(name).and_then(Value::as_array).into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let flag = |name: &str| document.get(name).and_then(Value::as_bool).unwrap_or_default();
    let url = |name: &str| text(name).and_then(safe_url);
    Ok(IssuerMetadata {
        issuer: named.to_owned(),
        authorization_endpoint: url("authorization_endpoint"),
        registration_endpoint: url("registration_endpoint"),
        device_authorization_endpoint: url("device_authorization_endpoint"),
        revocation_endpoint: url("revocation_endpoint"),
        challenge_methods: texts("code_challenge_methods_supported"),
        reads_client_documents: flag("client_id_metadata_document_supported"),
        jwks_uri: url("jwks_uri"),
        token_endpoint: url("token_endpoint"),
        auth_methods: texts("token_endpoint_auth_methods_supported"),
        scopes: texts("scopes_supported"),
        sends_issuer: flag("authorization_response_iss_parameter_supported"),
        grant_profiles: texts("authorization_grant_profiles_supported"),
    })
}

/// Parses a URL from which keys or tokens may be requested: `https`, or `http` on a loopback
/// address.
pub fn safe_url(text: &str) -> Option<Uri> {
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
        assert_eq!(parse(&good, "https://A:443/").unwrap().issuer, "https://a");
        let other = parse(&good, "https://a/b").unwrap_err();
        assert_eq!(other, "its issuer is \"https://a\", not \"https://a/b\"");
        let with = |name: &str, value: &str| {
            let mut document = good.clone();
            document[name] = json!(value);
            parse(&document, "https://a")
        };
        let script = with("authorization_endpoint", "javascript:alert(1)").unwrap();
        assert_eq!(script.authorization_endpoint, None);
        for unsafe_url in ["http://a/k", "file:///etc/passwd", "http://169.254.169.254/", "k"] {
            let metadata = with("jwks_uri", unsafe_url).unwrap();
            assert_eq!(metadata.jwks_uri, None, "{unsafe_url}");
            assert!(metadata.token_endpoint.is_some(), "one odd member spoils no other");
            let metadata = with("token_endpoint", unsafe_url).unwrap();
            assert_eq!(metadata.token_endpoint, None, "{unsafe_url}");
        }
        assert!(with("issuer", "https://b").is_err());
    }
}
