//! The counters of the gateway, each declared once: field, instrument, unit and description.

use opentelemetry::metrics::{Counter, Meter};

macro_rules! counters {
    ($($field:ident: $name:literal, $unit:literal, $description:literal;)+) => {
        pub(super) struct Counters {
            $(pub $field: Counter<u64>,)+
        }

        impl Counters {
            pub(super) fn new(meter: &Meter) -> Self {
                let count = |name, unit, description| {
                    meter.u64_counter(name).with_unit(unit).with_description(description).build()
                };
                Self { $($field: count($name, $unit, $description),)+ }
            }
        }
    };
}

counters! {
    refused: "promptgate.refused", "{request}",
        "Requests that were refused before an upstream was called";
    denied: "promptgate.denied", "{call}",
        "Calls that access rules, views or approvals denied";
    sessions: "promptgate.sessions.created", "{session}",
        "Sessions of legacy clients that were created";
    list_changes_received: "promptgate.list_changed.received", "{notice}",
        "list_changed notifications received from upstreams";
    list_changes_sent: "promptgate.list_changed.sent", "{notice}",
        "list_changed notifications sent to clients";
    definition_changed: "promptgate.definitions.changed", "{prompt}",
        "Prompt definitions that changed under the same name";
    unapproved: "promptgate.unapproved", "{get}",
        "Gets of prompts or texts that were not approved, by outcome";
    guarded: "promptgate.guard.decisions", "{decision}",
        "Decisions of guards, by outcome";
    rolled_out: "promptgate.rollout.gets", "{get}",
        "Gets of prompts with a rollout, by version and outcome";
    approval_notifications: "promptgate.approval_notifications", "{notification}",
        "Attempts to notify the webhook of approvals, by outcome";
    reloads: "promptgate.config.reloads", "{reload}",
        "Configuration reloads, by outcome";
    failed_tasks: "promptgate.tasks.failed", "{task}",
        "Tasks of the gateway that have failed; it ends after the first";
    driver_restarts: "promptgate.upstream.driver_restarts", "{restart}",
        "Drivers of upstreams that have failed and were started again";
    repairs: "promptgate.repairs", "{repair}",
        "Repairs to messages of upstreams, by kind";
    relayed: "promptgate.cluster.relayed", "{message}",
        "Messages that were handed to another replica, by outcome";
}
