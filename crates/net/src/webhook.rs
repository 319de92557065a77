//! Signed messages to receivers that operators choose, as the Standard Webhooks specification (1.0)
//! makes them.

use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use http_body_util::Full;

use crate::egress::{CONNECT, Egress, UNENCODED};
use base::platform::wall_clock;
use config::Webhook;
use domain::address_policy::AddressPolicy;
use domain::time::unix_time::UnixSeconds;

/// Returns a client for requests to the receiver, of which `connections` may be idle.
///
/// # Errors
/// As [`Egress::new`].
pub fn client(webhook: &Webhook, connections: usize) -> Result<Egress, String> {
    let policy = AddressPolicy::NotLinkLocal;
    Egress::pooled(connections, CONNECT, None, policy, Some(&webhook.proxies))
}

/// Returns the signed POST of a JSON message. Attempts to send one message have the same `id`.
///
/// # Errors
/// Why the request cannot be made.
pub fn signed(webhook: &Webhook, id: &str, body: String) -> Result<Request<Full<Bytes>>, String> {
    let at = UnixSeconds::from(wall_clock());
    let request = Request::post(webhook.uri().unwrap_or_default())
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT_ENCODING, UNENCODED)
        .header("webhook-id", id)
        .header("webhook-timestamp", at.0)
        .header("webhook-signature", webhook.key.sign(id, at, &body));
    request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())
}
