//! Outgoing HTTP: the client for upstreams, authorization servers and collectors, its TLS and
//! address policy, origins of URLs, authorization server metadata and key sets.

pub mod egress;
pub mod issuer;
pub mod jwks;
pub mod origin;
pub mod proxy;
pub(crate) mod tls;
