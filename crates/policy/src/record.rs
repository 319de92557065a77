//! The audit records of one call: `received` before an upstream is called, `completed` before the
//! response is sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::target::CallTarget;
use audit::record::{AuditEvent, write_text};
use audit::{Ledger, Unrecorded};
use base::platform::Locked;
use base::seal;
use domain::calls::call::{Call, Request};
use domain::calls::caller::{Caller, Proof};
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, TransportFault, UpstreamFault};
use domain::text::chunks::Chunks;

/// The record of one call; without content if the call is not recorded. A call that is dropped is
/// completed as cancelled.
pub struct CallRecord {
    open: Option<OpenRecord>,
}

struct OpenRecord {
    holder: Holder,
    /// The log of all records of the call, whichever log is newest by then.
    ledger: Arc<Ledger>,
    number: u64,
    /// The trace of the caller, which all records of the call have.
    traceparent: Option<String>,
    /// Whether its target is a prompt.
    names_prompt: bool,
    started: Instant,
    state: Mutex<RecordState>,
}

struct RecordState {
    /// The `received` record, until it is written.
    received: Option<AuditEvent>,
    /// Whether `received` is on record, or is being recorded.
    is_on_record: bool,
    has_ended: bool,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug)]
pub enum RecordOutcome<'a> {
    /// The result as it is sent.
    Result {
        result: &'a Chunks,
        digest: &'a ResultDigest,
    },
    Fault(&'a Fault),
    Cancelled,
}

/// Where the digest of a result comes from.
#[derive(Debug)]
pub enum ResultDigest {
    /// The text of the result.
    Text,
    /// The view of the caller, with which the digest of a list was computed: a page of ten thousand
    /// prompts is not hashed again.
    List([u8; 32]),
}

impl CallRecord {
    /// The record of a call that is not recorded.
    pub(super) fn none() -> Self {
        Self { open: None }
    }

    /// The record of a call; `raw` includes argument values.
    pub(super) fn open(ledger: Arc<Ledger>, number: u64, call: &Call, raw: bool) -> Self {
        let event = with_caller(AuditEvent::new("received").number("call", number), &call.caller);
        let mut event = with_groups(event, &call.caller)
            .optional_text("address", call.address.map(|a| a.to_string()).as_deref())
            .optional_text("tried_by", call.tried_by.as_deref())
            .text("endpoint", &call.endpoint)
            .text("method", call.request.wire_method())
            .optional_text("name", call.request.prompt_name())
            .optional_text("traceparent", call.forwarded.trace.parent.as_deref());
        if !call.request.method().is_list() {
            event = event.text("digest_key", ledger.digest_key());
        }
        match &call.request {
            Request::List { .. }
            | Request::ListTools { .. }
            | Request::Find { .. }
            | Request::ListSkills { .. }
            | Request::Skill { .. }
            | Request::ReadLink { .. }
            | Request::Passthrough(_) => {}
            Request::Get { arguments, retry, .. } => {
                if let Some(arguments) = arguments {
                    event = ledger.with_arguments(event, "arguments", arguments, raw);
                }
                if let Some(responses) = retry.as_ref().and_then(|retry| retry.responses.as_ref()) {
                    event = ledger.with_arguments(event, "responses", responses, false);
                }
            }
            Request::Complete { argument, value, context, .. } => {
                event = event
                    .text("argument", argument)
                    .number("value_bytes", value.len() as u64)
                    .text("value_hmac", &ledger.digest(value));
                if let Some(context) = context {
                    event = ledger.with_arguments(event, "context", context, raw);
                }
            }
        }
        let state = Mutex::new(RecordState {
            received: Some(event),
            is_on_record: false,
            has_ended: false,
        });
        let holder = Holder::of(&call.caller, call.address);
        let names_prompt = !matches!(call.request, Request::Passthrough(_));
        let started = Instant::now();
        let traceparent = call.forwarded.trace.parent.clone();
        let open = OpenRecord { holder, ledger, number, traceparent, names_prompt, started, state };
        Self { open: Some(open) }
    }

