//! ID tokens (OpenID Connect Core 1.0, section 3.1.3.7).

use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde_json::Value;
use subtle::ConstantTimeEq;
use tracing::warn;

use crate::sign_in::error::SignInError;
use crate::sign_in::visitor::{LOCAL, TOKEN};
use base::seal::claims::GroupsClaim;
use domain::calls::caller::{ANONYMOUS, PROBER, is_id};
use domain::fault::{excerpt, sanitised};
use domain::time::unix_time::UnixSeconds;
use net::origin::is_same_uri;

/// The person whom an ID token names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::sign_in) struct Person {
    /// `sub`
    pub subject: String,
    pub name: Option<String>,
    pub groups: Vec<String>,
}

/// Values that the claims of an ID token must match.
#[derive(Clone, Copy)]
pub(super) struct ExpectedClaims<'a> {
    pub oidc: &'a config::Oidc,
    pub nonce: &'a str,
    /// The wall-clock time.
    pub now: UnixSeconds,
}

/// Longest token that is parsed, in bytes.
const MAX_TOKEN: usize = 64 << 10;

/// Groups of one token; a token with more is refused.
const MAX_GROUPS: usize = 256;

/// Longest name that is shown, in bytes.
const MAX_NAME: usize = 128;

/// Accepted clock skew, in seconds.
const LEEWAY: u64 = 60;

/// Accepted algorithms. All are asymmetric: neither the secret of the client nor a public key that
/// is taken for one signs a token.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// The values of `typ` that an ID token may have, in any case (RFC 7519, section 5.1).
const TYPES: [&str; 2] = ["JWT", "application/jwt"];

/// Reads the header of a token that is not verified yet.
pub(super) fn header(token: &str) -> Result<Header, SignInError> {
    if token.len() > MAX_TOKEN {
        return Err(SignInError::IdToken("it is longer than 64 KiB"));
    }
    let header = decode_header(token)
        .map_err(|_| SignInError::IdToken("it is not signed in a way that is known here"))?;
    if header.crit.is_some() {
        return Err(SignInError::IdToken("it asks for extensions that are not known here"));
    }
    if !ALGORITHMS.contains(&header.alg) {
        return Err(SignInError::IdToken("its signature algorithm is not accepted"));
    }
    // Access tokens (RFC 9068) and logout tokens have other values of `typ`.
    let is_type = |typ: &str| TYPES.iter().any(|known| typ.eq_ignore_ascii_case(known));
    if !header.typ.as_deref().is_none_or(is_type) {
        return Err(SignInError::IdToken("it is a token of another type (typ)"));
    }
    Ok(header)
}

/// Verifies the signature of a token; returns the claims, which are not checked yet.
pub(super) fn verified(
    token: &str,
    key: &DecodingKey,
    algorithm: Algorithm,
) -> Result<Value, SignInError> {
    let mut validation = Validation::new(algorithm);
    // The claims are checked below, with the clock of the request.
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    decode::<Value>(token, key, &validation)
        .map(|token| token.claims)
        .map_err(|_| SignInError::IdToken("its signature is wrong"))
}

/// Checks verified claims; returns the person.
pub(super) fn person(claims: &Value, expected: ExpectedClaims<'_>) -> Result<Person, SignInError> {
    let ExpectedClaims { oidc, nonce, now } = expected;
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let is = |name: &str, value: &str| {
        text(name).is_some_and(|text| text.as_bytes().ct_eq(value.as_bytes()).into())
    };
    check_audience(claims, &oidc.client_id)?;
    check_time(claims, now)?;
    let named = text("iss").unwrap_or_default();
    if !is_same_uri(named, &oidc.issuer) {
        let (named, expected) = (excerpt(named), &oidc.issuer);
        warn!(named, expected, "an ID token of the console is of another issuer");
        return Err(SignInError::IdToken("it is of another issuer"));
    }
    if !is("nonce", nonce) {
        return Err(SignInError::IdToken("it was made for another sign-in (nonce)"));
    }
    let is_reserved = |subject: &&str| [LOCAL, TOKEN, ANONYMOUS, PROBER].contains(subject);
    let subject = text("sub").filter(|sub| is_id(sub) && !is_reserved(sub));
    let subject = subject
        .ok_or(SignInError::IdToken("its subject (sub) is not 1 to 128 visible characters"))?;
    let names = ["email", "preferred_username", "name"].into_iter().find_map(text);
    let name = names.map(|name| sanitised(name, MAX_NAME)).filter(|name| !name.trim().is_empty());
    Ok(Person { subject: subject.to_owned(), name, groups: groups(claims, &oidc.groups_claim)? })
}

