//! `promptgate usage`: counts of uses, from the index and the audit log of a configuration.

use std::fmt::Write as _;
use std::io;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::args::{LineOrder, UsageBy, UsageQuery};
use super::failure::Failure;
use super::load::demand;
use super::output::{Column, print, printable, table};
use audit::usage::{Dimension, Filter, GatewayUsage, Query, Report, Sort};
use config::Records;

/// The time for an answer: people wait for it.
const PATIENCE: Duration = Duration::from_secs(600);

/// Prints the uses in a period, or the prompts without uses.
pub(super) fn run(args: &UsageQuery) -> Result<(), Failure> {
    demand(&args.file.config)?;
    let records = Records::load(&args.file.config)?;
    let now = SystemTime::now();
    let (from, to) = args.period.range("7d", now)?;
    let usage = open(&records)?;
    let until = Instant::now() + PATIENCE;
    if args.unused {
        return unused(args, &usage, from, now, until);
    }
    let filter = Filter {
        prompt: args.prompt.clone(),
        caller: args.caller.clone(),
        upstream: args.upstream.clone(),
        endpoint: args.view.clone(),
    };
    let by = args.by.into();
    let limit = limit(args);
    // One more, to know whether there is more.
    let query =
        Query { by, from, to, filter, limit: limit.saturating_add(1), sort: args.sort.into() };
    let mut report = usage.report_now(&query, now, until);
    let is_more = report.rows.len() > limit;
    report.rows.truncate(limit);
    if args.csv {
        return print(csv(args.by, &report).trim_end());
    }
    if args.json {
        return print(&format!("{:#}", json!(report)));
    }
    print(&(text(args.by, &report) + more(is_more)))
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
    if log.is_none() && !database.as_ref().is_some_and(|path| path.is_file()) {
        let missing = match database {
            Some(path) => format!("no usage index at {}", path.display()),
            None => "no usage index (admin.usage.path = \"\")".to_owned(),
        };
        return Err(Failure::new(format!(
            "{missing}: usage is counted from the audit log, which is disabled (audit.path = \"\"); set audit.path, or name the configuration of the gateway with --config"
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

/// Prints the prompts that were used at some time, but not since `from`.
fn unused(
    args: &UsageQuery,
    usage: &GatewayUsage,
    from: SystemTime,
    now: SystemTime,
    until: Instant,
) -> Result<(), Failure> {
    // A use at any time shows that the prompt exists.
    let (known, _) = usage.used_now(SystemTime::UNIX_EPOCH, now, until);
    let (used, is_partial) = usage.used_now(from, now, until);
    let mut unused: Vec<_> = known.difference(&used).collect();
    unused.sort();
    let is_more = unused.len() > limit(args);
    unused.truncate(limit(args));
    if args.json {
        return print(&format!("{:#}", json!({"unused": unused, "partial": is_partial})));
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
    let rows: Vec<_> = report.rows.iter().map(|row| json!(row)).collect();
    let mut out = table(&columns, &rows);
    if report.partial {
        let _ = write!(out, "\nnot complete: days are missing, or keys are joined as (others)");
    }
    out
}

/// Returns a table of comma-separated values (RFC 4180).
fn csv(by: UsageBy, report: &Report) -> String {
    let heading = by.heading().to_ascii_lowercase();
    let mut out = format!(
        "{heading},upstream,uses,before,failures,denied,limited,mean_ms,p50_ms,p95_ms,last\n"
    );
    for row in &report.rows {
        let row = json!(row);
        let members = [
            "key", "upstream", "uses", "before", "failures", "denied", "limited", "meanMs",
            "p50Ms", "p95Ms", "last",
        ];
        let cells: Vec<_> = members.iter().map(|member| csv_cell(&row[*member])).collect();
        let _ = writeln!(out, "{}", cells.join(","));
    }
    out
}

/// Returns a value as one cell. A text that a spreadsheet would take for a formula is written
/// behind an apostrophe.
fn csv_cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => printable(text),
        other => return other.to_string(),
    };
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t']);
    let text = if is_formula { format!("'{text}") } else { text };
    let needs_quotes = text.contains(['"', ',', '\n', '\r']);
    if needs_quotes { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

fn millis(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |millis| format!("{millis:.1}ms"))
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
    fn a_cell_of_a_spreadsheet_is_text_whatever_the_name() {
        let cell = |text: &str| csv_cell(&json!(text));
        assert_eq!(cell("a__b"), "a__b");
        assert_eq!(cell("=HYPERLINK(\"x\")"), "\"'=HYPERLINK(\"\"x\"\")\"");
        assert_eq!(cell("a,b"), "\"a,b\"");
        assert_eq!(cell("\u{1b}[2J"), "\\u{1b}[2J");
        assert_eq!(csv_cell(&json!(1.5)), "1.5");
        assert_eq!(csv_cell(&Value::Null), "");
    }
}
