//! The catalog: the prompts and skills that are served, and the announcements of their changes.
//! Requests read one snapshot of it; one task writes it.

pub mod announce;
pub mod approval;
pub mod blocking;
pub(crate) mod caller_lists;
pub(crate) mod effective;
pub mod endpoints;
pub(crate) mod first_definitions;
pub(crate) mod list_cursor;
pub(crate) mod lists;
pub mod owner;
pub mod refresh;
pub mod reply;
pub(crate) mod rest_reply;
pub(crate) mod search;
pub mod segment;
pub(crate) mod skills;
pub mod snapshot;
pub mod source;
pub(crate) mod status;
pub mod view;
pub mod view_cache;
