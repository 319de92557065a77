//! The overview: conditions that need attention, numbers that lead on, changes, and traffic.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use askama::Template;

use super::Page;
use super::sentence::sentence;
use super::traffic::{LAST_HOUR, LAST_YEAR, TimeSpan, Traffic, of_report};
use crate::console::plot::number;
use crate::console::text::{Html, counted};
use crate::console::{ConsoleSection, filters};
use crate::request::PageRequest;
use crate::rollouts;
use crate::state::AdminState;
use audit::export::ExportStatus;
use audit::search::{EventKinds, Find, LogEntry};
use audit::usage::{Dimension, Filter, Query, Report, Row, Sort};
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
    traffic: Traffic,
}

/// A number that leads to the page with its details.
#[derive(Default)]
struct Tile {
    value: String,
    label: String,
    page: String,
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
    /// One of [`SEVERITIES`].
    severity: &'static str,
    /// Calls that it has cost callers lately.
    lost: u64,
    text: String,
    /// The page with the details.
    page: String,
}

/// The worst first; a condition without a class can wait.
const SEVERITIES: [&str; 3] = ["bad", "warn", ""];

#[derive(Default)]
struct AttentionList(Vec<Attention>);

impl AttentionList {
    fn add(&mut self, severity: &'static str, lost: u64, text: String, page: &str) {
        self.0.push(Attention { severity, lost, text, page: page.to_owned() });
    }

    fn bad(&mut self, text: String, page: &str) {
        self.add("bad", 0, text, page);
    }

    fn warn(&mut self, text: String, page: &str) {
        self.add("warn", 0, text, page);
    }

    /// Returns at most `max` conditions: the worst first, of equal ones what cost most calls.
    fn worst(mut self, max: usize) -> Vec<Attention> {
        let rank = |line: &Attention| SEVERITIES.iter().position(|own| *own == line.severity);
        self.0.sort_by_key(|line| (rank(line), Reverse(line.lost)));
        self.0.truncate(max);
        self.0
    }
}

/// The lines that say why calls fail. `losses` are the prompts that failed lately, by name; a line
/// takes the prompts that it explains.
impl AttentionList {
    /// Adds prompts that wait for a decision: a line for each that callers miss, and one for the
    /// others of each upstream.
    fn add_waiting(&mut self, catalog: &Catalog, losses: &mut HashMap<&str, &Row>) {
        for rows in &catalog.approvals {
            let mut quiet = 0;
            let waiting = rows.iter().filter(|row| row.is_waiting());
            for row in waiting {
                let names = std::iter::once(&row.public_name).chain(&row.aliases);
                let lost = names.filter_map(|name| losses.remove(name.as_str()));
                let lost: u64 = lost.map(|lost| lost.failures + lost.denied).sum();
                if lost == 0 {
                    quiet += 1;
                    continue;
                }
                let name = &row.public_name;
                let why = row.decision.reason.as_str();
                let text = format!("{name}: {} refused in 15 min, since {why}", gets(lost));
                let page = format!("/approvals/{}", percent::encoded_segment(name));
                self.add("bad", lost, text, &page);
            }
            let Some(row) = rows.first().filter(|_| quiet > 0) else { continue };
            let verb = if quiet == 1 { "waits" } else { "wait" };
            let text =
                format!("{}: {} {verb} for approval", row.upstream, counted(quiet, "prompt"));
            let id = percent::encoded_segment(row.upstream.as_str());
            let page = format!("/approvals?state=waiting&upstream={id}");
            self.add("", 0, text, &page);
        }
    }

