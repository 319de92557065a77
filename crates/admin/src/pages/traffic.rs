//! Uses, failures and latency over a span of time, as numbers and as plots.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::console::plot::{Plot, PlotLine};
use crate::request::PageRequest;
use crate::state::AdminState;
use audit::usage::{Dimension, Filter, Point, Query, Report, Sort};
use domain::unix_time::UnixSeconds;

/// Uses in a span of time.
pub(super) struct Traffic {
    pub uses: u64,
    pub failures: u64,
    /// Calls that rate limits refused.
    pub limited: u64,
    /// Calls that were not counted, since more arrived than could be taken in.
    pub uncounted: u64,
    /// Whether a part of it is not known.
    pub partial: bool,
    /// The replicas that did not answer.
    pub not_answered: Vec<String>,
    pub plots: Vec<Plot>,
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

/// Returns the traffic that a filter admits, in the span that ends now.
pub(super) async fn traffic(
    state: &AdminState,
    request: &PageRequest,
    span: TimeSpan,
    filter: Filter,
) -> Traffic {
    let query = Query {
        by: Dimension::Upstream,
        from: request.now.checked_sub(span.length).unwrap_or(SystemTime::UNIX_EPOCH),
        to: request.now,
        filter,
        limit: 0,
        sort: Sort::Uses,
    };
    let report = state.usage_report(&query, None, request.until).await;
    of_report(report, (query.from, query.to), span)
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
        uncounted: report.uncounted,
        partial: report.partial,
        not_answered: report.not_answered,
        plots: plots(&report.series, within, span),
    }
}

/// The maximum number of points of a plot; points of a finer series are joined.
const MAX_POINTS: u64 = 400;

fn plots(series: &[Point], (from, to): (SystemTime, SystemTime), span: TimeSpan) -> Vec<Plot> {
    let finest = span.length.as_secs() / MAX_POINTS;
    let step = series.first().map_or(60, |point| point.seconds).max(finest).max(1);
    let (first, last) = (UnixSeconds::from(from).0 / step, UnixSeconds::from(to).0 / step);
    let mut known: HashMap<u64, Vec<&Point>> = HashMap::new();
    for point in series {
        known.entry(UnixSeconds::from(point.start).0 / step).or_default().push(point);
    }
    let steps: Vec<u64> = (first..=last).collect();
    let sum = |of: fn(&Point) -> u64| {
        let at = |step| known.get(step).map_or(0, |points| points.iter().map(|p| of(p)).sum());
        steps.iter().map(|step| Some(at(step) as f64)).collect()
    };
    let most = |of: fn(&Point) -> Option<f64>| {
        let at = |step| known.get(step)?.iter().filter_map(|point| of(point)).reduce(f64::max);
        steps.iter().map(at).collect()
    };
    let times = steps.iter().map(|at| time_text(at * step, span)).collect::<Vec<_>>();
    let plot = |title: &str, unit, lines| Plot {
        title: format!("{title}, {}", span.label),
        unit,
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
    // Latencies are not kept for prompts and callers.
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

/// A time of a plot in UTC: with the date where the span has several.
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
