//! promptgate: one endpoint in front of every MCP prompt server a company has.
//!
//! A message travels from left to right, and its answer back:
//!
//! ```text
//! client ─► downstream ─► session ─► policy ─► router ─► upstream ─► prompt server
//!           bytes⇄frame   frame⇄Call  Call→     Permitted→  typed calls, own handshake,
//!                         era, dress  Permitted catalog      http, library
//! ```
//!
//! The road of lists: an upstream's driver walks its list and reports to `router::refresh`, the
//! only writer of the catalog. `domain` holds what MCP means, without runtime or clock.
//! ARCHITECTURE.md tells the whole picture and its laws; the modules stand here in reading order.

#![forbid(unsafe_code)]
// A stranger's input must never end the process; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
// `pub` means public. Without `test-util` nothing but `main` is, so the lint speaks with that
// feature, as in every build of tests. The types in the signatures of what `test_util` re-exports
// stay inside.
#![cfg_attr(feature = "test-util", warn(unreachable_pub))]
#![allow(private_bounds, private_interfaces)]

mod cli;
mod app;
mod shutdown;
mod admin;
mod hosts;
mod config;
mod downstream;
mod session;
mod policy;
mod router;
mod upstream;
mod cluster;
mod grants;
mod oauth;
mod net;
mod usage;
mod audit;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod test_util;

pub use cli::main;
