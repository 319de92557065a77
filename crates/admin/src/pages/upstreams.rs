//! The upstreams: state, list, breaker, load and last errors of each.

use askama::Template;
use serde::Serialize;
use tokio::time::Instant;

use super::traffic::{LAST_DAY, Traffic, traffic};
use super::{Page, PageError, PageResult};
use crate::console::Section;
use crate::console::text::filters;
use crate::request::PageRequest;
use crate::state::State;
use audit::usage::Filter;
use domain::fault::UpstreamFaultKind;
use domain::millis::whole_millis;
use gateway::router::UpstreamStatus;

/// All upstreams.
#[derive(Template)]
#[template(path = "upstreams.html")]
pub(crate) struct Upstreams {
    upstreams: Vec<UpstreamRow>,
}

/// One upstream.
#[derive(Template)]
#[template(path = "upstream.html")]
pub(super) struct UpstreamPage {
    upstream: UpstreamRow,
    traffic: Traffic,
}

/// The status of one upstream.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UpstreamRow {
    pub upstream: String,
    pub transport: &'static str,
    /// `connecting`, `up` or `down`.
    pub state: &'static str,
    pub era: Option<&'static str>,
    pub revision: Option<&'static str>,
    /// Whether the upstream sends `list_changed`.
    pub list_changed: bool,
    pub listed: usize,
    pub in_flight: usize,
    pub waiting: usize,
    /// `open` or `closed`.
    pub breaker: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<usize>,
    /// How often its driver has failed and was started again.
    pub driver_restarts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
    /// The last lines of its child processes on standard error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<UpstreamError>,
}

/// Why an upstream cannot be called, or its list is stale or missing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UpstreamError {
    pub reason: &'static str,
    pub message: String,
}

impl Page for Upstreams {
    const SECTION: Section = Section::Upstreams;
}

impl Page for UpstreamPage {
    const SECTION: Section = Section::Upstreams;

    fn title(&self) -> String {
        self.upstream.upstream.clone()
    }
}

/// Returns all upstreams, in the order of their ids.
pub(crate) fn upstreams(state: &State) -> Upstreams {
    Upstreams { upstreams: state.router.status().into_iter().map(UpstreamRow::of).collect() }
}

/// Returns one upstream.
///
/// # Errors
/// There is none with this id.
pub(super) async fn upstream(
    state: &State,
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

impl UpstreamRow {
    pub(crate) fn of(status: UpstreamStatus) -> Self {
        let note = status.note();
        let until =
            status.breaker_open_until.map(|until| until.saturating_duration_since(Instant::now()));
        // The lines of the attempt that failed, where there is one: the upstream may have been started
        // again.
        let stderr = match status.failure.as_ref().map(UpstreamFaultKind::stderr) {
            Some(stderr) if !stderr.is_empty() => stderr.to_vec(),
            _ => status.stderr_tail.lines(),
        };
        let error = |kind: UpstreamFaultKind| UpstreamError {
            reason: kind.reason(),
            message: kind.diagnosis(),
        };
        Self {
            upstream: status.id,
            transport: status.transport,
            state: status.state,
            era: status.revision.map(|revision| revision.era_name()),
            revision: status.revision.map(|revision| revision.as_str()),
            list_changed: status.notifies,
            listed: status.listed,
            in_flight: status.load.0,
            waiting: status.load.1,
            breaker: if until.is_some() { "open" } else { "closed" },
            next_try_ms: until.map(whole_millis),
            prompts: status.walk.map(|walk| walk.prompts),
            pages: status.walk.map(|walk| walk.pages),
            driver_restarts: status.driver_restarts,
            age_secs: status.walk.map(|walk| walk.at.elapsed().as_secs()),
            note,
            stderr,
            error: status.failure.map(error),
        }
    }
}
