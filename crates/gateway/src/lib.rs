//! The gateway: the way of a call from a client to an upstream and back, and the way of a list from
//! an upstream to all clients.
//!
//! ```text
//! client ─► downstream ─► session ─► calls ────► upstream ──► prompt server
//!           bytes⇄frames  frames⇄    bridge      the door,
//!                         Call        │          transports
//!                            │        └► catalog     │
//!                            └──────► policy ◄───────┘
//!                                 authenticate, then authorize
//! ```
//!
//! Modules stand here by their layer: each imports only from those below it.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod downstream;
pub mod session;
