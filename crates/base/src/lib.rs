//! The machine that the gateway runs on, and the keys that it seals and signs with.
//!
//! `platform` is the only way to the wall clock, randomness, the network, files, threads and child
//! processes: the simulation replaces it. `seal` makes and opens sealed tokens, and holds the
//! library for cryptography.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod platform;
pub mod seal;
