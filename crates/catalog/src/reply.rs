//! Validated results of calls, which `session::dialect` then writes for the client's revision.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::passthrough_reply::PassthroughReply;
use super::segment::Digest;
use super::snapshot::Incomplete;
use super::view_cache::ListKind;
use domain::calls::call::Sought;
use domain::calls::cursor::CacheScope;
use domain::fault::{Fault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use domain::json::edits::Edits;
use domain::json::repair::RepairKinds;
use domain::json::{Json, JsonKind, write_str};
use domain::name::UpstreamId;
use domain::prompts::call_overlay::CallOverlay;
use domain::prompts::content::{self, ContentError, Findings};
use domain::prompts::hidden_text::{self, HiddenText};
use domain::prompts::prompt_version::PromptVersion;
use domain::prompts::skill::Skill;
use domain::protocol::server_request::ServerRequest;
use domain::{prompts::content_repair, uri};
use policy::ResultDigest;

/// The result of a call.
#[derive(Debug)]
pub enum Reply {
    List(ListReply),
    /// The prompts or skills that a search has found.
    Found(FoundReply),
    Prompt(PromptReply),
    Completion {
        completion: Completion,
        origin: ResultOrigin,
    },
    InputRequired(InputRequired),
    Skill(SkillReply),
    /// The resource behind a link in a prompt.
    Resource(Box<ResourceReply>),
    /// A result of the upstream of `[passthrough]`.
    Passthrough(Box<PassthroughReply>),
}

impl Reply {
    /// The origin of the digest of the result.
    pub fn digest(&self) -> ResultDigest {
        match self {
            Self::List(list) => ResultDigest::List(list.digest),
            _ => ResultDigest::Text,
        }
    }
}

/// A `GetPromptResult` whose messages were checked.
#[derive(Debug)]
pub struct PromptReply {
    /// The upstream's result after repairs, without the text that `content` strips.
    pub result: Document,
    pub origin: ResultOrigin,
    pub flags: Flags,
    /// The repairs that made the result valid.
    pub repairs: RepairKinds,
    /// Edits that replace URIs of the upstream with sealed links.
    pub links: Edits,
    /// The overlay whose messages come before and after those of the result.
    pub overlay: Option<Arc<CallOverlay>>,
    /// Whether the result is an approved snapshot instead of the upstream's.
    pub is_snapshot: bool,
    /// Whether the text is proved against the approved one, which guards have examined.
    pub is_proved: bool,
}

impl PromptReply {
    /// A result without findings and overlays.
    pub fn of(result: Document, origin: ResultOrigin) -> Self {
        let flags = Flags::default();
        let repairs = RepairKinds::default();
        let links = Edits::default();
        let overlay = None;
        let is_snapshot = false;
        let is_proved = false;
        Self { result, origin, flags, repairs, links, overlay, is_snapshot, is_proved }
    }
}

/// A `ReadResourceResult` whose contents were checked.
#[derive(Debug)]
pub struct ResourceReply {
    /// The upstream's result, without the text that `content` strips.
    pub result: Document,
    /// The origin of the prompt with the link.
    pub origin: ResultOrigin,
    pub flags: Flags,
    /// Edits that replace URIs of the upstream with the URIs that the caller has.
    pub links: Edits,
}

/// Warnings about the content of a prompt or resource.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// The places of hidden text, found or removed, as JSON.
    pub hidden_text: Option<String>,
    /// The messages with unsafe URIs, such as `javascript:`, found or removed, as JSON.
    pub unsafe_uris: Option<String>,
}

/// An `InputRequiredResult` (2026-07-28): the client retries the request with the input of its
/// user.
#[derive(Debug)]
pub struct InputRequired {
    /// Server requests by the keys of their answers.
    pub server_requests: Vec<(String, ServerRequest)>,
    /// The sealed `requestState`; `None` before the call has reached its upstream.
    pub state: Option<String>,
    pub origin: RequestOrigin,
}

/// The upstream behind a server request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestOrigin {
    /// Id of the upstream.
    pub upstream: String,
    /// Whether the message of an elicitation is prefixed with the id.
    pub label: bool,
}

/// A skill, or a part of one.
#[derive(Debug)]
pub struct SkillReply {
    pub body: SkillBody,
    pub origin: ResultOrigin,
    pub ttl: Duration,
    pub scope: CacheScope,
    /// Whether the body is the approved snapshot instead of the upstream's.
    pub is_snapshot: bool,
}

/// The requested part of a skill.
#[derive(Debug)]
pub enum SkillBody {
    /// The entry as JSON text.
    Entry(String),
    File {
        /// The public URI of the file.
        uri: String,
        /// The upstream's result, whose single content is the file.
        result: Document,
        /// The skill, if the file is its `SKILL.md`.
        skill: Option<Arc<Skill>>,
    },
    /// The elements of `resources`, separated by commas.
    Directory(String),
}

