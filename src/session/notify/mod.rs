//! Notifications outside of calls: the streams that carry them, and which session each is for.

pub(crate) mod notifications;
pub(crate) mod streams;
pub(crate) mod terminated;
pub(crate) mod url_elicitations;
