//! The search over the whole console: prompts, upstreams, callers and records.

use std::time::Duration;

use askama::Template;
use tokio::time::Instant;

use super::prompts::best;
use super::rights::known;
use super::{Page, PageResult};
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::request::PageRequest;
use crate::state::AdminState;
use audit::search::{self, Find, LogEntry};
use gateway::router::blocking::beside_calls;

/// The finds for one text.
#[derive(Template)]
#[template(path = "search.html")]
pub(super) struct SearchPage {
    text: String,
    /// Names and titles of prompts, the best first.
    prompts: Vec<(String, String)>,
    /// Prompts that are not served.
    held: Vec<String>,
    upstreams: Vec<String>,
    callers: Vec<String>,
    records: Vec<LogEntry>,
}

impl Page for SearchPage {
    const SECTION: ConsoleSection = ConsoleSection::Overview;

    fn title(&self) -> String {
        "Search".to_owned()
    }
}

impl SearchPage {
    fn is_empty(&self) -> bool {
        self.prompts.is_empty()
            && self.held.is_empty()
            && self.upstreams.is_empty()
            && self.callers.is_empty()
            && self.records.is_empty()
    }
}

/// Finds of each kind.
const FINDS: usize = 10;

/// The time for finding records, which may be far back.
const SEARCH: Duration = Duration::from_millis(300);

/// Returns what the parameter `q` finds.
///
/// # Errors
/// The prompts cannot be searched in time.
pub(super) async fn search(state: &AdminState, request: &PageRequest) -> PageResult<SearchPage> {
    let text = request.params.get("q").trim().to_owned();
    if text.is_empty() {
        let (prompts, held, upstreams) = (Vec::new(), Vec::new(), Vec::new());
        let (callers, records) = (Vec::new(), Vec::new());
        return Ok(SearchPage { text, prompts, held, upstreams, callers, records });
    }
    let lower = text.to_lowercase();
    let is_found = |name: &str| name.to_lowercase().contains(&lower);
    let catalog = state.router.catalog();
    let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
    let held = rows.filter(|row| row.is_held() && is_found(&row.public_name));
    let upstreams = state.config.upstreams.iter().map(|upstream| upstream.id.to_string());
    let callers = known(&state.config).into_iter().map(|who| who.label);
    Ok(SearchPage {
        prompts: best(state, request, FINDS)?,
        held: held.take(FINDS).map(|row| row.public_name.clone()).collect(),
        upstreams: upstreams.filter(|id| is_found(id)).take(FINDS).collect(),
        callers: callers.filter(|label| is_found(label)).take(FINDS).collect(),
        records: records(state, request, &text).await,
        text,
    })
}

/// The latest records that show the text.
async fn records(state: &AdminState, request: &PageRequest, text: &str) -> Vec<LogEntry> {
    let Some(path) = state.audit.path() else {
        return Vec::new();
    };
    let find = Find { text: Some(text.to_owned()), ..Find::default() };
    let until = request.until.min(Instant::now() + SEARCH);
    let found = beside_calls(move || search::find(&path, &find, FINDS, None, until)).await;
    found.map(|found| found.entries).unwrap_or_default()
}
