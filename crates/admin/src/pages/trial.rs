//! The trial of a prompt: the call as any client would make it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::definition::text;
use super::message::MessageView;
use super::rights::{decider, known};
use super::{PageError, PageResult};
use crate::request::PageRequest;
use crate::sign_in::{Role, SignInMethod, Visitor};
use crate::state::AdminState;
use approvals::try_offered;
use base::seal;
use catalog::approval::ApprovalRow;
use domain::approval::ApprovalKind;
use domain::calls::call::{Call, ClientMessages, ForwardedMeta, NameKind, Request};
use domain::calls::caller::{CONSOLE, CONSOLE_PREFIX, Caller, PROBER, is_id};
use domain::calls::error_code;
use domain::fault::{Fault, RequestFault};
use domain::json::Json;
use domain::json::document::Document;
use domain::protocol::method::Method;
use front::session::{CallOutcome, perform_for_console};
use net::origin::is_same_uri;
use policy::TakenIds;

/// The outcome of a trial.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trial {
    /// The caller whose rights were used.
    pub caller: String,
    /// `ok`, or the reason of the fault.
    pub outcome: &'static str,
    /// The fault, as a client reads it; for a prompt that another caller may not get, the reason.
    pub error: Option<String>,
    pub duration_ms: u64,
    #[serde(skip)]
    pub started_at: SystemTime,
    pub description: String,
    pub messages: Vec<MessageView>,
}

/// The completions of an argument; none after a fault.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Completion {
    pub values: Vec<String>,
}

/// A trial of a prompt, as it is requested.
pub(crate) struct Attempt<'a> {
    pub name: &'a str,
    pub arguments: Vec<(&'a str, &'a str)>,
    /// The label of another caller or group whose rights count (`admin.try_as`).
    pub as_who: Option<&'a str>,
    /// Whether the offered version is tried, which is a right of approvers.
    pub is_offered: bool,
}

impl<'a> Attempt<'a> {
    /// A trial with the arguments of a request of the API.
    pub(crate) fn given(
        name: &'a str,
        arguments: &'a BTreeMap<String, String>,
        as_who: Option<&'a str>,
    ) -> Self {
        let arguments = arguments.iter();
        let arguments = arguments.map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Self { name, arguments, as_who, is_offered: false }
    }
}

/// Gets a prompt for a visitor, through the gate like every call.
pub(crate) async fn attempt(
    state: &AdminState,
    visitor: &Visitor,
    page_request: &PageRequest,
    attempt: &Attempt<'_>,
) -> PageResult<Trial> {
    let started = Instant::now();
    let is_offered = attempt.is_offered;
    let caller =
        if is_offered { Caller::new(PROBER) } else { caller(state, visitor, attempt.as_who)? };
    let outcome = if is_offered {
        offered(state, visitor, attempt).await?
    } else {
        perform(state, visitor, page_request, caller.clone(), get(attempt)).await
    };
    let mut trial = Trial {
        caller: caller.id().to_owned(),
        outcome: "ok",
        error: None,
        duration_ms: domain::time::millis::whole_millis(started.elapsed()),
        started_at: page_request.now,
        description: String::new(),
        messages: Vec::new(),
    };
    match outcome {
        CallOutcome::Result(result) => {
            let result = result.into_text();
            let result = Json::accepted(&result);
            trial.description = text(result, "description");
            let messages = result.get("messages").into_iter().flat_map(Json::elements);
            trial.messages = messages.take(page_request.rows).map(MessageView::of).collect();
        }
        CallOutcome::Fault(fault) => {
            trial.outcome = fault.reason();
            let why = denial(state, &caller, attempt).filter(|_| fault == UNKNOWN);
            trial.error = Some(why.unwrap_or_else(|| error_code::message(&fault)));
        }
        CallOutcome::Cancelled => trial.outcome = "cancelled",
    }
    Ok(trial)
}

