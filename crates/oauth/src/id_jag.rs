//! Identity assertions: JSON Web Tokens by which an identity provider vouches for a user at another
//! authorization server (ID-JAG; draft-ietf-oauth-identity-assertion-authz-grant).

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

use config::Secret;
use domain::fault::excerpt;
use net::origin::is_same_uri;

/// Type of the token in an exchange.
pub const TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:id-jag";

/// Member of `authorization_grant_profiles_supported` in the metadata of servers that take
/// identity assertions.
pub const GRANT_PROFILE: &str = "urn:ietf:params:oauth:grant-profile:id-jag";

/// Reads the identity assertion in the response to an exchange. The authorization server to which
/// it is sent checks its signature.
///
/// # Errors
/// When the response has none, or one that is not for the authorization server `issuer`: another
/// server must not get it.
pub fn read(response: &Value, issuer: &str) -> Result<Secret, String> {
    let text = |name: &str| response.get(name).and_then(Value::as_str).unwrap_or_default();
    for (name, expected) in [("issued_token_type", TOKEN_TYPE), ("token_type", "N_A")] {
        if !text(name).eq_ignore_ascii_case(expected) {
            return Err(format!("{name} is {:?}, not {expected}", excerpt(text(name))));
        }
    }
    let assertion = text("access_token");
    let [header, claims] = [0, 1].map(|index| part(assertion, index));
    let header = header.ok_or("the assertion is no JWT")?;
    let kind = header.get("typ").and_then(Value::as_str).unwrap_or_default();
    if !kind.eq_ignore_ascii_case("oauth-id-jag+jwt") {
        return Err(format!("typ of the assertion is {:?}, not oauth-id-jag+jwt", excerpt(kind)));
    }
    let claims = claims.ok_or("the assertion is no JWT")?;
    let audience = match claims.get("aud") {
        Some(Value::Array(all)) if all.len() == 1 => all[0].as_str(),
        audience => audience.and_then(Value::as_str),
    };
    match audience {
        Some(audience) if is_same_uri(audience, issuer) => Ok(Secret::new(assertion)),
        audience => {
            let audience = excerpt(audience.unwrap_or_default());
            Err(format!(
                "the assertion is for another server: its aud is {audience:?}, not {issuer}"
            ))
        }
    }
}

/// Returns a part of a JWT (RFC 7519, section 3): 0 for the header, 1 for the claims.
fn part(jwt: &str, index: usize) -> Option<Value> {
    let parts: Vec<_> = jwt.split('.').collect();
    let [_, _, _] = parts[..] else { return None };
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(parts[index]).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://auth.example";

    fn answer(typ: &Value, aud: &Value) -> Value {
        let encoded = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let header = encoded(json!({"alg": "ES512", "typ": typ}));
        let assertion = format!("{header}.{}.c2ln", encoded(json!({"aud": aud})));
        json!({"access_token": assertion, "issued_token_type": TOKEN_TYPE, "token_type": "N_A"})
    }

    #[test]
    fn an_assertion_is_read_whatever_signs_it() {
        for aud in [json!(ISSUER), json!([ISSUER]), json!("https://AUTH.example:443/")] {
            let answer = answer(&json!("oauth-id-jag+jwt"), &aud);
            let assertion = read(&answer, ISSUER).unwrap();
            assert_eq!(assertion.expose(), answer["access_token"].as_str().unwrap(), "{aud}");
        }
    }

    #[test]
    fn an_assertion_of_another_type_or_for_another_server_is_refused_without_its_text() {
        let good = json!("oauth-id-jag+jwt");
        let refused = |response: &Value| {
            let why = read(response, ISSUER).unwrap_err();
            assert!(!why.contains("c2ln"), "{why}");
            why
        };
        for typ in [json!("JWT"), json!("at+jwt"), json!(null), json!(1)] {
            assert!(refused(&answer(&typ, &json!(ISSUER))).contains("typ of the assertion"));
        }
        for aud in [
            json!("https://other.example"),
            json!([ISSUER, "https://other.example"]),
            json!([]),
            json!(null),
            json!("https://auth.example/tenant"),
        ] {
            assert!(refused(&answer(&good, &aud)).contains("for another server"), "{aud}");
        }
        let good = answer(&good, &json!(ISSUER));
        for (name, value, what) in [
            ("issued_token_type", json!("urn:ietf:params:oauth:token-type:jwt"), "issued_token"),
            ("issued_token_type", json!(null), "issued_token_type is"),
            ("token_type", json!("Bearer"), "token_type is \"Bearer\", not N_A"),
            ("access_token", json!("opaque-c2ln"), "no JWT"),
            ("access_token", json!("e30.e30"), "no JWT"),
            ("access_token", json!(null), "no JWT"),
        ] {
            let mut response = good.clone();
            response[name] = value;
            assert!(refused(&response).contains(what), "{response}");
        }
    }
}
