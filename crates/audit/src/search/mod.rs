//! Reads the log for people, without its keys: entries newest first, with the two records of a call
//! as one entry. The search never shows values of arguments, and does not verify the log:
//! [`verify`](super::verify) does.

mod backward;
mod entry;
mod kinds;
mod live;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

use memchr::memmem;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::record::{MAX_LINE, write_text};
use super::tail::{Position, Tail};
use crate::segments::folder::segment_numbers;
use crate::segments::recover::read_header;
use crate::segments::segment_reader::SegmentReader;
use backward::Backward;
use entry::{CallId, REFUSED};

pub use entry::{DENIED, LogEntry};
pub use kinds::EventKinds;
pub use live::Live;

/// The criteria of a search, all of which must hold. The default finds everything but checkpoints.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Find {
    /// Id of a caller.
    pub caller: Option<String>,
    /// Public name of a prompt, or its name at its upstream.
    pub prompt: Option<String>,
    pub upstream: Option<String>,
    /// `ok`, `cancelled`, the reason of a fault, or `denied` for calls that access rules, views,
    /// limits, approvals or checks of arguments have refused.
    pub outcome: Option<String>,
    /// Types of records; `call` for calls.
    pub event: Option<EventKinds>,
    /// Name of the guard that has found something.
    pub guard: Option<String>,
    pub from: Option<SystemTime>,
    /// Exclusive.
    pub to: Option<SystemTime>,
    /// A text that the entry contains; case-sensitive.
    pub text: Option<String>,
}

/// The result of a search.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    /// Newest first.
    pub entries: Vec<LogEntry>,
    /// For each entry the position from which a search continues after the entry.
    pub places: Vec<Position>,
    /// The position from which the search continues; `None` at the end.
    pub next: Option<Position>,
    /// Bytes that were read.
    pub scanned_bytes: u64,
    /// Records that were searched.
    pub looked_through: u64,
    /// The time of the oldest searched line, RFC 3339.
    pub since: Option<String>,
    /// Whether everything asked for was read: neither the limit nor the deadline was reached.
    pub complete: bool,
}

impl SearchResult {
    /// Keeps the first `keep` entries, after which the search can continue. Returns whether some
    /// entries were left out and some were kept.
    pub(crate) fn cut(&mut self, keep: usize) -> bool {
        let Some(next) = keep.checked_sub(1).and_then(|last| self.places.get(last).copied()) else {
            return false;
        };
        let is_cut = keep < self.entries.len();
        if is_cut {
            self.entries.truncate(keep);
            self.places.truncate(keep);
            (self.next, self.complete) = (Some(next), false);
        }
        is_cut
    }

    /// Merges the newest `limit` entries of replicas, and names them in the entries. Each search
    /// began before a position (`None`: the newest entry). Returns the next positions, in order.
    pub fn merge(
        found: &[(&str, Option<Position>, &Self)],
        limit: usize,
    ) -> (Vec<LogEntry>, Vec<Option<Position>>) {
        let mut taken = vec![0; found.len()];
        let mut entries = Vec::new();
        while entries.len() < limit {
            let heads = found.iter().zip(&taken).enumerate();
            let heads = heads.filter_map(|(index, ((_, _, own), taken))| {
                Some((own.entries.get(*taken)?.time.as_str(), index))
            });
            // The newest entry; of several with equal times, that of the first replica.
            let Some((_, index)) = heads.rev().max_by_key(|(time, _)| *time) else { break };
            let (name, _, own) = &found[index];
            let entry = own.entries[taken[index]].clone();
            let replica = Some((*name).to_owned()).filter(|name| !name.is_empty());
            entries.push(LogEntry { replica, ..entry });
            taken[index] += 1;
        }
        let next = found.iter().zip(taken).map(|((_, before, own), taken)| match taken {
            all if all == own.entries.len() => own.next,
            0 => Some(before.unwrap_or(NEWEST)),
            some => own.places.get(some - 1).copied(),
        });
        (entries, next.collect())
    }
}

/// The position behind all entries.
const NEWEST: Position = Position { segment: u64::MAX, offset: 0 };

/// Calls whose end was read before their begin.
#[derive(Default)]
struct Ends(HashMap<CallId, Box<[u8]>>);

/// The limit of ends that are kept: more than calls are in flight.
const MAX_ENDS: usize = 20_000;

/// Bytes behind the start of a search in which the ends of calls are searched for.
const NEAR: usize = 256 << 10;

