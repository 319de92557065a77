//! The way out of the gateway: the HTTP client for upstreams, authorization servers and collectors,
//! its TLS, and the metadata of authorization servers.

pub mod egress;
pub mod issuer;
pub mod origin;
pub mod tls;
