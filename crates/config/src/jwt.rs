//! `[auth.jwt]`: tokens (JWT) of an identity provider.

use std::time::Duration;

use http::Uri;
use jsonwebtoken::Algorithm;

use super::net::Proxies;
use super::reader::{Section, optional};
use domain::address_policy::is_loopback;

/// The issuer of accepted tokens, and the checks of a token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Jwt {
    /// `iss` of the tokens and of the issuer's metadata, compared as URIs (RFC 3986, section
    /// 6.2.3).
    pub issuer: String,
    /// Accepted `aud` values, beside the URI of the endpoint that is called.
    pub audience: Vec<String>,
    /// URL of the keys (JWKS). `None`: from the issuer's metadata.
    pub jwks_url: Option<Uri>,
    /// Accepted signature algorithms.
    pub algorithms: Vec<Algorithm>,
    /// Accepted types of tokens (header `typ`); an empty text stands for a token without one.
    pub typ: Vec<String>,
    /// Name of the claim with the caller's groups.
    pub groups_claim: String,
    /// Scopes that every call needs.
    pub scopes: Vec<String>,
    /// Accepted clock skew.
    pub leeway: Duration,
    /// Age at which the keys are fetched again.
    pub refresh: Duration,
    /// Time after `refresh` in which old keys are still used while fetching fails.
    pub max_stale: Duration,
    /// Minimum time between two fetches, where a token with an unknown key id triggers one.
    pub cooldown: Duration,
    pub proxies: Proxies,
}

/// The signature algorithms. All are asymmetric, and each uses one kind of key: a public key, which
/// verifies a token, cannot sign one.
pub(super) const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// The keys of `[auth.jwt]`.
const KEYS: &str = r#"
issuer, such as "https://id.example.com/": `iss` of the tokens; a slash behind a bare host does not count. Its
    metadata (OAuth or OpenID Connect discovery) gives the URL of its keys.
audience = [], such as ["promptgate"]: Accepted `aud` values, beside the URI of the endpoint:
    `server.public_url`, and for a view the path `/NAME` below it.
jwks_url = "", such as "https://id.example.com/keys": URL of the keys (JWKS). If it is set, no
    metadata is fetched.
algorithms = ["RS256", "ES256", "EdDSA"]: Accepted signature algorithms.
typ = ["at+jwt", "JWT", ""]: Accepted types of tokens (header `typ`), compared as media types. `""`
    accepts a token without one; `["at+jwt"]` accepts access tokens of RFC 9068 alone. A token that
    is bound to a key (claim `cnf`) is refused, since its proof is not checked here.
groups_claim: Claim with the caller's groups: a list of strings, or one string.
scopes = [], such as ["prompts"]: Scopes that every call needs. A token that lacks one gets 403,
    with all scopes in the challenge.
leeway: Allowed clock skew, at most `"5m"`.
refresh: Age at which the keys are fetched again.
cooldown: A token with an unknown key id has the keys fetched at once, but not before this time has
    passed since the last fetch.
max_stale: Time after `refresh` in which old keys are still used while fetching fails. Then requests
    with tokens get 503.
"#;

