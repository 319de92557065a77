//! The receiver of notifications: one signed POST for each attempt.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::Full;
use tokio::time::timeout;

use base::platform::wall_clock;
use config::Webhook;
use domain::address_policy::AddressPolicy;
use domain::time::unix_time::UnixSeconds;
use net::egress::{CONNECT, Egress};

/// A client of one receiver.
pub(super) struct WebhookClient {
    pub webhook: Webhook,
    egress: Result<Egress, String>,
}

/// Time for one attempt, up to the head of the response; its body is not read.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

impl WebhookClient {
    pub(super) fn new(webhook: Webhook) -> Self {
        let policy = AddressPolicy::NotLinkLocal;
        let egress = Egress::new(CONNECT, None, policy, Some(&webhook.proxies));
        Self { webhook, egress }
    }

    /// Returns the host of the receiver, for the log: its path may be a credential.
    pub(super) fn host(&self) -> String {
        let host = self.webhook.uri().and_then(|uri| Some(uri.host()?.to_owned()));
        host.unwrap_or_default()
    }

    /// Sends a message. Attempts to send one message have the same `id`.
    ///
    /// # Errors
    /// Why the receiver has not accepted the message: any status but 2xx is a refusal.
    pub(super) async fn send(&self, id: &str, body: String) -> Result<(), String> {
        let Self { webhook, egress } = self;
        let at = UnixSeconds::from(wall_clock());
        let request = Request::post(webhook.uri().unwrap_or_default())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", at.0)
            .header("webhook-signature", webhook.key.sign(id, at, &body));
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| error.to_string())?;
        let sent = timeout(ATTEMPT_TIMEOUT, egress.as_ref()?.send(request)).await;
        let response = sent.map_err(|_| "no response within ten seconds".to_owned())?;
        let status = response.map_err(|fault| fault.diagnosis().to_string())?.status();
        match status {
            _ if status.is_success() => Ok(()),
            _ if status.is_redirection() => {
                Err(format!("HTTP {}, and redirects are not followed", status.as_u16()))
            }
            _ => Err(format!("HTTP {}", status.as_u16())),
        }
    }
}
