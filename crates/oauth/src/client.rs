//! Requests to the endpoints of an authorization server, with the authentication of the client.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};

use base::seal::hex::hex;
use base::seal::random;
use config::Secret;
use domain::address_policy::{AddressPolicy, is_loopback};
use domain::fault::TokenFault;
use domain::text::percent;
use net::egress::{Egress, FetchError};

/// A client of an authorization server.
#[derive(Clone)]
pub struct OAuthClient {
    pub id: String,
    pub proof: ClientAuthentication,
}

/// The proof by which a client authenticates (RFC 6749, section 2.3).
#[derive(Clone)]
pub enum ClientAuthentication {
    /// Public clients have no proof.
    None,
    /// `client_secret_basic`
    Secret(Secret),
    /// `client_secret_post`
    PostedSecret(Secret),
    /// `private_key_jwt` (RFC 7523, section 2.2)
    Key {
        algorithm: Algorithm,
        key: EncodingKey,
        /// `aud` of the assertion.
        audience: String,
    },
    /// An assertion that another party has signed (RFC 7523, section 2.2).
    Assertion(Secret),
    /// Neither proof nor id: the assertion in the form identifies the client (RFC 7523, section
    /// 2.1).
    Anonymous,
}

impl ClientAuthentication {
    /// The authentication of a client with a secret, or of a public client.
    pub fn of_secret(secret: Option<Secret>, is_posted: bool) -> Self {
        match secret {
            None => Self::None,
            Some(secret) if is_posted => Self::PostedSecret(secret),
            Some(secret) => Self::Secret(secret),
        }
    }
}

/// The parameters of a request, in order.
pub type Form = Vec<(&'static str, String)>;

/// The failure of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    pub fault: TokenFault,
    /// The code of the error (RFC 6749, section 5.2), if the endpoint sent one.
    pub error: Option<String>,
    /// The endpoint and its answer, for operators.
    pub detail: String,
}

impl Refusal {
    pub fn new(fault: TokenFault, detail: impl Into<String>) -> Self {
        Self { fault, error: None, detail: detail.into() }
    }

    /// The failure of a request that cannot be made, or whose answer is malformed.
    pub fn other(detail: impl Into<String>) -> Self {
        Self::new(TokenFault::Failed, detail)
    }

    /// The failure of a request to `endpoint`.
    pub fn of(endpoint: &impl std::fmt::Display, error: &FetchError) -> Self {
        let code = match error {
            FetchError::Status { error, .. } => error.clone(),
            FetchError::Timeout | FetchError::NotJson | FetchError::Broken(_) => None,
        };
        Self { fault: fault(error), error: code, detail: format!("{endpoint}: {error}") }
    }

    /// Redacts the secrets that the answer repeats.
    fn without(self, secrets: &[String]) -> Self {
        let secrets = secrets.iter().filter(|secret| !secret.is_empty());
        let detail = secrets.fold(self.detail, |text, secret| text.replace(secret, "[redacted]"));
        Self { detail, ..self }
    }
}

/// The parameters whose values are secrets.
const SECRET_PARAMETERS: [&str; 8] = [
    "actor_token",
    "assertion",
    "code",
    "code_verifier",
    "device_code",
    "refresh_token",
    "subject_token",
    "token",
];

/// Lifetime of a client assertion in seconds: enough for one request and a clock that is a little
/// off.
const ASSERTION_SECS: u64 = 60;

impl OAuthClient {
    /// Sends a request and reads the JSON document that answers it.
    ///
    /// # Errors
    /// The endpoint refuses, cannot be reached, or sends no document.
    pub async fn request_json(
        &self,
        egress: &Egress,
        endpoint: &Uri,
        form: Form,
    ) -> Result<Value, Refusal> {
        let secrets = self.secrets(&form);
        let request = self.request(endpoint, form).map_err(Refusal::other)?;
        let document = egress.json(request).await.and_then(|document| {
            // Some providers refuse with the status 200.
            let is_refusal = document.get("error").is_some_and(Value::is_string)
                && document.get("access_token").is_none_or(Value::is_null);
            if is_refusal { Err(FetchError::of(StatusCode::OK, &document)) } else { Ok(document) }
        });
        document.map_err(|error| Refusal::of(endpoint, &error).without(&secrets))
    }

    /// Sends a request whose answer is its status.
    ///
    /// # Errors
    /// The endpoint refuses, or cannot be reached.
    pub async fn tell(&self, egress: &Egress, endpoint: &Uri, form: Form) -> Result<(), Refusal> {
        let secrets = self.secrets(&form);
        let request = self.request(endpoint, form).map_err(Refusal::other)?;
        let told = egress.fetch(request).await;
        told.map(drop).map_err(|error| Refusal::of(endpoint, &error).without(&secrets))
    }

    /// Returns the secrets of a request, which a provider may repeat in its answer.
    fn secrets(&self, form: &Form) -> Vec<String> {
        let in_form = form.iter().filter(|(name, _)| SECRET_PARAMETERS.contains(name));
        let own = match &self.proof {
            ClientAuthentication::Secret(secret)
            | ClientAuthentication::PostedSecret(secret)
            | ClientAuthentication::Assertion(secret) => Some(secret.expose().to_owned()),
            ClientAuthentication::None
            | ClientAuthentication::Key { .. }
            | ClientAuthentication::Anonymous => None,
        };
        in_form.map(|(_, value)| value.clone()).chain(own).collect()
    }

