//! Token responses (RFC 6749, section 5.1).

use std::time::Duration;

use serde_json::Value;

use config::Secret;
use domain::fault::excerpt;

/// The tokens in the response of a token endpoint.
pub struct Issued {
    pub access_token: Secret,
    /// `None`: the response does not say.
    pub lifetime: Option<Duration>,
    /// `None`: the refresh token that was sent stays valid (section 6).
    pub refresh_token: Option<Secret>,
    /// Lifetime of the refresh token, where a provider has it in `refresh_expires_in` or
    /// `refresh_token_expires_in`.
    pub refresh_lifetime: Option<Duration>,
    /// The granted scope, if it differs from the requested one.
    pub scope: Option<String>,
}

/// Longest lifetime that is believed: a provider that sends milliseconds would lead beyond the
/// years that can be written.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Issued {
    /// Reads a token response.
    ///
    /// # Errors
    /// When it has no access token of the type `Bearer`.
    pub fn read(response: &Value) -> Result<Self, String> {
        let text = |name: &str| {
            let text = response.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty())
        };
        let access_token = text("access_token").ok_or("the token response has no access_token")?;
        let kind = text("token_type").unwrap_or_default();
        if !kind.eq_ignore_ascii_case("bearer") {
            return Err(format!("token_type is {:?}, not Bearer", excerpt(kind)));
        }
        let duration = |name| response.get(name).and_then(seconds);
        let refresh_lifetime =
            duration("refresh_expires_in").or(duration("refresh_token_expires_in"));
        Ok(Self {
            access_token: Secret::new(access_token),
            lifetime: duration("expires_in"),
            refresh_token: text("refresh_token").map(Secret::new),
            // 0 stands for a refresh token that does not expire.
            refresh_lifetime: refresh_lifetime.filter(|lifetime| !lifetime.is_zero()),
            scope: response.get("scope").and_then(scope),
        })
    }
}

/// Reads a number of seconds, which some providers write as a text or with a fraction: from 0 to
/// [`LONGEST`].
pub fn seconds(value: &Value) -> Option<Duration> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok()?,
        value => value.as_f64()?,
    };
    // A value that is no number counts as 0.
    Some(Duration::from_secs(number.clamp(0.0, LONGEST.as_secs_f64()) as u64))
}

/// Reads a scope, which some providers write as a list.
fn scope(value: &Value) -> Option<String> {
    match value {
        Value::Array(scopes) => {
            let scopes: Vec<_> = scopes.iter().filter_map(Value::as_str).collect();
            Some(scopes.join(" "))
        }
        value => value.as_str().map(str::to_owned),
    }
    .filter(|scope| !scope.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_response_needs_a_bearer_token() {
        let read = |response: Value| Issued::read(&response);
        let issued = read(json!({"access_token": "a", "token_type": "bearer", "expires_in": 60,
            "refresh_token": "r", "refresh_expires_in": 0, "scope": "x"}));
        let issued = issued.unwrap();
        assert_eq!(issued.access_token.expose(), "a");
        assert_eq!(issued.lifetime, Some(Duration::from_secs(60)));
        assert_eq!(issued.refresh_token.unwrap().expose(), "r");
        assert_eq!((issued.refresh_lifetime, issued.scope.as_deref()), (None, Some("x")));
        let in_millis = read(json!({"access_token": "a", "token_type": "Bearer",
            "expires_in": u64::MAX, "refresh_expires_in": 315_000_000_000_u64}));
        let in_millis = in_millis.unwrap();
        assert_eq!(
            (in_millis.lifetime, in_millis.refresh_lifetime),
            (Some(LONGEST), Some(LONGEST))
        );
        for (expires_in, expected) in [
            (json!("3600"), Some(3600)),
            (json!(3599.9), Some(3599)),
            (json!(-1), Some(0)),
            (json!(null), None),
            (json!("soon"), None),
            (json!([60]), None),
        ] {
            let odd = read(
                json!({"access_token": "a", "token_type": "Bearer", "scope": ["x", "y", 1],
                "expires_in": expires_in, "refresh_token": null, "refresh_expires_in": "60", "extra": {}}),
            );
            let odd = odd.unwrap();
            assert_eq!(odd.lifetime, expected.map(Duration::from_secs), "{expires_in}");
            assert_eq!(odd.scope.as_deref(), Some("x y"));
            assert_eq!(odd.refresh_lifetime, Some(Duration::from_secs(60)));
        }
        assert!(read(json!({"access_token": "a"})).is_err());
        assert!(read(json!({"access_token": "", "token_type": "Bearer"})).is_err());
        let other = read(json!({"access_token": "a", "token_type": "DPoP"})).err();
        assert_eq!(other.as_deref(), Some("token_type is \"DPoP\", not Bearer"));
        let plain = read(json!({"access_token": "a", "token_type": "Bearer"})).unwrap();
        assert_eq!((plain.lifetime, plain.refresh_token.is_none()), (None, true));
    }
}