/// A page of the prompts or skills that a search has found.
#[derive(Debug)]
pub struct FoundReply {
    pub sought: Sought,
    /// Elements of the list, separated by commas.
    pub elements: String,
    pub next_cursor: Option<String>,
    /// Stale and missing upstreams that the caller may know of.
    pub incomplete: Vec<Incomplete>,
    /// The time of the request, for ages.
    pub now: Instant,
}

/// A page of a list.
#[derive(Debug)]
pub struct ListReply {
    pub kind: ListKind,
    /// The digest of the caller's whole view.
    pub digest: Digest,
    pub scope: CacheScope,
    /// Stale and missing upstreams that the caller may know of.
    pub incomplete: Vec<Incomplete>,
    /// The elements, separated by commas, in pieces of UTF-8.
    pub elements: Vec<Bytes>,
    pub next_cursor: Option<String>,
    pub ttl: Duration,
    /// The time of the request, for ages.
    pub now: Instant,
}

/// The prompt and upstream behind a result.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResultOrigin {
    /// Id of the upstream.
    pub upstream: UpstreamId,
    /// `sha256:…` of the listed definition of the prompt.
    pub digest: Arc<str>,
    /// Public name of the prompt.
    pub name: Arc<str>,
    /// The version behind a library prompt.
    pub version: Option<Arc<PromptVersion>>,
    /// The label or version that a rollout has chosen.
    pub rollout: Option<Arc<str>>,
}

/// Completion values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Completion {
    /// Elements of `values`, at most [`MAX_VALUES`], as JSON text separated by commas.
    pub values: String,
    pub total: Option<i64>,
    pub has_more: Option<bool>,
}

/// Most values of one completion (2025-11-25, completion); further values are cut off.
const MAX_VALUES: usize = 100;

impl Completion {
    /// The completion with these values.
    pub fn of(values: &[&str]) -> Self {
        let mut text = String::new();
        for (index, value) in values.iter().take(MAX_VALUES).enumerate() {
            if index > 0 {
                text.push(',');
            }
            write_str(value, &mut text);
        }
        Self {
            values: text,
            total: i64::try_from(values.len()).ok(),
            has_more: Some(values.len() > MAX_VALUES),
        }
    }
}

/// Validates a `GetPromptResult`, and applies `mode` to hidden text and unsafe URIs.
pub fn prompt(
    result: Document,
    origin: ResultOrigin,
    mode: HiddenText,
) -> Result<PromptReply, Fault> {
    let fault = |what: String| Fault::upstream(origin.upstream.as_str(), Kind::Protocol(what));
    check_complete(result.json()).map_err(&fault)?;
    let inspected = inspect_or_repair(result, mode);
    let (result, found, repairs) = inspected.map_err(|error| fault(error.to_string()))?;
    let (result, flags) = treated(result, &found, mode, InspectedList::Messages).map_err(&fault)?;
    Ok(PromptReply { flags, repairs, ..PromptReply::of(result, origin) })
}

/// Validates a `ReadResourceResult`, and applies `mode` to its findings.
pub fn resource(
    result: Document,
    origin: ResultOrigin,
    mode: HiddenText,
) -> Result<ResourceReply, Fault> {
    let fault = |what: String| Fault::upstream(origin.upstream.as_str(), Kind::Protocol(what));
    check_complete(result.json()).map_err(&fault)?;
    let found = content::inspect_contents(result.json());
    let mut found = found.map_err(|error| fault(error.to_string()))?;
    if mode == HiddenText::Allow {
        found = Findings::default();
    }
    let (result, flags) = treated(result, &found, mode, InspectedList::Contents).map_err(&fault)?;
    Ok(ResourceReply { result, origin, flags, links: Edits::default() })
}

/// The list in a result whose elements were inspected.
#[derive(Clone, Copy)]
enum InspectedList {
    Messages,
    Contents,
}