/// Finds entries in a log, newest first, at most `limit`, in front of `before`. The search ends at
/// `until` with the entries found so far. An incomplete line, and a segment that is removed
/// meanwhile, are skipped.
///
/// # Errors
/// When the folder or a segment cannot be read.
pub fn find(
    path: &Path,
    find: &Find,
    limit: usize,
    before: Option<Position>,
    until: Instant,
) -> io::Result<SearchResult> {
    let wanted = SearchCriteria::new(find);
    let mut found = SearchResult { complete: true, ..SearchResult::default() };
    let mut since = String::new();
    let mut ends =
        before.map_or_else(|| Ok(Ends::default()), |before| Ends::behind(path, before))?;
    for number in segment_numbers(path)?.into_iter().rev() {
        let Some(end) = end_in(number, before) else {
            continue;
        };
        let mut file = match SegmentReader::open(path, number) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let length = file.length()?;
        if !wanted.may_have(&mut file) {
            continue;
        }
        let mut lines = Backward::new(&mut file, length.min(end));
        while let Some((offset, line)) = lines.next()? {
            if let Some(entry) = wanted.entry(line, &mut ends) {
                found.entries.push(entry);
                found.places.push(Position { segment: number, offset });
            }
            let is_full = found.entries.len() >= limit;
            // The first line of a segment is its header, not a record.
            found.looked_through += u64::from(offset > 0);
            since.clear();
            since.push_str(entry::time(line).unwrap_or_default());
            if is_full || lines.has_just_read() && Instant::now() >= until {
                found.next = Some(Position { segment: number, offset });
                found.complete = false;
                break;
            }
        }
        found.scanned_bytes += lines.scanned();
        if !found.complete {
            break;
        }
    }
    found.since = Some(since).filter(|since| !since.is_empty());
    Ok(found)
}

/// Returns where the search in a segment begins; `None` if it is not searched.
fn end_in(number: u64, before: Option<Position>) -> Option<u64> {
    match before {
        Some(before) if number > before.segment => None,
        Some(before) if number == before.segment => Some(before.offset),
        _ => Some(u64::MAX),
    }
}

/// Returns the entry of a record, for a call with its end if that is near; `None` without such a
/// record.
///
/// # Errors
/// When the folder or a segment cannot be read; [`io::ErrorKind::TimedOut`] if the record is not
/// found before `until`.
pub fn record(path: &Path, seq: u64, until: Instant) -> io::Result<Option<LogEntry>> {
    let begin = format!("{{\"seq\":{seq},");
    for number in segment_numbers(path)?.into_iter().rev() {
        let header = read_header(path, number);
        if header.as_ref().is_ok_and(|header| header.previous.seq >= seq) {
            continue;
        }
        let mut reader = BufReader::with_capacity(READ, SegmentReader::open(path, number)?);
        let mut line = Vec::new();
        let mut offset = 0;
        while reader.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)? > 0 {
            offset += line.len() as u64;
            if line.starts_with(begin.as_bytes())
                && let Some(text) = line.strip_suffix(b"\n")
            {
                return with_end(path, text, Position { segment: number, offset });
            }
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            line.clear();
        }
        if header.is_ok() {
            // Records of older segments have lower numbers.
            break;
        }
    }
    Ok(None)
}

/// Reads an entry. `behind` is the position behind its line; the end of a call follows it.
fn with_end(path: &Path, line: &[u8], behind: Position) -> io::Result<Option<LogEntry>> {
    let id = entry::call_id(line).filter(|_| entry::kind(line) == Some("received"));
    let end = match id {
        Some(id) => Ends::behind(path, behind)?.take(&id),
        None => None,
    };
    Ok(LogEntry::read(line, end.as_deref()))
}

const READ: usize = 256 << 10;

/// The tolerance between times of files and of records: file systems count in ticks of the system
/// or in seconds, and servers have separate clocks.
const FILE_CLOCK: Duration = Duration::from_secs(2);

impl Ends {
    /// Adds the end of a call. Drops all ends if there are too many: the begins of their calls are
    /// gone.
    fn put(&mut self, id: CallId, line: &[u8]) {
        if self.0.len() >= MAX_ENDS {
            self.0.clear();
        }
        self.0.insert(id, line.into());
    }

    fn take(&mut self, id: &CallId) -> Option<Box<[u8]>> {
        self.0.remove(id)
    }

    /// Returns the ends that are near behind the start of a search.
    fn behind(path: &Path, place: Position) -> io::Result<Self> {
        let mut ends = Self::default();
        Tail::new(path, place).read(NEAR, |line| {
            if entry::kind(line) == Some("completed")
                && let Some(id) = entry::call_id(line)
            {
                ends.put(id, line);
            }
        })?;
        Ok(ends)
    }
}

/// The criteria of a search, with the texts that matching lines contain.
struct SearchCriteria<'a> {
    find: &'a Find,
    /// Texts that the first record of an entry must contain.
    needles: Vec<memmem::Finder<'static>>,
    /// The name of the prompt, which the first record of a call must contain. Other records have
    /// the name at the upstream only.
    prompt: Option<memmem::Finder<'static>>,
    /// The text that the record with the outcome must contain.
    outcome: Option<memmem::Finder<'static>>,
    /// The bounds in the format of records, which compare as texts.
    from: Option<String>,
    to: Option<String>,
}

