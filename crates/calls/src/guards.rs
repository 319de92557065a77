//! Guards on the way of a call: its arguments before the upstream is called, and its result before
//! the caller gets it.

use std::sync::Arc;

use super::admitted::CallContext;
use audit::record::AuditEvent;
use base::platform::heap::boxed;
use catalog::listed_item::ListedItem;
use config::{Config, Guard, GuardEvent};
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, RequestFault};
use domain::guards::text_guard::{Decision, Texts};
use domain::json::document::Document;
use domain::name::UpstreamId;
use telemetry::Telemetry;
use upstream::guard::large_texts::work_on;

/// The guards of one configuration.
pub(super) struct Guards {
    guards: Vec<Arc<Guard>>,
    telemetry: Telemetry,
}

/// A document of a call.
#[derive(Clone, Copy)]
pub(super) struct Passing<'a> {
    pub event: GuardEvent,
    pub texts: Texts,
    pub upstream: &'a UpstreamId,
    /// Public name, or that of a tool or resource of `[passthrough]`.
    pub name: &'a str,
}

impl<'a> Passing<'a> {
    /// The message of a client for a prompt or a skill.
    pub(super) fn arguments(item: &'a ListedItem) -> Self {
        let ListedItem { upstream, public_name: name, .. } = item;
        Self { event: GuardEvent::Arguments, texts: Texts::Arguments, upstream, name }
    }

    /// The result of the upstream.
    pub(super) fn result(item: &'a ListedItem) -> Self {
        Self { event: GuardEvent::Results, texts: Texts::Content, ..Self::arguments(item) }
    }
}

impl Guards {
    pub(super) fn new(config: &Config, telemetry: &Telemetry) -> Self {
        Self { guards: config.guards.clone(), telemetry: telemetry.clone() }
    }

    /// Whether a guard examines such texts, of some call.
    pub(super) fn examine(&self, event: GuardEvent) -> bool {
        self.guards.iter().any(|guard| guard.on.contains(&event))
    }

    /// Takes a document past the guards that select the call, in the order of the file; a guard
    /// gets what the guards before it have masked. Returns the document that goes on. Calls without
    /// guards pay for one look, and the gateway's own calls pass.
    pub(super) async fn pass(
        &self,
        passing: Passing<'_>,
        context: CallContext<'_>,
        mut document: Document,
    ) -> Result<Document, Fault> {
        if !self.examine(passing.event) || context.call.caller.is_gateway() {
            return Ok(document);
        }
        let Passing { event, texts, upstream, name } = passing;
        let call = context.call;
        let selects = |guard: &&Arc<Guard>| {
            guard.examines(event, upstream, name) && guard.selects(&call.caller, &call.endpoint)
        };
        let holder = Holder::of(&call.caller, call.address);
        for guard in self.guards.iter().filter(selects) {
            let patterns = guard.patterns.clone();
            let examined = document.clone();
            let search = move || patterns.decide(&examined, texts);
            let decision = boxed(work_on(document.json().text().len(), &holder, search)).await;
            let (code, outcome) = match &decision {
                Decision::Allowed => ("", "allowed"),
                Decision::Denied(code) => (*code, "denied"),
                Decision::Masked(code, _) => (*code, "masked"),
            };
            let is_told = guard.is_enforced || code.is_empty();
            let outcome = if is_told { outcome } else { "observed" };
            self.telemetry.metrics().guarded(&guard.name, outcome);
            if outcome != "allowed" {
                // Never the match itself.
                let record = AuditEvent::new("guard").text("caller", call.caller.id());
                let record = record.text("guard", &guard.name).text("on", event.as_str());
                let record = record.text("upstream", upstream.as_str()).text("name", name);
                let record = record.text("outcome", outcome).text("code", code);
                context.record.guarded(record, document.json().text());
            }
            match decision {
                Decision::Denied(code) if guard.is_enforced => {
                    let guard = guard.name.clone();
                    return Err(RequestFault::DeniedByGuard { guard, code }.into());
                }
                Decision::Masked(_, masked) if guard.is_enforced => document = masked,
                _ => {}
            }
        }
        Ok(document)
    }
}