pub(super) fn read(section: &mut Section<'_>, proxies: &Proxies) -> Option<Jwt> {
    if !section.has("jwt") {
        return None;
    }
    let mut section = section.section("jwt");
    section.explain(KEYS);
    let issuer = section.required("issuer", URL_RULE, |text| url(text).map(|_| text.to_owned()));
    let rule = format!("\"\" or {URL_RULE}");
    let jwks_url = section.parsed("jwks_url", &rule, |text| optional(text, url));
    let mut algorithms = section.choices("algorithms", &ALGORITHMS);
    if !section.was_read("algorithms") {
        algorithms = vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    } else if algorithms.is_empty() {
        section.mistake("algorithms", "must list at least one algorithm, such as \"ES256\"");
    }
    let mut typ = section.texts("typ");
    if !section.was_read("typ") {
        typ = ["at+jwt", "JWT", ""].map(str::to_owned).to_vec();
    } else if typ.is_empty() {
        section.mistake("typ", "must list at least one type, such as \"at+jwt\"");
    }
    let secs = Duration::from_secs;
    let jwt = Jwt {
        issuer: issuer.unwrap_or_default(),
        audience: section.texts("audience"),
        jwks_url: jwks_url.flatten(),
        algorithms,
        typ,
        groups_claim: section.text("groups_claim", "groups"),
        scopes: section.texts("scopes"),
        leeway: section.duration("leeway", secs(30), Duration::ZERO),
        refresh: section.duration("refresh", secs(600), secs(1)),
        max_stale: section.duration("max_stale", secs(3600), Duration::ZERO),
        cooldown: section.duration("cooldown", secs(30), Duration::from_millis(1)),
        proxies: proxies.clone(),
    };
    if jwt.audience.iter().any(String::is_empty) {
        let message = "must not contain an empty string: such a token is for no particular service";
        section.mistake("audience", message);
    }
    // RFC 6749, section 3.3. Other characters would break the WWW-Authenticate header of a
    // challenge.
    let is_scope = |c: char| matches!(c, '!' | '#'..='[' | ']'..='~');
    if jwt.scopes.iter().any(|scope| scope.is_empty() || !scope.chars().all(is_scope)) {
        let message = "must be scopes of visible ASCII characters, without spaces, quotation marks \
                       and backslashes";
        section.mistake("scopes", message);
    }
    if jwt.leeway > secs(300) {
        section.mistake("leeway", "must be at most \"5m\": expired tokens are accepted that long");
    }
    section.finish();
    Some(jwt)
}

/// The URLs that [`url()`] accepts, for mistakes.
pub(super) const URL_RULE: &str = "a URL with https, or with http on loopback, without user, \
                                   fragment, quotation mark and backslash";

/// Parses a URL from which keys or tokens are fetched. It must be protected from eavesdroppers
/// ([`is_https_or_loopback`]).
pub(super) fn url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let is_plain = !text.contains(['#', '@', '"', '\\']) && text.is_ascii();
    (is_plain && is_https_or_loopback(&url)).then_some(url)
}

/// Returns whether secrets may be sent to a URL, and keys be fetched from it: over TLS, or
/// unencrypted on this machine only.
pub fn is_https_or_loopback(url: &Uri) -> bool {
    match (url.scheme_str(), url.host()) {
        (Some("https"), Some(_)) => true,
        (Some("http"), Some(host)) => is_loopback(host),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Config, schema_check};

    fn parse(text: &str) -> Result<Config, String> {
        schema_check::parse("g", text, Path::new(""), &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let jwt = parse("[auth.jwt]\nissuer = \"https://id.example.com/\"\n").unwrap().auth.jwt;
        let secs = Duration::from_secs;
        let expected = Jwt {
            issuer: "https://id.example.com/".into(),
            audience: vec![],
            jwks_url: None,
            algorithms: vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA],
            typ: vec!["at+jwt".into(), "JWT".into(), String::new()],
            groups_claim: "groups".into(),
            scopes: vec![],
            leeway: secs(30),
            refresh: secs(600),
            max_stale: secs(3600),
            cooldown: secs(30),
            proxies: Proxies::default(),
        };
        assert_eq!(jwt, Some(expected));
        assert!(parse("[auth.jwt]\nissuer = \"https://id.example.com/\"\n").unwrap().auth.required);
    }

    #[test]
    fn k1_weak_token_checks_are_rejected() {
        let mistake = |text: &str| {
            parse(&format!("[auth.jwt]\nissuer = \"https://id.example.com/\"\n{text}\n"))
                .unwrap_err()
        };
        assert!(mistake("algorithms = [\"HS256\"]").contains("\"HS256\" is not one of"));
        assert!(mistake("algorithms = [\"none\"]").contains("\"none\" is not one of"));
        assert!(mistake("algorithms = []").contains("at least one algorithm"));
        assert!(mistake("typ = []").contains("at least one type"));
        assert!(mistake("audience = [\"\"]").contains("empty string"));
        assert!(mistake("scopes = [\"a b\"]").contains("without spaces"));
        assert!(mistake("leeway = \"301s\"").contains("at most \"5m\""));
        assert!(mistake("jwks_url = \"http://id.example.com/jwks\"").contains("https"));
        assert!(parse("[auth.jwt]\n").unwrap_err().contains("auth.jwt.issuer: is required"));
        let open = "[server]\nlisten = \"0.0.0.0:80\"\n\
            [auth.jwt]\nissuer = \"https://id.example.com/\"\n";
        assert!(parse(open).unwrap_err().contains("server.public_url"), "the audience of tokens");
    }
}