const UNKNOWN: Fault = Fault::Request(RequestFault::UnknownPrompt);

/// Why another caller, whose rights a visitor tries and may see, gets no prompt; the caller is not
/// told.
fn denial(state: &AdminState, caller: &Caller, attempt: &Attempt<'_>) -> Option<String> {
    let who = attempt.as_who?;
    let catalog = state.router.catalog();
    if let Some(held) = catalog.held(ApprovalKind::Prompt, attempt.name) {
        let state = held.decision.state.as_str();
        return Some(format!("It is {state} and not served. To {who} it does not exist."));
    }
    let prompt = catalog.content.item(attempt.name)?.prompt();
    let verdict = decider(state)?.decide(caller, Method::Get, prompt);
    let why = match verdict.reasons.as_slice() {
        [] => "no rule allows it".to_owned(),
        rules => format!("by {}", rules.join(", ")),
    };
    let text = || format!("{who} may not get it: {why}. To {who} it does not exist.");
    (!verdict.is_allowed).then(text)
}

fn get(attempt: &Attempt<'_>) -> Request {
    Request::Get {
        name: attempt.name.to_owned(),
        name_kind: NameKind::Public,
        arguments: document(&attempt.arguments),
        retry: None,
    }
}

/// Gets the offered version of a prompt, as an examination does.
async fn offered(
    state: &AdminState,
    visitor: &Visitor,
    attempt: &Attempt<'_>,
) -> PageResult<CallOutcome> {
    let row = state.approvals.row(attempt.name).filter(ApprovalRow::is_waiting);
    let row = row.filter(|_| visitor.role >= Role::Approver);
    let row = row.ok_or_else(|| {
        let message = "Only approvers try an offered version, while it waits for approval.";
        PageError::new(StatusCode::FORBIDDEN, message)
    })?;
    let given = document(&attempt.arguments);
    let given = given.as_ref().map(|given| given.json());
    Ok(match try_offered(&state.approvals, &row, given, &visitor.id).await {
        Ok(text) => CallOutcome::Result(text.into()),
        Err(fault) => CallOutcome::Fault(fault),
    })
}

/// Returns completions of an argument, as a client would get them.
pub(crate) async fn complete(
    state: &AdminState,
    visitor: &Visitor,
    page_request: &PageRequest,
    attempt: &Attempt<'_>,
    argument: &str,
) -> PageResult<Completion> {
    let value = |(name, value): &(&str, &str)| (*name == argument).then(|| (*value).to_owned());
    let others = attempt.arguments.iter().filter(|(name, _)| *name != argument).copied();
    let others: Vec<_> = others.collect();
    let context =
        document(&others).map(|others| format!("{{\"arguments\":{}}}", others.json().text()));
    let request = Request::Complete {
        name: attempt.name.to_owned(),
        argument: argument.to_owned(),
        value: attempt.arguments.iter().find_map(value).unwrap_or_default(),
        context: context.and_then(|context| Document::parse(context.into_bytes(), 4).ok()),
    };
    let caller = caller(state, visitor, attempt.as_who)?;
    let values = match perform(state, visitor, page_request, caller, request).await {
        CallOutcome::Result(result) => {
            let result = result.into_text();
            let values = Json::accepted(&result).get("completion").and_then(|c| c.get("values"));
            let values = values.into_iter().flat_map(Json::elements).filter_map(Json::as_str);
            values.map(|value| value.into_owned()).collect()
        }
        CallOutcome::Fault(_) | CallOutcome::Cancelled => Vec::new(),
    };
    Ok(Completion { values })
}

async fn perform(
    state: &AdminState,
    visitor: &Visitor,
    page_request: &PageRequest,
    caller: Caller,
    request: Request,
) -> CallOutcome {
    let call = Call {
        caller,
        subject_token: None,
        endpoint: endpoint(state, &request).as_str().into(),
        address: None,
        tried_by: Some(Arc::from(visitor.id.as_str())),
        client: ClientMessages::default(),
        forwarded: ForwardedMeta::default(),
        request,
    };
    perform_for_console(state.sessions.clone(), call, page_request.now.into()).await
}