    /// Whether the call must be refused because it could not be recorded.
    pub fn refuses(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.ledger.refuses())
    }

    /// Notes that a list is allowed. No upstream is called, so `received` is written together with
    /// `completed`.
    pub(super) fn listed(&self) {
        self.amend(|event| event.text("decision", "allowed"));
    }

    /// Records that a call is allowed, and waits until that is written.
    pub(super) async fn allowed(&self, target: CallTarget<'_>) -> Result<(), Unrecorded> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        let Some(event) = open.begin() else {
            return Ok(());
        };
        let event = open.with_target(event, target);
        let event = match target.version {
            Some(version) => event
                .text("served", version.public_name)
                .text("label", version.label)
                .optional_text("version", version.number)
                .text("definition", version.definition),
            None if open.names_prompt => {
                event.optional_text("version", target.number).text("definition", target.definition)
            }
            None => event,
        };
        let event = event.text("decision", "allowed");
        let recorded = open.ledger.record(&open.holder, event.clone()).await;
        if recorded == Err(Unrecorded::Refused) {
            let mut state = open.state.locked();
            (state.received, state.is_on_record) = (Some(event), false);
        }
        recorded
    }

    /// Notes that the caller may not use the target, which the response does not reveal: `rule`
    /// denies it, of the configuration with the digest `config`.
    pub(super) fn denied(&self, target: CallTarget<'_>, rule: &str, config: &str) {
        let Some(open) = &self.open else { return };
        self.amend(|event| {
            let event = open.with_target(event, target).text("decision", "denied");
            event.text("rule", rule).text("config", config)
        });
    }

    /// Notes that the prompt stands for the skill of this public name, or the skill for the prompt.
    pub fn stands_for(&self, other: &Arc<str>) {
        self.amend(|event| event.text("served", other));
    }

    /// Records a finding of a guard in `text`, with a keyed digest of it.
    pub fn guarded(&self, event: AuditEvent, text: &str) {
        let Some(open) = &self.open else { return };
        let event = open.of_call(event);
        open.ledger.note(event.text("examined_hmac", &open.ledger.digest(text)));
    }

    /// Notes the skill to which a file or folder with this URI belongs. Does nothing for the URI of
    /// its `SKILL.md`, which names the skill.
    pub fn part_of(&self, skill: &str, uri: &str) {
        if skill != uri {
            self.amend(|event| event.text("skill", skill));
        }
    }

    /// Changes the `received` record, if it is not written yet.
    fn amend(&self, change: impl FnOnce(AuditEvent) -> AuditEvent) {
        if let Some(open) = &self.open {
            let mut state = open.state.locked();
            state.received = state.received.take().map(change);
        }
    }

    /// Records the outcome under the configuration with the digest `config`, before the response is
    /// sent.
    ///
    /// # Errors
    /// If it cannot be written: then the response must not be sent. If `received` is on record, it
    /// is recorded that the call ended so, once the log can be written again.
    pub(super) async fn complete(
        &self,
        outcome: RecordOutcome<'_>,
        config: &str,
    ) -> Result<(), Unrecorded> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        let (received, is_on_record) = {
            let mut state = open.state.locked();
            state.has_ended = true;
            (state.received.take(), state.is_on_record)
        };
        let mut completed = open.completed(outcome);
        if let RecordOutcome::Fault(fault) = outcome
            && let Some(rule) = fault.refused_by()
        {
            completed = completed.text("rule", &rule).text("config", config);
        }
        let recorded = open.ledger.record_both(&open.holder, received, completed).await;
        if recorded == Err(Unrecorded::Refused) && is_on_record {
            let fault = TransportFault::AuditUnavailable.into();
            open.ledger.end(open.completed(RecordOutcome::Fault(&fault)));
        }
        recorded
    }

    /// Drops the record: the call is counted as a refusal instead.
    pub(super) fn forget(&self) {
        if let Some(open) = &self.open {
            let mut state = open.state.locked();
            (state.received, state.has_ended) = (None, true);
        }
    }

    /// Whether something was written about the call.
    pub(super) fn is_written(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.state.locked().received.is_none())
    }
}

