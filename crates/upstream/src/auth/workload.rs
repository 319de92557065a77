//! Access tokens for a token that the platform of the gateway keeps renewing in a file (RFC 7523):
//! a service credential without a secret.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use tokio::time::Instant;

use super::token::AccessToken;
use base::platform::{Locked, blocking, disk};
use config::Secret;
use domain::fault::TokenFault;
use net::egress::{CONNECT, Egress};
use oauth::client::{ClientAuthentication, OAuthClient, Refusal, address_policy};
use oauth::scope;
use oauth::token::Issued;

/// The workload of the gateway at an upstream's authorization server.
pub(super) struct WorkloadIdentity {
    config: config::Workload,
    resource: String,
    egress: Egress,
    /// Scopes that the upstream needs in addition to the configured scopes.
    wider: Mutex<Option<String>>,
}

/// Largest token in a file, in bytes.
const MAX_TOKEN: usize = 64 * 1024;

impl WorkloadIdentity {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those
    /// of the system.
    pub(super) fn new(config: &config::Workload, http: &config::Http) -> Result<Self, String> {
        let url = &http.url;
        let ca = http.ca.as_deref();
        let proxies = http.proxies.as_ref();
        Ok(Self {
            resource: config.resource.clone().unwrap_or_else(|| url.to_string()),
            egress: Egress::new(CONNECT, ca, address_policy(true, url), proxies)?,
            config: config.clone(),
            wider: Mutex::default(),
        })
    }

    /// Sends a token request with the token that the file has now: as the authorization grant (RFC
    /// 7523, section 2.1), or as the authentication of the configured client (section 2.2). For
    /// another scope than before if one is given.
    pub(super) async fn request(&self, scope: Option<&str>) -> Result<AccessToken, Refusal> {
        let assertion = read_token(&self.config.file).await?;
        let (grant, proof) = match &self.config.client_id {
            Some(_) => ("client_credentials", ClientAuthentication::Assertion(assertion.clone())),
            None => {
                ("urn:ietf:params:oauth:grant-type:jwt-bearer", ClientAuthentication::Anonymous)
            }
        };
        let mut form = vec![("grant_type", grant.to_owned())];
        if self.config.client_id.is_none() {
            form.push(("assertion", assertion.expose().to_owned()));
        }
        form.push(("resource", self.resource.clone()));
        form.extend(self.config.audience.clone().map(|audience| ("audience", audience)));
        let scope = scope.map(str::to_owned).or_else(|| self.scope());
        form.extend(scope.map(|scope| ("scope", scope)));
        let client = OAuthClient { id: self.config.client_id.clone().unwrap_or_default(), proof };
        let sent_at = Instant::now();
        let response = client.request_json(&self.egress, &self.config.token_url, form).await?;
        let issued = Issued::read(&response).map_err(Refusal::other)?;
        AccessToken::new(issued.access_token.expose(), issued.lifetime, sent_at, fastrand::f64())
    }

    /// Returns the requested scopes with the needed scopes.
    pub(super) fn wider(&self, needed: &str) -> Result<String, Refusal> {
        scope::wider(self.scope().as_deref(), needed)
    }

    /// Sets the scopes of further requests; `None` for the configured scopes.
    pub(super) fn keep_scope(&self, scope: Option<String>) {
        *self.wider.locked() = scope;
    }

    fn scope(&self) -> Option<String> {
        self.wider.locked().clone().or_else(|| self.config.scope.clone())
    }
}

/// Reads a token that another process writes, without surrounding white space.
pub(super) async fn read_token(file: &Path) -> Result<Secret, Refusal> {
    let refusal =
        |why: &str| Refusal::new(TokenFault::Failed, format!("{}: {why}", file.display()));
    let path = file.to_owned();
    let read = blocking(move || disk::read_text(&path)).await;
    let read = read.map_err(|error| io::Error::other(error.to_string()));
    let text = read.flatten().map_err(|error| refusal(&error.to_string()))?;
    match text.trim() {
        "" => Err(refusal("the file of the token is empty")),
        token if token.len() > MAX_TOKEN => Err(refusal("the token is larger than 64 KiB")),
        token => Ok(Secret::new(token)),
    }
}
