//! The audit log: its entries, and one record.

use std::collections::HashMap;
use std::time::SystemTime;

use askama::Template;

use super::known_names::{KnownNames, known_names};
use super::sentence::sentence;
use super::{Page, PageError, PageResult};
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::console::text::{Html, counted};
use crate::request::{PageRequest, Params};
use crate::state::AdminState;
use audit::export::ExportStatus;
use audit::question::{Answer, Question, ReplicaAnswer};
use audit::search::{DENIED, EventKinds, Find, LogEntry, SearchResult};
use audit::tail::Position;
use audit::verify::regular::RegularOutcome;

/// A part of the audit log.
#[derive(Template)]
#[template(path = "audit.html")]
pub(super) struct AuditPage {
    /// The newest first.
    entries: Vec<LogEntry>,
    /// Whether everything was searched.
    complete: bool,
    /// Records that were looked through, and the time of the oldest.
    looked_through: u64,
    since: Option<String>,
    /// The parameter `before` of the entries that are older.
    next: Option<String>,
    /// Whether there is an audit log.
    is_on: bool,
    /// The replicas that did not answer.
    not_answered: Vec<String>,
    /// The last verification by the gateway itself, in words.
    verified: String,
    /// The state of the export, as a sentence; `None` without an export.
    exported: Option<String>,
    presets: Vec<Preset>,
    /// Whether the form has parameters that no preset sets.
    is_own_search: bool,
    names: KnownNames,
    params: Params,
}

/// A search of one click.
struct Preset {
    label: &'static str,
    link: String,
    is_chosen: bool,
}

/// The label of each preset, with the parameter that it sets and its value.
const PRESETS: [(&str, &str, &str); 6] = [
    ("All", "", ""),
    ("Decisions", "event", "decisions"),
    ("Denials", "outcome", DENIED),
    ("Sign-ins", "event", "sign-ins"),
    ("Changes", "event", "changes"),
    ("Calls", "event", "call"),
];

/// One record.
#[derive(Template)]
#[template(path = "record.html")]
pub(super) struct RecordPage {
    entry: LogEntry,
}

impl Page for AuditPage {
    const SECTION: ConsoleSection = ConsoleSection::Audit;
}

impl Page for RecordPage {
    const SECTION: ConsoleSection = ConsoleSection::Audit;

    fn title(&self) -> String {
        format!("Record {}", self.entry.seq)
    }
}

/// Entries of one page.
const PAGE: usize = 50;

/// Returns the entries of all replicas that match the parameters `caller`, `prompt`, `upstream`,
/// `outcome`, `event`, `text`, `from`, `to` and `replica`, in front of `before`.
pub(super) async fn audit(state: &AdminState, request: &PageRequest) -> PageResult<AuditPage> {
    let params = request.params.clone();
    let find = Box::new(find(&params)?);
    let before = params.some("before").map(places).transpose()?;
    let limit = PAGE.min(request.rows);
    let place = |replica: &str| match &before {
        None => Some(None),
        Some(places) => places.get(replica).map(|place| Some(*place)),
    };
    let question = |replica: &str| {
        let before = place(replica)?;
        Some(Question::Find { find: find.clone(), limit, before })
    };
    let answers = state.ask(params.some("replica"), question, request.until).await;
    let found = answers.found().map(|(replica, own)| (replica, place(replica).flatten(), own));
    let found: Vec<_> = found.collect();
    let is_off = |own: &ReplicaAnswer| matches!(own.answer, Answer::Found(None));
    let is_on = !answers.answered.iter().all(is_off) || !answers.not_answered.is_empty();
    let (entries, next) = SearchResult::merge(&found, limit);
    let next = found.iter().zip(&next).filter_map(|((replica, ..), next)| {
        let Position { segment, offset } = (*next)?;
        Some(format!("{segment}-{offset}-{replica}"))
    });
    let next = next.collect::<Vec<_>>().join(",");
    Ok(AuditPage {
        entries,
        complete: found.iter().all(|(_, _, own)| own.complete),
        looked_through: found.iter().map(|(_, _, own)| own.looked_through).sum(),
        since: found.iter().filter_map(|(_, _, own)| own.since.clone()).min(),
        next: Some(next).filter(|next| !next.is_empty()),
        is_on,
        not_answered: answers.not_answered,
        verified: verified(state.regular_verification.last().as_ref()),
        exported: state.audit.export_status().map(|status| exported(&status)),
        is_own_search: is_own_search(&params),
        presets: presets(&params),
        names: known_names(state),
        params,
    })
}

/// Returns the presets; each keeps the other parameters of the search.
fn presets(params: &Params) -> Vec<Preset> {
    let others = params.without(&["event", "outcome", "before"]);
    let preset = |(label, name, value): (&'static str, &str, &str)| {
        let is_set = |own: &str| params.get(own) == if own == name { value } else { "" };
        let is_chosen = is_set("event") && is_set("outcome");
        Preset { label, link: others.with(name, value), is_chosen }
    };
    PRESETS.into_iter().map(preset).collect()
}

fn is_own_search(params: &Params) -> bool {
    let fields = ["caller", "prompt", "upstream", "text", "from", "to"];
    let is_other = fields.iter().any(|name| params.some(name).is_some());
    is_other || !presets(params).iter().any(|preset| preset.is_chosen)
}

