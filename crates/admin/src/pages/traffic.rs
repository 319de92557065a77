//! Uses, failures and latency over a span of time, as numbers and as plots.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::console::plot::{Plot, PlotLine};
use crate::request::PageRequest;
use crate::state::AdminState;
use audit::usage::{Dimension, Filter, Point, Query, Report, Sort};
use domain::time::unix_time::UnixSeconds;

/// Uses in a span of time.
pub(super) struct Traffic {
    pub uses: u64,
    pub failures: u64,
    /// Calls that rate limits refused.
    pub limited: u64,
    /// The 95th percentile of the latency of all uses, where it is kept.
    pub p95_ms: Option<f64>,
    /// Whether some of the counts are unknown.
    pub partial: bool,
    /// The replicas that did not answer.
    pub not_answered: Vec<String>,
    pub plots: Vec<Plot>,
    /// The spans to choose from; empty where the page has another choice.
    pub spans: Vec<SpanChoice>,
    known_since: u64,
}

/// A link to the plots of another span.
pub(super) struct SpanChoice {
    pub label: &'static str,
    /// A query string.
    pub link: String,
    pub is_chosen: bool,
}

/// A span of time that people choose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct TimeSpan {
    pub key: &'static str,
    pub label: &'static str,
    pub length: Duration,
}

const HOUR: u64 = 3600;

/// The spans, shortest first.
pub(super) const SPANS: [TimeSpan; 6] = [
    TimeSpan { key: "1h", label: "last hour", length: Duration::from_secs(HOUR) },
    TimeSpan { key: "24h", label: "last day", length: Duration::from_secs(24 * HOUR) },
    TimeSpan { key: "7d", label: "last 7 days", length: Duration::from_secs(7 * 24 * HOUR) },
    TimeSpan { key: "30d", label: "last 30 days", length: Duration::from_secs(30 * 24 * HOUR) },
    TimeSpan { key: "90d", label: "last 90 days", length: Duration::from_secs(90 * 24 * HOUR) },
    TimeSpan { key: "365d", label: "last year", length: Duration::from_secs(365 * 24 * HOUR) },
];

pub(super) const LAST_HOUR: TimeSpan = SPANS[0];
pub(super) const LAST_DAY: TimeSpan = SPANS[1];
pub(super) const LAST_YEAR: TimeSpan = SPANS[5];

/// The spans of a page without a form, from an hour to a month.
const PICKED: usize = 4;

impl TimeSpan {
    /// The span that a page asks for with `span`; `usual` without one.
    pub(super) fn picked(request: &PageRequest, usual: Self) -> Self {
        let mut spans = SPANS[..PICKED].iter();
        spans.find(|span| span.key == request.params.get("span")).copied().unwrap_or(usual)
    }
}

impl Traffic {
    /// Offers the spans up to `chosen`, and longer ones of which a fifth is known.
    pub(super) fn with_choice(mut self, request: &PageRequest, chosen: TimeSpan) -> Self {
        let known = UnixSeconds::from(request.now).0.saturating_sub(self.known_since);
        let is_offered =
            |span: &&TimeSpan| span.length <= chosen.length || known >= span.length.as_secs() / 5;
        let choice = |span: &TimeSpan| SpanChoice {
            label: span.label,
            link: request.params.with("span", span.key),
            is_chosen: *span == chosen,
        };
        self.spans = SPANS[..PICKED].iter().filter(is_offered).map(choice).collect();
        self
    }
}

/// Returns the traffic that a filter admits, in the span that the page asks for or in `usual`; the
/// span ends now.
pub(super) async fn traffic(
    state: &AdminState,
    request: &PageRequest,
    usual: TimeSpan,
    filter: Filter,
) -> Traffic {
    let span = TimeSpan::picked(request, usual);
    let query = Query {
        by: Dimension::Upstream,
        from: request.now.checked_sub(span.length).unwrap_or(SystemTime::UNIX_EPOCH),
        to: request.now,
        filter,
        limit: 0,
        sort: Sort::Uses,
    };
    let report = state.usage_report(&query, None, request.until).await;
    of_report(report, (query.from, query.to), span).with_choice(request, span)
}

