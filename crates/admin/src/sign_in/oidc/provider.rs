//! The OpenID provider: its metadata and keys, fetched when they are needed and kept for a while,
//! and its token endpoint.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::Uri;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};
use url::Url;

use base::seal;
use domain::address_policy::AddressPolicy;
use domain::fault::TokenFault;
use net::egress::{CONNECT, Egress};
use net::issuer::{IssuerMetadata, discover};
use net::jwks::KeySet;
use oauth::client::{ClientAuthentication, OAuthClient, Refusal};

/// The provider of `[admin.oidc]`.
pub(super) struct OidcProvider {
    oidc: config::Oidc,
    egress: Result<Egress, String>,
    known: ArcSwapOption<KnownProvider>,
    /// Time of the last fetch. Held during a fetch, which serves all waiting sign-ins.
    fetches: Mutex<Option<Instant>>,
}

/// The published metadata and keys of the provider.
pub(super) struct KnownProvider {
    /// The authorization endpoint.
    pub authorization: Url,
    /// The token endpoint.
    token: Uri,
    pub metadata: IssuerMetadata,
    keys: KeySet,
    fetched: Instant,
}

/// Why the provider did not exchange a code.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum NoToken {
    /// The provider refuses: the code was used, has expired, or belongs to another client, or the
    /// client is not known.
    Refused(String),
    Unavailable(String),
}

/// Age at which metadata and keys are fetched again.
const REFRESH: Duration = Duration::from_secs(3600);

/// Age until which they are used while fetching fails.
const MAX_AGE: Duration = Duration::from_secs(2 * 3600);

/// Least time between two fetches because of an unknown key: a provider is not asked for each
/// token.
const COOLDOWN: Duration = Duration::from_secs(30);

/// Least time between two fetches at all.
const PAUSE: Duration = Duration::from_secs(1);

impl OidcProvider {
    pub(super) fn new(oidc: &config::Oidc) -> Self {
        seal::jws::install();
        Self {
            oidc: oidc.clone(),
            // The operator's issuer is trusted, and may be in the own network.
            egress: Egress::new(CONNECT, None, AddressPolicy::NotLinkLocal, Some(&oidc.proxies)),
            known: ArcSwapOption::empty(),
            fetches: Mutex::new(None),
        }
    }

    pub(super) fn oidc(&self) -> &config::Oidc {
        &self.oidc
    }

    /// Returns the published metadata and keys. `None` if they cannot be fetched, which is logged.
    pub(super) async fn known(&self) -> Option<Arc<KnownProvider>> {
        match self.known_within(REFRESH) {
            Some(known) => Some(known),
            None => {
                self.fetch_after(PAUSE).await;
                self.known_within(MAX_AGE)
            }
        }
    }

    /// Returns the key for a token. An unknown key triggers a fetch, at most once per [`COOLDOWN`].
    pub(super) async fn key(&self, id: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
        let find = |known: &KnownProvider| known.keys.find(id, algorithm).cloned();
        if let Some(key) = find(&*self.known().await?) {
            return Some(key);
        }
        self.fetch_after(COOLDOWN).await;
        find(&*self.known_within(MAX_AGE)?)
    }

    fn known_within(&self, age: Duration) -> Option<Arc<KnownProvider>> {
        self.known.load_full().filter(|known| known.fetched.elapsed() < age)
    }

    /// Fetches metadata and keys, unless the last fetch is less than `pause` ago. Cancel safe.
    async fn fetch_after(&self, pause: Duration) {
        let mut last = self.fetches.lock().await;
        if last.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        let fetched = self.fetch().await;
        *last = Some(Instant::now());
        let issuer = &self.oidc.issuer;
        match fetched {
            Ok(known) => {
                info!(issuer, keys = known.keys.ids(), "fetched the keys of the OpenID provider");
                self.known.store(Some(Arc::new(known)));
            }
            Err(error) => warn!(issuer, error, "the OpenID provider of the console cannot be used"),
        }
    }

    async fn fetch(&self) -> Result<KnownProvider, String> {
        let egress = self.egress.as_ref()?;
        let metadata = discover(egress, &self.oidc.issuer).await?;
        let lacks = |name: &str| format!("its metadata names no https {name}");
        let endpoint = metadata.authorization_endpoint.as_ref();
        let endpoint = endpoint.ok_or_else(|| lacks("authorization_endpoint"))?;
        let authorization = Url::parse(&endpoint.to_string()).map_err(|error| error.to_string())?;
        let token = metadata.token_endpoint.clone().ok_or_else(|| lacks("token_endpoint"))?;
        let url = metadata.jwks_uri.as_ref().ok_or_else(|| lacks("jwks_uri"))?;
        let keys = KeySet::fetch(egress, url).await?;
        Ok(KnownProvider { authorization, token, metadata, keys, fetched: Instant::now() })
    }

    /// Exchanges a code for an ID token (OpenID Connect Core 1.0, section 3.1.3; RFC 7636, section
    /// 4.5).
    pub(super) async fn exchange(
        &self,
        known: &KnownProvider,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
    ) -> Result<String, NoToken> {
        let egress = self.egress.as_ref().map_err(String::as_str)?;
        let secret = self.oidc.client_secret.clone();
        let proof = ClientAuthentication::of_secret(secret, known.metadata.posts_secret());
        let client = OAuthClient { id: self.oidc.client_id.clone(), proof };
        let form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code.to_owned()),
            ("code_verifier", verifier.to_owned()),
            ("redirect_uri", redirect_uri.to_owned()),
        ];
        let response = client.request_json(egress, &known.token, form).await?;
        let token = response.get("id_token").and_then(Value::as_str);
        Ok(token.ok_or("the token response has no id_token")?.to_owned())
    }
}

impl From<Refusal> for NoToken {
    fn from(Refusal { fault, detail, .. }: Refusal) -> Self {
        match fault {
            TokenFault::ProviderUnavailable | TokenFault::ProviderTimeout => {
                Self::Unavailable(detail)
            }
            _ => Self::Refused(detail),
        }
    }
}

impl From<&str> for NoToken {
    fn from(why: &str) -> Self {
        Self::Unavailable(why.to_owned())
    }
}
