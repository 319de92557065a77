//! The front: connections and bytes of clients (`downstream`), and their sessions, revisions and
//! calls (`session`). `session` knows nothing of `downstream`.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod downstream;
pub mod session;
