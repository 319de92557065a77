//! The overview: conditions that need attention, numbers that lead on, changes, and traffic.

use std::time::{Duration, SystemTime};

use askama::Template;

use super::Page;
use super::sentence::sentence;
use super::traffic::{LAST_DAY, LAST_HOUR, LAST_YEAR, TimeSpan, Traffic, of_report, traffic};
use crate::console::plot::number;
use crate::console::text::{Html, counted};
use crate::console::{ConsoleSection, filters};
use crate::request::PageRequest;
use crate::rollouts;
use crate::state::AdminState;
use audit::search::{EventKinds, Find, LogEntry};
use audit::usage::{Dimension, Filter, Query, Row, Sort};
use audit::verify::regular::RegularOutcome;
use calls::UpstreamStatus;
use catalog::snapshot::{Catalog, LeftOut, LeftOutBy};
use domain::calls::caller::CONSOLE;
use domain::text::percent;

/// The first page.
#[derive(Template)]
#[template(path = "overview.html")]
pub(super) struct Overview {
    attention: Vec<Attention>,
    tiles: Vec<Tile>,
    first_steps: Vec<FirstStep>,
    news: Vec<News>,
    /// The last verification of the audit log by the gateway itself.
    verified: Option<RegularOutcome>,
    has_audit: bool,
    /// Replicas of this gateway, this one included.
    replicas: usize,
    version: &'static str,
    uptime_secs: u64,
    hour: Traffic,
    day: Traffic,
}

/// A number that leads to the page with its details.
struct Tile {
    value: String,
    label: String,
    page: &'static str,
    /// `bad` or `warn`; empty if all is well.
    severity: &'static str,
    /// The severity in words, or a detail of the number.
    note: String,
}

/// A step of setting the gateway up that is not done yet.
struct FirstStep {
    label: &'static str,
    page: &'static str,
    how: &'static str,
}

/// A change that the audit log has.
struct News {
    seq: u64,
    time: String,
    sentence: Html,
    /// Changes of the same kind right before it.
    more: usize,
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

#[derive(Default)]
struct AttentionList(Vec<Attention>);

impl AttentionList {
    fn bad(&mut self, text: String, page: &str) {
        self.0.push(Attention { severity: "bad", text, page: page.to_owned() });
    }

    fn warn(&mut self, text: String, page: &str) {
        self.0.push(Attention { severity: "warn", text, page: page.to_owned() });
    }

