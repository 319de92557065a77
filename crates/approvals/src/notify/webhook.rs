//! The receiver of notifications: one signed POST for each attempt.

use std::time::Duration;

use tokio::time::timeout;

use config::Webhook;
use net::egress::Egress;
use net::webhook::{client, signed};

/// A client of one receiver.
pub(super) struct WebhookClient {
    pub webhook: Webhook,
    egress: Result<Egress, String>,
}

/// Time for one attempt, up to the head of the response; its body is not read.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

impl WebhookClient {
    pub(super) fn new(webhook: Webhook) -> Self {
        let egress = client(&webhook, 1);
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
        let request = signed(webhook, id, body)?;
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
