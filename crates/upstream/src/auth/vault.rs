//! Secrets of callers that a vault holds, looked up by HTTP.

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use http_body_util::Full;
use serde_json::Value;
use tokio::time::Instant;

use super::token::AccessToken;
use config::CALLER;
use domain::fault::TokenFault;
use domain::text::percent;
use net::egress::{CONNECT, Egress, FetchError};
use oauth::client::{Refusal, address_policy, sensitive};
use oauth::token::seconds;

/// The vault of one upstream.
pub(super) struct VaultClient {
    config: config::Vault,
    headers: HeaderMap,
    egress: Egress,
}

impl VaultClient {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those
    /// of the system.
    pub(crate) fn new(config: &config::Vault, http: &config::Http) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &config.headers {
            headers.insert(name, sensitive(value.expose())?);
        }
        let policy = address_policy(true, &http.url);
        let ca = http.ca.as_deref();
        let proxies = http.proxies.as_ref();
        let egress = Egress::new(CONNECT, ca, policy, proxies)?;
        Ok(Self { config: config.clone(), headers, egress })
    }

    /// Looks up the secret of the caller with this id. The secret is used until its lease ends.
    pub(super) async fn request(&self, caller: &str) -> Result<AccessToken, Refusal> {
        let mut request = Request::new(Full::<Bytes>::default());
        *request.uri_mut() = url(&self.config.url, caller)?;
        request.headers_mut().clone_from(&self.headers);
        let sent_at = Instant::now();
        let answer = self.egress.json(request).await.map_err(|error| self.refusal(&error))?;
        let secret = secret(&answer, &self.config.field).ok_or_else(|| {
            let field = &self.config.field;
            Refusal::new(TokenFault::NoSecret, format!("the answer of the vault has no {field:?}"))
        })?;
        // A lease of 0 means a static secret without a lease.
        let lease = answer.get("lease_duration").and_then(seconds).filter(|lease| !lease.is_zero());
        AccessToken::new(secret, lease, sent_at, fastrand::f64())
    }

    fn refusal(&self, error: &FetchError) -> Refusal {
        let refusal = Refusal::of(&self.config.url, error);
        match error {
            FetchError::Status { status: StatusCode::NOT_FOUND, .. } => {
                Refusal { fault: TokenFault::NoSecret, ..refusal }
            }
            _ => refusal,
        }
    }
}

/// Fills the template: the id of a caller is one segment, whatever it holds.
fn url(template: &str, caller: &str) -> Result<Uri, Refusal> {
    if matches!(caller, "" | "." | "..") {
        let why = format!("the id {caller:?} of the caller cannot be a segment of a URL");
        return Err(Refusal::new(TokenFault::NoSecret, why));
    }
    let filled = template.replace(CALLER, &percent::encoded(caller));
    filled.parse().map_err(|_| Refusal::other("the URL of the vault cannot hold the caller's id"))
}

/// Finds the secret where vaults put it: in `data.data` (key-value store, version 2), in `data`, or
/// at the top.
fn secret<'a>(answer: &'a Value, field: &str) -> Option<&'a str> {
    let data = answer.get("data");
    let places = [data.and_then(|data| data.get("data")), data, Some(answer)];
    let mut found = places.into_iter().flatten().filter_map(|place| place.get(field)?.as_str());
    found.find(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_id_of_a_caller_leaves_its_segment_in_no_way() {
        let template = "https://vault.example/v1/{caller}/key";
        for (caller, expected) in [
            ("ada", "https://vault.example/v1/ada/key"),
            ("a/../b?c#d%2e", "https://vault.example/v1/a%2F..%2Fb%3Fc%23d%252e/key"),
            ("ä@x;y", "https://vault.example/v1/%C3%A4%40x%3By/key"),
            ("...", "https://vault.example/v1/.../key"),
            ("{caller}", "https://vault.example/v1/%7Bcaller%7D/key"),
        ] {
            assert_eq!(url(template, caller).unwrap().to_string(), expected);
        }
        for caller in ["", ".", ".."] {
            assert_eq!(url(template, caller).unwrap_err().fault, TokenFault::NoSecret);
        }
    }

    #[test]
    fn the_secret_is_found_where_vaults_put_it() {
        for answer in [
            json!({"data": {"data": {"token": "t"}, "metadata": {}}, "lease_duration": 0}),
            json!({"data": {"token": "t"}}),
            json!({"token": "t"}),
        ] {
            assert_eq!(secret(&answer, "token"), Some("t"), "{answer}");
        }
        for answer in [json!({}), json!({"token": ""}), json!({"data": {"token": 1}}), json!([])] {
            assert_eq!(secret(&answer, "token"), None, "{answer}");
        }
    }
}