    /// Adds upstreams that fail, with the calls that failed with them.
    fn add_upstreams(&mut self, status: &[UpstreamStatus], losses: &mut HashMap<&str, &Row>) {
        for upstream in status {
            let page = format!("/upstreams/{}", percent::encoded_segment(&upstream.id));
            if let Some(removal) = upstream.removal() {
                self.add("bad", 0, format!("Upstream {} {removal}", upstream.id), &page);
            }
            let Some(failure) = &upstream.failure else { continue };
            let is_down = upstream.state == "down";
            let mut lost = 0;
            losses.retain(|_, row| {
                let is_own = is_down && row.upstream.as_deref() == Some(&upstream.id);
                lost += if is_own { row.failures } else { 0 };
                !is_own
            });
            let mut text =
                format!("Upstream {} is {}: {}", upstream.id, upstream.state, failure.diagnosis());
            if lost > 0 {
                text += &format!("; {} failed in 15 min", gets(lost));
            }
            let severity = if is_down { "bad" } else { "warn" };
            self.add(severity, lost, text, &page);
        }
    }

    /// Adds prompts that fail often for another reason.
    fn add_failing(&mut self, losses: &HashMap<&str, &Row>) {
        for (name, row) in losses {
            let is_often = failed_share(row.failures, row.uses) >= MANY_FAILURES;
            if row.failures < FEW_FAILURES || !is_often {
                continue;
            }
            let text = format!("{name}: {} of {} failed in 15 min", row.failures, gets(row.uses));
            let page =
                format!("/usage?prompt={}&by=caller&span=1h", percent::encoded_segment(name));
            self.add("bad", row.failures, text, &page);
        }
    }

    /// Adds what cannot be listed, such as files of a library with mistakes.
    fn add_broken(&mut self, catalog: &Catalog) {
        let left_out = catalog.content.left_out.iter();
        for broken in left_out.filter(|row| row.by.is_mistake()).take(BROKEN) {
            let page = format!("/upstreams/{}", percent::encoded_segment(&broken.upstream));
            self.warn(format!("{}: {}", broken.upstream, broken.sentence()), &page);
        }
    }
}

/// Failures of a prompt that are no line yet.
const FEW_FAILURES: u64 = 5;

/// Lines about prompts that cannot be listed; the page of prompts has all.
const BROKEN: usize = 5;

fn gets(count: u64) -> String {
    counted(count as usize, "get")
}

impl Page for Overview {
    const SECTION: ConsoleSection = ConsoleSection::Overview;
}

/// Returns the overview.
pub(super) async fn overview(state: &AdminState, request: &PageRequest) -> Overview {
    let catalog = state.router.catalog();
    let status = state.router.status_in(&catalog);
    let span = TimeSpan::picked(request, LAST_HOUR);
    let query = uses(request, Dimension::Caller, span.length);
    let mut report = state.usage_report(&query, None, request.until).await;
    let callers = std::mem::take(&mut report.rows);
    let traffic = of_report(report, (query.from, query.to), span).with_choice(request, span);
    let lately = uses(request, Dimension::Prompt, LATELY);
    let lately = Query { sort: Sort::Failures, limit: request.rows, ..lately };
    let lately = state.usage_report(&lately, None, request.until).await;
    let mut tiles = tiles_of_traffic(&traffic, span);
    tiles.extend(tiles_of_catalog(&catalog, &status));
    Overview {
        attention: attention(state, &catalog, &status, &lately, request.rows),
        tiles,
        first_steps: first_steps(state, request, callers).await,
        news: news(state, request).await,
        verified: state.regular_verification.last(),
        has_audit: state.audit.is_on(),
        replicas: state.cluster.as_ref().map_or(1, |cluster| cluster.replicas().len().max(1)),
        version: env!("CARGO_PKG_VERSION"),
        uptime_secs: state.reloads.started.elapsed().as_secs(),
        traffic,
    }
}

/// The question for the most used callers or prompts in the time that ends now.
fn uses(request: &PageRequest, by: Dimension, length: Duration) -> Query {
    Query {
        by,
        from: request.now.checked_sub(length).unwrap_or(SystemTime::UNIX_EPOCH),
        to: request.now,
        filter: Filter::default(),
        limit: ROWS,
        sort: Sort::Uses,
    }
}

/// Callers that are listed, to find a caller other than the console.
const ROWS: usize = 50;

/// The time whose failures need attention.
const LATELY: Duration = Duration::from_mins(15);

/// The share of failures from which on their tile is bad, in percent.
const MANY_FAILURES: f64 = 5.0;

