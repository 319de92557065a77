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

/// The member of `authorization_grant_profiles_supported` of servers that take assertions.
pub const GRANT_PROFILE: &str = "urn:ietf:params:oauth:grant-profile:id-jag";

/// Reads the identity assertion for the authorization server `issuer`, which checks its signature,
/// from the response to an exchange.
///
/// # Errors
/// When the response has none, or one for another server.
pub fn read(response: &Value, issuer: &str) -> Result<Secret, String> {
    let text = |name: &str| response.get(name).and_then(Value::as_str).unwrap_or_default();
    let assertion = text("access_token");
    let (header, claims) = parts(assertion).unwrap_or_default();
    let typ = header.get("typ").and_then(Value::as_str).unwrap_or_default();
    for (name, given, expected) in [
        ("issued_token_type", text("issued_token_type"), TOKEN_TYPE),
        ("token_type", text("token_type"), "N_A"),
        ("typ of the assertion", typ, "oauth-id-jag+jwt"),
    ] {
        if !given.eq_ignore_ascii_case(expected) {
            return Err(format!("{name} is {:?}, not {expected}", excerpt(given)));
        }
    }
    let audience = match claims.get("aud") {
        Some(Value::Array(all)) if all.len() == 1 => all[0].as_str(),
        audience => audience.and_then(Value::as_str),
    };
    match audience {
        Some(audience) if is_same_uri(audience, issuer) => Ok(Secret::new(assertion)),
        _ => Err(format!("the assertion is for another server: its aud is not {issuer}")),
    }
}

/// Returns the header and the claims of a JWT (RFC 7519, section 3).
fn parts(jwt: &str) -> Option<(Value, Value)> {
    let mut parts = jwt
        .split('.')
        .map(|part| serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok());
    Some((parts.next()??, parts.next()??))
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
            ("access_token", json!("opaque-c2ln"), "typ of the assertion is"),
            ("access_token", json!("e30.e30.c2ln"), "typ of the assertion is"),
            ("access_token", json!(null), "typ of the assertion is"),
        ] {
            let mut response = good.clone();
            response[name] = value;
            assert!(refused(&response).contains(what), "{response}");
        }
    }
}
