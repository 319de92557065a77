//! Outgoing HTTP: the client for upstreams, authorization servers and collectors, its TLS and address
//! policy, origins of URLs, and authorization server metadata.

pub(crate) mod egress;
pub(crate) mod issuer;
pub(crate) mod origin;
pub(crate) mod tls;
