//! `promptgate audit find`: searches the audit log, without its key.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::audit::folder;
use super::evidence;
use crate::cli::shared::args::FindQuery;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{CellKind, Column, print, printable_json, printable_line, table};
use audit::question::{Answers, Question};
use audit::search::{DENIED, EventKinds, Find, Live, LogEntry, SearchResult, find};
use config::Records;

/// The time for an answer: people wait for it.
const PATIENCE: Duration = Duration::from_secs(600);

/// The time between two reads of a followed log.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// Prints the matching entries, oldest first.
pub(crate) fn run(args: &FindQuery) -> Result<(), Failure> {
    let wanted = wanted(args, "24h")?;
    // Opened before the search, so that no entry falls between search and follow.
    let live = args.follow.then(|| {
        let dir = dir(args)?;
        Live::at_end(&dir).map_err(|error| unreadable(&dir, &error))
    });
    let live = live.transpose()?;
    let (mut found, dir) = search(args, &wanted, args.limit)?;
    found.entries.reverse();
    if let Some(dir) = dir.filter(|_| found.entries.is_empty() && found.complete) {
        for filter in unmatched(&dir, &wanted).map_err(|error| unreadable(&dir, &error))? {
            eprintln!("{}", printable_line(&filter));
        }
    }
    show(&found, args.json)?;
    live.map_or(Ok(()), |live| follow(live, &wanted, args))
}

/// The folder of the log that a query names.
fn dir(args: &FindQuery) -> Result<PathBuf, Failure> {
    args.dir.clone().map_or_else(|| folder(&args.file.config), Ok)
}

/// Reads the criteria of a query.
pub(super) fn wanted(args: &FindQuery, since: &str) -> Result<Find, Failure> {
    let (from, to) = args.period.range(since, SystemTime::now())?;
    Ok(Find {
        caller: args.caller.clone(),
        prompt: args.prompt.clone(),
        upstream: args.upstream.clone(),
        outcome: args.denied.then(|| DENIED.to_owned()).or_else(|| args.outcome.clone()),
        event: args.event.as_deref().map(EventKinds::from),
        guard: args.guard.clone(),
        from: Some(from),
        // Without --until, entries that are recorded while the command runs are found, too.
        to: args.period.until.as_ref().map(|_| to),
        text: args.text.clone(),
    })
}

/// Finds entries in the logs of all replicas, or in a folder, which is then returned; newest first.
pub(super) fn search(
    args: &FindQuery,
    wanted: &Find,
    limit: usize,
) -> Result<(SearchResult, Option<PathBuf>), Failure> {
    if args.dir.is_none() && !args.follow {
        let records = Records::load(&args.file.config)?;
        let question = Question::Find { find: Box::new(wanted.clone()), limit, before: None };
        if let Some(answers) = evidence::ask(&args.file, &records, &args.choice, &question)? {
            return Ok((merged(&answers, limit), None));
        }
    }
    let dir = dir(args)?;
    let found = find(&dir, wanted, limit, None, Instant::now() + PATIENCE);
    Ok((found.map_err(|error| unreadable(&dir, &error))?, Some(dir)))
}

/// The newest entries of all replicas that have answered, newest first.
fn merged(answers: &Answers, limit: usize) -> SearchResult {
    let logs: Vec<_> = answers.found().map(|(replica, found)| (replica, None, found)).collect();
    let (entries, next) = SearchResult::merge(&logs, limit);
    SearchResult { entries, complete: next.iter().all(Option::is_none), ..SearchResult::default() }
}

fn show(found: &SearchResult, as_json: bool) -> Result<(), Failure> {
    match (as_json, found.entries.is_empty()) {
        (false, _) => print(&text(found)),
        (true, true) => Ok(()),
        (true, false) => print(&json_lines(&found.entries)),
    }
}

/// Returns a line for each criterion that no entry of the period has: it may be misspelt.
fn unmatched(dir: &Path, wanted: &Find) -> io::Result<Vec<String>> {
    let period = || Find { from: wanted.from, to: wanted.to, ..Find::default() };
    let Find { caller, prompt, upstream, outcome, event, guard, .. } = wanted.clone();
    let kinds = event.as_ref().map(ToString::to_string);
    let criteria = [
        ("caller", &wanted.caller, Find { caller, ..period() }),
        ("prompt", &wanted.prompt, Find { prompt, ..period() }),
        ("upstream", &wanted.upstream, Find { upstream, ..period() }),
        ("outcome", &wanted.outcome, Find { outcome, ..period() }),
        ("guard", &wanted.guard, Find { guard, ..period() }),
        ("event", &kinds, Find { event, ..period() }),
    ];
    let mut lines = Vec::new();
    let until = Instant::now() + PATIENCE;
    for (noun, value, alone) in criteria {
        let Some(value) = value else { continue };
        if find(dir, &alone, 1, None, until)?.entries.is_empty() {
            lines.push(format!("no entry of this time has the {noun} `{value}`"));
        }
    }
    Ok(lines)
}

