//! Credentials for upstreams: their sources, and caches of tokens with one request at a time.

pub mod authorization;
pub mod caller_token_provider;
pub(crate) mod caller_tokens;
pub mod client_credentials;
mod exchange;
pub(crate) mod file_credential;
pub mod id_jag;
pub mod login;
pub mod sign_in;
mod token;
pub(crate) mod token_source;
mod vault;
mod wider_requests;
mod workload;

use std::time::Duration;

/// Time for authorization servers to revoke tokens.
pub(crate) const REVOCATION: Duration = Duration::from_secs(10);

/// Pause after a failed token request: the authorization server gets one request per second at
/// most, however many calls wait for a token.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Pause after the replacement of a refused token: an upstream that refuses all tokens must not
/// cause a token request per call.
const REPLACE_PAUSE: Duration = Duration::from_secs(10);
