//! An entry: a call with both of its records, or another record.

use crate::record::RecordLine;
use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use domain::name;

/// The event of entries that are calls.
pub(super) const CALL: &str = "call";

/// The decision of rules against a call, and the outcome by which all denials are found.
pub const DENIED: &str = "denied";

/// The event of requests that a limit or an invalid credential stopped.
pub(super) const REFUSED: &str = "refused";

/// The event of a get whose text is not the approved one.
const TEXT_NOT_APPROVED: &str = "text_not_approved";

/// One call, or another event, as people read it. It has no values of arguments.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LogEntry {
    /// The number of its record; of a call that of `received`.
    pub seq: u64,
    /// The number of the record `completed`; `None` if the call has not ended, or its end is not
    /// near.
    pub completed_seq: Option<u64>,
    /// `call`, or the type of the record.
    pub event: String,
    /// Wall-clock time, RFC 3339.
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The name that the client sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// The name at the upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// The rule that has denied it, such as `access.rules.3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Of `refused` the reason; `None` if the outcome is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// In microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The replica whose log has the entry; `None` if only one log was searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// All other members, such as names, sizes and digests of arguments.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub members: Map<String, Value>,
}

/// The value `boot` of a record, and the number of its call.
pub(super) type CallId = (String, u64);

/// Members that are of no use to readers.
const BOOKKEEPING: [&str; 5] = ["mac", "up_us", "instance", "boot", "digest_key"];

/// Members that hold arguments, each with its size, its digest and, if configured, its value.
const ARGUMENTS: [&str; 3] = ["arguments", "responses", "context"];

impl LogEntry {
    /// Reads the line of a record; for a call that of `received` and, if it is known, of
    /// `completed`. `None` if it is no record.
    pub(super) fn read(line: &[u8], completed: Option<&[u8]>) -> Option<Self> {
        let mut entry = Self::default();
        entry.take(members(line)?);
        let completed = completed.and_then(members);
        if let Some(mut completed) = completed {
            entry.completed_seq = completed.remove("seq").and_then(|seq| seq.as_u64());
            for own in ["time", "event", "call"] {
                completed.remove(own);
            }
            entry.take(completed);
        } else if entry.event == "completed" {
            entry.completed_seq = Some(entry.seq);
        }
        if entry.event == "received" {
            entry.event = CALL.to_owned();
        }
        if entry.event == REFUSED {
            entry.outcome = entry.members.get("reason").and_then(Value::as_str).map(str::to_owned);
        }
        Some(entry)
    }

    fn take(&mut self, members: Map<String, Value>) {
        for (name, value) in members {
            let number = value.as_u64();
            let text = value.as_str().map(str::to_owned);
            match name.as_str() {
                "seq" => self.seq = number.unwrap_or_default(),
                "event" => self.event = text.unwrap_or_default(),
                "time" => self.time = text.unwrap_or_default(),
                "call" => self.call = number,
                "caller" => self.caller = text,
                "proof" => self.proof = text,
                "address" => self.address = text,
                "endpoint" => self.endpoint = text,
                "method" => self.method = text,
                "name" => self.name = text,
                "upstream" => self.upstream = text,
                "prompt" => self.prompt = text,
                "definition" => self.definition = text,
                "decision" => self.decision = text,
                "rule" => self.rule = text,
                "outcome" => self.outcome = text,
                "duration_us" => self.duration_us = number,
                "correlation" => self.correlation = text,
                "error" => self.error = text,
                other if ARGUMENTS.contains(&other) => {
                    self.members.insert(name, without_values(value));
                }
                other if BOOKKEEPING.contains(&other) => {}
                _ => {
                    self.members.insert(name, value);
                }
            }
        }
    }

    /// Whether the entry tells the refusal of a call that the other entry tells, too.
    pub fn is_part_of(&self, call: &Self) -> bool {
        let end = call.completed_seq.unwrap_or(u64::MAX);
        self.event == TEXT_NOT_APPROVED
            && self.outcome.as_deref() == Some("refused")
            && call.event == CALL
            && (call.seq..end).contains(&self.seq)
            && (&self.replica, &self.upstream, &self.prompt)
                == (&call.replica, &call.upstream, &call.prompt)
    }

