//! Credentials that the gateway presents to upstreams.

pub(crate) mod client_credentials;
