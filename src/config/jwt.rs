//! `[auth.jwt]`: callers that an identity provider knows.

use std::time::Duration;

use http::Uri;
use jsonwebtoken::Algorithm;

use super::reader::Section;
use crate::domain::address_policy::is_loopback;

/// Whose tokens are believed, and what they must say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Jwt {
    /// As tokens and the issuer's metadata spell it, letter by letter.
    pub issuer: String,
    /// Beside the URI of the endpoint that is asked.
    pub audience: Vec<String>,
    /// Where the keys are; absent: the issuer's metadata says so.
    pub jwks_url: Option<Uri>,
    /// What a token may be signed with; no other is looked at.
    pub algorithms: Vec<Algorithm>,
    /// The claim that names groups.
    pub groups_claim: String,
    /// Needed by every call.
    pub scopes: Vec<String>,
    /// How far clocks may differ.
    pub leeway: Duration,
    /// How old keys may get before they are fetched again …
    pub refresh: Duration,
    /// … and how much older they may be used while that fails.
    pub max_stale: Duration,
    /// Least time between two fetches that unknown keys ask for.
    pub cooldown: Duration,
}

/// Every algorithm has one kind of key, which can be handed out: whoever can check a token cannot
/// make one.
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

pub(super) fn read(section: &mut Section<'_>) -> Option<Jwt> {
    if !section.has("jwt") {
        return None;
    }
    let mut section = section.section("jwt");
    let rule = "a URL with https, or with http on this machine";
    let issuer = section.required("issuer", rule, |text| url(text).map(|_| text.to_owned()));
    let jwks_url = section.parsed("jwks_url", rule, |text| match text.is_empty() {
        true => Some(None),
        false => url(text).map(Some),
    });
    let mut algorithms = section.choices("algorithms", &ALGORITHMS);
    if !section.was_read("algorithms") {
        algorithms = vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    } else if algorithms.is_empty() {
        section.mistake("algorithms", "needs one at least");
    }
    let secs = Duration::from_secs;
    let jwt = Jwt {
        issuer: issuer.unwrap_or_default(),
        audience: section.texts("audience"),
        jwks_url: jwks_url.flatten(),
        algorithms,
        groups_claim: section.text("groups_claim", "groups"),
        scopes: section.texts("scopes"),
        leeway: section.duration("leeway", secs(30), Duration::ZERO),
        refresh: section.duration("refresh", secs(600), secs(1)),
        max_stale: section.duration("max_stale", secs(3600), Duration::ZERO),
        cooldown: section.duration("cooldown", secs(30), Duration::from_millis(1)),
    };
    if jwt.audience.iter().any(String::is_empty) {
        section.mistake("audience", "an empty one would be anybody's");
    }
    // RFC 6749, section 3.3: what else there is would break the header that names them.
    let is_scope = |c: char| matches!(c, '!' | '#'..='[' | ']'..='~');
    if jwt.scopes.iter().any(|scope| scope.is_empty() || !scope.chars().all(is_scope)) {
        section.mistake("scopes", "a scope is one word of visible ASCII without quotes");
    }
    if jwt.leeway > secs(300) {
        section.mistake("leeway", "more than five minutes makes expired tokens good");
    }
    section.finish();
    Some(jwt)
}

/// A URL that keys and tokens may be asked of: what is not encrypted stays on this machine.
pub(super) fn url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let is_plain = !text.contains(['#', '@', '"', '\\']) && text.is_ascii();
    (is_plain && is_safe(&url)).then_some(url)
}

/// Whether a URL may be asked for keys or tokens: what is not encrypted stays on this machine.
pub(crate) fn is_safe(url: &Uri) -> bool {
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
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse("g", text, Path::new(""), &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let jwt = parse("[auth.jwt]\nissuer = \"https://id.example.com/\"\n").unwrap().auth.jwt;
        let secs = Duration::from_secs;
        let expected = Jwt {
            issuer: "https://id.example.com/".into(),
            audience: vec![],
            jwks_url: None,
            algorithms: vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA],
            groups_claim: "groups".into(),
            scopes: vec![],
            leeway: secs(30),
            refresh: secs(600),
            max_stale: secs(3600),
            cooldown: secs(30),
        };
        assert_eq!(jwt, Some(expected));
        assert!(parse("[auth.jwt]\nissuer = \"https://id.example.com/\"\n").unwrap().auth.required);
    }

    #[test]
    fn k1_a_weak_configuration_of_tokens_is_refused() {
        let mistake = |text: &str| {
            parse(&format!("[auth.jwt]\nissuer = \"https://id.example.com/\"\n{text}\n"))
                .unwrap_err()
        };
        assert!(mistake("algorithms = [\"HS256\"]").contains("\"HS256\" is not one of"));
        assert!(mistake("algorithms = [\"none\"]").contains("\"none\" is not one of"));
        assert!(mistake("algorithms = []").contains("needs one at least"));
        assert!(mistake("audience = [\"\"]").contains("anybody's"));
        assert!(mistake("scopes = [\"a b\"]").contains("one word"));
        assert!(mistake("leeway = \"301s\"").contains("more than five minutes"));
        assert!(mistake("jwks_url = \"http://id.example.com/jwks\"").contains("https"));
        assert!(parse("[auth.jwt]\n").unwrap_err().contains("auth.jwt.issuer: is required"));
        let open = "[server]\nlisten = \"0.0.0.0:80\"\n\
            [auth.jwt]\nissuer = \"https://id.example.com/\"\n";
        assert!(parse(open).unwrap_err().contains("server.public_url"), "its audience has a name");
    }
}