/// Applies `mode` to the findings in a result.
fn treated(
    result: Document,
    found: &Findings,
    mode: HiddenText,
    list: InspectedList,
) -> Result<(Document, Flags), String> {
    let (name, stripped): (_, fn(Json<'_>) -> Document) = match list {
        InspectedList::Messages => ("messages", hidden_text::stripped),
        InspectedList::Contents => ("contents", hidden_text::stripped_contents),
    };
    // The reports are written first: their places refer to the unchanged result.
    let unsafe_uris = uri::report(&found.unsafe_uris);
    let hidden_text = hidden_text::report(&found.hidden_text);
    match (mode, &hidden_text, &unsafe_uris) {
        (HiddenText::Reject, Some(places), _) => {
            return Err(format!("hidden text, which `content` rejects: {places}"));
        }
        (HiddenText::Reject, None, Some(places)) => {
            return Err(format!(
                "addresses that run what they hold, which `content` rejects, in {name} {places}"
            ));
        }
        _ => {}
    }
    let result = match (mode, &unsafe_uris) {
        (HiddenText::Strip, Some(_)) => uri::without(result.json(), name, &found.unsafe_uris),
        _ => result,
    };
    let result = match (mode, &hidden_text) {
        (HiddenText::Strip, Some(_)) => stripped(result.json()),
        _ => result,
    };
    Ok((result, Flags { hidden_text, unsafe_uris }))
}

/// Inspects a result. If it is refused, repairs the result and inspects it again.
fn inspect_or_repair(
    result: Document,
    mode: HiddenText,
) -> Result<(Document, Findings, RepairKinds), ContentError> {
    let error = match inspect(&result, mode) {
        Ok(found) => return Ok((result, found, RepairKinds::default())),
        Err(error) => error,
    };
    let (repaired, repairs) = content_repair::repaired(result.json()).ok_or(error)?;
    let found = inspect(&repaired, mode)?;
    Ok((repaired, found, repairs))
}

/// Checks a result, and returns the findings to which `mode` applies.
fn inspect(result: &Document, mode: HiddenText) -> Result<Findings, ContentError> {
    if mode == HiddenText::Allow {
        content::check_result(result.json()).map(|()| Findings::default())
    } else if result.is_plain() {
        content::inspect_visible_result(result.json())
    } else {
        content::inspect_result(result.json())
    }
}

/// Validates a `CompleteResult`.
pub fn completion(result: Document, origin: ResultOrigin) -> Result<Reply, Fault> {
    let read = check_complete(result.json()).and_then(|()| read_completion(result.json()));
    match read {
        Ok(completion) => Ok(Reply::Completion { completion, origin }),
        Err(what) => Err(Fault::upstream(origin.upstream.as_str(), Kind::Protocol(what))),
    }
}

/// Takes over a complete result of the upstream of `[passthrough]` unchanged, nulls included.
pub fn passthrough(result: Document, upstream: &UpstreamId) -> Result<Reply, Fault> {
    check_complete(result.json())
        .map_err(|what| Fault::upstream(upstream.as_str(), Kind::Protocol(what)))?;
    let result = result.with_nulls(|message| message.get("result"));
    Ok(Reply::Passthrough(Box::new(PassthroughReply::of(result, upstream.clone()))))
}

fn check_complete(result: Json<'_>) -> Result<(), String> {
    if result.get("resultType").is_none_or(|t| t.is("complete")) {
        Ok(())
    } else {
        Err("an unexpected resultType".to_owned())
    }
}

fn read_completion(result: Json<'_>) -> Result<Completion, String> {
    let completion = result.get("completion").filter(|c| c.is_object());
    let values = completion.and_then(|c| c.get("values")).filter(|v| v.kind() == JsonKind::Array);
    let (Some(completion), Some(values)) = (completion, values) else {
        return Err("a completion without array `values`".to_owned());
    };
    if !values.elements().all(|v| v.kind() == JsonKind::String) {
        return Err("a completion with a value that is no string".to_owned());
    }
    let kept: Vec<_> = values.elements().take(MAX_VALUES).map(Json::text).collect();
    let cut = values.elements().nth(MAX_VALUES).is_some();
    Ok(Completion {
        values: kept.join(","),
        total: completion.get("total").and_then(Json::as_whole),
        has_more: if cut { Some(true) } else { completion.get("hasMore").and_then(Json::as_bool) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Completion, Fault> {
        let origin = ResultOrigin {
            upstream: UpstreamId::parse("a").unwrap(),
            digest: "".into(),
            name: "".into(),
            version: None,
            rollout: None,
        };
        let result = Document::parse(text.as_bytes().to_vec(), 8).unwrap();
        completion(result, origin).map(|reply| match reply {
            Reply::Completion { completion, .. } => completion,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_completion_holds_a_hundred_values_at_most() {
        let values = |n: usize| vec!["\"v\""; n].join(",");
        let text = |n| format!(r#"{{"completion":{{"values":[{}],"total":7}}}}"#, values(n));
        let hundred = read(&text(100)).unwrap();
        assert_eq!((hundred.has_more, hundred.total), (None, Some(7)));
        let more = read(&text(101)).unwrap();
        assert_eq!((more.has_more, more.values.len()), (Some(true), values(100).len()));
        assert!(read(r#"{"completion":{"values":[1]}}"#).is_err());
        assert!(read(r#"{"completion":{}}"#).is_err());
        let asked = r#"{"resultType":"input_required","completion":{"values":[]}}"#;
        assert!(read(asked).is_err());
    }
}
