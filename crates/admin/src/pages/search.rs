//! The search over the whole console: prompts, skills, upstreams, callers and records.

use std::time::Duration;

use askama::Template;

use super::prompts::best;
use super::rights::known;
use super::skills::matching;
use super::{Page, PageResult};
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::request::PageRequest;
use crate::state::AdminState;
use audit::search::{Find, LogEntry};

/// The finds for one text.
#[derive(Default, Template)]
#[template(path = "search.html")]
pub(super) struct SearchPage {
    text: String,
    /// Names and titles of prompts, the best first.
    prompts: Vec<(String, String)>,
    /// URIs of skills, in their order.
    skills: Vec<String>,
    /// Prompts and skills that are not served.
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
            && self.skills.is_empty()
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

/// Returns the matches of the parameter `q`.
pub(super) async fn search(state: &AdminState, request: &PageRequest) -> PageResult<SearchPage> {
    let text = request.params.get("q").trim().to_owned();
    if text.is_empty() {
        return Ok(SearchPage::default());
    }
    let lower = text.to_lowercase();
    let is_found = |name: &str| name.to_lowercase().contains(&lower);
    let catalog = state.router.catalog();
    let skills = matching(&catalog.skills, &text).into_iter().take(FINDS);
    let rows = catalog.approvals.iter().flat_map(|rows| rows.iter());
    let held = rows.filter(|row| row.is_held() && is_found(&row.public_name));
    let upstreams = state.config.upstreams.iter().map(|upstream| upstream.id.to_string());
    let callers = known(&state.config).into_iter().map(|who| who.label);
    let find = Find { text: Some(text.clone()), ..Find::default() };
    Ok(SearchPage {
        prompts: best(state, request, FINDS)?,
        skills: skills.map(|found| found.item.public_name.to_string()).collect(),
        held: held.take(FINDS).map(|row| row.public_name.clone()).collect(),
        upstreams: upstreams.filter(|id| is_found(id)).take(FINDS).collect(),
        callers: callers.filter(|label| is_found(label)).take(FINDS).collect(),
        records: state.latest(find, FINDS, request.within(SEARCH)).await,
        text,
    })
}
