//! Access tokens for upstreams: a cache with one request at a time, and where tokens come from.

pub(crate) mod client_credentials;
pub(crate) mod login;
mod token;
pub(crate) mod token_source;
