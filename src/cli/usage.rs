//! `promptgate usage`: counts of uses, from the index and the audit log of a configuration.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::args::{LineOrder, UsageBy, UsageQuery};
use super::evidence;
use super::failure::Failure;
use super::load::demand;
use super::output::{Column, millis, print, print_json, printable, table};
use admin::sheet::cell;
use audit::question::Question;
use audit::usage::{
    Dimension, Filter, GatewayUsage, Query, RecentUses, Report, Sort, UsedKind, UsedPrompts,
};
use config::Records;
use domain::similar::suggestion;

/// The time for an answer: people wait for it.
const PATIENCE: Duration = Duration::from_secs(600);

/// Prints the uses in a period, or the prompts without uses.
pub(super) fn run(args: &UsageQuery) -> Result<(), Failure> {
    demand(&args.file.config)?;
    let records = Records::load(&args.file.config)?;
    let now = SystemTime::now();
    let (from, to) = args.period.range("7d", now)?;
    let until = Instant::now() + PATIENCE;
    if args.unused {
        return unused(args, &records, from, now, until);
    }
    let filter = Filter {
        prompt: args.prompt.clone(),
        caller: args.caller.clone(),
        upstream: args.upstream.clone(),
        endpoint: args.view.clone(),
    };
    let by = args.by.into();
    let limit = limit(args);
    // One row more than shown, to know whether there are more.
    let query =
        Query { by, from, to, filter, limit: limit.saturating_add(1), sort: args.sort.into() };
    let question = Question::Usage(query.clone());
    let mut report = match evidence::ask(&args.file, &records, &args.choice, &question)? {
        Some(answers) => answers.report(&query),
        None => own_report(&records, &query, now, until)?,
    };
    let is_more = report.rows.len() > limit;
    report.rows.truncate(limit);
    if args.csv {
        return print(csv(args.by, &report).trim_end());
    }
    if args.json {
        return print_json(&json!(report));
    }
    print(&(text(args.by, &report) + more(is_more)))
}

/// Returns the usage that the files of this replica have.
fn own_report(
    records: &Records,
    query: &Query,
    now: SystemTime,
    until: Instant,
) -> Result<Report, Failure> {
    let usage = open(records)?;
    let report = usage.report_now(query, until);
    if report.rows.is_empty() {
        unknown_names(query, &usage, now, until);
    }
    Ok(report)
}

/// Returns the callers of a prompt in the last week, from the records of a configuration; `None` if
/// it keeps no records.
pub(super) fn recent(config: &Path, prompt: &str) -> Option<RecentUses> {
    let records = Records::load(config).ok()?;
    let usage = open(&records).ok()?;
    let now = SystemTime::now();
    let query = RecentUses::query(prompt, now);
    Some(RecentUses::of(usage.report_now(&query, Instant::now() + PATIENCE)))
}

/// The lines of a table; scripts get all.
const LINES: usize = 50;

fn limit(args: &UsageQuery) -> usize {
    let is_table = !args.csv && !args.json;
    args.limit.unwrap_or(if is_table { LINES } else { usize::MAX })
}

/// The line that follows a table that was cut.
fn more(is_more: bool) -> &'static str {
    if is_more { "\nthere is more: --limit shows it" } else { "" }
}

/// Reads the usage that the configuration keeps.
fn open(records: &Records) -> Result<GatewayUsage, Failure> {
    let index = records.usage_index.as_deref();
    let log = records.audit_log.as_deref();
    let database = index.map(GatewayUsage::database);
    if !log.is_some_and(Path::is_dir) && !database.as_ref().is_some_and(|path| path.is_file()) {
        let no_index = match database {
            Some(path) => format!("no usage index at {}", path.display()),
            None => "no usage index (admin.usage.path = \"\")".to_owned(),
        };
        let no_log = match log {
            Some(path) => format!("no audit log at {}", path.display()),
            None => "no audit log (audit.path = \"\")".to_owned(),
        };
        return Err(Failure::new(format!(
            "{no_index}, and {no_log}: nothing is known of any use; name the configuration of the gateway with --config, and set the variables that it runs with"
        )));
    }
    let usage = match GatewayUsage::read(index, log) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData && log.is_some() => {
            eprintln!(
                "the usage index cannot be used, so all is counted from the audit log: {error}"
            );
            GatewayUsage::read(None, log)
        }
        usage => usage,
    };
    usage.map_err(|error| {
        let folders =
            "check that this user may read the folders of audit.path and admin.usage.path";
        Failure::new(format!("cannot read the usage: {error}; {folders}"))
    })
}

/// Reports on standard error which names of a filter were never used.
fn unknown_names(query: &Query, usage: &GatewayUsage, now: SystemTime, until: Instant) {
    let Filter { prompt, caller, upstream, endpoint } = &query.filter;
    let named = [
        (Dimension::Prompt, "prompt", prompt),
        (Dimension::Caller, "caller", caller),
        (Dimension::Upstream, "upstream", upstream),
        (Dimension::View, "path", endpoint),
    ];
    for (by, noun, name) in named {
        let Some(name) = name else { continue };
        let (filter, limit) = (Filter::default(), usize::MAX);
        let from = SystemTime::UNIX_EPOCH;
        let all = Query { by, from, to: now, filter, limit, sort: Sort::Uses };
        let rows = usage.report_now(&all, until).rows;
        if !rows.iter().any(|row| row.key == *name) {
            let near = suggestion(name, rows.iter().map(|row| row.key.as_str()));
            eprintln!("{}", printable(&format!("no use of the {noun} `{name}` is known{near}")));
        }
    }
}

