//! `[auth.jwt]`: tokens (JWT) of an identity provider.

use std::time::Duration;

use http::Uri;
use jsonwebtoken::Algorithm;

use crate::net::Proxies;
use crate::reader::{MILLISECOND, Section, optional, secs, table};
use domain::address_policy::is_loopback;

table! {
    /// The issuer of accepted tokens, and the checks of a token.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Jwt(section, key, proxies: &Proxies) {
        /// `iss` of the tokens; a slash behind a bare host does not count. Its metadata (OAuth or
        /// OpenID Connect discovery) gives the URL of its keys.
        #[example = "https://id.example.com/"]
        pub issuer: String = issuer(section, key).unwrap_or_default();
        /// Accepted `aud` values, beside the URI of the endpoint: `server.public_url`, and for a
        /// view the path `/NAME` below it.
        #[default = []] #[example = ["promptgate"]]
        pub audience: Vec<String> = section.texts(key);
        /// URL of the keys (JWKS). If it is set, no metadata is fetched.
        #[default = ""] #[example = "https://id.example.com/keys"]
        pub jwks_url: Option<Uri> = jwks_url(section, key);
        /// Accepted signature algorithms.
        #[default = ["RS256", "ES256", "EdDSA"]]
        pub algorithms: Vec<Algorithm> = algorithms(section, key);
        /// Accepted types of tokens (header `typ`), compared as media types. `""` accepts a token
        /// without one; `["at+jwt"]` accepts access tokens of RFC 9068 alone. A token that is bound
        /// to a key (claim `cnf`) is refused, since its proof is not checked here.
        #[default = ["at+jwt", "JWT", ""]]
        pub typ: Vec<String> = types(section, key);
        /// Claim with the caller's groups, at `a.b` in an object: a list of strings, or one string.
        pub groups_claim: String = section.text(key, "groups");
        /// Scopes that every call needs. A token that lacks one gets 403, with all scopes in the
        /// challenge.
        #[default = []] #[example = ["prompts"]]
        pub scopes: Vec<String> = section.texts(key);
        /// Allowed clock skew, at most `"5m"`.
        pub leeway: Duration = section.duration(key, secs(30), Duration::ZERO);
        /// Age at which the keys are fetched again.
        pub refresh: Duration = section.duration(key, secs(600), secs(1));
        /// A token with an unknown key id triggers a key fetch, but not before this time has
        /// passed since the last fetch.
        pub cooldown: Duration = section.duration(key, secs(30), MILLISECOND);
        /// Time after `refresh` in which old keys are still used while fetching fails. Then
        /// requests with tokens get 503.
        pub max_stale: Duration = section.duration(key, secs(3600), Duration::ZERO);
        field pub proxies: Proxies = proxies.clone();
    }
}

/// The signature algorithms. All are asymmetric, and each uses one kind of key: a public key, which
/// verifies a token, cannot sign one.
pub(crate) const ALGORITHMS: [(&str, Algorithm); 9] = [
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

pub(crate) fn read(section: &mut Section<'_>, proxies: &Proxies) -> Option<Jwt> {
    if !section.has("jwt") {
        return None;
    }
    let mut section = section.section("jwt");
    let jwt = Jwt::read_keys(&mut section, proxies);
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

fn issuer(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    section.required(key, URL_RULE, |text| url(text).map(|_| text.to_owned()))
}

fn jwks_url(section: &mut Section<'_>, key: &'static str) -> Option<Uri> {
    let rule = format!("\"\" or {URL_RULE}");
    section.parsed(key, &rule, |text| optional(text, url)).flatten()
}

fn algorithms(section: &mut Section<'_>, key: &'static str) -> Vec<Algorithm> {
    let algorithms = section.choices(key, &ALGORITHMS);
    if !section.was_read(key) {
        return vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    }
    if algorithms.is_empty() {
        section.mistake(key, "must list at least one algorithm, such as \"ES256\"");
    }
    algorithms
}

fn types(section: &mut Section<'_>, key: &'static str) -> Vec<String> {
    let types = section.texts(key);
    if !section.was_read(key) {
        return ["at+jwt", "JWT", ""].map(str::to_owned).to_vec();
    }
    if types.is_empty() {
        section.mistake(key, "must list at least one type, such as \"at+jwt\"");
    }
    types
}

/// The URLs that [`url()`] accepts, for mistakes.
pub(crate) const URL_RULE: &str = "a URL with https, or with http on loopback, without user, \
                                   fragment, quotation mark and backslash";

/// Parses a URL from which keys or tokens are fetched. It must be protected from eavesdroppers
/// ([`is_https_or_loopback`]).
pub(crate) fn url(text: &str) -> Option<Uri> {
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
