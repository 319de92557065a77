//! The audit log: its entries, one record, and its verification.

use std::io;
use std::time::SystemTime;

use askama::Template;

use super::{Page, PageError, PageResult};
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::request::{PageRequest, Params};
use crate::sign_in::{Role, Visitor};
use crate::state::AdminState;
use crate::verification::{VerificationState, Verified};
use audit::search::{self, Find, LogEntry};
use audit::tail::Position;
use gateway::router::blocking::beside_calls;

/// A part of the audit log.
#[derive(Template)]
#[template(path = "audit.html")]
pub(super) struct AuditPage {
    /// The newest first.
    entries: Vec<LogEntry>,
    /// Whether everything was searched.
    complete: bool,
    /// The parameter `before` of the entries that are older.
    next: Option<String>,
    /// Whether there is an audit log.
    is_on: bool,
    params: Params,
}

/// One record.
#[derive(Template)]
#[template(path = "record.html")]
pub(super) struct RecordPage {
    entry: LogEntry,
}

/// The verification of the log.
#[derive(Template)]
#[template(path = "verification.html")]
pub(super) struct VerificationPage {
    verified: Verified,
    can_start: bool,
    csrf: String,
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

impl Page for VerificationPage {
    const SECTION: ConsoleSection = ConsoleSection::Audit;

    fn title(&self) -> String {
        "Verification of the audit log".to_owned()
    }
}

/// Entries of one page.
const PAGE: usize = 50;

/// Returns the entries that match the parameters `caller`, `prompt`, `upstream`, `outcome`,
/// `event`, `text`, `from` and `to`, in front of `before`.
///
/// # Errors
/// A time or a position is none, or the log cannot be read.
pub(super) async fn audit(state: &AdminState, request: &PageRequest) -> PageResult<AuditPage> {
    let params = request.params.clone();
    let Some(path) = state.audit.path() else {
        let page =
            AuditPage { entries: Vec::new(), complete: true, next: None, is_on: false, params };
        return Ok(page);
    };
    let find = find(&params)?;
    let before = params.some("before").map(position).transpose()?;
    let limit = PAGE.min(request.rows);
    let until = request.until;
    let found = beside_calls(move || search::find(&path, &find, limit, before, until)).await;
    let found = found.map_err(|error| unreadable(&error))?;
    Ok(AuditPage {
        entries: found.entries,
        complete: found.complete,
        next: found.next.map(|Position { segment, offset }| format!("{segment}-{offset}")),
        is_on: true,
        params,
    })
}

/// Returns one record by its number.
///
/// # Errors
/// There is none, or the log cannot be read.
pub(super) async fn record(
    state: &AdminState,
    request: &PageRequest,
    seq: &str,
) -> PageResult<RecordPage> {
    let missing = || PageError::not_found("record with this number");
    let seq = seq.parse().map_err(|_| missing())?;
    let path = state.audit.path().ok_or_else(missing)?;
    let until = request.until;
    let found = beside_calls(move || search::record(&path, seq, until)).await;
    let found = found.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => PageError::late(),
        _ => unreadable(&error),
    })?;
    found.map(|entry| RecordPage { entry }).ok_or_else(missing)
}

/// Returns how far the verification is, or its result.
pub(super) fn verification(state: &AdminState, visitor: &Visitor) -> VerificationPage {
    VerificationPage {
        verified: state.verification.state(),
        can_start: visitor.role >= Role::Tester && state.audit.is_on(),
        csrf: visitor.csrf_token(),
    }
}

fn unreadable(error: &std::io::Error) -> PageError {
    let message = format!("The audit log cannot be read: {error}");
    PageError::new(http::StatusCode::INTERNAL_SERVER_ERROR, message)
}

fn find(params: &Params) -> PageResult<Find> {
    let owned = |name: &str| params.some(name).map(|text| text.trim().to_owned());
    Ok(Find {
        caller: owned("caller"),
        prompt: owned("prompt"),
        upstream: owned("upstream"),
        outcome: owned("outcome"),
        event: owned("event"),
        text: owned("text"),
        from: params.some("from").map(time).transpose()?,
        to: params.some("to").map(time).transpose()?,
    })
}

/// A time in UTC, as browsers write it (`2026-11-22T18:00`), or as RFC 3339 has it.
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

fn position(text: &str) -> PageResult<Position> {
    let parts = text.split_once('-');
    let parts =
        parts.and_then(|(segment, offset)| Some((segment.parse().ok()?, offset.parse().ok()?)));
    let parts = parts.map(|(segment, offset)| Position { segment, offset });
    parts.ok_or_else(|| {
        PageError::new(http::StatusCode::BAD_REQUEST, "The place in the log is none; search again.")
    })
}

impl RecordPage {
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
        assert_eq!(position("3-17").unwrap(), Position { segment: 3, offset: 17 });
        assert!(position("3").is_err() && position("a-b").is_err());
    }
}