impl OpenRecord {
    /// Takes `received` for recording. It counts as on record unless the log refuses it.
    fn begin(&self) -> Option<AuditEvent> {
        let mut state = self.state.locked();
        let received = state.received.take();
        state.is_on_record |= received.is_some();
        received
    }

    /// Adds the target of the call; the raw name only where the call names a prompt.
    fn with_target(&self, event: AuditEvent, target: CallTarget<'_>) -> AuditEvent {
        let event = event.text("upstream", target.upstream);
        if self.names_prompt { event.text("prompt", target.raw_name) } else { event }
    }

    /// Adds the number and the trace of the call.
    fn of_call(&self, event: AuditEvent) -> AuditEvent {
        let event = event.number("call", self.number);
        event.optional_text("traceparent", self.traceparent.as_deref())
    }

    fn completed(&self, outcome: RecordOutcome<'_>) -> AuditEvent {
        let event = self.of_call(AuditEvent::new("completed"));
        let event = event.number("duration_us", micros(self.started.elapsed()));
        match outcome {
            RecordOutcome::Result { result, digest } => {
                let event =
                    event.text("outcome", "ok").number("result_bytes", result.size() as u64);
                let (member, digest) = match digest {
                    ResultDigest::List(digest) => ("list", *digest),
                    ResultDigest::Text => ("result", seal::sha256_of(result)),
                };
                event.text(member, &seal::digest_text(&digest))
            }
            RecordOutcome::Fault(fault) => {
                let event = event.text("outcome", fault.reason());
                match fault {
                    Fault::Upstream(UpstreamFault { correlation: Some(id), kind, .. }) => {
                        let error = kind.recorded();
                        event.text("correlation", &id.to_string()).text("error", &error)
                    }
                    _ => event,
                }
            }
            RecordOutcome::Cancelled => event.text("outcome", "cancelled"),
        }
    }
}

/// A dropped call is completed as cancelled, or as an internal error while panicking.
impl Drop for OpenRecord {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.has_ended {
            return;
        }
        let received = state.received.take();
        let is_on_record = state.is_on_record;
        let outcome = if std::thread::panicking() {
            RecordOutcome::Fault(&Fault::Internal)
        } else {
            RecordOutcome::Cancelled
        };
        let completed = self.completed(outcome);
        match received {
            // No upstream has seen the call, and its caller gets no result.
            Some(received) => {
                self.ledger.note(received);
                self.ledger.note(completed);
            }
            None if is_on_record => self.ledger.end(completed),
            None => {}
        }
    }
}

/// Groups of a caller that a record names: more than most people are in, and far fewer than fit.
const MAX_GROUPS: usize = 32;

/// The limit of all groups in a record, in bytes as written.
const MAX_GROUPS_LENGTH: usize = 1024;

/// Adds the groups of the caller, if it has any, as many as fit.
fn with_groups(event: AuditEvent, caller: &Caller) -> AuditEvent {
    let mut groups = String::new();
    for group in caller.groups().iter().take(MAX_GROUPS) {
        let before = groups.len();
        groups.push(if before == 0 { '[' } else { ',' });
        if write_text(group, MAX_GROUPS_LENGTH, &mut groups) || groups.len() > MAX_GROUPS_LENGTH {
            groups.truncate(before);
            break;
        }
    }
    if groups.is_empty() {
        return event;
    }
    groups.push(']');
    event.json("groups", &groups)
}

/// Adds the caller and its proof.
pub(super) fn with_caller(event: AuditEvent, caller: &Caller) -> AuditEvent {
    let event = event.text("caller", caller.id());
    match caller.proof() {
        Proof::None => event,
        Proof::ApiKey { .. } => event.text("proof", "api_key"),
        Proof::Certificate { subject } => {
            event.text("proof", "certificate").text("subject", subject)
        }
        Proof::Token(token) => event
            .text("proof", "jwt")
            .text("issuer", &token.issuer)
            .text("subject", &token.subject)
            .optional_text("client_id", token.client.as_deref())
            .optional_text("token_id", token.id_hash.as_deref()),
        Proof::Stdio => event.text("proof", "stdio"),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
