//! Access tokens for identity assertions of callers: the identity provider issues an assertion for
//! the token of a caller, and the upstream's authorization server a token for the assertion
//! (ID-JAG; draft-ietf-oauth-identity-assertion-authz-grant).

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::Uri;
use tokio::time::Instant;

use super::client_credentials::proof;
use super::exchange::{TokenExchange, issued_token, of_exchange};
use super::login::KeptLogin;
use super::token::AccessToken;
use base::platform::wall_clock;
use config::CallerCredential;
use domain::calls::caller::Caller;
use domain::calls::subject_token::SubjectToken;
use domain::fault::{TokenFault, UpstreamFaultKind as Kind};
use domain::time::unix_time::UnixSeconds;
use logins::StoredLogin;
use logins::caller::CallerName;
use logins::sign_in::Provider;
use net::egress::{CONNECT, Egress};
use net::issuer::discover;
use oauth::client::{OAuthClient, Refusal, address_policy, revocation};
use oauth::id_jag::{self, GRANT_PROFILE, TOKEN_TYPE};

/// The gateway as a client of the identity provider, and of the upstream's authorization server.
pub(super) struct IdentityAssertions {
    pub provider: TokenExchange,
    config: config::IdJag,
    http: config::Http,
    egress: Egress,
    server: ArcSwapOption<FoundServer>,
}

/// The authorization server of the upstream.
struct FoundServer {
    issuer: String,
    client: OAuthClient,
    token_endpoint: Uri,
    revocation_endpoint: Option<Uri>,
    /// Resource indicator of the upstream.
    resource: String,
    found_at: Instant,
}

/// Time after which the authorization server is looked up again: it may have changed.
const REDISCOVERY: Duration = Duration::from_secs(300);

/// Looks up the authorization server of an upstream whose callers have identity assertions.
///
/// # Errors
/// There is no such server, or it takes no identity assertions.
pub async fn check(http: &config::Http) -> Result<(), Kind> {
    let Some(CallerCredential::IdJag(id_jag)) = &http.credentials.caller else { return Ok(()) };
    let assertions = IdentityAssertions::new(id_jag, http).map_err(Kind::Unavailable)?;
    let found = assertions.find_server().await;
    found.map(drop).map_err(|detail| Kind::NoToken { fault: TokenFault::Failed, detail })
}

impl IdentityAssertions {
    pub(super) fn new(config: &config::IdJag, http: &config::Http) -> Result<Self, String> {
        let policy = address_policy(config.server.issuer.is_some(), &http.url);
        Ok(Self {
            provider: TokenExchange::new(&config.provider, http)?,
            egress: Egress::new(CONNECT, http.ca.as_deref(), policy, http.proxies.as_ref())?,
            config: config.clone(),
            http: http.clone(),
            server: ArcSwapOption::empty(),
        })
    }

    /// Returns an access token for a caller: that which the replicas share in `kept`, if there is
    /// one. It is used no longer than the token of the caller lives.
    pub(super) async fn token(
        self: &Arc<Self>,
        caller: &Caller,
        subject: &SubjectToken,
        scope: Option<&str>,
        kept: Option<&Arc<KeptLogin>>,
    ) -> Result<AccessToken, Refusal> {
        let token = match kept {
            None => self.request(subject, scope).await?.0,
            Some(kept) => {
                let own = self.clone();
                let name = kept.name().to_owned();
                let caller = CallerName::of(caller);
                let brought = subject.clone();
                let scope = scope.map(str::to_owned);
                let needed = scope.clone();
                let issue = Box::pin(async move {
                    let (token, server) = own.request(&brought, scope.as_deref()).await?;
                    let login = own.login(name, caller, scope, &token, &server);
                    Ok((token, login))
                });
                kept.share(self.config.server.client_id.clone(), needed, issue).await?
            }
        };
        Ok(token.within(subject))
    }

