//! The domain of the gateway: MCP messages and their rules as values and functions, without async
//! runtime, network or clock.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod address_policy;
pub mod approval;
pub mod calls;
pub mod fault;
pub mod guards;
pub mod json;
pub mod name;
pub mod prompts;
pub mod protocol;
pub mod redaction;
pub mod text;
pub mod time;
pub mod tool;
pub mod trusted_proxies;
pub mod uri;