/// Prints new entries until standard output is closed.
fn follow(mut live: Live, wanted: &Find, args: &FindQuery) -> Result<(), Failure> {
    loop {
        let read = live.poll(wanted);
        let (entries, has_more) =
            read.map_err(|error| Failure::new(format!("cannot read the log: {error}")))?;
        let lines = if args.json { json_lines(&entries) } else { short_lines(&entries) };
        if !lines.is_empty()
            && let Err(error) = writeln!(io::stdout().lock(), "{lines}")
        {
            return match error.kind() {
                io::ErrorKind::BrokenPipe => Ok(()),
                _ => Err(Failure::new(format!("cannot write to standard output: {error}"))),
            };
        }
        if !has_more {
            std::thread::sleep(FOLLOW_INTERVAL);
        }
    }
}

fn json_lines(entries: &[LogEntry]) -> String {
    let line = |entry: &LogEntry| printable_json(&json!(entry).to_string());
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// One line for each entry: time, subject, caller, outcome, details.
fn short_lines(entries: &[LogEntry]) -> String {
    let line = |entry: &LogEntry| {
        let time = entry.time.get(..19).unwrap_or(&entry.time).to_owned();
        let parts =
            [Some(entry.what()), entry.caller.clone(), entry.outcome.clone(), details(entry)];
        let parts: Vec<_> = std::iter::once(time)
            .chain(parts.into_iter().flatten())
            .map(|part| printable_line(&part))
            .collect();
        parts.join("  ")
    };
    entries.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn unreadable(dir: &Path, error: &io::Error) -> Failure {
    let dir = dir.display();
    let hint = "name the folder of audit.path, as a user who may read it";
    Failure::new(format!("cannot read {dir}: {error}; {hint}"))
}

fn text(found: &SearchResult) -> String {
    if found.entries.is_empty() {
        return "nothing was found; --since reaches further back".to_owned();
    }
    let mut columns = vec![
        Column::new("REPLICA", "replica"),
        Column::new("RECORD", "seq"),
        Column::new("TIME", "time"),
        Column::new("EVENT", "event"),
        Column::new("CALLER", "caller"),
        Column::new("PROMPT", "what"),
        Column::new("UPSTREAM", "upstream"),
        Column::new("OUTCOME", "outcome"),
        Column::new("TOOK", "durationUs").of(CellKind::Terminal(took)),
        Column::new("DETAILS", "details"),
    ];
    columns.retain(|column| {
        column.member != "replica" || found.entries.iter().any(|entry| entry.replica.is_some())
    });
    let rows: Vec<_> = found.entries.iter().map(row).collect();
    let mut out = table(&columns, &rows);
    if !found.complete {
        out.push_str("\nthere is more: --limit shows it");
    }
    out
}

fn row(entry: &LogEntry) -> Value {
    let mut row = json!(entry);
    row["time"] = entry.time.get(..19).unwrap_or(&entry.time).into();
    if let Some(method) = &entry.method {
        row["event"] = method.as_str().into();
    }
    row["what"] = entry.name.as_ref().or(entry.prompt.as_ref()).map(String::as_str).into();
    row["details"] = details(entry).into();
    row
}

/// Returns the members that no other column shows.
fn details(entry: &LogEntry) -> Option<String> {
    let decision = entry.decision.as_deref().filter(|decision| *decision != "allowed");
    let mut details: Vec<_> = decision.into_iter().map(str::to_owned).collect();
    details.extend(entry.rule.as_ref().map(|rule| format!("rule={}", printable_line(rule))));
    details.extend(entry.error.clone());
    let digests = ["arguments", "responses", "context", "groups", "result", "list", "result_bytes"];
    let others = entry.members.iter().filter(|(name, _)| !digests.contains(&name.as_str()));
    details.extend(others.map(|(name, value)| match value {
        Value::String(text) => format!("{name}={}", printable_line(text)),
        other => format!("{name}={other}"),
    }));
    (!details.is_empty()).then(|| details.join(" "))
}

fn took(value: &Value) -> String {
    let micros = value.as_u64().map(Duration::from_micros);
    micros.map_or_else(|| "-".to_owned(), |took| format!("{took:.1?}"))
}
