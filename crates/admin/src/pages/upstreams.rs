//! The upstreams: state, list, breaker, load and last errors of each.

use std::time::{Duration, SystemTime};

use askama::Template;

use super::traffic::{LAST_DAY, Traffic, traffic};
use super::{Page, PageError, PageResult};
use crate::accounts::AccountRow;
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::request::PageRequest;
use crate::state::AdminState;
use crate::upstream_row::UpstreamRow;
use audit::usage::Filter;
use catalog::snapshot::LeftOut;

/// All upstreams.
#[derive(Template)]
#[template(path = "upstreams.html")]
pub(crate) struct UpstreamsPage {
    upstreams: Vec<UpstreamRow>,
}

/// One upstream.
#[derive(Template)]
#[template(path = "upstream.html")]
pub(super) struct UpstreamPage {
    upstream: UpstreamRow,
    /// The address, command or folder in the configuration.
    place: Option<String>,
    /// When it was last reached, and when it is tried again.
    down_since: Option<SystemTime>,
    next_try: Option<SystemTime>,
    /// Why prompts cannot be listed; for a library each begins with the file and the line.
    mistakes: Vec<String>,
    /// The accounts of callers there, the most recently used first.
    accounts: Vec<AccountRow>,
    traffic: Traffic,
}

impl UpstreamPage {
    /// Whether it speaks MCP.
    fn is_server(&self) -> bool {
        ["http", "sse", "stdio"].contains(&self.upstream.transport)
    }
}

/// The keys of an upstream's table that say where it is, the first that is set.
const PLACES: [&str; 3] = ["url", "command", "path"];

impl Page for UpstreamsPage {
    const SECTION: ConsoleSection = ConsoleSection::Upstreams;
}

impl Page for UpstreamPage {
    const SECTION: ConsoleSection = ConsoleSection::Upstreams;

    fn title(&self) -> String {
        self.upstream.upstream.clone()
    }
}

/// Returns all upstreams, in the order of their ids.
pub(crate) fn upstreams(state: &AdminState) -> UpstreamsPage {
    UpstreamsPage { upstreams: state.router.status().into_iter().map(UpstreamRow::of).collect() }
}

/// Returns one upstream.
pub(super) async fn upstream(
    state: &AdminState,
    request: &PageRequest,
    id: &str,
) -> PageResult<UpstreamPage> {
    let mut all = state.router.status().into_iter();
    let status = all.find(|status| status.id == id);
    let status = status.ok_or_else(|| PageError::not_found("upstream with this id"))?;
    let filter = Filter { upstream: Some(id.to_owned()), ..Filter::default() };
    let traffic = traffic(state, request, LAST_DAY, filter).await;
    let row = UpstreamRow::of(status);
    let value = |key| {
        let key = format!("upstreams.{id}.{key}");
        state.config.settings.iter().find(|setting| setting.key == key)
    };
    let catalog = state.router.catalog();
    let left_out = catalog.content.left_out.iter();
    let accounts = state.router.list_accounts(Some(id)).await.into_iter();
    let accounts = accounts.filter(|account| account.ended.is_none()).take(request.rows);
    let broken = left_out.filter(|row| row.upstream == id && row.by.is_mistake());
    Ok(UpstreamPage {
        place: PLACES.into_iter().find_map(value).map(|setting| setting.value.clone()),
        down_since: row
            .down_secs
            .and_then(|secs| request.now.checked_sub(Duration::from_secs(secs))),
        next_try: row.next_try_ms.and_then(|ms| request.now.checked_add(Duration::from_millis(ms))),
        mistakes: broken.take(request.rows).map(LeftOut::sentence).collect(),
        accounts: accounts.map(|account| AccountRow::of(&account)).collect(),
        upstream: row,
        traffic,
    })
}
