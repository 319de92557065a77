//! Notifications outside of calls: the streams that carry them, and which session each is for.

pub mod notifications;
pub mod streams;
pub mod terminated;
pub mod url_elicitations;