/// Prints the prompts that were used before `from`, but not since.
fn unused(
    args: &UsageQuery,
    records: &Records,
    from: SystemTime,
    now: SystemTime,
    until: Instant,
) -> Result<(), Failure> {
    let used_since = |from| -> Result<UsedPrompts, Failure> {
        let question = Question::Used { from };
        if let Some(answers) = evidence::ask(&args.file, records, &args.choice, &question)? {
            return Ok(answers.used());
        }
        let (prompts, is_partial) = open(records)?.used_now(from, now, until);
        Ok(UsedPrompts { prompts, is_partial })
    };
    // A use at any time shows that the prompt exists.
    let known = used_since(SystemTime::UNIX_EPOCH)?.prompts;
    let UsedPrompts { prompts: used, is_partial } = used_since(from)?;
    let mut unused: Vec<_> = known.difference(&used).collect();
    unused.sort();
    let is_more = unused.len() > limit(args);
    unused.truncate(limit(args));
    if args.json {
        return print_json(&json!({"unused": unused, "partial": is_partial}));
    }
    if unused.is_empty() {
        return print("every prompt that was ever used was used in this period");
    }
    let lines: Vec<_> = unused.into_iter().map(|name| printable(name)).collect();
    print(&(lines.join("\n") + more(is_more)))
}

fn text(by: UsageBy, report: &Report) -> String {
    if report.rows.is_empty() {
        return "nothing was used in this period".to_owned();
    }
    let mut columns = vec![Column::new(by.heading(), "key")];
    if by == UsageBy::Prompt {
        columns.push(Column::new("UPSTREAM", "upstream"));
    }
    columns.extend([
        Column::new("USES", "uses"),
        Column::new("BEFORE", "before"),
        Column::new("FAILURES", "failures"),
        Column::new("DENIED", "denied"),
        Column::new("LIMITED", "limited"),
        Column { heading: "MEAN", member: "meanMs", format: millis },
        Column { heading: "P95", member: "p95Ms", format: millis },
        Column::new("LAST USE", "last"),
    ]);
    if report.rows.iter().any(|row| row.kind == Some(UsedKind::Skill)) {
        columns.push(Column::new("KIND", "kind"));
    }
    // The index has no distribution by group or view, and none with a filter by another key.
    if report.rows.iter().all(|row| row.p95_ms.is_none()) {
        columns.retain(|column| column.member != "p95Ms");
    }
    let rows: Vec<_> = report.rows.iter().map(|row| json!(row)).collect();
    let mut out = table(&columns, &rows);
    if report.partial {
        let _ = write!(
            out,
            "\nnot complete: days or replicas are missing, or keys are joined as (others)"
        );
    }
    out
}

/// Returns a table of comma-separated values (RFC 4180).
fn csv(by: UsageBy, report: &Report) -> String {
    let heading = by.heading().to_ascii_lowercase();
    let mut out = format!(
        "{heading},upstream,uses,before,failures,denied,limited,mean_ms,p50_ms,p95_ms,last,kind\n"
    );
    for row in &report.rows {
        let row = json!(row);
        let members = [
            "key", "upstream", "uses", "before", "failures", "denied", "limited", "meanMs",
            "p50Ms", "p95Ms", "last", "kind",
        ];
        let cells: Vec<_> = members.iter().map(|member| csv_cell(&row[*member])).collect();
        let _ = writeln!(out, "{}", cells.join(","));
    }
    out
}

/// Returns a value as one cell.
fn csv_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => cell(text),
        other => other.to_string(),
    }
}

impl UsageBy {
    fn heading(self) -> &'static str {
        match self {
            Self::Prompt => "PROMPT",
            Self::Upstream => "UPSTREAM",
            Self::Caller => "CALLER",
            Self::Group => "GROUP",
            Self::View => "VIEW",
        }
    }
}

impl From<UsageBy> for Dimension {
    fn from(by: UsageBy) -> Self {
        match by {
            UsageBy::Prompt => Self::Prompt,
            UsageBy::Upstream => Self::Upstream,
            UsageBy::Caller => Self::Caller,
            UsageBy::Group => Self::Group,
            UsageBy::View => Self::View,
        }
    }
}

impl From<LineOrder> for Sort {
    fn from(order: LineOrder) -> Self {
        match order {
            LineOrder::Uses => Self::Uses,
            LineOrder::Failures => Self::Failures,
            LineOrder::Limited => Self::Limited,
            LineOrder::Rising => Self::Rising,
            LineOrder::Last => Self::Last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_is_empty_in_each_line_is_left_out() {
        let row = |p95_ms| audit::usage::Row { key: "a".into(), p95_ms, ..Default::default() };
        let report = |p95| Report { rows: vec![row(None), row(p95)], ..Report::default() };
        assert!(!text(UsageBy::Caller, &report(None)).contains("P95"));
        assert!(text(UsageBy::Upstream, &report(Some(2.0))).contains("P95"));
    }
}
