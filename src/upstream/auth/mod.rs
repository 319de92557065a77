//! Credentials that the gateway presents to upstreams.

pub mod client_credentials;
