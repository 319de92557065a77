//! Credentials of the gateway at upstreams.

pub(crate) mod client_credentials;
