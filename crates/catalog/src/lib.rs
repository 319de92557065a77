//! The catalog: the served prompts and skills, and the announcements of their changes. A request
//! reads one snapshot of the catalog; one task writes it.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod announce;
pub mod approval;
pub mod approval_rows;
mod item_approvals;
mod version_contents;
pub mod blocking;
pub mod caller_lists;
pub mod effective;
pub mod endpoints;
pub mod list_cursor;
pub mod lists;
pub mod listed_item;
pub mod refresh;
pub mod reply;
pub mod passthrough_reply;
pub mod search;
pub mod segment;
pub mod skills;
pub mod snapshot;
pub mod source;
pub mod status;
pub mod view;
pub mod view_cache;