/// The endpoint of a trial: the main one, or for a version the first view that serves it.
fn endpoint(state: &AdminState, request: &Request) -> String {
    let (Request::Get { name, .. } | Request::Complete { name, .. }) = request else {
        return state.config.server.path.clone();
    };
    let catalog = state.router.catalog();
    let item = catalog.content.item(name);
    let served = item.and_then(|item| state.endpoints(item).next());
    served.unwrap_or_else(|| state.config.server.path.clone())
}

/// Arguments as a document; fields that were left empty are not given.
fn document(arguments: &[(&str, &str)]) -> Option<Document> {
    let given = arguments.iter().filter(|(_, value)| !value.is_empty());
    let object: Map<String, Value> =
        given.map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect();
    let text = (!object.is_empty()).then(|| Value::Object(object).to_string())?;
    Document::parse(text.into_bytes(), 4).ok()
}

/// The caller with whose rights a visitor tries a prompt.
fn caller(state: &AdminState, visitor: &Visitor, as_who: Option<&str>) -> PageResult<Caller> {
    let Some(label) = as_who else {
        return Ok(own_caller(state, visitor));
    };
    if !state.admin.try_as {
        let message = "The rights of others are used only where admin.try_as = true is set.";
        return Err(PageError::new(StatusCode::FORBIDDEN, message));
    }
    let who = known(&state.config).into_iter().find(|who| who.label == label);
    let who =
        who.ok_or_else(|| PageError::not_found("such caller or group in the configuration"))?;
    Ok(match label.strip_prefix("group ") {
        Some(_) => Caller::in_groups(CONSOLE, who.caller.groups()),
        None => who.caller,
    })
}

/// The signed-in person as a caller. The subject stands behind a prefix where it is of another
/// provider than that of callers, or is the id of a caller with another credential: it is no other
/// caller's id.
fn own_caller(state: &AdminState, visitor: &Visitor) -> Caller {
    let is_same = match (&state.admin.oidc, &state.config.auth.jwt) {
        (Some(oidc), Some(jwt)) => is_same_uri(&oidc.issuer, &jwt.issuer),
        _ => false,
    };
    let id = match visitor.via {
        SignInMethod::Oidc
            if is_same && !TakenIds::new(&state.config.auth).contain(&visitor.id) =>
        {
            visitor.id.clone()
        }
        SignInMethod::Oidc => console_id(&visitor.id),
        SignInMethod::Local | SignInMethod::Bearer | SignInMethod::Token => CONSOLE.to_owned(),
    };
    Caller::in_groups(&id, &visitor.groups)
}

/// Returns the id of a person who is no other caller. The digest stands for a subject that is too
/// long behind the prefix, and for one that looks like a digest, so that no two people share an id.
fn console_id(subject: &str) -> String {
    let id = format!("{CONSOLE_PREFIX}{subject}");
    if is_id(&id) && !subject.starts_with("sha256:") {
        id
    } else {
        format!("{CONSOLE_PREFIX}{}", seal::sha256_text(subject.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_person_of_the_console_has_an_id_of_their_own() {
        let long = |last: &str| "s".repeat(127) + last;
        let digest = console_id(&long("a"));
        let posing = digest.trim_start_matches(CONSOLE_PREFIX);
        let subjects = ["ada", "console/ada", &long("a"), &long("b"), posing, &"s".repeat(120)];
        let ids: std::collections::HashSet<_> = subjects.map(console_id).into_iter().collect();
        assert_eq!(ids.len(), subjects.len(), "{ids:?}");
        for id in ids {
            assert!(is_id(&id) && domain::calls::caller::is_reserved(&id), "{id}");
        }
        assert_eq!(console_id("ada"), "console/ada");
    }
}