    /// Returns at most `max` conditions, the bad ones first.
    fn worst(mut self, max: usize) -> Vec<Attention> {
        self.0.sort_by_key(|attention| attention.severity != "bad");
        self.0.truncate(max);
        self.0
    }
}

impl Page for Overview {
    const SECTION: ConsoleSection = ConsoleSection::Overview;
}

/// Returns the overview.
pub(super) async fn overview(state: &AdminState, request: &PageRequest) -> Overview {
    let catalog = state.router.catalog();
    let status = state.router.status_in(&catalog);
    let hour = traffic(state, request, LAST_HOUR, Filter::default()).await;
    let (callers, day) = day(state, request).await;
    let mut tiles = tiles_of_traffic(&hour, &day);
    tiles.extend(tiles_of_catalog(&catalog, &status));
    Overview {
        attention: attention(state, &catalog, &status, hour.limited, request.rows),
        tiles,
        first_steps: first_steps(state, request, callers).await,
        news: news(state, request).await,
        verified: state.regular_verification.last(),
        has_audit: state.audit.is_on(),
        replicas: state.cluster.as_ref().map_or(1, |cluster| cluster.replicas().len().max(1)),
        version: env!("CARGO_PKG_VERSION"),
        uptime_secs: state.reloads.started.elapsed().as_secs(),
        hour,
        day,
    }
}

/// Returns the callers of the last day, and its traffic.
async fn day(state: &AdminState, request: &PageRequest) -> (Vec<Row>, Traffic) {
    let query = callers(request, LAST_DAY);
    let mut report = state.usage_report(&query, None, request.until).await;
    let rows = std::mem::take(&mut report.rows);
    (rows, of_report(report, (query.from, query.to), LAST_DAY))
}

/// The question for the callers in a span of time, with the most uses first.
fn callers(request: &PageRequest, span: TimeSpan) -> Query {
    Query {
        by: Dimension::Caller,
        from: request.now.checked_sub(span.length).unwrap_or(SystemTime::UNIX_EPOCH),
        to: request.now,
        filter: Filter::default(),
        limit: CALLERS,
        sort: Sort::Uses,
    }
}

/// Callers that are listed, to find a caller other than the console.
const CALLERS: usize = 50;

/// The share of failures from which on their tile is bad, in percent.
const MANY_FAILURES: f64 = 5.0;

fn tiles_of_traffic(hour: &Traffic, day: &Traffic) -> Vec<Tile> {
    let uses = |traffic: &Traffic, when, page| Tile {
        value: traffic.uses.to_string(),
        label: format!("use{} in the last {when}", if traffic.uses == 1 { "" } else { "s" }),
        page,
        severity: "",
        note: String::new(),
    };
    let failed = |traffic: &Traffic, when, page| {
        let share = traffic.failures as f64 * 100.0 / traffic.uses.max(1) as f64;
        let is_bad = share >= MANY_FAILURES;
        Tile {
            value: format!("{} %", number(share)),
            label: format!("failed in the last {when}"),
            page,
            severity: if is_bad { "bad" } else { "" },
            note: if is_bad { "high".to_owned() } else { String::new() },
        }
    };
    let p95 = Tile {
        value: hour.p95_ms.map_or("–".to_owned(), |ms| format!("{} ms", number(ms))),
        label: "95th percentile, last hour".to_owned(),
        page: "/usage?by=upstream&span=1h",
        severity: "",
        note: String::new(),
    };
    vec![
        uses(hour, "hour", "/usage?span=1h"),
        failed(hour, "hour", "/usage?span=1h&sort=failures"),
        p95,
        uses(day, "day", "/usage"),
        failed(day, "day", "/usage?sort=failures"),
    ]
}

fn tiles_of_catalog(catalog: &Catalog, status: &[UpstreamStatus]) -> [Tile; 3] {
    let up = status.iter().filter(|upstream| upstream.state == "up").count();
    let waiting: usize = status.iter().map(|upstream| upstream.undecided).sum();
    let prompts = catalog.content.prompt_count();
    // A prompt that is not offered as a skill is still offered as a prompt.
    let is_left_out = |left_out: &&LeftOut| left_out.by != LeftOutBy::NoSkill;
    let left_out = catalog.content.left_out.iter().filter(is_left_out).count();
    let note = |is_needed: bool, text: String| if is_needed { text } else { String::new() };
    [
        Tile {
            value: waiting.to_string(),
            label: format!("approval{} to decide", if waiting == 1 { "" } else { "s" }),
            page: "/approvals?state=waiting",
            severity: if waiting > 0 { "warn" } else { "" },
            note: String::new(),
        },
        Tile {
            value: format!("{up}/{}", status.len()),
            label: "upstreams up".to_owned(),
            page: "/upstreams",
            severity: if up < status.len() { "bad" } else { "" },
            note: note(up < status.len(), format!("{} not up", status.len() - up)),
        },
        Tile {
            value: prompts.to_string(),
            label: format!("prompt{} served", if prompts == 1 { "" } else { "s" }),
            page: "/prompts",
            severity: "",
            note: note(left_out > 0, format!("{left_out} left out")),
        },
    ]
}

/// Returns the steps that a new gateway still lacks. `callers_seen` are the callers of the last
/// day; the last year is searched only where they do not settle a step.
async fn first_steps(
    state: &AdminState,
    request: &PageRequest,
    mut callers_seen: Vec<Row>,
) -> Vec<FirstStep> {
    let is_host = |row: &Row| {
        row.uses > 0 && row.key != CONSOLE && !row.key.starts_with(&format!("{CONSOLE}/"))
    };
    if !callers_seen.iter().any(is_host) {
        let year = callers(request, LAST_YEAR);
        callers_seen.extend(state.usage_report(&year, None, request.until).await.rows);
    }
    let has_token = state.admin.token.is_some() || state.admin.oidc.is_some();
    let steps = [
        (
            state.config.upstreams.is_empty(),
            FirstStep {
                label: "Add an upstream",
                page: "/configuration?q=upstreams",
                how: "a table [upstreams.NAME] in the configuration file",
            },
        ),
        (
            !callers_seen.iter().any(|row| row.uses > 0),
            FirstStep { label: "Try a prompt", page: "/prompts", how: "on its page" },
        ),
        (
            !callers_seen.iter().any(is_host),
            FirstStep { label: "Connect a host", page: "/connect", how: "with the entry for it" },
        ),
        (
            !has_token,
            FirstStep {
                label: "Set a token",
                page: "/configuration?q=admin.token",
                how: "admin.token, so that people can sign in and decide",
            },
        ),
    ];
    steps.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, step)| step).collect()
}

/// The events of the feed: decisions, reloads, definitions, upstreams, and people who sign in.
const CHANGES: [&str; 33] = [
    "prompt_approved",
    "prompt_approved_by_one",
    "prompt_rejected",
    "prompt_withdrawn",
    "prompt_rolled_back",
    "prompt_state",
    "prompt_states",
    "definition_changed",
    "definitions_changed",
    "config_loaded",
    "config_reloaded",
    "config_rejected",
    "reload_requested",
    "admin_login",
    "admin_login_failed",
    "admin_logout",
    "login_changed",
    "login_failed",
    "login_forgotten",
    "account_revoked",
    "label_moved",
    "rollout_rolled_back",
    "rollout_rearmed",
    "child_started",
    "child_ended",
    "commit_served",
    "commit_refused",
    "driver_failed",
    "task_failed",
    "cluster_store_lost",
    "cluster_store_available",
    "segment_lost",
    "panic",
];

