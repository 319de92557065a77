//! Usage: uses by prompt or skill, upstream and caller, with their outcomes, over minutes to
//! months.

use std::time::SystemTime;

use askama::Template;
use http::StatusCode;
use serde_json::json;

use super::known_names::{KnownNames, known_names};
use super::traffic::{LAST_DAY, SPANS, TimeSpan, Traffic, of_report};
use super::{Page, PageError, PageResult};
use crate::console::text::{Html, cell};
use crate::console::{ConsoleSection, filters};
use crate::request::{PageRequest, Paging, Params};
use crate::state::AdminState;
use crate::table::{Column, csv};
use crate::usage_columns::{self, DIMENSIONS};
use audit::usage::{Dimension, Filter, Query, Row, Sort, UsedKind};
use catalog::listed_item::ListedItem;
use domain::name::prompt_of_version;

/// Uses in a span of time, by one dimension.
#[derive(Template)]
#[template(path = "usage.html")]
pub(super) struct UsagePage {
    by: &'static str,
    span: &'static str,
    columns: Vec<Column>,
    rows: Vec<Row>,
    paging: Paging,
    traffic: Traffic,
    /// Unused prompts and skills, where rows are these.
    unused: Vec<String>,
    unused_total: usize,
    label: &'static str,
    params: Params,
    views: Vec<String>,
    names: KnownNames,
}

/// The orders by their keys, with their labels.
const SORTS: [(&str, &str, Sort); 5] = [
    ("uses", "most used", Sort::Uses),
    ("rising", "rising most", Sort::Rising),
    ("failures", "most failures", Sort::Failures),
    ("limited", "most refused by limits", Sort::Limited),
    ("last", "used last", Sort::Last),
];

/// The members of rows that the download has.
const CSV: [&str; 11] = [
    "key", "upstream", "uses", "failures", "denied", "limited", "p50Ms", "p95Ms", "last", "before",
    "kind",
];

/// Rows of one page.
const PAGE: usize = 50;

/// Unused prompts on one page.
const UNUSED: usize = 100;

impl Page for UsagePage {
    const SECTION: ConsoleSection = ConsoleSection::Usage;

    fn csv(&self) -> Option<String> {
        let rounded = |ms: Option<f64>| ms.and_then(|ms| format!("{ms:.1}").parse().ok());
        let row = |row: &Row| {
            json!(Row { p50_ms: rounded(row.p50_ms), p95_ms: rounded(row.p95_ms), ..row.clone() })
        };
        Some(csv(&CSV, &self.rows.iter().map(row).collect::<Vec<_>>(), "\r\n"))
    }
}

impl UsagePage {
    /// Returns the cells behind the key of a row, and whether each is a number.
    fn cells(&self, row: &Row) -> Vec<(bool, Html)> {
        let row = json!(row);
        let cell = |column: &Column| (column.is_number(), cell(column, &row));
        self.columns.iter().skip(1).map(cell).collect()
    }

    /// The part of a version's name that tells it from others: `@3`.
    fn version(key: &str) -> &str {
        prompt_of_version(key).map_or(key, |prompt| &key[prompt.len()..])
    }

    fn is_by(&self, key: &str) -> bool {
        self.by == key
    }

    fn is_span(&self, span: &TimeSpan) -> bool {
        self.span == span.key
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.params.get(name) == value
    }
}

