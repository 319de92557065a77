//! Calls, read from the lines of the audit log.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;
use std::time::SystemTime;

use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};

use super::counts::{CountedCall, OutcomeKind};
use super::query::secs;
use crate::record::MAX_DEPTH;
use domain::calls::caller::PROBER;
use domain::json::Json;
use domain::name::{VERSION_MARK, prompt_of_version, version_name};
use domain::prompts::skill::is_skill_uri;
use domain::protocol::method::Method;

/// A record that usage is counted from.
pub(super) struct Record<'a> {
    pub seq: u64,
    /// The id of the log.
    pub instance: Cow<'a, str>,
    /// Seconds since the Unix epoch.
    pub secs: u64,
    event: UsageEvent,
    members: RecordMembers<'a>,
}

/// The events that usage is counted from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum UsageEvent {
    Received,
    Completed,
    Refused,
    Started,
}

/// The members that usage needs, each found once: a record is read for every call.
#[derive(Default)]
struct RecordMembers<'a> {
    seq: Option<Json<'a>>,
    time: Option<Json<'a>>,
    instance: Option<Json<'a>>,
    boot: Option<Json<'a>>,
    call: Option<Json<'a>>,
    caller: Option<Json<'a>>,
    groups: Option<Json<'a>>,
    endpoint: Option<Json<'a>>,
    method: Option<Json<'a>>,
    name: Option<Json<'a>>,
    served: Option<Json<'a>>,
    version: Option<Json<'a>>,
    prompt: Option<Json<'a>>,
    skill: Option<Json<'a>>,
    upstream: Option<Json<'a>>,
    outcome: Option<Json<'a>>,
    duration_us: Option<Json<'a>>,
    reason: Option<Json<'a>>,
    count: Option<Json<'a>>,
}

/// Calls that were received and have not ended yet.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(from = "Vec<(CallId, OpenCall)>", into = "Vec<(CallId, OpenCall)>")]
pub(super) struct OpenCalls {
    calls: HashMap<CallId, OpenCall>,
    /// The ids in the order of their begin, including calls that have ended since.
    order: VecDeque<CallId>,
}

/// The value `boot` of a record, and the number of its call.
type CallId = (String, u64);

/// The members of a `received` record that usage counts.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct OpenCall {
    prompt: Option<String>,
    upstream: Option<String>,
    caller: String,
    groups: Vec<String>,
    endpoint: String,
}

/// The limit of calls in flight that are kept: more than a gateway serves.
const MAX_OPEN: usize = 20_000;

/// Longest version that is a part of a counted name, in bytes.
const MAX_VERSION_PART: usize = 64;

/// The text before the type of a record.
static EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(",\"event\":\""));

impl UsageEvent {
    /// Reads the type of a record; `None` if usage is not counted from it. The first match is the
    /// real member: no member before it holds untrusted text.
    fn read(line: &[u8]) -> Option<Self> {
        let rest = &line[EVENT.find(line)? + EVENT.needle().len()..];
        let events = [
            (&b"received\""[..], Self::Received),
            (b"completed\"", Self::Completed),
            (b"refused\"", Self::Refused),
            (b"started\"", Self::Started),
        ];
        events.into_iter().find(|(name, _)| rest.starts_with(name)).map(|(_, event)| event)
    }
}

impl<'a> RecordMembers<'a> {
    fn read(record: Json<'a>) -> Self {
        let mut members = Self::default();
        for (key, value) in record.members() {
            let member = match key.text() {
                "\"seq\"" => &mut members.seq,
                "\"time\"" => &mut members.time,
                "\"instance\"" => &mut members.instance,
                "\"boot\"" => &mut members.boot,
                "\"call\"" => &mut members.call,
                "\"caller\"" => &mut members.caller,
                "\"groups\"" => &mut members.groups,
                "\"endpoint\"" => &mut members.endpoint,
                "\"method\"" => &mut members.method,
                "\"name\"" => &mut members.name,
                "\"served\"" => &mut members.served,
                "\"version\"" => &mut members.version,
                "\"prompt\"" => &mut members.prompt,
                "\"skill\"" => &mut members.skill,
                "\"upstream\"" => &mut members.upstream,
                "\"outcome\"" => &mut members.outcome,
                "\"duration_us\"" => &mut members.duration_us,
                "\"reason\"" => &mut members.reason,
                "\"count\"" => &mut members.count,
                _ => continue,
            };
            *member = Some(value);
        }
        members
    }

    fn call(&self) -> Option<CallId> {
        Some((text(self.boot)?, number(self.call)?))
    }

    /// Whether the gateway itself is the caller. Its calls are not uses, and earlier releases
    /// counted them in limits.
    fn is_own(&self) -> bool {
        self.caller.is_some_and(|caller| caller.is(PROBER))
    }

    /// Whether the call is a use or an attempted use: a get of a prompt, or a read of the
    /// `SKILL.md` of a skill.
    fn is_use(&self) -> bool {
        if self.method.is_some_and(|method| method.is(Method::Get.as_str())) {
            return true;
        }
        // Reads of other files name their skill; resources of `[passthrough]` name only an
        // upstream.
        let is_of_skill = self.skill.is_none() && self.prompt.is_some() == self.upstream.is_some();
        self.method.is_some_and(|method| method.is(Method::ReadFile.as_str()))
            && is_of_skill
            && self.name.and_then(Json::as_str).is_some_and(|uri| is_skill_uri(&uri))
    }
}

