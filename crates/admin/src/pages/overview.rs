//! The overview: conditions that need attention, then traffic.

use askama::Template;

use super::Page;
use super::traffic::{LAST_DAY, LAST_HOUR, Traffic, traffic};
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::request::PageRequest;
use crate::state::AdminState;
use audit::usage::Filter;
use domain::percent;
use gateway::router::UpstreamStatus;
use gateway::router::catalog::Catalog;

/// The first page.
#[derive(Template)]
#[template(path = "overview.html")]
pub(super) struct Overview {
    attention: Vec<Attention>,
    prompts: usize,
    left_out: usize,
    upstreams: usize,
    upstreams_up: usize,
    /// Replicas of this gateway, this one included.
    replicas: usize,
    version: &'static str,
    uptime_secs: u64,
    hour: Traffic,
    day: Traffic,
}

/// A condition that needs attention.
#[derive(Debug)]
struct Attention {
    /// `bad` or `warn`.
    severity: &'static str,
    text: String,
    /// The page with the details.
    page: String,
}

impl Page for Overview {
    const SECTION: ConsoleSection = ConsoleSection::Overview;
}

/// Returns the overview.
pub(super) async fn overview(state: &AdminState, request: &PageRequest) -> Overview {
    let catalog = state.router.catalog();
    let status = state.router.status_in(&catalog);
    let hour = traffic(state, request, LAST_HOUR, Filter::default()).await;
    Overview {
        attention: attention(state, &catalog, &status, hour.limited, request.rows),
        prompts: catalog.content.prompt_count(),
        left_out: catalog.content.left_out.len(),
        upstreams: status.len(),
        upstreams_up: status.iter().filter(|upstream| upstream.state == "up").count(),
        replicas: state.cluster.as_ref().map_or(1, |cluster| cluster.replicas().len().max(1)),
        version: env!("CARGO_PKG_VERSION"),
        uptime_secs: state.reloads.started.elapsed().as_secs(),
        hour,
        day: traffic(state, request, LAST_DAY, Filter::default()).await,
    }
}

/// Returns the conditions that need attention, the worst first, in at most `max` lines. `limited`
/// is how many calls the limits have refused in the last hour. All lines are about the same
/// snapshot, which the numbers of the page are of.
fn attention(
    state: &AdminState,
    catalog: &Catalog,
    status: &[UpstreamStatus],
    limited: u64,
    max: usize,
) -> Vec<Attention> {
    let mut all = Vec::new();
    let mut add = |severity, text: String, page: &str| {
        all.push(Attention { severity, text, page: page.to_owned() });
    };
    for reason in state.unready_reasons_in(catalog) {
        add("bad", format!("Not ready: {reason}"), "/configuration");
    }
    for upstream in status {
        let Some(failure) = &upstream.failure else { continue };
        let severity = if upstream.state == "down" { "bad" } else { "warn" };
        let text =
            format!("Upstream {} is {}: {}", upstream.id, upstream.state, failure.diagnosis());
        let id = percent::encoded_segment(&upstream.id);
        add(severity, text, &format!("/upstreams/{id}"));
    }
    for mistake in state.reloads.mistakes() {
        add("bad", format!("The configuration file is rejected: {mistake}"), "/configuration");
    }
    for key in state.reloads.needs_restart() {
        add(
            "warn",
            format!("{key} was changed in the file; restart the gateway to apply it"),
            "/configuration",
        );
    }
    if state.audit.is_on() && !state.audit.is_up() {
        add("bad", "The audit log cannot be written".to_owned(), "/audit");
    } else if state.audit.lag() > LAG {
        let text =
            format!("Records wait {:.1} s for the audit log", state.audit.lag().as_secs_f64());
        add("warn", text, "/audit");
    }
    for problem in state.regular_verification.last().into_iter().flat_map(|last| last.problems) {
        add("bad", format!("The audit log is not intact: {problem}"), "/audit/verification");
    }
    for upstream in status {
        let Some(waiting) = upstream.waiting() else { continue };
        let id = percent::encoded_segment(&upstream.id);
        let page = format!("/approvals?state=waiting&upstream={id}");
        add("warn", format!("Upstream {}: {waiting}", upstream.id), &page);
    }
    if let Some(cluster) = &state.cluster {
        if let Some(failure) = cluster.failure() {
            add(
                "bad",
                format!("The store of the cluster is not available: {failure}"),
                "/configuration",
            );
        }
        let differing = cluster.differing();
        if differing > 0 {
            let text =
                format!("{differing} replicas have another configuration or another catalog");
            add("warn", text, "/configuration");
        }
    }
    if limited > 0 {
        add(
            "warn",
            format!("Limits have refused {limited} calls in the last hour"),
            "/usage?span=1h&by=caller&sort=limited",
        );
    }
    let look_alikes = catalog.content.look_alikes.len();
    if look_alikes > 0 {
        add("warn", format!("{look_alikes} pairs of prompts look alike"), "/prompts");
    }
    all.sort_by_key(|attention| attention.severity != "bad");
    all.truncate(max);
    all
}

/// A record that has waited so long stands for a slow disk.
const LAG: std::time::Duration = std::time::Duration::from_secs(1);
