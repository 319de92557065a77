//! The authorization code flow (OAuth 2.1, section 4.1) with PKCE (RFC 7636): the values that a
//! request binds, and its answer.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use url::form_urlencoded;

use base::seal::{random, sha256};
use domain::fault::excerpt;

/// Returns a new `state`: it binds the answer to the request (RFC 6749, section 10.12). 22
/// characters.
pub fn fresh_state() -> String {
    text(random::<16>())
}

/// Returns a new code verifier: it binds the code to its request (RFC 7636, section 4.1). 43
/// characters.
pub fn fresh_verifier() -> String {
    text(random::<32>())
}

/// Returns the code challenge of a verifier (RFC 7636, section 4.2, `S256`).
pub fn challenge(verifier: &str) -> String {
    text(sha256(verifier.as_bytes()))
}

fn text<const N: usize>(bytes: [u8; N]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Values that the answer to a request must have.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedAnswer<'a> {
    pub state: &'a str,
    pub issuer: &'a str,
    /// Whether the provider always names itself (RFC 9207, section 3).
    pub must_name_issuer: bool,
}

/// Why an answer has no code.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoCode {
    #[error("the answer is malformed")]
    Malformed,
    #[error("the answer is for another request")]
    OtherRequest,
    /// A mix-up attack (RFC 9207, section 1), or a provider that changed its name.
    #[error("the answer is of another authorization server: {named:?}, not {expected:?}")]
    OtherIssuer { named: String, expected: String },
    #[error("access was denied")]
    Denied,
    /// The code of the error (RFC 6749, section 4.1.2.1), unchanged from the query.
    #[error("the authorization server refused: {}", excerpt(.0))]
    Refused(String),
}

/// Reads the code in the query of a redirect back.
///
/// # Errors
/// The answer is malformed, for another request, of another provider (RFC 9207, section 2.4), or a
/// refusal.
pub fn read_code(query: &str, expected: ExpectedAnswer<'_>) -> Result<String, NoCode> {
    let answer = RedirectParameters::read(query)?;
    let state = answer.state.ok_or(NoCode::Malformed)?;
    if !bool::from(state.as_bytes().ct_eq(expected.state.as_bytes())) {
        return Err(NoCode::OtherRequest);
    }
    match answer.iss {
        // Compared with the metadata character by character (RFC 9207, section 2.4).
        Some(named) if named == expected.issuer => {}
        None if !expected.must_name_issuer => {}
        named => {
            let named = excerpt(&named.unwrap_or_default());
            return Err(NoCode::OtherIssuer { named, expected: expected.issuer.to_owned() });
        }
    }
    match (answer.error, answer.code) {
        (None, Some(code)) => Ok(code),
        (None, None) => Err(NoCode::Malformed),
        (Some(error), _) if error == "access_denied" => Err(NoCode::Denied),
        (Some(error), _) => Err(NoCode::Refused(error)),
    }
}

/// The parameters of the redirect that count.
#[derive(Default)]
struct RedirectParameters {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

/// Longest query of a redirect back, in bytes.
const MAX_QUERY: usize = 8 << 10;

impl RedirectParameters {
    /// A parameter must not be repeated (RFC 6749, section 3.1).
    fn read(query: &str) -> Result<Self, NoCode> {
        let mut answer = Self::default();
        if query.len() > MAX_QUERY {
            return Err(NoCode::Malformed);
        }
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let slot = match &*name {
                "state" => &mut answer.state,
                "code" => &mut answer.code,
                "error" => &mut answer.error,
                "iss" => &mut answer.iss,
                _ => continue,
            };
            if slot.replace(value.into_owned()).is_some() {
                return Err(NoCode::Malformed);
            }
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_is_that_of_the_specification() {
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(challenge(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        assert_eq!(fresh_verifier().len(), 43, "section 4.1: 43 to 128 characters");
        assert_ne!(fresh_state(), fresh_state());
    }

    #[test]
    fn only_the_answer_to_this_request_has_a_code() {
        let issuer = "https://id.example";
        let state = "s-1";
        let code = |query: &str, must_name_issuer| {
            read_code(query, ExpectedAnswer { state, issuer, must_name_issuer })
        };
        let iss = "iss=https%3A%2F%2Fid.example";
        assert_eq!(code(&format!("code=a%2Bb&state={state}"), false).as_deref(), Ok("a+b"));
        let named = format!("code=c&state={state}&{iss}&session_state=x");
        assert_eq!(code(&named, true).as_deref(), Ok("c"));
        let slash = format!("code=c&state={state}&{iss}%2F");
        assert!(matches!(code(&slash, true), Err(NoCode::OtherIssuer { .. })), "another spelling");
        let other =
            |named: &str| OtherIssuer { named: named.to_owned(), expected: issuer.to_owned() };
        use NoCode::{Denied, Malformed, OtherIssuer, OtherRequest, Refused};
        for (query, must, expected) in [
            (String::new(), false, Malformed),
            ("code=c".to_owned(), false, Malformed),
            ("code=c&state=".to_owned(), false, OtherRequest),
            (format!("code=c&state={state}x"), false, OtherRequest),
            (format!("state={state}"), false, Malformed),
            (format!("code=c&code=d&state={state}"), false, Malformed),
            (format!("code=c&state={state}&state={state}"), false, Malformed),
            (format!("code=c&state={state}"), true, other("")),
            (
                format!("code=c&state={state}&iss=https%3A%2F%2Fevil.example"),
                false,
                other("https://evil.example"),
            ),
            (format!("code=c&state={state}&{iss}%2Fx"), false, other("https://id.example/x")),
            (format!("error=access_denied&state={state}"), false, Denied),
            (
                format!("error=%3Cscript%3E&code=c&state={state}"),
                false,
                Refused("<script>".to_owned()),
            ),
            ("error=access_denied&state=x".to_owned(), false, OtherRequest),
            (format!("code={}&state={state}", "c".repeat(MAX_QUERY)), false, Malformed),
        ] {
            assert_eq!(code(&query, must), Err(expected), "{query}");
        }
    }
}
