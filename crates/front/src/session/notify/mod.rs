//! Notifications outside of calls: notification streams, and the sessions that they belong to.

pub(crate) mod notifications;
pub(crate) mod passthrough;
pub(crate) mod streams;
pub(crate) mod terminated;
