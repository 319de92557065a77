//! A sign-in of the operator for an upstream, up to the stored login: the authorization server is
//! discovered, the gateway introduces itself there, and the operator agrees in a browser (`flow`)
//! or on another device (`device`).

pub mod callback;
pub mod device;
pub mod flow;
pub mod registration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::StoredLogin;
use base::platform::wall_clock;
use base::seal::hex::hex;
use base::seal::random;
use domain::protocol::meta;
use domain::protocol::method::Method;
use domain::protocol::revision::Revision;
use domain::time::unix_time::UnixSeconds;
use net::egress::{CONNECT, Egress, ResponseBody};
use net::issuer::IssuerMetadata;
use oauth::client::address_policy;
use oauth::resource::{self, UpstreamResource};
use oauth::token::Issued;

/// The authorization server of an upstream.
pub struct Provider {
    upstream: Uri,
    pub resource: UpstreamResource,
    pub metadata: IssuerMetadata,
    token_endpoint: Uri,
    egress: Egress,
}

/// The gateway as a registered client.
#[derive(Clone, Deserialize, Serialize)]
pub struct Registered {
    pub id: String,
    pub secret: Option<String>,
    /// Whether the secret is sent by `client_secret_post`.
    pub posts_secret: bool,
}

impl Provider {
    /// Discovers the authorization server of an upstream by a request without a token.
    ///
    /// # Errors
    /// The reason, for the operator.
    pub async fn discover(http: &config::Http) -> Result<Self, String> {
        let upstream = http.url.clone();
        let policy = address_policy(false, &upstream);
        let ca = http.ca.as_deref();
        let proxies = http.proxies.as_ref();
        let own = Egress::new(CONNECT, ca, http.address_policy, proxies)?;
        let egress = Egress::new(CONNECT, ca, policy, proxies)?;
        let response = challenge(&own, &upstream).await?;
        let found = resource::discover(&egress, &upstream, response.headers()).await;
        let mut resource = found.map_err(|why| match response.status() {
            status if status.is_success() => {
                format!(
                    "the upstream answers without a sign-in (HTTP {}), and {why}",
                    status.as_u16()
                )
            }
            _ => why,
        })?;
        let metadata = resource.authorization_server(&egress).await?;
        let token_endpoint = metadata.token_endpoint.clone();
        let token_endpoint = token_endpoint
            .ok_or_else(|| format!("{} names no https token_endpoint", resource.issuer))?;
        Ok(Self { upstream, resource, metadata, token_endpoint, egress })
    }

    /// Returns the provider that is asked for tokens of another resource; empty: of none.
    #[must_use]
    pub fn asked_for(mut self, resource: Option<&str>) -> Self {
        resource.into_iter().for_each(|resource| resource.clone_into(&mut self.resource.id));
        self
    }

    pub fn issuer(&self) -> &str {
        &self.resource.issuer
    }

    /// Returns the client that the configuration names, or the client as which the gateway is
    /// registered: by the URL of its client document where the authorization server reads such
    /// documents, or else by dynamic registration.
    ///
    /// # Errors
    /// The authorization server accepts no kind of registration, or refuses.
    pub async fn client(
        &self,
        login: &config::Login,
        document: Option<&str>,
        redirect_uri: Option<&str>,
    ) -> Result<Registered, String> {
        if let Some(id) = &login.client_id {
            return Ok(Registered {
                id: id.clone(),
                secret: login.client_secret.as_ref().map(|secret| secret.expose().to_owned()),
                posts_secret: self.metadata.posts_secret(),
            });
        }
        if let Some(document) = document.filter(|_| self.metadata.reads_client_documents) {
            return Ok(Registered { id: document.to_owned(), secret: None, posts_secret: false });
        }
        let endpoint = self.metadata.registration_endpoint.as_ref().ok_or_else(|| {
            format!(
                "{} registers no clients by itself: register promptgate there by hand, as a native client with the \
                 redirect URI {}, and set client_id in the upstream's credential",
                self.issuer(),
                redirect_uri.filter(|uri| uri.starts_with("https:")).unwrap_or("http://127.0.0.1/callback")
            )
        })?;
        registration::register(&self.egress, endpoint, &self.metadata.auth_methods, redirect_uri)
            .await
    }

