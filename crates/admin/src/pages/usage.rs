//! Usage: uses by prompt, upstream and caller, with their outcomes, over minutes to months.

use std::fmt::Write as _;
use std::time::SystemTime;

use askama::Template;

use super::traffic::{SPANS, TimeSpan, Traffic, of_report, span};
use super::{Page, PageResult};
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::request::{PageRequest, Paging, Params};
use crate::state::AdminState;
use audit::usage::{Dimension, Filter, Query, Row, Sort};

/// Uses in a span of time, by one dimension.
#[derive(Template)]
#[template(path = "usage.html")]
pub(super) struct UsagePage {
    by: &'static str,
    span: &'static str,
    rows: Vec<Row>,
    paging: Paging,
    traffic: Traffic,
    /// Unused prompts, where rows are prompts.
    unused: Vec<String>,
    unused_total: usize,
    label: &'static str,
    params: Params,
    views: Vec<String>,
}

/// The dimensions by their keys.
const DIMENSIONS: [(&str, Dimension); 5] = [
    ("prompt", Dimension::Prompt),
    ("upstream", Dimension::Upstream),
    ("caller", Dimension::Caller),
    ("group", Dimension::Group),
    ("view", Dimension::View),
];

/// The orders by their keys, with their labels.
const SORTS: [(&str, &str, Sort); 5] = [
    ("uses", "most used", Sort::Uses),
    ("rising", "rising most", Sort::Rising),
    ("failures", "most failures", Sort::Failures),
    ("limited", "most refused by limits", Sort::Limited),
    ("last", "used last", Sort::Last),
];

/// Rows of one page.
const PAGE: usize = 50;

/// Unused prompts on one page.
const UNUSED: usize = 100;

impl Page for UsagePage {
    const SECTION: ConsoleSection = ConsoleSection::Usage;

    fn csv(&self) -> Option<String> {
        let mut out =
            String::from("key,upstream,uses,failures,denied,limited,p50_ms,p95_ms,last,before\r\n");
        for row in &self.rows {
            let last = row.last.map(|last| humantime::format_rfc3339_seconds(last).to_string());
            let number = |value: Option<f64>| value.map(|v| format!("{v:.1}")).unwrap_or_default();
            let _ = write!(
                out,
                "{},{},{},{},{},{},{},{},{},{}\r\n",
                field(&row.key),
                field(row.upstream.as_deref().unwrap_or_default()),
                row.uses,
                row.failures,
                row.denied,
                row.limited,
                number(row.p50_ms),
                number(row.p95_ms),
                last.unwrap_or_default(),
                row.before
            );
        }
        Some(out)
    }
}

impl UsagePage {
    /// Whether percentiles are kept by this dimension.
    fn has_percentiles(&self) -> bool {
        self.rows.iter().any(|row| row.p95_ms.is_some())
    }

    fn heading(&self) -> &'static str {
        match self.by {
            "upstream" => "Upstream",
            "caller" => "Caller",
            "group" => "Group",
            "view" => "Endpoint",
            _ => "Prompt",
        }
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

/// A text as a field (RFC 4180). A text that a spreadsheet would take for a formula begins with an
/// apostrophe.
fn field(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

/// Returns the usage for the parameters `by`, `span`, `sort`, `prompt`, `caller`, `upstream` and
/// `view`.
///
/// # Errors
/// None; the result has the form of the other pages.
pub(super) async fn usage(state: &AdminState, request: &PageRequest) -> PageResult<UsagePage> {
    let params = &request.params;
    let (by_key, by) = chosen(&DIMENSIONS, params.get("by"));
    let span: TimeSpan = span(params.get("span"));
    let sort = SORTS.iter().find(|(key, _, _)| *key == params.get("sort"));
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
        },
        limit: request.rows,
        sort: sort.map(|(_, _, sort)| *sort).unwrap_or_default(),
    };
    let mut report = state.usage.report(query, request.until).await;
    let rows = std::mem::take(&mut report.rows);
    let is_csv = params.get("format") == "csv";
    let paging = request.paging(rows.len(), if is_csv { request.rows } else { PAGE });
    let rows = rows.into_iter().skip(paging.start).take(paging.size).collect();
    let (unused, unused_total) = match by {
        Dimension::Prompt => unused(state, request, from).await,
        _ => (Vec::new(), 0),
    };
    Ok(UsagePage {
        by: by_key,
        span: span.key,
        rows,
        paging,
        traffic: of_report(report, (from, request.now), span),
        unused,
        unused_total,
        label: span.label,
        params: params.clone(),
        views: state.config.views.iter().map(|view| view.name.clone()).collect(),
    })
}

/// The choice with a key; the first one for any other.
fn chosen<T: Copy>(choices: &[(&'static str, T)], key: &str) -> (&'static str, T) {
    choices.iter().find(|(own, _)| *own == key).copied().unwrap_or(choices[0])
}

/// The path of the endpoint of a view; `main` stands for the main one.
fn endpoint(state: &AdminState, view: &str) -> String {
    let server = &state.config.server;
    if view == "main" { server.path.clone() } else { server.view_path(view) }
}

/// Served prompts without a use in the span.
async fn unused(
    state: &AdminState,
    request: &PageRequest,
    from: SystemTime,
) -> (Vec<String>, usize) {
    let catalog = state.router.catalog();
    let names = catalog.content.owners().map(|owner| &*owner.public_name);
    let (unused, _) = state.usage.unused(names, from, request.until).await;
    let shown = unused.iter().take(UNUSED.min(request.rows));
    (shown.map(|name| (*name).to_owned()).collect(), unused.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_and_no_formula_reaches_a_spreadsheet() {
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("=cmd|x"), "'=cmd|x");
        assert_eq!(field("+1,2"), "\"'+1,2\"");
    }
}