impl RecordMembers<'_> {
    /// Returns the name under which a use counts: that of the version where its number is on
    /// record, whichever label or name led there. `served` is the version that a rollout chose, or
    /// the skill or prompt behind the requested name.
    fn counted_name(&self) -> Option<String> {
        let name = text(self.served.or(self.name))?;
        let version = text(self.version).filter(|version| is_version_part(version));
        let Some(version) = version.filter(|_| !is_skill_uri(&name)) else { return Some(name) };
        Some(version_name(prompt_of_version(&name).unwrap_or(&name), &version))
    }
}

/// Whether a version, which an author may have chosen, can be a part of a name.
fn is_version_part(version: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_graphic() && byte != VERSION_MARK as u8;
    (1..=MAX_VERSION_PART).contains(&version.len()) && version.bytes().all(is_part)
}

impl<'a> Record<'a> {
    /// Reads a line; `None` if usage is not counted from it.
    pub(super) fn read(line: &'a [u8]) -> Option<Self> {
        let event = UsageEvent::read(line)?;
        let members = RecordMembers::read(Json::parse(line, MAX_DEPTH).ok()?);
        let time = members.time?.as_str()?;
        let time = humantime::parse_rfc3339(&time).unwrap_or(SystemTime::UNIX_EPOCH);
        let instance = members.instance?.as_str()?;
        Some(Self { seq: number(members.seq)?, instance, secs: secs(time), event, members })
    }
}

fn text(member: Option<Json<'_>>) -> Option<String> {
    Some(member?.as_str()?.into_owned())
}

fn number(member: Option<Json<'_>>) -> Option<u64> {
    member?.text().parse().ok()
}

impl OpenCalls {
    /// Adds a record, and calls `each` with the calls that it ends.
    pub(super) fn take(&mut self, record: &Record<'_>, each: &mut dyn FnMut(&CountedCall<'_>)) {
        let members = &record.members;
        match record.event {
            UsageEvent::Received => self.received(members, each),
            UsageEvent::Completed => self.completed(members, each),
            UsageEvent::Refused => refused(members, each),
            UsageEvent::Started => self.started(members, each),
        }
    }

    fn received(&mut self, record: &RecordMembers<'_>, each: &mut dyn FnMut(&CountedCall<'_>)) {
        let Some(id) = record.call().filter(|_| record.is_use() && !record.is_own()) else {
            return;
        };
        let upstream = text(record.upstream);
        let groups = record.groups.map(|groups| {
            groups.elements().filter_map(|group| Some(group.as_str()?.into_owned())).collect()
        });
        let open = OpenCall {
            // A name that no upstream has is arbitrary text of the client.
            prompt: record.counted_name().filter(|_| upstream.is_some()),
            upstream,
            caller: text(record.caller).unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            endpoint: text(record.endpoint).unwrap_or_default(),
        };
        self.order.push_back(id.clone());
        self.calls.insert(id, open);
        if self.order.len() > MAX_OPEN {
            self.order.retain(|id| self.calls.contains_key(id));
            while self.order.len() > MAX_OPEN {
                self.give_up(each);
            }
        }
    }

    fn completed(&mut self, record: &RecordMembers<'_>, each: &mut dyn FnMut(&CountedCall<'_>)) {
        let call = record.call().and_then(|id| self.calls.remove(&id));
        let Some(call) = call else {
            return;
        };
        let outcome = record.outcome.and_then(Json::as_str);
        let kind = OutcomeKind::of(outcome.as_deref().unwrap_or_default());
        // Calls that a limit refused after they were received are among `refused`.
        if kind != OutcomeKind::Limited {
            each(&call.seen(kind, number(record.duration_us)));
        }
    }

    /// Ends all calls of earlier processes, with an unknown outcome.
    fn started(&mut self, record: &RecordMembers<'_>, each: &mut dyn FnMut(&CountedCall<'_>)) {
        let boot = text(record.boot).unwrap_or_default();
        while self.order.front().is_some_and(|(of, _)| *of != boot) {
            self.give_up(each);
        }
    }

    fn give_up(&mut self, each: &mut dyn FnMut(&CountedCall<'_>)) {
        if let Some(call) = self.order.pop_front().and_then(|id| self.calls.remove(&id)) {
            each(&call.seen(OutcomeKind::Failed, None));
        }
    }
}

fn refused(record: &RecordMembers<'_>, each: &mut dyn FnMut(&CountedCall<'_>)) {
    let is_limit = record.reason.is_some_and(|reason| reason.is("rate_limited"));
    let count = number(record.count).unwrap_or(1);
    if is_limit && count > 0 && !record.is_own() {
        let caller = text(record.caller);
        each(&CountedCall {
            prompt: None,
            upstream: None,
            caller: caller.as_deref(),
            groups: &[],
            endpoint: None,
            kind: OutcomeKind::Limited,
            count,
            micros: None,
        });
    }
}

impl OpenCall {
    fn seen(&self, kind: OutcomeKind, micros: Option<u64>) -> CountedCall<'_> {
        CountedCall {
            prompt: self.prompt.as_deref(),
            upstream: self.upstream.as_deref(),
            caller: Some(&self.caller),
            groups: &self.groups,
            endpoint: Some(&self.endpoint),
            kind,
            count: 1,
            micros,
        }
    }
}

impl From<Vec<(CallId, OpenCall)>> for OpenCalls {
    fn from(calls: Vec<(CallId, OpenCall)>) -> Self {
        let order = calls.iter().map(|(id, _)| id.clone()).collect();
        Self { order, calls: calls.into_iter().collect() }
    }
}

impl From<OpenCalls> for Vec<(CallId, OpenCall)> {
    fn from(OpenCalls { mut calls, order }: OpenCalls) -> Self {
        order.into_iter().filter_map(|id| calls.remove(&id).map(|call| (id, call))).collect()
    }
}
