//! Outgoing HTTP: the client for upstreams, authorization servers and collectors, its TLS and
//! address policy and proxies, ends of certificates, origins of URLs, authorization server metadata
//! and key sets.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod certificates;
pub mod egress;
pub mod issuer;
pub mod jwks;
pub mod origin;
pub mod proxy;
mod retry_after;
pub mod tls;

pub use retry_after::retry_after;

/// Returns the text of the innermost error: "Connection refused" rather than "client error
/// (Connect)".
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