/// `aud` must have this client, and `azp` must be this client where it is present or there are
/// others.
fn check_audience(claims: &Value, client_id: &str) -> Result<(), SignInError> {
    let audiences: Vec<_> = match claims.get("aud") {
        Some(Value::Array(audiences)) => audiences.iter().filter_map(Value::as_str).collect(),
        Some(audience) => audience.as_str().into_iter().collect(),
        None => Vec::new(),
    };
    let is_party = match claims.get("azp") {
        Some(party) => party.as_str() == Some(client_id),
        None => audiences.len() <= 1,
    };
    let is_for_us = audiences.contains(&client_id) && is_party;
    is_for_us.then_some(()).ok_or(SignInError::IdToken("it was made for another client (aud, azp)"))
}

fn check_time(claims: &Value, now: UnixSeconds) -> Result<(), SignInError> {
    let seconds = |name: &str| {
        let time = claims.get(name)?;
        time.as_u64().or_else(|| time.as_f64().map(|time| time as u64))
    };
    let is_begun = |begin: u64| begin <= now.0.saturating_add(LEEWAY);
    match (seconds("exp"), seconds("iat")) {
        (Some(expires), _) if now.0 >= expires.saturating_add(LEEWAY) => {
            Err(SignInError::IdToken("it has expired; the clock of the gateway may be wrong"))
        }
        (Some(_), Some(issued)) if is_begun(issued) && seconds("nbf").is_none_or(is_begun) => {
            Ok(())
        }
        (Some(_), Some(_)) => {
            Err(SignInError::IdToken("it is not valid yet; the clock of the gateway may be wrong"))
        }
        _ => Err(SignInError::IdToken("it lacks exp or iat")),
    }
}