impl<'a> SearchCriteria<'a> {
    fn new(find: &'a Find) -> Self {
        let encoded = |text: &str| {
            let mut out = String::new();
            write_text(text, usize::MAX, &mut out);
            out
        };
        let finder = |text: &str| memmem::Finder::new(text).into_owned();
        let whole = [&find.caller, &find.upstream, &find.guard].into_iter().flatten();
        let needles = whole.map(|text| finder(&encoded(text))).collect();
        let prompt = find.prompt.as_ref().map(|text| finder(&encoded(text)));
        let outcome = find.outcome.as_deref().filter(|outcome| *outcome != DENIED);
        let outcome = outcome.map(|outcome| finder(&encoded(outcome)));
        let time = |time: SystemTime| humantime::format_rfc3339_micros(time).to_string();
        Self { find, needles, prompt, outcome, from: find.from.map(time), to: find.to.map(time) }
    }

    /// Whether a segment may have records of the period, by the time of its header and of its last
    /// change.
    fn may_have(&self, file: &mut SegmentReader) -> bool {
        if let (Some(from), Some(modified)) = (self.find.from, file.modified())
            && modified + FILE_CLOCK < from
        {
            return false;
        }
        self.to.is_none() || first_time(file).is_none_or(|time| self.is_before_end(&time))
    }

    fn is_before_end(&self, time: &str) -> bool {
        self.to.as_deref().is_none_or(|to| time < to)
    }

    /// Returns the entry of a line, if it matches the criteria. Ends of calls are kept for their
    /// begin.
    fn entry(&self, line: &[u8], ends: &mut Ends) -> Option<LogEntry> {
        let kind = entry::kind(line)?;
        match kind {
            "completed" => {
                ends.put(entry::call_id(line)?, line);
                None
            }
            "received" => {
                let end = entry::call_id(line).and_then(|id| ends.take(&id));
                self.call(line, end.as_deref())
            }
            _ => self.event(kind, line),
        }
    }

    /// Returns the entry of a call, if it matches the criteria.
    fn call(&self, received: &[u8], completed: Option<&[u8]>) -> Option<LogEntry> {
        let kinds = [entry::CALL, "received", "completed"];
        let is_call = |event: &EventKinds| kinds.iter().any(|kind| event.has(kind));
        let has_kind = self.find.event.as_ref().is_none_or(is_call);
        let has_outcome = if self.find.outcome.as_deref() == Some(DENIED) {
            [Some(received), completed].into_iter().flatten().any(entry::may_deny)
        } else {
            self.outcome
                .as_ref()
                .is_none_or(|outcome| completed.is_some_and(|line| outcome.find(line).is_some()))
        };
        let has_prompt = self.prompt.as_ref().is_none_or(|name| name.find(received).is_some());
        let is_near = has_kind && has_outcome && has_prompt && self.is_near(received);
        is_near.then(|| LogEntry::read(received, completed)).flatten().filter(|e| self.admits(e))
    }

    /// Returns the entry of a record that is not part of a call, if it matches the criteria.
    fn event(&self, kind: &str, line: &[u8]) -> Option<LogEntry> {
        let has_kind = match &self.find.event {
            Some(event) => event.has(kind),
            None => kind != "checkpoint",
        };
        let is_denial = self.find.outcome.as_deref() != Some(DENIED) || kind == REFUSED;
        let has_outcome =
            is_denial && self.outcome.as_ref().is_none_or(|outcome| outcome.find(line).is_some());
        let is_near = has_kind && has_outcome && self.is_near(line);
        is_near.then(|| LogEntry::read(line, None)).flatten().filter(|entry| self.admits(entry))
    }

    /// Whether a line has the required time and texts, without parsing JSON.
    fn is_near(&self, line: &[u8]) -> bool {
        let Some(time) = entry::time(line) else {
            return false;
        };
        self.from.as_deref().is_none_or(|from| time >= from)
            && self.is_before_end(time)
            && self.needles.iter().all(|needle| needle.find(line).is_some())
    }

    fn admits(&self, entry: &LogEntry) -> bool {
        let Find { caller, prompt, upstream, outcome, guard, text, .. } = self.find;
        let is =
            |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        is(caller, &entry.caller)
            && is(upstream, &entry.upstream)
            && (is(outcome, &entry.outcome)
                || outcome.as_deref() == Some(DENIED) && entry.is_denial())
            && prompt.as_deref().is_none_or(|name| entry.is_of_prompt(name))
            && guard
                .as_deref()
                .is_none_or(|guard| entry.members.get("guard").is_some_and(|own| own == guard))
            && text.as_deref().is_none_or(|text| entry.contains(text))
    }
}

/// Returns the time in the header of a segment; `None` without a time.
fn first_time(file: &mut SegmentReader) -> Option<String> {
    entry::time(&file.first_line().ok()?).map(str::to_owned)
}
