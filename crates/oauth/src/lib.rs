//! The gateway as a client of authorization servers (OAuth 2.1; RFC 6749): discovery, token
//! requests, and the authorization code and device flows.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod client;
pub mod code;
pub mod id_jag;
pub mod resource;
pub mod scope;
pub mod token;
