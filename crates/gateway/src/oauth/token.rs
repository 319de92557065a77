//! Token responses (RFC 6749, section 5.1).

use std::time::Duration;

use serde_json::Value;

use config::Secret;

/// The tokens in the response of a token endpoint.
pub(crate) struct Issued {
    pub access_token: Secret,
    /// `None`: the response does not say.
    pub lifetime: Option<Duration>,
    /// `None`: the one that was sent stays valid (section 6).
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
    pub(crate) fn read(response: &Value) -> Result<Self, String> {
        let text = |name: &str| {
            let text = response.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty())
        };
        let access_token = text("access_token").ok_or("the token response has no access_token")?;
        if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
            return Err("token_type is not Bearer".to_owned());
        }
        let duration = |name| {
            let seconds = response.get(name).and_then(Value::as_u64);
            seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST))
        };
        let refresh_lifetime =
            duration("refresh_expires_in").or(duration("refresh_token_expires_in"));
        Ok(Self {
            access_token: Secret::new(access_token),
            lifetime: duration("expires_in"),
            refresh_token: text("refresh_token").map(Secret::new),
            // 0 stands for one that does not expire.
            refresh_lifetime: refresh_lifetime.filter(|lifetime| !lifetime.is_zero()),
            scope: text("scope").map(str::to_owned),
        })
    }
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
        assert!(read(json!({"access_token": "a"})).is_err());
        assert!(read(json!({"access_token": "", "token_type": "Bearer"})).is_err());
        assert!(read(json!({"access_token": "a", "token_type": "DPoP"})).is_err());
        let plain = read(json!({"access_token": "a", "token_type": "Bearer"})).unwrap();
        assert_eq!((plain.lifetime, plain.refresh_token.is_none()), (None, true));
    }
}