/// The share of failures among uses, in percent.
fn failed_share(failures: u64, uses: u64) -> f64 {
    failures as f64 * 100.0 / uses.max(1) as f64
}

fn tiles_of_traffic(traffic: &Traffic, span: TimeSpan) -> Vec<Tile> {
    let share = failed_share(traffic.failures, traffic.uses);
    let is_bad = share >= MANY_FAILURES;
    let TimeSpan { key, label: when, .. } = span;
    let uses = Tile {
        value: traffic.uses.to_string(),
        label: format!("use{} in the {when}", if traffic.uses == 1 { "" } else { "s" }),
        page: format!("/usage?span={key}"),
        ..Tile::default()
    };
    let failed = Tile {
        value: format!("{} %", number(share)),
        label: format!("failed in the {when}"),
        page: format!("/usage?span={key}&sort=failures"),
        severity: if is_bad { "bad" } else { "" },
        note: if is_bad { "high" } else { "" }.to_owned(),
    };
    let p95 = Tile {
        value: traffic.p95_ms.map_or("–".to_owned(), |ms| format!("{} ms", number(ms))),
        label: format!("95th percentile, {when}"),
        page: format!("/usage?by=upstream&span={key}"),
        ..Tile::default()
    };
    vec![uses, failed, p95]
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
            page: "/approvals?state=waiting".to_owned(),
            severity: if waiting > 0 { "warn" } else { "" },
            note: String::new(),
        },
        Tile {
            value: format!("{up}/{}", status.len()),
            label: "upstreams up".to_owned(),
            page: "/upstreams".to_owned(),
            severity: if up < status.len() { "bad" } else { "" },
            note: note(up < status.len(), format!("{} not up", status.len() - up)),
        },
        Tile {
            value: prompts.to_string(),
            label: format!("prompt{} served", if prompts == 1 { "" } else { "s" }),
            page: "/prompts".to_owned(),
            severity: "",
            note: note(left_out > 0, format!("{left_out} left out")),
        },
    ]
}