/// Lines of the feed, and the log entries that are read to fill them.
const NEWS: usize = 15;
const ENTRIES: usize = 100;

/// The time for finding entries, which may lie behind many calls.
const SEARCH: Duration = Duration::from_millis(200);

/// Returns the latest changes in the log of this replica.
async fn news(state: &AdminState, request: &PageRequest) -> Vec<News> {
    let kinds = CHANGES.map(str::to_owned).into();
    let find = Find { event: Some(EventKinds::Any(kinds)), ..Find::default() };
    let entries = state.latest(find, ENTRIES, request.within(SEARCH)).await;
    let is_alike = |one: &LogEntry, other: &LogEntry| {
        let kind = |entry: &LogEntry| {
            (entry.event.clone(), entry.upstream.clone(), entry.members.get("state").cloned())
        };
        kind(one) == kind(other)
    };
    let groups = entries.chunk_by(is_alike);
    let line = |group: &[LogEntry]| {
        let (first, others) = group.split_first()?;
        Some(News {
            seq: first.seq,
            time: first.time.clone(),
            sentence: sentence(first),
            more: others.len(),
        })
    };
    groups.filter_map(line).take(NEWS.min(request.rows)).collect()
}

/// Returns the conditions that need attention, the worst first, in at most `max` lines. `limited`
/// is the number of calls that rate limits refused in the last hour. All lines are about the
/// snapshot from which the numbers of the page are computed.
fn attention(
    state: &AdminState,
    catalog: &Catalog,
    status: &[UpstreamStatus],
    limited: u64,
    max: usize,
) -> Vec<Attention> {
    let mut all = AttentionList::default();
    for reason in state.unready_reasons_in(catalog) {
        all.bad(format!("Not ready: {reason}"), "/configuration");
    }
    for upstream in status {
        let Some(failure) = &upstream.failure else { continue };
        let text =
            format!("Upstream {} is {}: {}", upstream.id, upstream.state, failure.diagnosis());
        let page = format!("/upstreams/{}", percent::encoded_segment(&upstream.id));
        match upstream.state {
            "down" => all.bad(text, &page),
            _ => all.warn(text, &page),
        }
    }
    add_process(state, &mut all);
    for upstream in status {
        let Some(waiting) = upstream.waiting() else { continue };
        let id = percent::encoded_segment(&upstream.id);
        let page = format!("/approvals?state=waiting&upstream={id}");
        all.warn(format!("Upstream {}: {waiting}", upstream.id), &page);
    }
    add_cluster(state, &mut all);
    if limited > 0 {
        all.warn(
            format!("Limits have refused {} in the last hour", counted(limited as usize, "call")),
            "/usage?span=1h&by=caller&sort=limited",
        );
    }
    for rollout in rollouts::status(state) {
        let (prompt, to) = (&rollout.rollout.prompt, &rollout.rollout.to);
        let text = match (rollout.rolled_back, rollouts::why(&rollout)) {
            (Some(_), _) => format!("The rollout of {prompt} to {to} was rolled back"),
            (None, Some(why)) => format!("The rollout of {prompt} to {to}: {why}"),
            (None, None) => continue,
        };
        all.warn(text, &format!("/prompts/{}/versions", percent::encoded_segment(prompt)));
    }
    let look_alikes = catalog.content.look_alikes.len();
    if look_alikes > 0 {
        let verb = if look_alikes == 1 { "pair of prompts looks" } else { "pairs of prompts look" };
        all.warn(format!("{look_alikes} {verb} alike"), "/prompts");
    }
    all.worst(max)
}

/// Adds the conditions of the configuration file and of the audit log.
fn add_process(state: &AdminState, all: &mut AttentionList) {
    for mistake in state.reloads.mistakes() {
        all.bad(format!("The configuration file is rejected: {mistake}"), "/configuration");
    }
    for key in state.reloads.needs_restart() {
        all.warn(
            format!("{key} was changed in the file; restart the gateway to apply it"),
            "/configuration",
        );
    }
    if state.audit.is_on() && !state.audit.is_up() {
        all.bad("The audit log cannot be written".to_owned(), "/audit");
    } else if state.audit.lag() > LAG {
        let text =
            format!("Records wait {:.1} s for the audit log", state.audit.lag().as_secs_f64());
        all.warn(text, "/audit");
    }
    for problem in state.regular_verification.last().into_iter().flat_map(|last| last.problems) {
        all.bad(format!("The audit log is not intact: {problem}"), "/audit");
    }
}

fn add_cluster(state: &AdminState, all: &mut AttentionList) {
    let Some(cluster) = &state.cluster else { return };
    let page = "/configuration";
    if let Some(failure) = cluster.failure() {
        all.bad(format!("The store of the cluster is not available: {failure}"), page);
    }
    let text = match cluster.differing() {
        0 => return,
        1 => "1 replica has another configuration or another catalog".to_owned(),
        many => format!("{many} replicas have another configuration or another catalog"),
    };
    all.warn(text, page);
}

/// A record that has waited so long stands for a slow disk.
const LAG: Duration = Duration::from_secs(1);
