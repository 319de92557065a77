//! The count of a call in the usage of the gateway.

use tokio::time::Instant;

use audit::usage::{GatewayUsage, Used};
use calls::Router;
use domain::call::{Call, Request, SkillPart};
use domain::method::Method;
use domain::skill::is_skill_uri;
use policy::CallRecord;

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
        if request.method() == Method::Rest {
            return;
        }
        // Only names of prompts and skills are kept: others are arbitrary text of clients.
        let (prompt, upstream) = self.router.named(self.call).unzip();
        let is_use = match request {
            Request::Get { .. } => true,
            // Of a skill, reading its `SKILL.md` is a use; the only file of one that stands for a
            // prompt.
            Request::Skill { uri, part: SkillPart::File } => {
                self.record.served().is_some()
                    || prompt.as_deref().map_or(is_skill_uri(uri), |name| name == uri)
            }
            _ => false,
        };
        if !Used::is_counted(is_use, self.outcome) {
            return;
        }
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
