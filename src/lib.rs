//! promptgate: one endpoint in front of every MCP prompt server a company has.
//!
//! ```text
//! client ─► downstream ─► session ─► calls ────► upstream ──► prompt server
//!           bytes⇄frames  frames⇄    catalog,    the door,
//!           http/ conn/   Call,      views,      connection/ call/ guard/
//!           channel       dialects   bridge      transport/ auth/
//!                            │          │            │
//!                            └──────► policy ◄───────┘
//!                                 authenticate, then authorize:
//!                                 rights → rate limits → record → Authorized
//! ```
//!
//! `domain` holds the rules of MCP: values in, values out, without runtime or clock.
//! ARCHITECTURE.md describes the crates below and around this path, and the laws that tests check.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

mod app;
mod cli;

pub use app::App;
pub use cli::main;
