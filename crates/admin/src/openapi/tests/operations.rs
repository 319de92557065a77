//! The operations of the API: the documents of each route, and its responses.

use http::Method;
use schemars::JsonSchema;
use serde_json::json;

use super::operation::{Operation, response};
use super::schemas::Schemas;
use crate::accounts::{AccountsDocument, RevocationRequest, RevokedAccounts};
use crate::actions::{CompletionRequest, EvidenceRequest, ReloadRequest, TrialRequest};
use crate::approvals::{ApprovalList, Decided, DecisionRequest, ExaminedApproval};
use crate::documents::{
    CatalogDocument, Liveness, Readiness, ReloadCounts, Replicas, Status, UpstreamsDocument,
};
use crate::labels::{Labels, MoveRequest, RemovalRequest};
use crate::pages::trial::{Completion, Trial};
use crate::removals::{AcceptanceRequest, AcceptedRemoval};
use crate::rollouts::{ChangedRollout, RolloutsDocument};
use crate::routes::Route;
use audit::question::Answers;
use calls::labels::MovedLabel;
use calls::rollouts::changes::RolloutRequest;

/// Describes the operation of a route of probes or of the API.
pub(super) fn of(route: &Route, schemas: &mut Schemas) -> Operation {
    let Some(path) = route.path.strip_prefix("/api/v1") else {
        return of_probes(route.path, schemas);
    };
    match path.split('/').nth(1) {
        Some("approvals") => of_approvals(path, schemas),
        Some("prompts") => of_prompts(path, schemas),
        Some("labels") if path != "/labels" => of_label(route, schemas),
        Some("upstreams") if path != "/upstreams" => of_owned(path, schemas),
        Some("labels" | "rollouts" | "accounts") => of_owned(path, schemas),
        _ => of_gateway(path, schemas),
    }
}

fn of_probes(path: &str, schemas: &mut Schemas) -> Operation {
    match path {
        "/livez" => document::<Liveness>("Whether the process answers.", schemas),
        "/readyz" => {
            let why = response("No, with the reasons.", &schemas.answer::<Readiness>());
            document::<Readiness>("Whether requests should come here.", schemas).or(503, why)
        }
        "/metrics" => {
            let media_type = "text/plain; version=0.0.4; charset=utf-8";
            let content = json!({media_type: {"schema": {"type": "string"}}});
            let metrics = json!({"description": "The metrics.", "content": content});
            document::<String>("Metrics in the Prometheus text format.", schemas).or(200, metrics)
        }
        _ => panic!("{path} has no description"),
    }
}

fn of_gateway(path: &str, schemas: &mut Schemas) -> Operation {
    match path {
        "/openapi.json" => {
            let schema = json!({"type": "object", "additionalProperties": true});
            Operation::new("This document.", "OpenAPI 3.1.", &schema).tagged().or_shared(&[304])
        }
        "/status" => document::<Status>("Version, readiness, reloads, digests.", schemas),
        "/upstreams" => document::<UpstreamsDocument>(
            "State, list, breaker, load and last error of each upstream.",
            schemas,
        ),
        "/catalog" => document::<CatalogDocument>(
            "All prompts with their upstreams, what is left out, and what looks alike.",
            schemas,
        ),
        "/replicas" => document::<Replicas>("The replicas of this gateway.", schemas),
        "/evidence" => action::<EvidenceRequest, Answers>(
            "Asks all replicas, or one, about usage or audit logs; for `promptgate usage` and \
             `promptgate audit find`, with which it changes.",
            "The answer of each replica, and the replicas without an answer.",
            schemas,
        ),
        "/reload" => {
            let late = "The reload takes too long: the status has its outcome.";
            let late = response(late, &schemas.failure());
            let summary = "Reads the configuration file again, and waits for the outcome.";
            action::<ReloadRequest, ReloadCounts>(summary, "The outcome.", schemas).or(504, late)
        }
        _ => panic!("{path} has no description"),
    }
}