/// Returns one record by its number, of this replica or of the one that the parameter `replica`
/// names.
pub(super) async fn record(
    state: &AdminState,
    request: &PageRequest,
    seq: &str,
) -> PageResult<RecordPage> {
    let missing = || PageError::not_found("record with this number");
    let seq = seq.parse().map_err(|_| missing())?;
    let own = state.cluster.as_ref().map(|cluster| cluster.id().to_string()).unwrap_or_default();
    let replica = request.params.some("replica").unwrap_or(&own);
    let question = |_: &str| Some(Question::Record { seq });
    let mut answers = state.ask(Some(replica), question, request.until).await;
    if let Some(why) = answers.not_answered.pop() {
        let message = format!("The record cannot be read: {why}");
        return Err(PageError::new(http::StatusCode::BAD_GATEWAY, message));
    }
    match answers.answered.pop() {
        Some(ReplicaAnswer { answer: Answer::Record(Some(entry)), .. }) => {
            Ok(RecordPage { entry: *entry })
        }
        _ => Err(missing()),
    }
}

fn verified(last: Option<&RegularOutcome>) -> String {
    let Some(RegularOutcome { at, records, segments, problems }) = last else {
        return "The gateway has not verified the log by itself yet.".to_owned();
    };
    let at = humantime::format_rfc3339_seconds(*at);
    let found = if problems.is_empty() { "intact".to_owned() } else { problems.join("; ") };
    let records = counted(*records as usize, "record");
    let segments = counted(*segments, "segment");
    format!("Verified by itself at {at}: {records} in {segments}: {found}.")
}

fn exported(status: &ExportStatus) -> String {
    let ExportStatus { waiting, lag, last_success, failure, refused, .. } = status;
    let at = last_success.map(|at| humantime::format_rfc3339_seconds(at).to_string());
    let at = at.unwrap_or_else(|| "none".to_owned());
    let failure = failure.as_deref().unwrap_or("none");
    let waiting = counted(usize::try_from(*waiting).unwrap_or(usize::MAX), "record");
    let lag = lag.as_secs();
    format!(
        "Export: {waiting} to send, {lag} s late; refused for good: {refused}; last success: {at}; \
         error: {failure}."
    )
}

fn find(params: &Params) -> PageResult<Find> {
    let owned = |name: &str| params.some(name).map(|text| text.trim().to_owned());
    Ok(Find {
        caller: owned("caller"),
        prompt: owned("prompt"),
        upstream: owned("upstream"),
        outcome: owned("outcome"),
        event: owned("event").as_deref().map(EventKinds::from),
        guard: owned("guard"),
        text: owned("text"),
        from: params.some("from").map(time).transpose()?,
        to: params.some("to").map(time).transpose()?,
    })
}

/// Parses a time in UTC, as browsers write it (`2026-11-22T18:00`), or in RFC 3339.
fn time(text: &str) -> PageResult<SystemTime> {
    let text = text.trim();
    let whole = match text.len() {
        16 => format!("{text}:00Z"),
        19 => format!("{text}Z"),
        _ => text.to_owned(),
    };
    humantime::parse_rfc3339_weak(&whole).map_err(|_| {
        let message = "A time is written in UTC, such as 2026-11-22T18:00.";
        PageError::new(http::StatusCode::BAD_REQUEST, message)
    })
}

/// The places in the logs of replicas, as the parameter `before` has them.
fn places(text: &str) -> PageResult<HashMap<String, Position>> {
    let place = |part: &str| {
        let mut fields = part.splitn(3, '-');
        let (segment, offset) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((fields.next()?.to_owned(), Position { segment, offset }))
    };
    let places: Option<_> = text.split(',').map(place).collect();
    places.ok_or_else(|| {
        PageError::new(http::StatusCode::BAD_REQUEST, "The place in the log is none; search again.")
    })
}

impl RecordPage {
    fn sentence(&self) -> Html {
        sentence(&self.entry)
    }

    /// The members of the entry, as text.
    fn members(&self) -> Vec<(String, String)> {
        let value = serde_json::to_value(&self.entry).unwrap_or_default();
        let mut members = Vec::new();
        let members_of = value.as_object().into_iter().flatten();
        for (name, value) in members_of.filter(|(_, value)| !value.is_null()) {
            let nested = value.as_object().filter(|_| name == "members");
            match nested {
                Some(nested) => {
                    members.extend(nested.iter().map(|(name, value)| (name.clone(), text(value))));
                }
                None => members.push((name.clone(), text(value))),
            }
        }
        members
    }
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_browsers_write_them() {
        let secs = |text| {
            let time = time(text).ok()?.duration_since(SystemTime::UNIX_EPOCH);
            Some(time.unwrap().as_secs())
        };
        assert_eq!(secs("1970-01-01T00:01"), Some(60));
        assert_eq!(secs("1970-01-01T00:01:01"), Some(61));
        assert_eq!(secs("1970-01-01T00:01:01Z"), Some(61));
        for wrong in ["", "yesterday", "1970-01-01", "1970-13-01T00:00"] {
            assert_eq!(secs(wrong), None, "{wrong}");
        }
        let place = Position { segment: 3, offset: 17 };
        assert_eq!(places("3-17-").unwrap(), HashMap::from([(String::new(), place)]));
        assert_eq!(places("3-17-a-1,3-17-b").unwrap()["a-1"], place);
        assert!(places("3").is_err() && places("a-b-c").is_err() && places("3-17").is_err());
    }
}
