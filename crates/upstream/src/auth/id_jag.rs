//! Access tokens for identity assertions of callers: the identity provider issues an assertion for
//! the token of a caller, and the upstream's authorization server a token for the assertion
//! (ID-JAG; draft-ietf-oauth-identity-assertion-authz-grant).

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::Uri;
use tokio::time::Instant;

use super::client_credentials::proof;
use super::exchange::{TokenExchange, issued_token, of_exchange, revocation};
use super::token::AccessToken;
use config::CallerCredential;
use domain::calls::subject_token::SubjectToken;
use domain::fault::{TokenFault, UpstreamFaultKind as Kind};
use logins::sign_in::Provider;
use net::egress::{CONNECT, Egress};
use net::issuer::{IssuerMetadata, discover};
use oauth::client::{OAuthClient, Refusal, address_policy};
use oauth::id_jag::GRANT_PROFILE;

/// The gateway as a client of the identity provider, and of the authorization server of one
/// upstream.
pub(super) struct IdentityAssertions {
    provider: TokenExchange,
    server: config::AssertionServer,
    http: config::Http,
    egress: Egress,
    found: ArcSwapOption<FoundServer>,
}

/// The authorization server of the upstream.
struct FoundServer {
    metadata: IssuerMetadata,
    token_endpoint: Uri,
    /// Resource indicator of the upstream.
    resource: String,
    found_at: Instant,
}

/// Time after which the authorization server is looked up again: an upstream may change it.
const REDISCOVERY: Duration = Duration::from_hours(1);

/// Looks up the authorization server of an upstream whose callers have identity assertions.
///
/// # Errors
/// There is no such server, or it takes no identity assertions.
pub async fn check(http: &config::Http) -> Result<(), Kind> {
    let Some(CallerCredential::IdJag(id_jag)) = &http.credentials.caller else { return Ok(()) };
    let assertions = IdentityAssertions::new(id_jag, http).map_err(Kind::Unavailable)?;
    let found = assertions.server().await;
    found.map(drop).map_err(|Refusal { fault, detail, .. }| Kind::NoToken { fault, detail })
}

impl IdentityAssertions {
    pub(super) fn new(config: &config::IdJag, http: &config::Http) -> Result<Self, String> {
        let server = config.server.clone();
        let policy = address_policy(server.issuer.is_some(), &http.url);
        Ok(Self {
            provider: TokenExchange::new(&config.provider, http)?,
            egress: Egress::new(CONNECT, http.ca.as_deref(), policy, http.proxies.as_ref())?,
            server,
            http: http.clone(),
            found: ArcSwapOption::empty(),
        })
    }

    pub(super) fn scope(&self) -> Option<&str> {
        self.provider.scope()
    }

    /// Exchanges the token of a caller for an assertion, and sends that as the authorization grant
    /// of a token request (RFC 7523, section 2.1). The issued token is used no longer than it, or
    /// the token of the caller, lives.
    pub(super) async fn request(
        &self,
        subject: &SubjectToken,
        scope: Option<&str>,
    ) -> Result<AccessToken, Refusal> {
        let server = self.server().await?;
        let issuer = &server.metadata.issuer;
        let assertion = self.provider.assertion(subject, scope, issuer, &server.resource).await;
        let assertion = assertion.map_err(|refusal| named("the identity provider", refusal))?;
        let form = vec![
            ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer".to_owned()),
            ("assertion", assertion.expose().to_owned()),
        ];
        let sent_at = Instant::now();
        let client = self.client(&server);
        let answered = client.request_json(&self.egress, &server.token_endpoint, form).await;
        let issued = answered
            .map_err(|refusal| of_exchange(refusal, subject))
            .and_then(|response| issued_token(&response, subject, sent_at));
        issued.map_err(|refusal| {
            if refusal.fault != TokenFault::ExchangeRefused {
                // The metadata may be out of date.
                self.found.store(None);
            }
            named(SERVER, refusal)
        })
    }

    /// Revokes a token at the authorization server of the upstream (RFC 7009). Returns whether the
    /// token was revoked: some servers advertise no revocation endpoint.
    pub(super) async fn revoke(&self, access_token: &str) -> Result<bool, Refusal> {
        let server = self.server().await?;
        let Some(endpoint) = &server.metadata.revocation_endpoint else { return Ok(false) };
        let client = self.client(&server);
        client.tell(&self.egress, endpoint, revocation(access_token)).await?;
        Ok(true)
    }

    fn client(&self, server: &FoundServer) -> OAuthClient {
        let FoundServer { metadata, .. } = server;
        let proof = proof(&self.server.proof, metadata.posts_secret(), &metadata.issuer);
        OAuthClient { id: self.server.client_id.clone(), proof }
    }

    /// Returns the authorization server of the upstream; looks it up if it is not known.
    async fn server(&self) -> Result<Arc<FoundServer>, Refusal> {
        let known = self.found.load_full();
        if let Some(known) = known.filter(|known| known.found_at.elapsed() < REDISCOVERY) {
            return Ok(known);
        }
        let found = self.find_server().await;
        let found = found.map_err(|why| named(SERVER, Refusal::other(why)))?;
        let found = Arc::new(found);
        self.found.store(Some(found.clone()));
        Ok(found)
    }

    async fn find_server(&self) -> Result<FoundServer, String> {
        let (metadata, resource) = match &self.server.issuer {
            Some(issuer) => (discover(&self.egress, issuer).await?, self.http.url.to_string()),
            None => Provider::discover(&self.http).await?.into_parts(),
        };
        let IssuerMetadata { issuer, token_endpoint, grant_profiles, .. } = &metadata;
        if !grant_profiles.iter().any(|profile| profile == GRANT_PROFILE) {
            return Err(format!(
                "{issuer} takes no identity assertions: {GRANT_PROFILE} is not in its \
                 authorization_grant_profiles_supported"
            ));
        }
        let token_endpoint = token_endpoint.clone();
        let token_endpoint =
            token_endpoint.ok_or_else(|| format!("{issuer} names no https token_endpoint"))?;
        Ok(FoundServer { metadata, token_endpoint, resource, found_at: Instant::now() })
    }
}

const SERVER: &str = "the authorization server of the upstream";

/// Says which of the two servers has refused.
fn named(server: &str, refusal: Refusal) -> Refusal {
    Refusal { detail: format!("{server}: {}", refusal.detail), ..refusal }
}