fn of_approvals(path: &str, schemas: &mut Schemas) -> Operation {
    let decision = |summary: &'static str, schemas: &mut Schemas| {
        let operation = action::<DecisionRequest, Decided>(summary, "Decided.", schemas);
        let tag = "The ETag of `/api/v1/approvals`, or the `tag` of `/api/v1/approvals/{name}` for \
                   each of the prompts.";
        operation.if_match(tag).or_shared(&[404, 409, 412, 428])
    };
    match path {
        "/approvals" => {
            let summary = "Digests that are offered, approved, rejected and previous.";
            document::<ApprovalList>(summary, schemas).tagged()
        }
        "/approvals/{name}" => {
            let summary = "A prompt as its upstream offers it now, with its texts. A decision that \
                           names its `tag` is on exactly this.";
            document::<ExaminedApproval>(summary, schemas).or_shared(&[404, 409, 503])
        }
        "/approvals/approve" => decision("Approves what is offered.", schemas),
        "/approvals/reject" => {
            decision("Rejects what is offered and waits for a decision.", schemas)
        }
        "/approvals/withdraw" => {
            decision("Takes approvals back: nothing of these prompts is approved then.", schemas)
        }
        "/approvals/rollback" => decision("Approves an earlier version.", schemas),
        _ => panic!("{path} has no description"),
    }
}

fn of_prompts(path: &str, schemas: &mut Schemas) -> Operation {
    let operation = match path {
        "/prompts/{name}/try" => {
            action::<TrialRequest, Trial>("Gets the prompt.", "The outcome; a fault, too.", schemas)
        }
        "/prompts/{name}/complete" => action::<CompletionRequest, Completion>(
            "Completes an argument.",
            "The values; none after a fault.",
            schemas,
        ),
        _ => panic!("{path} has no description"),
    };
    operation.or_shared(&[404, 503])
}

fn of_owned(path: &str, schemas: &mut Schemas) -> Operation {
    let failure = schemas.failure();
    match path {
        "/accounts" => document::<AccountsDocument>(
            "The accounts of callers at upstreams, in this replica; the most recently used first.",
            schemas,
        ),
        "/accounts/revoke" => action::<RevocationRequest, RevokedAccounts>(
            "Revokes accounts of callers at upstreams, at once.",
            "Revoked.",
            schemas,
        ),
        "/upstreams/{id}/accept" => {
            let summary = "Applies the removal of many prompts that an upstream holds back.";
            action::<AcceptanceRequest, AcceptedRemoval>(summary, "The removal.", schemas)
                .or(404, response("No upstream has this name.", &failure))
                .or(409, response("Nothing is held back.", &failure))
        }
        "/rollouts" => document::<RolloutsDocument>(
            "The rollouts, with the gets of their new versions in this replica.",
            schemas,
        ),
        "/rollouts/{name}" => {
            let summary = "Starts, changes, ends or rolls back the rollout of a prompt.";
            let refused = response("The change is refused, with the reason.", &failure);
            action::<RolloutRequest, ChangedRollout>(summary, "The outcome.", schemas)
                .or(409, refused)
        }
        "/labels" => document::<Labels>(
            "The library prompts that have versions, with their labels.",
            schemas,
        ),
        _ => panic!("{path} has no description"),
    }
}

fn of_label(route: &Route, schemas: &mut Schemas) -> Operation {
    let failure = schemas.failure();
    let changed = if route.method == Method::PUT {
        let summary = "Moves a label to a version.";
        action::<MoveRequest, MovedLabel>(summary, "The label has moved.", schemas)
    } else {
        let summary = "Removes a label, unless the upstream serves by it.";
        action::<RemovalRequest, MovedLabel>(summary, "The label is removed.", schemas)
    };
    let refused = "The change is refused, such as a move to a version that does not exist.";
    changed
        .if_match("The `tag` of the prompt in /api/v1/labels.")
        .or(404, response("No prompt of this name has versions.", &failure))
        .or(409, response(refused, &failure))
        .or(412, response("The labels of the prompt have changed since.", &failure))
        .or_shared(&[428])
}

fn document<T: JsonSchema>(summary: &'static str, schemas: &mut Schemas) -> Operation {
    Operation::new(summary, "The document.", &schemas.answer::<T>())
}

fn action<R: JsonSchema, T: JsonSchema>(
    summary: &'static str,
    success: &str,
    schemas: &mut Schemas,
) -> Operation {
    let operation = Operation::new(summary, success, &schemas.answer::<T>());
    Operation { request: Some(schemas.request::<R>()), ..operation }
}
