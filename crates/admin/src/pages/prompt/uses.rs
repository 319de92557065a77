//! The tab of uses: the number of uses of a prompt or skill, its callers, and its latest records.

use std::time::Duration;

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::pages::traffic::{LAST_DAY, Traffic, of_report};
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
    /// Its callers in the last day.
    callers: Vec<Row>,
    /// Its latest records, as far as they are found at once.
    records: Vec<LogEntry>,
}

/// Callers that are named on the page.
const CALLERS: usize = 20;

/// Records that are shown on the page.
const RECORDS: usize = 10;

/// The time for finding them: the records of a prompt that is rarely used may be far back.
pub(super) const SEARCH: Duration = Duration::from_millis(500);

pub(super) async fn uses(looked: &Looked<'_>) -> UsesTab {
    let Looked { state, request, item, .. } = *looked;
    let name = &**item.counted_name();
    let filter = Filter { prompt: Some(name.to_owned()), ..Filter::default() };
    let query = Query {
        by: Dimension::Caller,
        from: request.now.checked_sub(LAST_DAY.length).unwrap_or(request.now),
        to: request.now,
        filter,
        limit: CALLERS.min(request.rows),
        sort: Sort::Uses,
    };
    let within = (query.from, query.to);
    let mut report = state.usage_report(&query, None, request.until).await;
    let callers = std::mem::take(&mut report.rows);
    let find = Find { prompt: Some(name.to_owned()), ..Find::default() };
    UsesTab {
        name: name.to_owned(),
        is_of_skill: name != looked.name,
        uses: of_report(report, within, LAST_DAY),
        callers,
        records: state.latest(find, RECORDS.min(request.rows), request.within(SEARCH)).await,
    }
}
