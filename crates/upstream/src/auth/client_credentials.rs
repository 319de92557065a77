//! Access tokens that the gateway gets as itself (OAuth client credentials; RFC 6749, section 4.4).

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, Uri};
use tokio::time::Instant;

use super::token::AccessToken;
use config::{ClientProof, OAuth};
use net::egress::{CONNECT, Egress};
use oauth::client::{ClientAuthentication, OAuthClient, Refusal, address_policy};
use oauth::token::Issued;
use oauth::{resource, scope};

/// The gateway as a client of an upstream's authorization server.
pub(super) struct ClientCredentials {
    oauth: OAuth,
    /// URL of the upstream.
    url: Uri,
    egress: Egress,
    /// `None` until the endpoint is configured or discovered.
    grant: ArcSwapOption<GrantParameters>,
}

/// Parameters of a token request.
#[derive(Clone)]
struct GrantParameters {
    token_endpoint: Uri,
    /// `aud` of a client assertion (RFC 7523, section 3).
    audience: String,
    /// Whether the client authenticates by `client_secret_post`, not `client_secret_basic`.
    posts_secret: bool,
    /// Resource indicator (RFC 8707).
    resource: String,
    /// The configured scope, or else the scope of the upstream's challenge.
    scope: Option<String>,
}

impl ClientCredentials {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those
    /// of the system.
    pub(super) fn new(oauth: &OAuth, http: &config::Http) -> Result<Self, String> {
        let url = &http.url;
        let ca = http.ca.as_deref();
        let proxies = http.proxies.as_ref();
        let policy = address_policy(oauth.token_url.is_some(), url);
        let grant = oauth.token_url.as_ref().map(|endpoint| GrantParameters {
            token_endpoint: endpoint.clone(),
            audience: endpoint.to_string(),
            posts_secret: false,
            resource: oauth.resource.clone().unwrap_or_else(|| url.to_string()),
            scope: oauth.scope.clone(),
        });
        Ok(Self {
            oauth: oauth.clone(),
            url: url.clone(),
            egress: Egress::new(CONNECT, ca, policy, proxies)?,
            grant: ArcSwapOption::from_pointee(grant),
        })
    }

    pub(super) fn knows_endpoint(&self) -> bool {
        self.grant.load().is_some()
    }

    /// Finds the token endpoint from the headers of a response with the status 401.
    pub(super) async fn discover(&self, response: &HeaderMap) -> Result<(), Refusal> {
        let found = resource::discover(&self.egress, &self.url, response).await;
        let mut resource = found.map_err(Refusal::other)?;
        let metadata = resource.authorization_server(&self.egress).await.map_err(Refusal::other)?;
        let issuer = resource.issuer;
        let posts_secret = metadata.posts_secret();
        let token_endpoint = metadata
            .token_endpoint
            .ok_or_else(|| Refusal::other(format!("{issuer} names no https token_endpoint")))?;
        self.grant.store(Some(Arc::new(GrantParameters {
            token_endpoint,
            audience: issuer,
            posts_secret,
            resource: self.oauth.resource.clone().unwrap_or(resource.id),
            scope: self.oauth.scope.clone().or(resource.challenged_scope),
        })));
        Ok(())
    }

    /// Returns the requested scopes with the needed scopes; `None` if no endpoint is known.
    pub(super) fn wider(&self, needed: &str) -> Option<Result<String, Refusal>> {
        let grant = self.grant.load_full()?;
        Some(scope::wider(grant.scope.as_deref(), needed))
    }

    /// Sets the scopes of further requests; `None` for the configured scopes.
    pub(super) fn keep_scope(&self, scope: Option<String>) {
        if let Some(grant) = self.grant.load_full() {
            let scope = scope.or_else(|| self.oauth.scope.clone());
            self.grant.store(Some(Arc::new(GrantParameters { scope, ..(*grant).clone() })));
        }
    }

    /// Sends a token request (RFC 6749, section 4.4; RFC 8707, section 2), with another scope if
    /// `scope` is given; `None` if no endpoint is known.
    pub(super) async fn request(
        &self,
        scope: Option<&str>,
    ) -> Result<Option<AccessToken>, Refusal> {
        let Some(grant) = self.grant.load_full() else { return Ok(None) };
        if let Some(scope) = scope {
            let wider = GrantParameters { scope: Some(scope.to_owned()), ..(*grant).clone() };
            return self.issue(&wider).await.map(Some);
        }
        let issued = self.issue(&grant).await;
        if issued.is_err() && self.oauth.token_url.is_none() {
            // The discovered endpoint may be out of date: the next challenge starts discovery anew.
            self.grant.store(None);
        }
        issued.map(Some)
    }

    async fn issue(&self, grant: &GrantParameters) -> Result<AccessToken, Refusal> {
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        form.push(("resource", grant.resource.clone()));
        form.extend(grant.scope.clone().map(|scope| ("scope", scope)));
        let proof = proof(&self.oauth.proof, grant.posts_secret, &grant.audience);
        let client = OAuthClient { id: self.oauth.client_id.clone(), proof };
        let sent_at = Instant::now();
        let response = client.request_json(&self.egress, &grant.token_endpoint, form).await?;
        let issued = Issued::read(&response).map_err(Refusal::other)?;
        AccessToken::new(issued.access_token.expose(), issued.lifetime, sent_at, fastrand::f64())
    }
}

/// Returns the proof of the configured client. `audience` is the audience of an assertion.
pub(super) fn proof(
    configured: &ClientProof,
    posts_secret: bool,
    audience: &str,
) -> ClientAuthentication {
    match configured {
        ClientProof::Secret(secret) => {
            ClientAuthentication::of_secret(Some(secret.clone()), posts_secret)
        }
        ClientProof::PostedSecret(secret) => ClientAuthentication::PostedSecret(secret.clone()),
        ClientProof::Key { algorithm, key, .. } => ClientAuthentication::Key {
            algorithm: *algorithm,
            key: key.clone(),
            audience: audience.to_owned(),
        },
    }
}
