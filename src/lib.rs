//! promptgate: one endpoint in front of every MCP prompt server a company has.
//!
//! ```text
//! client ─► downstream ─► session ─► router ───► upstream ──► prompt server
//!           bytes⇄frames  frames⇄    catalog,    the door,
//!           http/ conn/   Call,      views,      connection/ call/ guard/
//!           channel       dialects   bridge      transport/ auth/ library/
//!                            │          │            │
//!                            └──────► policy ◄───────┘
//!                                 authenticate, then authorize:
//!                                 rights → rate limits → record → Authorized
//! ```
//!
//! `domain` holds the rules of MCP: values in, values out, without runtime or clock.
//! ARCHITECTURE.md describes the layers below and around this path, and the laws that tests check.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
// `pub` means public. Without `test-util` only `main` is, so the lint is on with that feature, as
// in every build of tests. The types in the signatures of the items that `test_util` re-exports
// stay private.
#![cfg_attr(feature = "test-util", warn(unreachable_pub))]
#![allow(private_bounds, private_interfaces)]

mod cli;
mod app;
mod shutdown;
mod admin;
mod hosts;
mod downstream;
mod session;
mod policy;
mod router;
mod upstream;
mod cluster;
mod grants;
mod oauth;
mod net;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod test_util;

pub use cli::main;
