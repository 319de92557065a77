//! Proof that the gates were passed.

use std::sync::Arc;

use super::rate_limit::{RateLimits, Target};
use crate::domain::call::Call;
use crate::domain::fault::Fault;

/// A value that policy has let through. Only `policy` can make one, so what demands it cannot be
/// reached around the gate.
pub struct Permitted<T> {
    value: T,
    limits: Arc<RateLimits>,
}

impl<T> Permitted<T> {
    pub(super) fn new(value: T, limits: Arc<RateLimits>) -> Self {
        Self { value, limits }
    }

    /// What was let through.
    pub fn get(&self) -> &T {
        &self.value
    }
}

impl Permitted<Call> {
    /// The last gate, where it is known what the call is for and that its caller may use it.
    pub fn reach(&self, upstream: &str, raw_name: &str) -> Result<(), Fault> {
        Ok(self.limits.check_target(&self.value, Target { upstream, raw_name })?)
    }
}