    /// Exchanges the token of a caller for an assertion, and sends that as the authorization grant
    /// of a token request (RFC 7523, section 2.1). A refusal names the endpoint that has refused.
    async fn request(
        &self,
        subject: &SubjectToken,
        scope: Option<&str>,
    ) -> Result<(AccessToken, Arc<FoundServer>), Refusal> {
        let server = self.server().await?;
        let [audience, resource] = [&server.issuer, &server.resource].map(|text| Some(&**text));
        let answer = self.provider.exchange(subject, TOKEN_TYPE, scope, audience, resource).await?;
        let assertion = id_jag::read(&answer, &server.issuer)
            .map_err(|why| Refusal::other(format!("{}: {why}", self.config.provider.token_url)))?;
        let form = vec![
            ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer".to_owned()),
            ("assertion", assertion.expose().to_owned()),
        ];
        let sent_at = Instant::now();
        let answered = server.client.request_json(&self.egress, &server.token_endpoint, form).await;
        let response = answered.map_err(|refusal| of_exchange(refusal, subject))?;
        Ok((issued_token(&response, sent_at)?, server))
    }

    /// Returns a token as replicas share it, without the secret of the client.
    fn login(
        &self,
        name: String,
        caller: CallerName,
        scope: Option<String>,
        token: &AccessToken,
        server: &FoundServer,
    ) -> StoredLogin {
        let now = UnixSeconds::from(wall_clock()).0;
        let lifetime = token.expires_at.saturating_duration_since(Instant::now());
        StoredLogin {
            id: String::new(),
            upstream: name,
            url: self.http.url.to_string(),
            issuer: server.issuer.clone(),
            token_endpoint: server.token_endpoint.clone(),
            revocation_endpoint: server.revocation_endpoint.clone(),
            client_id: server.client.id.clone(),
            client_secret: None,
            posts_secret: false,
            resource: server.resource.clone(),
            scope,
            refresh_token: None,
            access_token: token.access_token().to_owned(),
            expires_at: Some(now.saturating_add(lifetime.as_secs())),
            refresh_expires_at: None,
            signed_in_at: now,
            renewed_at: now,
            ended: None,
            caller: Some(caller),
            subject: None,
        }
    }

    /// Revokes a token at the upstream's authorization server (RFC 7009). Returns whether the token
    /// was revoked: some servers advertise no revocation endpoint.
    pub(super) async fn revoke(&self, access_token: &str) -> Result<bool, Refusal> {
        let server = self.server().await?;
        let Some(endpoint) = &server.revocation_endpoint else { return Ok(false) };
        let form = revocation(access_token, "access_token");
        server.client.tell(&self.egress, endpoint, form).await?;
        Ok(true)
    }

    async fn server(&self) -> Result<Arc<FoundServer>, Refusal> {
        let known = self.server.load_full();
        if let Some(known) = known.filter(|known| known.found_at.elapsed() < REDISCOVERY) {
            return Ok(known);
        }
        let found = Arc::new(self.find_server().await.map_err(Refusal::other)?);
        self.server.store(Some(found.clone()));
        Ok(found)
    }

    async fn find_server(&self) -> Result<FoundServer, String> {
        let config::IdJag { provider, server, .. } = &self.config;
        let (metadata, resource) = match &server.issuer {
            Some(issuer) => (discover(&self.egress, issuer).await?, self.http.url.to_string()),
            None => {
                let found = Provider::discover(&self.http).await?;
                (found.metadata, found.resource.id)
            }
        };
        let proof = proof(&server.proof, metadata.posts_secret(), &metadata.issuer);
        let issuer = metadata.issuer;
        if !metadata.grant_profiles.iter().any(|profile| profile == GRANT_PROFILE) {
            return Err(format!(
                "{issuer} takes no identity assertions: {GRANT_PROFILE} is not in its \
                 authorization_grant_profiles_supported"
            ));
        }
        let token_endpoint = metadata.token_endpoint;
        Ok(FoundServer {
            client: OAuthClient { id: server.client_id.clone(), proof },
            token_endpoint: token_endpoint.ok_or("its metadata has no https token_endpoint")?,
            revocation_endpoint: metadata.revocation_endpoint,
            resource: provider.resource.clone().unwrap_or(resource),
            found_at: Instant::now(),
            issuer,
        })
    }
}
