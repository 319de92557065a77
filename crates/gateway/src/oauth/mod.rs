//! The gateway as a client of authorization servers (OAuth 2.1; RFC 6749): discovery, token
//! requests, and the authorization code and device flows.

pub mod client;
pub mod code;
pub(crate) mod resource;
pub(crate) mod scope;
pub(crate) mod token;