/// Returns the usage for the parameters `by`, `span`, `sort`, `prompt`, `caller`, `upstream`,
/// `view` and `replica`.
pub(super) async fn usage(state: &AdminState, request: &PageRequest) -> PageResult<UsagePage> {
    let params = &request.params;
    let (by_key, by) = chosen("by", &DIMENSIONS.map(|(key, by, _)| (key, by)), params.get("by"))?;
    let wanted = params.some("span").unwrap_or(LAST_DAY.key);
    let (_, span) = chosen("span", &SPANS.map(|span| (span.key, span)), wanted)?;
    let orders = SORTS.map(|(key, _, sort)| (key, sort));
    let (_, sort) = chosen("sort", &orders, params.get("sort"))?;
    let from = request.now.checked_sub(span.length).unwrap_or(SystemTime::UNIX_EPOCH);
    let owned = |name: &str| params.some(name).map(str::to_owned);
    let endpoint = params.some("view").map(|view| endpoint(state, view));
    let query = Query {
        by,
        from,
        to: request.now,
        filter: Filter {
            prompt: owned("prompt"),
            caller: owned("caller"),
            upstream: owned("upstream"),
            endpoint,
            ..Filter::default()
        },
        limit: request.rows,
        sort,
    };
    let mut report = state.usage_report(&query, params.some("replica"), request.until).await;
    let rows = std::mem::take(&mut report.rows);
    let is_csv = params.get("format") == "csv";
    let paging = request.paging(rows.len(), if is_csv { request.rows } else { PAGE });
    let rows: Vec<_> = rows.into_iter().skip(paging.start).take(paging.size).collect();
    let columns = usage_columns::of_rows(by, &rows).filter(|column| !column.title.is_empty());
    let (unused, unused_total) = match by {
        Dimension::Prompt => unused(state, request, from).await,
        _ => (Vec::new(), 0),
    };
    Ok(UsagePage {
        by: by_key,
        span: span.key,
        columns: columns.collect(),
        rows,
        paging,
        traffic: of_report(report, (from, request.now), span),
        unused,
        unused_total,
        label: span.label,
        params: params.clone(),
        views: state.config.views.iter().map(|view| view.name.clone()).collect(),
        names: known_names(state),
    })
}

/// The choice with a key; the first one without a key.
fn chosen<T: Copy>(
    name: &str,
    choices: &[(&'static str, T)],
    key: &str,
) -> PageResult<(&'static str, T)> {
    let found = choices.iter().find(|(own, _)| key.is_empty() || *own == key);
    found.copied().ok_or_else(|| {
        let keys: Vec<_> = choices.iter().map(|(key, _)| *key).collect();
        let message = format!("{name}={key} is none of {}.", keys.join(", "));
        PageError::new(StatusCode::BAD_REQUEST, message)
    })
}

/// The path of the endpoint of a view; `main` stands for the main one.
fn endpoint(state: &AdminState, view: &str) -> String {
    let server = &state.config.server;
    if view == "main" { server.path.clone() } else { server.view_path(view) }
}

/// Served prompts and skills without a use in the span. A version is used with its prompt.
async fn unused(
    state: &AdminState,
    request: &PageRequest,
    from: SystemTime,
) -> (Vec<String>, usize) {
    let catalog = state.router.catalog();
    let skills = catalog.skills.content.items();
    // A prompt that stands for a skill is counted as that skill.
    let is_own =
        |item: &&ListedItem| item.counted_name() == &item.public_name && !item.is_version();
    let items = catalog.content.items().chain(skills).filter(is_own);
    let names = items.map(|item| &*item.public_name);
    let used = state.used_prompts(from, request.until).await.prompts;
    let unused: Vec<&str> = names.filter(|name| !used.contains(*name)).collect();
    let shown = unused.iter().take(UNUSED.min(request.rows));
    (shown.map(|name| (*name).to_owned()).collect(), unused.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_that_does_not_exist_is_refused_with_those_that_do() {
        let dimensions = DIMENSIONS.map(|(key, by, _)| (key, by));
        assert_eq!(chosen("by", &dimensions, "").unwrap().0, "prompt");
        assert_eq!(chosen("by", &dimensions, "group").unwrap().0, "group");
        let refused = chosen("by", &dimensions, "banana").unwrap_err();
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.message.contains("by=banana"), "{}", refused.message);
        assert!(refused.message.contains("prompt, upstream, caller, group, view"));
    }
}