    /// Returns the scope to request: the wanted scope, or else that of the upstream's challenge or
    /// metadata (MCP 2025-11-25, scope selection strategy). Some providers issue a refresh token
    /// only for an additional scope.
    fn scope(&self, wanted: Option<&str>) -> Option<String> {
        let offered = || (!self.resource.scopes.is_empty()).then(|| self.resource.scopes.join(" "));
        let scope = wanted.map(str::to_owned);
        let scope = scope.or_else(|| self.resource.challenged_scope.clone()).or_else(offered);
        let offline = "offline_access";
        let has_offline = self.metadata.scopes.iter().any(|scope| scope == offline);
        let is_missing =
            !scope.iter().any(|scope| scope.split_whitespace().any(|scope| scope == offline));
        match scope {
            Some(scope) if has_offline && is_missing => Some(format!("{scope} {offline}")),
            None if has_offline => Some(offline.to_owned()),
            scope => scope,
        }
    }

    /// Makes a login of the response to a token request.
    fn login(
        &self,
        upstream: &str,
        client: Registered,
        scope: Option<String>,
        response: &Value,
    ) -> Result<StoredLogin, String> {
        let now = UnixSeconds::from(wall_clock());
        let mut login = StoredLogin {
            id: hex(&random::<16>()),
            upstream: upstream.to_owned(),
            url: self.upstream.to_string(),
            issuer: self.issuer().to_owned(),
            token_endpoint: self.token_endpoint.clone(),
            revocation_endpoint: self.metadata.revocation_endpoint.clone(),
            client_id: client.id,
            client_secret: client.secret,
            posts_secret: client.posts_secret,
            resource: self.resource.id.clone(),
            scope,
            refresh_token: None,
            access_token: String::new(),
            expires_at: None,
            refresh_expires_at: None,
            signed_in_at: now.0,
            renewed_at: now.0,
            ended: None,
            caller: None,
            subject: None,
        };
        login.take_in(Issued::read(response)?, now);
        Ok(login)
    }
}

/// Sends the first requests of a connection, without a token, until the upstream refuses one: some
/// answer the handshake to anyone. Returns the last response.
async fn challenge(egress: &Egress, upstream: &Uri) -> Result<Response<ResponseBody>, String> {
    let client = json!({"name": "promptgate", "version": env!("CARGO_PKG_VERSION")});
    let legacy = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": Revision::NEWEST_LEGACY.as_str(), "capabilities": {}, "clientInfo": client}});
    let version = Revision::V2026_07_28.as_str();
    let modern = json!({"jsonrpc": "2.0", "id": 2, "method": Method::List.as_str(), "params": {"_meta": {
        meta::PROTOCOL_VERSION: version, meta::CLIENT_INFO: client, meta::CLIENT_CAPABILITIES: {}}}});
    let response = post(egress, upstream, &legacy, &[]).await?;
    if response.status() == StatusCode::UNAUTHORIZED {
        return Ok(response);
    }
    let headers = [("mcp-protocol-version", version), ("mcp-method", Method::List.as_str())];
    post(egress, upstream, &modern, &headers).await
}

async fn post(
    egress: &Egress,
    upstream: &Uri,
    message: &Value,
    headers: &[(&'static str, &'static str)],
) -> Result<Response<ResponseBody>, String> {
    let mut request = Request::new(Full::new(Bytes::from(message.to_string())));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = upstream.clone();
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    let accept = HeaderValue::from_static("application/json, text/event-stream");
    request.headers_mut().insert(ACCEPT, accept);
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_static(value));
    }
    egress.send(request).await.map_err(|fault| fault.diagnosis())
}
