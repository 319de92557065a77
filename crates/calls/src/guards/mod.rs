//! Guards on the way of a call: its arguments before the upstream is called, and its result before
//! the caller gets it.

mod hook;

use std::sync::Arc;

use super::admitted::CallContext;
use audit::record::AuditEvent;
use base::platform::heap::boxed;
use catalog::listed_item::ListedItem;
use config::{Config, Guard, GuardEvent};
use domain::calls::call::Call;
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, RequestFault};
use domain::guards::text_guard::{Decision, Texts};
use domain::json::document::Document;
use domain::json::object::write_members;
use domain::json::write_str;
use domain::name::UpstreamId;
use hook::HookClient;
use telemetry::Telemetry;
use upstream::guard::large_texts::work_on;

/// The guards of one configuration.
pub(super) struct Guards {
    guards: Vec<ActiveGuard>,
    telemetry: Telemetry,
}

/// A guard with the client of its hook.
struct ActiveGuard {
    guard: Arc<Guard>,
    hook: Option<HookClient>,
}

/// The reason code of a text on which a hook does not decide.
const FAILED: &str = "hook_failed";

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

    /// Returns the members of a message to a hook that describe the call.
    fn members(self, call: &Call) -> String {
        let mut members = String::new();
        write_members(&mut members, |out| {
            out.text("event", self.event.as_str()).text("caller", call.caller.id());
            out.array("groups", call.caller.groups(), |group, out| write_str(group, out));
            out.text("upstream", self.upstream.as_str()).text("prompt", self.name);
            if let Some(parent) = &call.forwarded.trace.parent {
                out.text("traceparent", parent);
            }
        });
        members
    }
}

impl Guards {
    pub(super) fn new(config: &Config, telemetry: &Telemetry) -> Self {
        let share = config.server.limits.share;
        let active = |guard: &Arc<Guard>| {
            let hook = guard.http.as_ref().map(|hook| HookClient::new(&guard.name, hook, share));
            ActiveGuard { guard: guard.clone(), hook }
        };
        let guards = config.guards.iter().map(active).collect();
        Self { guards, telemetry: telemetry.clone() }
    }

    /// Whether a guard examines such texts, of some call.
    pub(super) fn examine(&self, event: GuardEvent) -> bool {
        self.guards.iter().any(|active| active.guard.on.contains(&event))
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
        let Passing { event, upstream, name, .. } = passing;
        let call = context.call;
        if !self.examine(event) || call.caller.is_gateway() {
            return Ok(document);
        }
        let selects = |ActiveGuard { guard, .. }: &&ActiveGuard| {
            guard.examines(event, upstream, name) && guard.selects(&call.caller, &call.endpoint)
        };
        for active in self.guards.iter().filter(selects) {
            let guard = &active.guard;
            let (decision, failure) = boxed(active.decide(passing, context, &document)).await;
            let (code, outcome) = match &decision {
                _ if failure.is_some() => (FAILED, "failed"),
                Decision::Allowed => ("", "allowed"),
                Decision::Denied { code, .. } | Decision::Masked(code, _) if !guard.is_enforced => {
                    (&**code, "observed")
                }
                Decision::Denied { code, .. } => (&**code, "denied"),
                Decision::Masked(code, _) => (&**code, "masked"),
            };
            self.telemetry.metrics().guarded(&guard.name, outcome);
            if outcome != "allowed" {
                // Never the match itself.
                let record = AuditEvent::new("guard").text("caller", call.caller.id());
                let record = record.text("guard", &guard.name).text("on", event.as_str());
                let record = record.text("upstream", upstream.as_str()).text("name", name);
                let record = record.text("outcome", outcome).text("code", code);
                let record = record.optional_text("error", failure.as_deref());
                context.record.guarded(record, document.json().text());
            }
            match decision {
                Decision::Denied { code, advice } if guard.is_enforced => {
                    let guard = guard.name.clone();
                    return Err(RequestFault::DeniedByGuard { guard, code, advice }.into());
                }
                Decision::Masked(_, masked) if guard.is_enforced => document = masked,
                _ => {}
            }
        }
        Ok(document)
    }
}

impl ActiveGuard {
    /// Decides on a document. Also returns why a hook has not decided.
    async fn decide(
        &self,
        passing: Passing<'_>,
        context: CallContext<'_>,
        document: &Document,
    ) -> (Decision, Option<String>) {
        let holder = Holder::of(&context.call.caller, context.call.address);
        let Some(hook) = &self.hook else {
            let patterns = self.guard.patterns.clone();
            let examined = document.clone();
            let search = move || patterns.decide(&examined, passing.texts);
            return (work_on(document.json().text().len(), &holder, search).await, None);
        };
        let about = passing.members(context.call);
        match hook.ask(&about, passing.texts, &holder, document).await {
            Ok(decision) => (decision, None),
            Err(failure) if hook.refuses_on_failure() => {
                let advice = "it could not be examined; try again later".into();
                (Decision::Denied { code: FAILED.into(), advice }, Some(failure))
            }
            Err(failure) => (Decision::Allowed, Some(failure)),
        }
    }
}
