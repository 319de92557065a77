//! One sign-in between the request to the provider and its answer: the authorization code flow
//! (OpenID Connect Core 1.0, section 3.1) with PKCE (RFC 7636). The browser holds it, in a sealed
//! cookie.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::sign_in::error::SignInError;
use crate::sign_in::local_path::LocalPath;
use crate::sign_in::session::SessionOrigin;
use base::seal::{Sealer, TokenKind};
use domain::time::unix_time::UnixSeconds;
use net::issuer::IssuerMetadata;
use oauth::code::{ExpectedAnswer, challenge, fresh_state, fresh_verifier, read_code};

/// A sign-in that has begun.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(in crate::sign_in) struct Flow {
    /// Binds the answer to this browser (RFC 6749, section 10.12).
    state: String,
    /// Binds the ID token to this sign-in (OpenID Connect Core 1.0, section 15.5.2).
    pub nonce: String,
    /// Binds the code to the sign-in that requested it (RFC 7636, section 4.1).
    pub verifier: String,
    return_to: String,
    /// The URI to which the provider sends the browser back.
    redirect_uri: String,
    /// The first second in which it is over, since the Unix epoch.
    expires: u64,
}

/// Time that a person has at the provider: enough to look for a second factor.
pub(in crate::sign_in) const LIFETIME: Duration = Duration::from_secs(600);

impl Flow {
    /// Begins a sign-in that ends at `redirect_uri`.
    pub(in crate::sign_in) fn begin(
        redirect_uri: String,
        return_to: &LocalPath,
        now: UnixSeconds,
    ) -> Self {
        Self {
            state: fresh_state(),
            nonce: fresh_state(),
            verifier: fresh_verifier(),
            return_to: return_to.as_str().to_owned(),
            redirect_uri,
            expires: now.0.saturating_add(LIFETIME.as_secs()),
        }
    }

    /// Returns the value of the cookie, in base64url.
    pub(in crate::sign_in) fn seal(&self, sealer: &Sealer, source: &SessionOrigin) -> String {
        // Texts and numbers are always written.
        let plain = serde_json::to_vec(self).unwrap_or_default();
        sealer.seal(TokenKind::SignIn, source.as_str(), &plain)
    }

    /// Opens the value of a cookie, if the sign-in ends at `redirect_uri` and is not over.
    pub(in crate::sign_in) fn open(
        sealer: &Sealer,
        source: &SessionOrigin,
        value: &str,
        redirect_uri: &str,
        now: UnixSeconds,
    ) -> Option<Self> {
        let plain = sealer.open(TokenKind::SignIn, source.as_str(), value)?;
        let flow: Self = serde_json::from_slice(&plain).ok()?;
        (now < UnixSeconds(flow.expires) && flow.redirect_uri == redirect_uri).then_some(flow)
    }

    /// Returns the URI to which the provider sends the browser back. It must be registered there.
    pub(in crate::sign_in) fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    pub(in crate::sign_in) fn return_to(&self) -> LocalPath {
        LocalPath::or_root(&self.return_to)
    }

    /// Returns the URL of the authentication request (OpenID Connect Core 1.0, section 3.1.2.1; RFC
    /// 7636, section 4.3). Some providers send the groups only if the scope named like the claim is
    /// requested, and others refuse unknown scopes, so the scope is requested only if the metadata
    /// lists it.
    pub(super) fn request(
        &self,
        endpoint: &Url,
        client_id: &str,
        groups_claim: &str,
        metadata: &IssuerMetadata,
    ) -> Url {
        let mut url = endpoint.clone();
        let has_scope = |scope: &str| metadata.scopes.iter().any(|own| own == scope);
        let mut scopes = vec!["openid"];
        scopes.extend(["profile", "email", groups_claim].into_iter().filter(|s| has_scope(s)));
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("scope", &scopes.join(" "))
            .append_pair("state", &self.state)
            .append_pair("nonce", &self.nonce)
            .append_pair("code_challenge", &challenge(&self.verifier))
            .append_pair("code_challenge_method", "S256");
        url
    }

    /// Reads the answer of the provider from the query of the callback; returns the code.
    ///
    /// # Errors
    /// The answer is malformed, for another sign-in, of another provider (RFC 9207, section 2.4),
    /// or a refusal.
    pub(super) fn code(
        &self,
        query: &str,
        issuer: &str,
        must_name_issuer: bool,
    ) -> Result<String, SignInError> {
        let expected = ExpectedAnswer { state: &self.state, issuer, must_name_issuer };
        Ok(read_code(query, expected)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign_in::site::site;
    use base::seal::SealKeys;

    const NOW: UnixSeconds = UnixSeconds(1_000_000);

    fn flow() -> Flow {
        Flow::begin(site("console.example").callback(), &LocalPath::or_root("/approvals?a=1"), NOW)
    }

    #[test]
    fn a_flow_opens_at_its_site_for_its_source_until_it_is_over() {
        let sealer = Sealer::new(&SealKeys::new(vec![[7; 32]]).unwrap());
        let (source, other) = (SessionOrigin::token(&[1; 32]), SessionOrigin::token(&[2; 32]));
        let (flow, here) = (flow(), site("console.example").callback());
        let value = flow.seal(&sealer, &source);
        let open = |source, ends_at: &str, after| {
            Flow::open(&sealer, source, &value, ends_at, UnixSeconds(NOW.0 + after))
        };
        assert_eq!(open(&source, &here, 599), Some(flow));
        assert_eq!(open(&source, &here, 600), None);
        assert_eq!(open(&other, &here, 0), None);
        assert_eq!(open(&source, &site("localhost").callback(), 0), None);
        let longest = LocalPath::or_root(&format!("/{}", "\"".repeat(511)));
        let longest = Flow::begin(here, &longest, NOW).seal(&sealer, &source);
        assert!(longest.len() < 2_048, "{}", longest.len());
    }

    #[test]
    fn the_request_has_all_parameters_and_keeps_those_of_the_endpoint() {
        let endpoint = Url::parse("https://id.example/auth?tenant=a").unwrap();
        let scopes = ["openid", "profile", "groups"].map(str::to_owned).to_vec();
        let metadata = IssuerMetadata { scopes, ..IssuerMetadata::default() };
        let flow = flow();
        let url = flow.request(&endpoint, "a&b", "groups", &metadata);
        let pairs: Vec<_> = url.query_pairs().into_owned().collect();
        let challenge = challenge(&flow.verifier);
        let expected = [
            ("tenant", "a"),
            ("response_type", "code"),
            ("client_id", "a&b"),
            ("redirect_uri", "https://console.example/login/callback"),
            ("scope", "openid profile groups"),
            ("state", &flow.state),
            ("nonce", &flow.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        assert_eq!(pairs, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert!(!url.as_str().contains(&flow.verifier));
    }
}
