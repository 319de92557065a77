//! The count of a call in the usage of the gateway.

use tokio::time::Instant;

use crate::policy::CallRecord;
use crate::router::Router;
use audit::usage::{GatewayUsage, Used};
use domain::call::Call;
use domain::method::Method;

/// The outcome of a call that its caller cancelled.
pub(super) const CANCELLED: &str = "cancelled";

/// A call that will be counted. One that is dropped counts as cancelled.
#[must_use = "a call that is dropped counts as cancelled"]
pub(super) struct Counting<'a> {
    router: &'a Router,
    usage: &'a GatewayUsage,
    call: &'a Call,
    record: &'a CallRecord,
    began: Instant,
    outcome: &'static str,
}

impl<'a> Counting<'a> {
    /// Measures a call that begins now.
    pub(super) fn new(
        router: &'a Router,
        usage: &'a GatewayUsage,
        call: &'a Call,
        record: &'a CallRecord,
    ) -> Self {
        let began = Instant::now();
        Self { router, usage, call, record, began, outcome: CANCELLED }
    }

    /// Counts the call with its outcome: `ok`, `cancelled`, or the reason of a fault.
    pub(super) fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        let Call { request, caller, endpoint, .. } = self.call;
        let method = request.method();
        // To read a skill that stands for a prompt is to get the prompt.
        let is_get = method == Method::ReadFile && self.record.served().is_some();
        let is_counted = is_get || Used::is_counted(method, self.outcome);
        if method == Method::Rest || !is_counted {
            return;
        }
        // Only names of prompts are kept: others are arbitrary text of clients.
        let (prompt, upstream) = self.router.named(self.call).unzip();
        let prompt = self.record.served().cloned().or(prompt);
        self.usage.count(Used {
            prompt,
            upstream,
            caller: caller.clone(),
            endpoint: endpoint.clone(),
            outcome: self.outcome,
            duration: self.began.elapsed(),
        });
    }
}
