//! The device flow (RFC 8628): the operator agrees on any device, with a code that is shown here.

use std::time::Duration;

use http::Uri;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Provider, Registered};
use crate::StoredLogin;
use domain::fault::TokenFault;
use oauth::token::seconds;

/// A sign-in that waits for the operator.
pub struct DeviceFlow {
    provider: Provider,
    upstream: String,
    client: Registered,
    scope: Option<String>,
    device_code: String,
    /// The code that the operator types.
    pub user_code: String,
    /// The page on which the operator types it.
    pub verification_uri: String,
    /// The URL of that page with the code in it, where the provider has such a URL.
    pub complete_uri: Option<String>,
    interval: Duration,
    ends_at: Instant,
}

/// The time between two requests where the provider names none (section 3.2).
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// The increase of the interval by each `slow_down` (section 3.5).
const SLOWER: Duration = Duration::from_secs(5);

/// The longest time between two requests that is obeyed.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

impl DeviceFlow {
    /// Begins a sign-in (section 3.1).
    ///
    /// # Errors
    /// The authorization server has no such flow, or refuses.
    pub async fn begin(
        provider: Provider,
        upstream: &str,
        client: Registered,
        scope: Option<&str>,
    ) -> Result<Self, String> {
        let endpoint = provider.metadata.device_authorization_endpoint.clone();
        let endpoint = endpoint.ok_or_else(|| {
            format!("{} has no device flow; sign in without --device", provider.issuer())
        })?;
        let scope = provider.scope(scope);
        let mut form = vec![("resource", provider.resource.id.clone())];
        form.extend(scope.clone().map(|scope| ("scope", scope)));
        let asked = client.client().request_json(&provider.egress, &endpoint, form).await;
        let response = asked.map_err(|refusal| refusal.detail)?;
        let text = |name: &str| {
            let text = response.get(name).and_then(Value::as_str).map(str::to_owned);
            text.ok_or_else(|| format!("{endpoint}: the response has no {name}"))
        };
        let seconds = |name| response.get(name).and_then(seconds);
        let is_web = |uri: &String| {
            let uri: Option<Uri> = uri.parse().ok();
            uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("https" | "http")))
        };
        let verification_uri = text("verification_uri")?;
        if !is_web(&verification_uri) {
            return Err(format!("{endpoint}: its verification_uri is no address of a page"));
        }
        let lifetime = seconds("expires_in").unwrap_or(Duration::from_secs(600));
        Ok(Self {
            device_code: text("device_code")?,
            user_code: text("user_code")?,
            complete_uri: text("verification_uri_complete").ok().filter(is_web),
            verification_uri,
            interval: seconds("interval").unwrap_or(DEFAULT_INTERVAL).min(MAX_INTERVAL),
            ends_at: Instant::now() + lifetime.min(Duration::from_secs(3600)),
            provider,
            upstream: upstream.to_owned(),
            client,
            scope,
        })
    }

    /// Polls until the operator has agreed (sections 3.4 and 3.5).
    ///
    /// # Errors
    /// The operator has refused, or the code has expired.
    pub async fn finish(self) -> Result<StoredLogin, String> {
        let Self { provider, upstream, client, scope, device_code, mut interval, .. } = self;
        loop {
            sleep(interval).await;
            if Instant::now() >= self.ends_at {
                return Err("the code has expired; start again".to_owned());
            }
            let form = vec![
                ("grant_type", "urn:ietf:params:oauth:grant-type:device_code".to_owned()),
                ("device_code", device_code.clone()),
                ("resource", provider.resource.id.clone()),
            ];
            let asked = client
                .client()
                .request_json(&provider.egress, &provider.token_endpoint, form)
                .await;
            match asked {
                Ok(response) => return provider.login(&upstream, client, scope, &response),
                Err(refusal) => match refusal.error.as_deref() {
                    Some("authorization_pending") => {}
                    Some("slow_down") => interval = (interval + SLOWER).min(MAX_INTERVAL),
                    Some("access_denied") => return Err("access was denied".to_owned()),
                    Some("expired_token") => {
                        return Err("the code has expired; start again".to_owned());
                    }
                    // A provider that did not answer in time is polled again (section 3.5).
                    _ if refusal.fault == TokenFault::ProviderTimeout => {
                        interval = (interval * 2).min(MAX_INTERVAL);
                    }
                    _ => return Err(refusal.detail),
                },
            }
        }
    }
}
