//! Outgoing HTTP: the client for upstreams, authorization servers and collectors, its TLS and
//! address policy and proxies, ends of certificates, origins of URLs, metadata of authorization
//! servers, key sets, and signed messages to webhooks.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod certificates;
mod connection_pool;
pub mod egress;
pub mod issuer;
pub mod jwks;
pub mod origin;
pub mod proxy;
pub mod tls;
mod waker;
pub mod webhook;

use std::time::SystemTime;

use http::HeaderMap;
use http::header::RETRY_AFTER;

/// Returns the text of the innermost error: "Connection refused" rather than "client error
/// (Connect)".
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Returns the seconds in `Retry-After`, or until the time in it (RFC 9110, section 10.2.3). A
/// fraction is rounded up, so that no request comes before its time.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = value.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    let seconds = seconds.or_else(|| {
        let until = httpdate::parse_http_date(value).ok()?;
        Some(until.duration_since(now).unwrap_or_default().as_secs_f64())
    });
    seconds.map(|seconds| seconds.ceil() as u64)
}
