//! The way out of the gateway: the HTTP client for upstreams, authorization servers and collectors,
//! its TLS, and the metadata of authorization servers.

pub(crate) mod egress;
pub(crate) mod issuer;
pub(crate) mod origin;
pub(crate) mod tls;