    fn request(&self, endpoint: &Uri, mut form: Form) -> Result<Request<Full<Bytes>>, String> {
        // Some providers refuse resource indicators (RFC 8707), which `resource = ""` leaves out.
        form.retain(|(name, value)| *name != "resource" || !value.is_empty());
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = endpoint.clone();
        match &self.proof {
            ClientAuthentication::None => form.push(("client_id", self.id.clone())),
            ClientAuthentication::PostedSecret(secret) => {
                form.push(("client_id", self.id.clone()));
                form.push(("client_secret", secret.expose().to_owned()));
            }
            ClientAuthentication::Secret(secret) => {
                // Form-encoded before they are joined (RFC 6749, section 2.3.1).
                let pair =
                    format!("{}:{}", percent::encoded(&self.id), percent::encoded(secret.expose()));
                let header = format!("Basic {}", BASE64_STANDARD.encode(pair));
                request.headers_mut().insert(AUTHORIZATION, sensitive(&header)?);
            }
            ClientAuthentication::Key { algorithm, key, audience } => {
                let assertion = encode(&Header::new(*algorithm), &claims(&self.id, audience), key);
                self.assert(&mut form, assertion.map_err(|error| error.to_string())?);
            }
            ClientAuthentication::Assertion(assertion) => {
                self.assert(&mut form, assertion.expose().to_owned())
            }
            ClientAuthentication::Anonymous => {}
        }
        let pairs = form.iter().map(|(name, value)| format!("{name}={}", percent::encoded(value)));
        *request.body_mut() = Full::new(Bytes::from(pairs.collect::<Vec<_>>().join("&")));
        let media = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, media);
        Ok(request)
    }

    /// Adds the proof of a client by an assertion (RFC 7523, section 2.2).
    fn assert(&self, form: &mut Form, assertion: String) {
        let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
        form.push(("client_id", self.id.clone()));
        form.push(("client_assertion_type", kind.to_owned()));
        form.push(("client_assertion", assertion));
    }
}

/// Returns the fault of a failed request (RFC 6749, section 5.2; RFC 6750, section 3.1).
fn fault(error: &FetchError) -> TokenFault {
    match error {
        FetchError::Timeout => TokenFault::ProviderTimeout,
        FetchError::NotJson | FetchError::Broken(_) => TokenFault::ProviderUnavailable,
        FetchError::Status { status, .. }
            if status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS =>
        {
            TokenFault::ProviderUnavailable
        }
        FetchError::Status { error, .. } => match error.as_deref() {
            Some("invalid_grant") => TokenFault::LoginRefused,
            Some("invalid_scope" | "insufficient_scope") => TokenFault::ScopeRefused,
            _ => TokenFault::Failed,
        },
    }
}

/// Returns the form that revokes a token (RFC 7009, section 2.1), whose type is `hint`.
pub fn revocation(token: &str, hint: &str) -> Form {
    vec![("token", token.to_owned()), ("token_type_hint", hint.to_owned())]
}

/// Returns which addresses an authorization server may have. The operator's server and that of an
/// upstream on this machine are trusted. Any other server must be public.
pub fn address_policy(is_configured: bool, upstream: &Uri) -> AddressPolicy {
    if is_configured || is_loopback(upstream.host().unwrap_or_default()) {
        AddressPolicy::NotLinkLocal
    } else {
        AddressPolicy::PublicOnly
    }
}

/// Returns the claims of a client assertion (RFC 7523, section 3).
fn claims(client: &str, audience: &str) -> Value {
    let now = get_current_timestamp();
    json!({"iss": client, "sub": client, "aud": audience, "iat": now, "exp": now + ASSERTION_SECS,
        "jti": hex(&random::<16>())})
}

/// Returns a header value that is not logged.
///
/// # Errors
/// When a header cannot hold the text.
pub fn sensitive(text: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(text);
    let mut value = value
        .map_err(|_| "the credential has a character that no HTTP header may have".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_an_authorization_server_have_distinct_faults() {
        let status = |status, error: &str| FetchError::Status {
            status: StatusCode::from_u16(status).unwrap(),
            error: Some(error.to_owned()),
            description: None,
        };
        for (error, expected) in [
            (status(400, "invalid_grant"), TokenFault::LoginRefused),
            (status(400, "invalid_scope"), TokenFault::ScopeRefused),
            (status(401, "invalid_client"), TokenFault::Failed),
            (status(503, "invalid_grant"), TokenFault::ProviderUnavailable),
            (status(429, ""), TokenFault::ProviderUnavailable),
            (FetchError::Broken(String::new()), TokenFault::ProviderUnavailable),
            (FetchError::Timeout, TokenFault::ProviderTimeout),
        ] {
            assert_eq!(fault(&error), expected, "{error}");
        }
    }

    #[test]
    fn k5_a_refusal_does_not_repeat_the_secrets_of_its_request() {
        let proof = ClientAuthentication::PostedSecret(Secret::new("hunter2"));
        let client = OAuthClient { id: "a".to_owned(), proof };
        let form = vec![("refresh_token", "r-123".to_owned()), ("scope", "read".to_owned())];
        let document = json!({"error_description": "r-123 of hunter2 may not read"});
        let error = FetchError::of(StatusCode::BAD_REQUEST, &document);
        let refusal = Refusal::of(&"https://id.example", &error).without(&client.secrets(&form));
        let expected = "https://id.example: HTTP 400: [redacted] of [redacted] may not read";
        assert_eq!(refusal.detail, expected);
    }

    #[test]
    fn a_public_client_sends_its_id_and_nothing_that_proves_it() {
        let client = OAuthClient { id: "a b".to_owned(), proof: ClientAuthentication::None };
        let endpoint = Uri::from_static("https://id.example/token");
        let request = client.request(&endpoint, vec![("grant_type", "x".to_owned())]).unwrap();
        assert!(request.headers().get(AUTHORIZATION).is_none());
        let body = format!("{:?}", request.body());
        assert!(body.contains("grant_type=x&client_id=a%20b"), "{body}");
    }
}
