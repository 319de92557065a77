//! Access tokens for the tokens that callers bring (OAuth 2.0 Token Exchange, RFC 8693).

use http::Uri;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::client_credentials::proof;
use super::token::AccessToken;
use super::workload::read_token;
use domain::calls::subject_token::SubjectToken;
use domain::fault::TokenFault;
use net::egress::{CONNECT, Egress};
use net::issuer::discover;
use net::origin::{is_same_uri, origin_of};
use oauth::client::{ClientAuthentication, OAuthClient, Refusal, address_policy, revocation};
use oauth::token::Issued;

/// The gateway as the client that exchanges tokens for one upstream.
pub(super) struct TokenExchange {
    config: config::Exchange,
    /// Resource indicator, in place of or beside an audience.
    resource: Option<String>,
    egress: Egress,
    /// The endpoint for revoking tokens; `None` if the authorization server advertises none. Looked
    /// up at the first revocation.
    revocation_endpoint: OnceCell<Option<Uri>>,
}

/// Types of tokens (section 3).
const TOKEN_TYPES: &str = "urn:ietf:params:oauth:token-type";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";

impl TokenExchange {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those
    /// of the system.
    pub(super) fn new(config: &config::Exchange, http: &config::Http) -> Result<Self, String> {
        let url = &http.url;
        let ca = http.ca.as_deref();
        let proxies = http.proxies.as_ref();
        let of_upstream = || config.audience.is_none().then(|| url.to_string());
        Ok(Self {
            resource: config.resource.clone().or_else(of_upstream),
            egress: Egress::new(CONNECT, ca, address_policy(true, url), proxies)?,
            config: config.clone(),
            revocation_endpoint: OnceCell::new(),
        })
    }

    pub(super) fn scope(&self) -> Option<&str> {
        self.config.scope.as_deref()
    }

    /// Exchanges the token of a caller. The issued token is used no longer than either of the two
    /// tokens lives.
    pub(super) async fn request(
        &self,
        subject: &SubjectToken,
        scope: Option<&str>,
    ) -> Result<AccessToken, Refusal> {
        let sent_at = Instant::now();
        let audience = self.config.audience.as_deref();
        let resource = self.resource.as_deref();
        let response = self.exchange(subject, ACCESS_TOKEN, scope, audience, resource).await?;
        let kind = response.get("issued_token_type").and_then(Value::as_str);
        if !matches!(kind, Some(ACCESS_TOKEN | JWT)) {
            return Err(Refusal::other("issued_token_type is no access token"));
        }
        Ok(issued_token(&response, sent_at)?.within(subject))
    }

    /// Asks for a token of the type `requested` (section 2.1). Returns the response.
    pub(super) async fn exchange(
        &self,
        subject: &SubjectToken,
        requested: &str,
        scope: Option<&str>,
        audience: Option<&str>,
        resource: Option<&str>,
    ) -> Result<Value, Refusal> {
        let brought = self.config.subject_token_type;
        let mut form = vec![
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange".to_owned()),
            ("subject_token", subject.expose().to_owned()),
            ("subject_token_type", format!("{TOKEN_TYPES}:{brought}")),
            ("requested_token_type", requested.to_owned()),
        ];
        let given = [("audience", audience), ("resource", resource), ("scope", scope)];
        form.extend(given.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned()))));
        if let Some(actor) = &self.config.actor {
            form.push(("actor_token", read_token(actor).await?.expose().to_owned()));
            form.push(("actor_token_type", JWT.to_owned()));
        }
        let answered = self.client().request_json(&self.egress, &self.config.token_url, form).await;
        answered.map_err(|refusal| of_exchange(refusal, subject))
    }

    fn client(&self) -> OAuthClient {
        let proof = match &self.config.proof {
            Some(configured) => proof(configured, false, &self.config.token_url.to_string()),
            None => ClientAuthentication::None,
        };
        OAuthClient { id: self.config.client_id.clone(), proof }
    }

    /// Revokes a token at the authorization server (RFC 7009). Returns whether the token was
    /// revoked: some servers advertise no revocation endpoint.
    pub(super) async fn revoke(&self, access_token: &str) -> Result<bool, Refusal> {
        let found = self.revocation_endpoint.get_or_try_init(|| self.find_revocation_endpoint());
        let Some(endpoint) = found.await? else { return Ok(false) };
        let form = revocation(access_token, "access_token");
        self.client().tell(&self.egress, endpoint, form).await?;
        Ok(true)
    }

    /// Looks for the metadata of the authorization server, which names its token endpoint: that of
    /// the issuer of the callers' tokens, or that at the origin of the token endpoint.
    async fn find_revocation_endpoint(&self) -> Result<Option<Uri>, Refusal> {
        let config::Exchange { issuer, token_url, .. } = &self.config;
        let mut problem = None;
        for issuer in [issuer, &origin_of(token_url)] {
            match discover(&self.egress, issuer).await {
                Ok(metadata) => {
                    let endpoint = metadata.token_endpoint.map(|url| url.to_string());
                    let token_url = token_url.to_string();
                    if endpoint.is_some_and(|endpoint| is_same_uri(&endpoint, &token_url)) {
                        return Ok(metadata.revocation_endpoint);
                    }
                }
                Err(why) => problem = Some(why),
            }
        }
        match problem {
            None => Ok(None),
            Some(why) => Err(Refusal::other(format!("no metadata of {token_url}: {why}"))),
        }
    }
}

/// Reads the access token that was issued at the request of `sent_at`.
pub(super) fn issued_token(response: &Value, sent_at: Instant) -> Result<AccessToken, Refusal> {
    let issued = Issued::read(response).map_err(Refusal::other)?;
    let text = issued.access_token.expose();
    AccessToken::new(text, issued.lifetime, sent_at, fastrand::f64())
}

/// Returns the refusal of an exchange (section 2.2.2), without the token that it may repeat.
pub(super) fn of_exchange(refusal: Refusal, subject: &SubjectToken) -> Refusal {
    let is_of_caller = matches!(
        refusal.error.as_deref(),
        Some(
            "invalid_grant"
                | "invalid_request"
                | "invalid_target"
                | "access_denied"
                | "insufficient_user_authentication"
        )
    );
    Refusal {
        fault: if is_of_caller { TokenFault::ExchangeRefused } else { refusal.fault },
        detail: refusal.detail.replace(subject.expose(), "[redacted]"),
        ..refusal
    }
}