/// Returns the traffic of a report on a span.
pub(super) fn of_report(
    report: Report,
    within: (SystemTime, SystemTime),
    span: TimeSpan,
) -> Traffic {
    let sum = |of: fn(&Point) -> u64| report.series.iter().map(of).sum();
    Traffic {
        uses: sum(|point| point.uses),
        failures: sum(|point| point.failures),
        limited: sum(|point| point.limited),
        p95_ms: report.p95_ms,
        partial: report.partial,
        not_answered: report.not_answered,
        plots: plots(&report.series, report.known_since, within, span),
        spans: Vec::new(),
        known_since: report.known_since,
    }
}

/// The maximum number of steps of a plot: as many bars as can be told apart on a phone.
const MAX_STEPS: u64 = 60;

/// Lengths of steps that people know, in seconds: a minute to a month.
const STEPS: [u64; 11] = [
    60,
    5 * 60,
    10 * 60,
    30 * 60,
    HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    24 * HOUR,
    2 * 24 * HOUR,
    7 * 24 * HOUR,
];

/// The length of a step of a plot, in seconds: a multiple of that of the points.
fn step(points: u64, span: TimeSpan) -> u64 {
    let is_long = |step: &u64| *step >= points && span.length.as_secs() / *step <= MAX_STEPS;
    STEPS.into_iter().find(is_long).unwrap_or(points)
}

/// A length of time in words, such as "5 min".
fn length_text(seconds: u64) -> String {
    match seconds {
        60 => "minute".to_owned(),
        0..HOUR => format!("{} min", seconds / 60),
        HOUR => "hour".to_owned(),
        _ if seconds < 24 * HOUR => format!("{} h", seconds / HOUR),
        _ if seconds == 24 * HOUR => "day".to_owned(),
        _ => format!("{} days", seconds / (24 * HOUR)),
    }
}

/// Draws a series that is known from `since` on, in seconds since the Unix epoch: steps before have
/// no values.
fn plots(
    series: &[Point],
    since: u64,
    (from, to): (SystemTime, SystemTime),
    span: TimeSpan,
) -> Vec<Plot> {
    let step = step(series.first().map_or(60, |point| point.seconds), span);
    let (first, last) = (UnixSeconds::from(from).0 / step, UnixSeconds::from(to).0 / step);
    let mut known: HashMap<u64, Vec<&Point>> = HashMap::new();
    for point in series {
        known.entry(UnixSeconds::from(point.start).0 / step).or_default().push(point);
    }
    let steps: Vec<u64> = (first..=last).collect();
    let sum = |of: fn(&Point) -> u64| {
        let at = |step| known.get(step).map_or(0, |points| points.iter().map(|p| of(p)).sum());
        let is_known = |at: u64| known.contains_key(&at) || (at + 1).saturating_mul(step) > since;
        steps.iter().map(|step| is_known(*step).then(|| at(step) as f64)).collect()
    };
    let most = |of: fn(&Point) -> Option<f64>| {
        let at = |step| known.get(step)?.iter().filter_map(|point| of(point)).reduce(f64::max);
        steps.iter().map(at).collect()
    };
    let times = steps.iter().map(|at| time_text(at * step, span)).collect::<Vec<_>>();
    let plot = |title: &str, unit, lines| Plot {
        title: format!("{title}, {}", span.label),
        unit,
        step: length_text(step),
        times: times.clone(),
        lines,
    };
    let line = |name, style, values| PlotLine { name, style, values };
    let uses = plot(
        "Uses",
        "",
        vec![
            line("uses", 1, sum(|point| point.uses)),
            line("failures", 2, sum(|point| point.failures)),
            line("refused by limits", 3, sum(|point| point.limited)),
        ],
    );
    // The index keeps no latencies for a prompt or a caller by hour.
    if !series.iter().any(|point| point.p95_ms.is_some()) {
        return vec![uses];
    }
    let latency = plot(
        "Latency",
        " ms",
        vec![
            line("95th percentile", 1, most(|point| point.p95_ms)),
            line("median", 3, most(|point| point.p50_ms)),
        ],
    );
    vec![uses, latency]
}

/// A time of a plot in UTC: with the date where the span has several days.
fn time_text(at: u64, span: TimeSpan) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
    let text = humantime::format_rfc3339_seconds(time).to_string();
    let is_within = |days: u64| span.length.as_secs() <= days * 24 * HOUR;
    if is_within(1) {
        text[11..16].to_owned()
    } else if is_within(7) {
        format!("{} {}", &text[5..10], &text[11..16])
    } else {
        text[..10].to_owned()
    }
}
