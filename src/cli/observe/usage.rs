//! `promptgate usage`: counts of uses, from the index and the audit log of a configuration.

use std::fmt::Write as _;
use std::io;
use std::iter;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::evidence;
use crate::cli::shared::args::{LineOrder, UsageBy, UsageQuery};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::demand;
use crate::cli::shared::output::{elements, print, print_json, printable, table};
use admin::table::csv;
use admin::usage_columns::{self, COUNTS, DIMENSIONS};
use audit::question::Question;
use audit::usage::{
    Dimension, Filter, GatewayUsage, Query, RecentUses, Report, Row, Sort, UsedPrompts,
};
use config::Records;
use domain::name::prompt_of_version;
use domain::text::similar::suggestion;

/// The time for an answer: people wait for it.
const PATIENCE: Duration = Duration::from_secs(600);

/// Prints the uses in a period, or the prompts without uses.
pub(crate) fn run(args: &UsageQuery) -> Result<(), Failure> {
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
        ..Filter::default()
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
        return print(spreadsheet(by, &report).trim_end());
    }
    if args.json {
        return print_json(&json!(report));
    }
    print(&(text(by, &report) + more(is_more)))
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
pub(crate) fn recent(config: &Path, prompt: &str) -> Option<RecentUses> {
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
    let Filter { prompt, caller, upstream, endpoint, .. } = &query.filter;
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
        let known = || rows.iter().chain(rows.iter().flat_map(|row| &row.versions));
        if !known().any(|row| row.key == *name) {
            let near = suggestion(name, known().map(|row| row.key.as_str()));
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
    // A version is part of its prompt, which is known, too.
    let mut unused: Vec<_> = known.difference(&used).collect();
    unused.retain(|name| prompt_of_version(name).is_none());
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

fn text(by: Dimension, report: &Report) -> String {
    if report.rows.is_empty() {
        return "nothing was used in this period".to_owned();
    }
    let columns = usage_columns::of_rows(by, &report.rows);
    let columns: Vec<_> = columns.filter(|column| !column.heading.is_empty()).collect();
    let mut out = table(&columns, &lines(&report.rows));
    if report.partial {
        let _ = write!(
            out,
            "\nnot complete: days or replicas are missing, or keys are joined as (others)"
        );
    }
    out
}

/// The lines of a table: each row, and below a prompt its versions, indented.
fn lines(rows: &[Row]) -> Vec<Value> {
    let version = |row: &Row| json!(Row { key: format!("  {}", row.key), ..row.clone() });
    let with_versions =
        |row: &Row| iter::once(json!(row)).chain(row.versions.iter().map(version)).collect();
    rows.iter().flat_map::<Vec<_>, _>(with_versions).collect()
}

/// Returns comma-separated values, of prompts without their versions, so that sums of a column are
/// right. The keys stand under the name of their dimension.
fn spreadsheet(by: Dimension, report: &Report) -> String {
    let members: Vec<_> = ["key"].into_iter().chain(COUNTS.map(|column| column.member)).collect();
    let table = csv(&members, elements(&json!(report.rows)), "\n");
    let name = DIMENSIONS.iter().find(|(_, own, _)| *own == by).map_or("key", |(name, ..)| name);
    table.replacen("key", name, 1)
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
        assert!(!text(Dimension::Caller, &report(None)).contains("P95"));
        assert!(text(Dimension::Upstream, &report(Some(2.0))).contains("P95"));
    }
}
