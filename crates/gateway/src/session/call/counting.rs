//! The count of a call in the usage of the gateway.

use tokio::time::Instant;

use crate::session::Sessions;
use audit::usage::Used;
use domain::call::Call;

/// The outcome of a call that its caller cancelled.
pub(super) const CANCELLED: &str = "cancelled";

/// A call that will be counted. One that is dropped counts as cancelled.
#[must_use = "a call that is dropped counts as cancelled"]
pub(super) struct Counting<'a> {
    sessions: &'a Sessions,
    call: &'a Call,
    began: Instant,
    outcome: &'static str,
}

impl Sessions {
    /// Measures a call that began at this time.
    pub(super) fn counting<'a>(&'a self, call: &'a Call, began: Instant) -> Counting<'a> {
        Counting { sessions: self, call, began, outcome: CANCELLED }
    }
}

impl Counting<'_> {
    /// Counts the call with its outcome: `ok`, `cancelled`, or the reason of a fault.
    pub(super) fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        let Call { request, caller, endpoint, .. } = self.call;
        if !Used::is_counted(request.method(), self.outcome) {
            return;
        }
        // Only names of prompts are kept: others are arbitrary text of clients.
        let (prompt, upstream) = self.sessions.router.named(self.call).unzip();
        self.sessions.shared.usage.count(Used {
            prompt,
            upstream,
            caller: caller.clone(),
            endpoint: endpoint.clone(),
            outcome: self.outcome,
            duration: self.began.elapsed(),
        });
    }
}