    /// Returns the subject of the entry, in a few words: a method or an event, and a name.
    pub fn what(&self) -> String {
        let what = self.method.as_ref().unwrap_or(&self.event);
        match self.name.as_ref().or(self.prompt.as_ref()) {
            Some(name) => format!("{what} {name}"),
            None => what.clone(),
        }
    }

    /// Whether the entry is of a prompt, by its public name or its name at its upstream.
    pub(super) fn is_of_prompt(&self, name: &str) -> bool {
        let prompt = self.prompt.as_deref().unwrap_or_default();
        let is_joined = self.upstream.as_ref().is_some_and(|own| name::joins(name, own, prompt));
        self.name.as_deref() == Some(name) || prompt == name || is_joined
    }

    /// Whether a rule, a limit or a check has refused the call. Older records name no rule.
    pub(super) fn is_denial(&self) -> bool {
        self.event == REFUSED || self.decision.as_deref() == Some(DENIED) || self.rule.is_some()
    }

    /// Whether the entry contains a text.
    pub(super) fn contains(&self, text: &str) -> bool {
        fn any(value: &Value, text: &str) -> bool {
            match value {
                Value::String(own) => own.contains(text),
                Value::Array(all) => all.iter().any(|value| any(value, text)),
                Value::Object(all) => {
                    all.iter().any(|(name, value)| name.contains(text) || any(value, text))
                }
                other => other.to_string().contains(text),
            }
        }
        serde_json::to_value(self).is_ok_and(|value| {
            value.as_object().is_some_and(|members| members.values().any(|value| any(value, text)))
        })
    }
}

/// Reads the members of a line; `None` if the line is not from a log.
fn members(line: &[u8]) -> Option<Map<String, Value>> {
    RecordLine::read(line)?;
    serde_json::from_slice(line).ok()
}

/// Keeps only the size and digest of each argument.
fn without_values(arguments: Value) -> Value {
    let Value::Object(arguments) = arguments else {
        return Value::Null;
    };
    let kept = arguments.into_iter().map(|(name, argument)| {
        let kept: Map<_, _> = ["bytes", "hmac"]
            .into_iter()
            .filter_map(|member| Some((member.to_owned(), argument.get(member)?.clone())))
            .collect();
        (name, Value::Object(kept))
    });
    Value::Object(kept.collect())
}

/// Returns the type of a record, without reading it as JSON: a text in quotes cannot contain the
/// quotes that it stands behind.
pub(super) fn kind(line: &[u8]) -> Option<&str> {
    text(line, b"\"event\":\"")
}

/// Whether a record of a call may be a denial; like [`kind`], without parsing JSON.
pub(super) fn may_deny(line: &[u8]) -> bool {
    let members = [&b",\"decision\":\"denied\""[..], b",\"rule\":\""];
    members.into_iter().any(|member| memmem::find(line, member).is_some())
}

/// Returns the time of a record or header, as [`kind`] does.
pub(super) fn time(line: &[u8]) -> Option<&str> {
    text(line, b"\"time\":\"")
}

/// Returns the id that the records of one call share; see [`kind`].
pub(super) fn call_id(line: &[u8]) -> Option<CallId> {
    let boot = text(line, b"\"boot\":\"")?;
    let at = memmem::find(line, b"\"call\":")? + b"\"call\":".len();
    let digits = line[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&line[at..at + digits]).ok()?;
    Some((boot.to_owned(), number.parse().ok()?))
}

fn text<'a>(line: &'a [u8], begin: &[u8]) -> Option<&'a str> {
    let rest = &line[memmem::find(line, begin)? + begin.len()..];
    let length = memchr::memchr(b'"', rest)?;
    std::str::from_utf8(&rest[..length]).ok()
}
