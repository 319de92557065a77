//! The tab of uses: the number of uses of a prompt or skill, its callers, and its latest records.

use std::time::Duration;

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::pages::traffic::{LAST_DAY, Traffic, of_report};
use crate::request::PageRequest;
use audit::search::{Find, LogEntry};
use audit::usage::{Dimension, Filter, Query, Row, Sort};

/// The uses of one prompt or skill in the last day.
#[derive(Template)]
#[template(path = "prompt_uses.html")]
pub(super) struct UsesTab {
    /// The name that uses are counted under.
    name: String,
    /// Whether that is the name of the skill that the prompt stands for.
    is_of_skill: bool,
    uses: Traffic,
    /// The names under which it was used, if versions of it are among them, most used first.
    versions: Vec<VersionUses>,
    /// Its callers in the last day.
    callers: Vec<Row>,
    /// Its latest records, as far as they are found at once.
    records: Vec<LogEntry>,
}

/// The uses of a prompt under one name.
struct VersionUses {
    row: Row,
    /// The version and label that the name stands for now; empty if they are not known.
    version: String,
    /// The callers with most uses.
    callers: String,
}

/// Versions that are compared on the page.
const VERSIONS: usize = 10;

/// Callers of one version that are named.
const VERSION_CALLERS: usize = 5;

/// Callers that are named on the page.
const CALLERS: usize = 20;

/// Records that are shown on the page.
const RECORDS: usize = 10;

/// The time for finding them: the records of a prompt that is rarely used may be far back.
pub(super) const SEARCH: Duration = Duration::from_millis(500);

pub(super) async fn uses(looked: &Looked<'_>) -> UsesTab {
    let Looked { state, request, item, .. } = *looked;
    let name = &**item.counted_name();
    let query = last_day(request, name, Dimension::Caller, CALLERS.min(request.rows));
    let within = (query.from, query.to);
    let mut report = state.usage_report(&query, None, request.until).await;
    let callers = std::mem::take(&mut report.rows);
    let versions = versions(looked, &query).await;
    let find = Find { prompt: Some(name.to_owned()), ..Find::default() };
    UsesTab {
        name: name.to_owned(),
        is_of_skill: name != looked.name,
        uses: of_report(report, within, LAST_DAY),
        versions,
        callers,
        records: state.latest(find, RECORDS.min(request.rows), request.within(SEARCH)).await,
    }
}

/// The question for the uses of a prompt, with its versions, in the last day.
pub(super) fn last_day(request: &PageRequest, name: &str, by: Dimension, limit: usize) -> Query {
    Query {
        by,
        from: request.now.checked_sub(LAST_DAY.length).unwrap_or(request.now),
        to: request.now,
        filter: Filter { prompt: Some(name.to_owned()), ..Filter::default() },
        limit,
        sort: Sort::Uses,
    }
}

/// Compares the names under which a prompt was used, with the period and filter of `query`.
async fn versions(looked: &Looked<'_>, query: &Query) -> Vec<VersionUses> {
    let Looked { state, request, .. } = *looked;
    let by_prompt = Query { by: Dimension::Prompt, ..query.clone() };
    let report = state.usage_report(&by_prompt, None, request.until).await;
    let rows = report.rows.into_iter().flat_map(|row| row.versions);
    let catalog = state.router.catalog();
    let mut versions = Vec::new();
    for row in rows.take(VERSIONS.min(request.rows)) {
        let filter = Filter { name: Some(row.key.clone()), ..Filter::default() };
        let query = Query { filter, limit: VERSION_CALLERS, ..query.clone() };
        let callers = state.usage_report(&query, None, request.until).await.rows;
        let callers = callers.iter().map(|caller| format!("{} {}", caller.key, caller.uses));
        let item = catalog.content.item(&row.key);
        let version = item.and_then(|item| item.version.as_ref()).map(|of| match &of.label {
            Some(label) => format!("{} ({label})", of.version),
            None => of.version.to_string(),
        });
        versions.push(VersionUses {
            version: version.unwrap_or_default(),
            callers: callers.collect::<Vec<_>>().join(", "),
            row,
        });
    }
    versions
}
