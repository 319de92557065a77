//! Proof that the gates were passed.

use std::sync::Arc;

use super::count_limited;
use super::rate_limit::{RateLimits, Target};
use super::record::CallRecord;
use crate::domain::call::Call;
use crate::domain::fault::{Fault, TransportFault};
use crate::telemetry::Telemetry;

/// A value that policy has let through. Only `policy` can make one, so what demands it cannot be
/// reached around the gate.
pub struct Permitted<T> {
    value: T,
    limits: Arc<RateLimits>,
    record: Arc<CallRecord>,
    telemetry: Telemetry,
}

impl<T> Permitted<T> {
    pub(super) fn new(
        value: T,
        limits: Arc<RateLimits>,
        record: Arc<CallRecord>,
        telemetry: Telemetry,
    ) -> Self {
        Self { value, limits, record, telemetry }
    }

    /// What was let through.
    pub fn get(&self) -> &T {
        &self.value
    }
}

impl Permitted<Call> {
    /// The last gate, where it is known what the call is for and that its caller may use it. Behind
    /// it the call is on record, with the digest of the `definition` that it is made by.
    ///
    /// # Errors
    /// When a limit is reached, or the call cannot be recorded.
    pub async fn reach(
        &self,
        upstream: &str,
        raw_name: &str,
        definition: &str,
    ) -> Result<(), Fault> {
        let target = Target { upstream, raw_name };
        let checked = self.limits.check_target(&self.value, target);
        checked.inspect_err(|fault| count_limited(&self.telemetry, fault))?;
        let recorded = self.record.allowed(target, definition).await;
        Ok(recorded.map_err(|_| TransportFault::AuditUnavailable)?)
    }

    /// Its caller may not use what the call is for. The caller is not told, but the log is.
    pub fn deny(&self, upstream: &str, raw_name: &str) {
        self.telemetry.metrics().denied(self.value.request.method().as_str());
        self.record.denied(Target { upstream, raw_name });
    }
}