fn groups(claims: &Value, claim: &str) -> Result<Vec<String>, SignInError> {
    match GroupsClaim::read(claims, claim) {
        GroupsClaim::Groups(groups) if groups.len() <= MAX_GROUPS => Ok(groups),
        GroupsClaim::Groups(_) | GroupsClaim::Elsewhere => Err(SignInError::TooManyGroups),
        GroupsClaim::Absent => Err(SignInError::NoGroups),
        GroupsClaim::Malformed => Err(SignInError::IdToken(
            "the claim of admin.oidc.groups_claim is neither a list of texts nor a text",
        )),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;
    use crate::sign_in::tests::admin;

    const NOW: u64 = 1_000_000;

    fn read(change: impl FnOnce(&mut Value)) -> Result<Person, SignInError> {
        let oidc = "[admin.oidc]\nissuer = \"https://id.example\"\nclient_id = \"console\"\n\
            viewers = [\"staff\"]\n";
        let oidc = admin(oidc).oidc.unwrap();
        let mut claims = json!({"iss": "https://id.example", "aud": "console", "sub": "248289761001",
            "nonce": "n-0S6", "iat": NOW, "exp": NOW + 300, "email": "ada@example.com",
            "groups": ["staff", "leads", ""]});
        change(&mut claims);
        person(&claims, ExpectedClaims { oidc: &oidc, nonce: "n-0S6", now: UnixSeconds(NOW) })
    }

    #[test]
    fn a_good_token_names_a_person_and_groups() {
        let ada = read(|_| {}).unwrap();
        assert_eq!(
            (ada.subject.as_str(), ada.name.as_deref()),
            ("248289761001", Some("ada@example.com"))
        );
        assert_eq!(ada.groups, ["staff", "leads"]);
        assert_eq!(read(|c| c["groups"] = json!("staff")).unwrap().groups, ["staff"]);
        assert!(read(|c| c["groups"] = json!([])).unwrap().groups.is_empty());
        assert!(read(|c| c["aud"] = json!(["console"])).is_ok());
        let both = read(|c| (c["aud"], c["azp"]) = (json!(["x", "console"]), json!("console")));
        assert!(both.is_ok());
        let hidden = read(|c| c["email"] = json!("ada\u{202e}\n")).unwrap();
        assert_eq!(hidden.name.as_deref(), Some("ada  "));
    }

    #[test]
    fn tokens_of_other_types_are_no_id_tokens() {
        let read = |header: Value| {
            let encode = |json: &Value| BASE64_URL_SAFE_NO_PAD.encode(json.to_string());
            super::header(&format!("{}.{}.c2ln", encode(&header), encode(&json!({}))))
        };
        assert!(read(json!({"alg": "RS256"})).is_ok());
        for (typ, is_accepted) in [
            ("JWT", true),
            ("jwt", true),
            ("application/jwt", true),
            ("at+jwt", false),
            ("application/at+jwt", false),
            ("logout+jwt", false),
            ("JWT ", false),
            ("", false),
        ] {
            let read = read(json!({"alg": "RS256", "typ": typ}));
            assert_eq!(read.is_ok(), is_accepted, "{typ:?} {read:?}");
        }
    }

    #[test]
    fn times_are_exact_at_their_borders() {
        assert!(read(|c| c["exp"] = json!(NOW - LEEWAY + 1)).is_ok());
        assert!(read(|c| c["exp"] = json!(NOW - LEEWAY)).is_err());
        assert!(read(|c| c["iat"] = json!(NOW + LEEWAY)).is_ok());
        assert!(read(|c| c["iat"] = json!(NOW + LEEWAY + 1)).is_err());
        assert!(read(|c| c["nbf"] = json!(NOW + LEEWAY + 1)).is_err());
        assert!(read(|c| c["exp"] = json!(NOW as f64 + 0.5)).is_ok());
    }

    #[test]
    fn every_wrong_claim_is_refused() {
        for (name, value) in [
            ("iss", json!("https://id.example/x")),
            ("iss", json!(["https://id.example"])),
            ("iss", Value::Null),
            ("aud", json!("other")),
            ("aud", json!(["other"])),
            ("aud", json!(["console", "other"])),
            ("aud", json!([])),
            ("aud", Value::Null),
            ("azp", json!("other")),
            ("azp", json!(7)),
            ("nonce", json!("n-0S7")),
            ("nonce", json!("")),
            ("nonce", Value::Null),
            ("exp", json!("1000300")),
            ("exp", Value::Null),
            ("iat", Value::Null),
            ("sub", json!("")),
            ("sub", json!("local")),
            ("sub", json!("token")),
            ("sub", json!("a b")),
            ("sub", json!("x".repeat(129))),
            ("sub", Value::Null),
            ("groups", json!(7)),
            ("groups", json!([7])),
            ("groups", json!({"a": 1})),
        ] {
            let refused = read(|claims| claims[name] = value.clone());
            assert!(matches!(refused, Err(SignInError::IdToken(_))), "{name}: {value} {refused:?}");
        }
        let absent = read(|c| c["groups"] = Value::Null);
        assert_eq!(absent, Err(SignInError::NoGroups));
        let too_many = |c: &mut Value| c["groups"] = json!(vec!["a"; MAX_GROUPS + 1]);
        assert_eq!(read(too_many), Err(SignInError::TooManyGroups));
        let overage = |c: &mut Value| {
            c["groups"] = Value::Null;
            c["_claim_names"] = json!({"groups": "src1"});
        };
        assert_eq!(read(overage), Err(SignInError::TooManyGroups));
    }
}