/// Returns the steps that a new gateway still lacks. `callers_seen` are the callers of the shown
/// span; the last year is searched only where they do not settle a step.
async fn first_steps(
    state: &AdminState,
    request: &PageRequest,
    mut callers_seen: Vec<Row>,
) -> Vec<FirstStep> {
    let is_host = |row: &Row| {
        row.uses > 0 && row.key != CONSOLE && !row.key.starts_with(&format!("{CONSOLE}/"))
    };
    if !callers_seen.iter().any(is_host) {
        let year = uses(request, Dimension::Caller, LAST_YEAR.length);
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

/// The events of the feed: what people and sources changed, who signed in, and what failed.
const FEED: [&str; 11] = [
    "changes",
    "sign-ins",
    "login_failed",
    "child_started",
    "child_ended",
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
    let find = Find { event: Some(EventKinds::of(&FEED)), ..Find::default() };
    let entries = state.latest(find, ENTRIES, request.within(SEARCH)).await;
    let is_new = |at: &usize| !is_repetition(&entries[*at], &entries[at + 1..]);
    let entries: Vec<_> = (0..entries.len()).filter(is_new).map(|at| entries[at].clone()).collect();
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

/// Whether the feed tells the entry already: a reload that changed nothing, or the state and
/// definition of a prompt that follow from a decision just before, which is among the `older`.
fn is_repetition(entry: &LogEntry, older: &[LogEntry]) -> bool {
    let member = |name: &str| entry.members.get(name);
    if entry.event == "config_reloaded" {
        return member("digest").is_some() && member("digest") == member("before");
    }
    let decisions = EventKinds::from("decisions");
    let at = |entry: &LogEntry| humantime::parse_rfc3339(&entry.time).ok();
    let begin = at(entry).and_then(|at| at.checked_sub(FOLLOWS));
    ["prompt_state", "definition_changed"].contains(&entry.event.as_str())
        && older.iter().any(|older| {
            decisions.has(&older.event)
                && (&older.upstream, &older.prompt) == (&entry.upstream, &entry.prompt)
                && at(older) >= begin
        })
}

/// The time in which a decision takes effect.
const FOLLOWS: Duration = Duration::from_mins(1);

/// Returns the conditions that need attention, the worst first, in at most `max` lines. `lately`
/// are the prompts that failed lately. All lines are about the snapshot from which the numbers of
/// the page are computed.
fn attention(
    state: &AdminState,
    catalog: &Catalog,
    status: &[UpstreamStatus],
    lately: &Report,
    max: usize,
) -> Vec<Attention> {
    let mut all = AttentionList::default();
    for reason in state.unready_reasons_in(catalog) {
        all.add("bad", u64::MAX, format!("Not ready: {reason}"), "/configuration");
    }
    let mut losses: HashMap<&str, &Row> =
        lately.rows.iter().map(|row| (row.key.as_str(), row)).collect();
    all.add_waiting(catalog, &mut losses);
    all.add_upstreams(status, &mut losses);
    all.add_failing(&losses);
    all.add_broken(catalog);
    add_process(state, &mut all);
    add_cluster(state, &mut all);
    let limited: u64 = lately.series.iter().map(|point| point.limited).sum();
    // Of the prompts in the report, without those that a line above explains.
    let denied: u64 = losses.values().map(|row| row.denied).sum();
    let refusals =
        [("warn", "Limits", limited, "limited"), ("", "Rights and guards", denied, "uses")];
    for (severity, checks, refused, sort) in refusals.into_iter().filter(|refusal| refusal.2 > 0) {
        let text = format!("{checks} have refused {} in 15 min", counted(refused as usize, "call"));
        all.add(severity, refused, text, &format!("/usage?span=1h&by=caller&sort={sort}"));
    }
    for rollout in rollouts::status(state) {
        let prompt = &rollout.prompt;
        let to = &rollout.rollout.to;
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
    if let Some(ExportStatus { failure: Some(why), waiting, .. }) = state.audit.export_status() {
        let records = counted(usize::try_from(waiting).unwrap_or(usize::MAX), "record");
        all.warn(format!("The audit log cannot be exported, {records} wait: {why}"), "/audit");
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_decision_and_what_follows_from_it_are_one_line() {
        let entry = |second: u64, event: &str, prompt: &str, members| -> LogEntry {
            let time = format!("2026-11-28T03:50:{second:02}.5Z");
            let value = json!({"event": event, "time": time, "upstream": "lib", "prompt": prompt,
                "members": members});
            serde_json::from_value(value).unwrap()
        };
        let none = json!({});
        let older = [
            entry(3, "admin_login", "", none.clone()),
            entry(2, "prompt_approved", "p", none.clone()),
        ];
        let is_told = |entry: LogEntry| is_repetition(&entry, &older);
        assert!(is_told(entry(4, "prompt_state", "p", json!({"state": "approved"}))));
        assert!(is_told(entry(4, "definition_changed", "p", none.clone())));
        assert!(!is_told(entry(4, "prompt_state", "q", none.clone())));
        assert!(!is_told(entry(4, "prompt_rejected", "p", none.clone())));
        let mut late = entry(4, "prompt_state", "p", none);
        late.time = "2026-11-28T03:52:00Z".to_owned();
        assert!(!is_told(late));
        let reload =
            |before| entry(4, "config_reloaded", "", json!({"digest": "a", "before": before}));
        assert!(is_told(reload("a")) && !is_told(reload("b")));
    }

    #[test]
    fn the_worst_is_first_and_of_equal_ones_what_cost_most() {
        let mut all = AttentionList::default();
        all.add("", 0, "new".to_owned(), "/");
        all.warn("file".to_owned(), "/");
        all.add("bad", 3, "few".to_owned(), "/");
        all.add("warn", 9, "limits".to_owned(), "/");
        all.add("bad", 596, "many".to_owned(), "/");
        let texts: Vec<_> = all.worst(4).into_iter().map(|line| line.text).collect();
        assert_eq!(texts, ["many", "few", "limits", "file"]);
    }
}
