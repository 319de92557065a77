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

// A stranger's input must never end the process; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]

pub mod cli;
pub mod app;
pub mod shutdown;
pub mod admin;
pub mod config;
pub mod downstream;
pub mod session;
pub mod policy;
pub mod router;
pub mod upstream;
pub mod net;
pub mod audit;
pub mod domain;
pub mod seal;
pub mod telemetry;
