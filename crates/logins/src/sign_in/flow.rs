//! The authorization code flow in a browser (OAuth 2.1, section 4.1). It ends at a page of the
//! gateway, or, for the operator, at a loopback address (RFC 8252, section 7.3) or with the address
//! pasted from the browser.

use serde::{Deserialize, Serialize};
use url::Url;

use super::{Provider, Registered};
use crate::StoredLogin;
use oauth::client::{ClientAuthentication, OAuthClient};
use oauth::code::{ExpectedAnswer, NoCode, challenge, fresh_state, fresh_verifier, read_code};

/// A sign-in that has begun.
pub struct CodeFlow {
    provider: Provider,
    upstream: String,
    redirect_uri: String,
    begun: BegunFlow,
}

/// The values with which another replica ends a flow.
#[derive(Deserialize, Serialize)]
pub struct BegunFlow {
    issuer: String,
    client: Registered,
    scope: Option<String>,
    state: String,
    verifier: String,
}

impl CodeFlow {
    /// Returns the flow that has begun elsewhere.
    ///
    /// # Errors
    /// The upstream has another authorization server meanwhile.
    pub fn resume(
        provider: Provider,
        upstream: &str,
        begun: BegunFlow,
        redirect_uri: String,
    ) -> Result<Self, String> {
        if begun.issuer != provider.issuer() {
            return Err(format!("the upstream has left {}", begun.issuer));
        }
        Ok(Self { provider, upstream: upstream.to_owned(), redirect_uri, begun })
    }

    /// Returns the values that [`CodeFlow::resume`] needs.
    pub fn begun(self) -> BegunFlow {
        self.begun
    }

    /// Begins a sign-in that ends at `redirect_uri`.
    ///
    /// # Errors
    /// The authorization server has no authorization endpoint, or does not say that it supports
    /// PKCE with `S256`, without which a code could be injected (MCP 2025-11-25, authorization code
    /// protection).
    pub fn begin(
        provider: Provider,
        upstream: &str,
        client: Registered,
        scope: Option<&str>,
        redirect_uri: String,
    ) -> Result<Self, String> {
        if provider.metadata.authorization_endpoint.is_none() {
            return Err(format!("{} names no authorization_endpoint of https", provider.issuer()));
        }
        if !provider.metadata.challenge_methods.iter().any(|method| method == "S256") {
            return Err(format!(
                "{} does not say that it supports PKCE (code_challenge_methods_supported lacks S256)",
                provider.issuer()
            ));
        }
        let begun = BegunFlow {
            issuer: provider.issuer().to_owned(),
            client,
            scope: provider.scope(scope),
            state: fresh_state(),
            verifier: fresh_verifier(),
        };
        Ok(Self { provider, upstream: upstream.to_owned(), redirect_uri, begun })
    }

    /// Returns the id of the upstream.
    pub fn upstream(&self) -> &str {
        &self.upstream
    }

    /// Returns the URL that the operator opens (RFC 6749, section 4.1.1; RFC 7636, section 4.3; RFC
    /// 8707, section 2.1).
    pub fn url(&self) -> Option<Url> {
        let endpoint = self.provider.metadata.authorization_endpoint.as_ref()?;
        let mut url = Url::parse(&endpoint.to_string()).ok()?;
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.begun.client.id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("state", &self.begun.state)
            .append_pair("code_challenge", &challenge(&self.begun.verifier))
            .append_pair("code_challenge_method", "S256");
        if !self.provider.resource.id.is_empty() {
            query.append_pair("resource", &self.provider.resource.id);
        }
        if let Some(scope) = &self.begun.scope {
            query.append_pair("scope", scope);
            if scope.split_whitespace().any(|scope| scope == "offline_access") {
                // Without a consent, the scope is ignored (OpenID Connect Core 1.0, section 11).
                query.append_pair("prompt", "consent");
            }
        }
        drop(query);
        Some(url)
    }

    /// Reads the code in the query of the redirect back.
    ///
    /// # Errors
    /// See [`read_code`]. [`NoCode::OtherRequest`] says nothing about this sign-in: it goes on.
    pub fn code(&self, query: &str) -> Result<String, NoCode> {
        let issuer = self.provider.issuer();
        let must_name_issuer = self.provider.metadata.sends_issuer;
        read_code(query, ExpectedAnswer { state: &self.begun.state, issuer, must_name_issuer })
    }

    /// Exchanges the code for tokens (RFC 6749, section 4.1.3; RFC 7636, section 4.5). A flow has
    /// one code.
    ///
    /// # Errors
    /// The refusal of the authorization server.
    pub async fn finish(self, code: String) -> Result<StoredLogin, String> {
        let Self { provider, upstream, redirect_uri, begun } = self;
        let BegunFlow { client, scope, verifier, .. } = begun;
        let form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code),
            ("code_verifier", verifier),
            ("redirect_uri", redirect_uri),
            ("resource", provider.resource.id.clone()),
        ];
        let asked =
            client.client().request_json(&provider.egress, &provider.token_endpoint, form).await;
        let response = asked.map_err(|refusal| refusal.detail)?;
        provider.login(&upstream, client, scope, &response)
    }
}

impl Registered {
    /// The client with its proof.
    pub(super) fn client(&self) -> OAuthClient {
        let secret = self.secret.as_ref().map(config::Secret::new);
        OAuthClient {
            id: self.id.clone(),
            proof: ClientAuthentication::of_secret(secret, self.posts_secret),
        }
    }
}
