//! Checks that calls pass: rate limits, and guards.

pub(super) mod guards;
pub(super) mod limits;
