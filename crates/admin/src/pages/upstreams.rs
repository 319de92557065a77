//! The upstreams: state, list, breaker, load and last errors of each.

use askama::Template;

use super::traffic::{LAST_DAY, Traffic, traffic};
use super::{Page, PageError, PageResult};
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::request::PageRequest;
use crate::state::AdminState;
use crate::upstream_row::UpstreamRow;
use audit::usage::Filter;

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
    traffic: Traffic,
}

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
    Ok(UpstreamPage { upstream: UpstreamRow::of(status), traffic })
}
