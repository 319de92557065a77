//! Questions about usage, and their answers.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize, Serializer};

use super::counts::{Counts, Histogram};
use domain::name::prompt_of_version;
use domain::prompts::skill::is_skill_uri;
use domain::time::unix_time::UnixSeconds;

/// The dimension of a report: the kind of its rows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Dimension {
    /// Public names of prompts and skills.
    Prompt,
    /// Ids of upstreams.
    Upstream,
    /// Ids of callers.
    Caller,
    /// Groups of callers. A caller counts in each of its groups; a caller without groups in none.
    Group,
    /// Paths of endpoints: the main one, and those of views.
    View,
}

/// The order of rows; ties are in the order of their keys.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Sort {
    /// Most used first.
    #[default]
    Uses,
    /// Most failures first.
    Failures,
    /// Most refused by limits first.
    Limited,
    /// Greatest increase over the period before first.
    Rising,
    /// Latest use first.
    Last,
}

/// The calls that are counted; all of them by default.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Filter {
    /// Public name, which stands for all versions of the prompt, or that of one version.
    pub prompt: Option<String>,
    /// Public name alone, without those of other versions of the prompt.
    #[serde(default)]
    pub name: Option<String>,
    pub caller: Option<String>,
    pub upstream: Option<String>,
    /// Path of an endpoint.
    pub endpoint: Option<String>,
}

/// A question about usage in `from..to`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Query {
    pub by: Dimension,
    pub from: SystemTime,
    pub to: SystemTime,
    pub filter: Filter,
    /// The maximum number of rows.
    pub limit: usize,
    pub sort: Sort,
}

impl Query {
    /// Returns the key of the row that counts a name: a version counts for its prompt, unless the
    /// question is about this version. With the separator `@` an upstream stands before it.
    fn row_key<'a>(&self, name: &'a str, sum: &Sum) -> &'a str {
        let wanted = self.filter.prompt.as_deref();
        let prompt = prompt_of_version(name).filter(|_| self.by == Dimension::Prompt);
        let prompt = prompt.filter(|prompt| sum.upstream.as_deref() != Some(*prompt));
        prompt.filter(|prompt| wanted.is_none_or(|name| name == *prompt)).unwrap_or(name)
    }
}

/// The callers of a prompt in the last week.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecentUses {
    pub total: u64,
    /// The callers with most uses, at most [`RECENT_CALLERS`].
    #[cfg_attr(feature = "schema", schemars(description = "The callers with most uses."))]
    pub callers: Vec<CallerUses>,
    /// Whether not all uses are known.
    pub partial: bool,
}

/// The uses of one caller.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallerUses {
    pub caller: String,
    pub uses: u64,
}

/// Callers that are named; more do not help a decision.
const RECENT_CALLERS: usize = 5;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

impl RecentUses {
    /// The question for the uses of a prompt in the week before `now`.
    pub fn query(prompt: &str, now: SystemTime) -> Query {
        Query {
            by: Dimension::Caller,
            from: now.checked_sub(WEEK).unwrap_or(SystemTime::UNIX_EPOCH),
            to: now,
            filter: Filter { prompt: Some(prompt.to_owned()), ..Filter::default() },
            limit: RECENT_CALLERS,
            sort: Sort::Uses,
        }
    }

    /// Reads the answer to [`RecentUses::query`].
    pub fn of(report: Report) -> Self {
        let callers = report.rows.into_iter().filter(|row| row.uses > 0);
        Self {
            total: report.series.iter().map(|point| point.uses).sum(),
            callers: callers.map(|row| CallerUses { caller: row.key, uses: row.uses }).collect(),
            partial: report.partial,
        }
    }
}

/// "173 in the last 7 days: data-bot 170, eng-bot 3".
impl fmt::Display for RecentUses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let callers = self.callers.iter().map(|row| format!("{} {}", row.caller, row.uses));
        let callers = callers.collect::<Vec<_>>().join(", ");
        match self.total {
            0 => write!(f, "none in the last 7 days"),
            1 => write!(f, "1 in the last 7 days: {callers}"),
            total => write!(f, "{total} in the last 7 days: {callers}"),
        }?;
        if self.partial { write!(f, " (not all uses are known)") } else { Ok(()) }
    }
}

/// How the ends of a period are rounded to points: an hour counts once, in the period or in the one
/// before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Rounding {
    /// Outwards, so that no call of the period is missing.
    Outwards,
    /// To earlier points: the next one belongs to the period that follows. At least one point.
    Earlier,
}

impl Rounding {
    /// Rounds times to multiples of `step`, both in seconds, and returns the numbers of the first
    /// point and of the one behind the last.
    pub(super) fn points(self, (from, to): (u64, u64), step: u64) -> (u64, u64) {
        match self {
            Self::Outwards => (from / step, to.div_ceil(step)),
            Self::Earlier => {
                let end = to / step;
                ((from / step).min(end.saturating_sub(1)), end)
            }
        }
    }
}

/// The answer to a [`Query`].
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub rows: Vec<Row>,
    /// All calls that the filter admits, by time. Times without calls are left out.
    pub series: Vec<Point>,
    /// Whether something is missing: the deadline passed, the period begins before the known data,
    /// or rows were joined as `(others)`.
    pub partial: bool,
    /// The time from which on calls are known, in seconds since the Unix epoch; [`u64::MAX`]
    /// without known calls.
    #[serde(skip)]
    pub known_since: u64,
    /// The 95th percentile of all calls of the series, as far as their latencies are kept.
    #[serde(skip)]
    pub p95_ms: Option<f64>,
    /// The replicas that did not answer, by their names: their calls are missing.
    pub not_answered: Vec<String>,
}

/// The answer of one gateway to a [`Query`]: sums, which can be added to those of other replicas.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct UsagePart {
    pub(super) sums: Sums,
    /// The sums of the preceding period of the same length.
    pub(super) before: Sums,
    /// Seconds of a point.
    pub(super) seconds: u64,
    /// As [`Report::known_since`].
    pub(super) known_since: u64,
}

impl UsagePart {
    /// An answer without any data.
    pub(super) fn unknown() -> Self {
        let sums = Sums { partial: true, ..Sums::default() };
        Self { sums, known_since: UNKNOWN, ..Self::default() }
    }

    /// Joins all keys but `keep`, those with the most uses, as `(others)`. Returns whether there
    /// were more.
    pub(crate) fn cut(&mut self, keep: usize) -> bool {
        let is_cut = self.sums.cut(keep);
        self.before.cut(keep) || is_cut
    }
}

impl Report {
    /// Adds the answers of replicas.
    pub fn of(parts: Vec<UsagePart>, query: &Query) -> Self {
        let seconds = parts.iter().map(|part| part.seconds).max().unwrap_or(60).max(1);
        let mut sums = Sums::default();
        let mut before = Sums::default();
        let known_since = parts.iter().map(|part| part.known_since).min().unwrap_or(UNKNOWN);
        for part in parts {
            sums.merge(&part.sums, seconds);
            before.merge(&part.before, seconds);
        }
        Self { known_since, ..sums.report(&before, query, seconds) }
    }
}

/// The kind of a row's subject, if rows are by [`Dimension::Prompt`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UsedKind {
    Prompt,
    Skill,
}

impl UsedKind {
    /// Returns the kind of a public name.
    pub fn of(name: &str) -> Self {
        if is_skill_uri(name) { Self::Skill } else { Self::Prompt }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Skill => "skill",
        }
    }
}

/// One key with its sums.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    pub key: String,
    /// `None` for rows of other dimensions, and for the joined row.
    pub kind: Option<UsedKind>,
    /// The upstream of a prompt or skill.
    pub upstream: Option<String>,
    /// Calls that reached their prompt; failures are among them.
    pub uses: u64,
    pub failures: u64,
    pub denied: u64,
    pub limited: u64,
    /// `None` if the index keeps no latencies for this key.
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub mean_ms: Option<f64>,
    #[serde(serialize_with = "optional_time")]
    pub last: Option<SystemTime>,
    /// Uses in the period of the same length before.
    pub before: u64,
    /// The names under which the prompt was used, if versions of it are among them. The row is
    /// their sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<Self>,
}

/// The sums of one span of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    #[serde(serialize_with = "time")]
    pub start: SystemTime,
    pub seconds: u64,
    pub uses: u64,
    pub failures: u64,
    pub limited: u64,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
}

fn time<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let time = UnixSeconds::from(*time).writable();
    serializer.collect_str(&humantime::format_rfc3339_seconds(time.into()))
}

fn optional_time<S: Serializer>(at: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, serializer),
        None => serializer.serialize_none(),
    }
}

/// The name that stands for all names without room in the table.
const OTHERS_NAME: &str = "(others)";

/// The value of `known_since` without known calls.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// The limit of distinct keys in one answer; the rest is joined.
const MAX_ROWS: usize = 100_000;

/// Sums by key and by time, from which a report is made.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Sums {
    rows: HashMap<Box<str>, Sum>,
    points: BTreeMap<u64, (Counts, Histogram)>,
    pub(super) partial: bool,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Sum {
    counts: Counts,
    histogram: Histogram,
    upstream: Option<Box<str>>,
    /// Seconds since the Unix epoch; 0 if never used.
    last: u64,
}

/// An addend to the sums of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SumPart<'a> {
    pub counts: Counts,
    pub histogram: Option<&'a Histogram>,
    pub upstream: Option<&'a str>,
    /// Seconds since the Unix epoch; 0 if never used.
    pub last: u64,
}

impl Sums {
    pub(super) fn add(&mut self, key: &str, part: SumPart<'_>) {
        let key = if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(key) {
            OTHERS_NAME
        } else {
            key
        };
        self.partial |= key == OTHERS_NAME;
        let sum = match self.rows.get_mut(key) {
            Some(sum) => sum,
            None => self.rows.entry(key.into()).or_default(),
        };
        sum.counts.merge(&part.counts);
        if let Some(histogram) = part.histogram {
            sum.histogram.merge(histogram);
        }
        if part.last >= sum.last
            && let Some(upstream) = part.upstream
            && sum.upstream.as_deref() != Some(upstream)
        {
            sum.upstream = Some(upstream.into());
        }
        sum.last = sum.last.max(part.last);
    }

    /// Adds latencies to the sums of a key that has some.
    pub(super) fn add_latency(&mut self, key: &str, histogram: &Histogram) {
        if let Some(sum) = self.rows.get_mut(key) {
            sum.histogram.merge(histogram);
        }
    }

    /// Adds to the point that starts at `start`, in seconds since the Unix epoch.
    pub(super) fn add_point(&mut self, start: u64, counts: &Counts, histogram: Option<&Histogram>) {
        let point = self.points.entry(start).or_default();
        point.0.merge(counts);
        if let Some(histogram) = histogram {
            point.1.merge(histogram);
        }
    }

    /// Adds other sums in points of `seconds` each, at least as long as the points of `other`.
    fn merge(&mut self, other: &Self, seconds: u64) {
        other.rows.iter().for_each(|(key, sum)| self.add(key, sum.part()));
        for (start, (counts, histogram)) in &other.points {
            self.add_point(start - start % seconds, counts, Some(histogram));
        }
        self.partial |= other.partial;
    }

    /// As [`UsagePart::cut`].
    fn cut(&mut self, keep: usize) -> bool {
        let mut uses: Vec<u64> = self.rows.values().map(|sum| sum.counts.uses).collect();
        if uses.len() <= keep {
            return false;
        }
        uses.sort_unstable_by_key(|uses| std::cmp::Reverse(*uses));
        let least = uses[keep];
        let (kept, others) = std::mem::take(&mut self.rows)
            .into_iter()
            .partition(|(_, sum)| sum.counts.uses > least);
        let others = Self { rows: others, ..Self::default() };
        self.rows = kept;
        for sum in others.rows.values() {
            self.add(OTHERS_NAME, SumPart { upstream: None, ..sum.part() });
        }
        self.partial = true;
        true
    }

    /// Returns the keys that were used, and the prompts whose versions were used.
    pub(super) fn used(&self) -> impl Iterator<Item = &str> {
        let used = self.rows.iter().filter(|(_, sum)| sum.counts.uses > 0);
        used.flat_map(|(key, _)| std::iter::once(&**key).chain(prompt_of_version(key)))
    }

    /// Returns the sums by the rows of a report.
    fn by_row(&self, query: &Query) -> HashMap<Box<str>, Sum> {
        let mut rows = Self::default();
        for (name, sum) in &self.rows {
            rows.add(query.row_key(name, sum), sum.part());
        }
        rows.rows
    }

    /// Returns the rows of a report in their order, those of prompts with their versions.
    fn rows(&self, before: &Self, query: &Query) -> Vec<Row> {
        let order = |a: &Row, b: &Row| {
            query.sort.rank(b).cmp(&query.sort.rank(a)).then_with(|| a.key.cmp(&b.key))
        };
        let row = |key: &str, sum: &Sum, before: Option<&Sum>| {
            let is_named = query.by == Dimension::Prompt && key != OTHERS_NAME;
            let kind = is_named.then(|| UsedKind::of(key));
            Row { kind, ..sum.row(key.to_owned(), before.map_or(0, |sum| sum.counts.uses)) }
        };
        let mut versions: HashMap<&str, Vec<Row>> = HashMap::new();
        for (name, sum) in &self.rows {
            let key = query.row_key(name, sum);
            if *key != **name {
                versions.insert(key, Vec::new());
            }
        }
        for (name, sum) in &self.rows {
            if let Some(rows) = versions.get_mut(query.row_key(name, sum)) {
                rows.push(row(name, sum, before.rows.get(name)));
            }
        }
        let before = before.by_row(query);
        let with_versions = |(key, sum): (Box<str>, Sum)| {
            let mut versions = versions.remove(&*key).unwrap_or_default();
            versions.sort_by(order);
            Row { versions, ..row(&key, &sum, before.get(&key)) }
        };
        let mut rows: Vec<_> = self.by_row(query).into_iter().map(with_versions).collect();
        rows.sort_by(order);
        rows
    }

    /// Makes the report of these sums; points take `seconds` each. `before` are the sums of the
    /// period before.
    pub(super) fn report(self, before: &Self, query: &Query, seconds: u64) -> Report {
        let mut rows = self.rows(before, query);
        rows.truncate(query.limit);
        let Self { points, partial, .. } = self;
        let mut all = Counts::default();
        let mut latency = Histogram::default();
        for (counts, histogram) in points.values() {
            all.merge(counts);
            latency.merge(histogram);
        }
        let p95_ms = all.quantile_ms(&latency, 0.95);
        let series = points.into_iter().map(|(start, (counts, histogram))| Point {
            start: at(start),
            seconds,
            uses: counts.uses,
            failures: counts.failures,
            limited: counts.limited,
            p50_ms: counts.quantile_ms(&histogram, 0.5),
            p95_ms: counts.quantile_ms(&histogram, 0.95),
        });
        Report { rows, series: series.collect(), partial, p95_ms, ..Report::default() }
    }
}

impl Sum {
    fn part(&self) -> SumPart<'_> {
        let Self { counts, histogram, upstream, last } = self;
        let upstream = upstream.as_deref();
        SumPart { counts: *counts, histogram: Some(histogram), upstream, last: *last }
    }

    fn row(&self, key: String, before: u64) -> Row {
        let Self { counts, histogram, upstream, last } = self;
        Row {
            key,
            kind: None,
            upstream: upstream.as_deref().map(Into::into),
            uses: counts.uses,
            failures: counts.failures,
            denied: counts.denied,
            limited: counts.limited,
            p50_ms: counts.quantile_ms(histogram, 0.5),
            p95_ms: counts.quantile_ms(histogram, 0.95),
            mean_ms: counts.mean_ms(),
            last: (*last > 0).then(|| at(*last)),
            before,
            versions: Vec::new(),
        }
    }
}

impl Sort {
    /// Returns the sort key of a row, with its tie-breaker.
    fn rank(self, row: &Row) -> (i128, u64) {
        let first = match self {
            Self::Uses => i128::from(row.uses),
            Self::Failures => i128::from(row.failures),
            Self::Limited => i128::from(row.limited),
            Self::Rising => i128::from(row.uses) - i128::from(row.before),
            Self::Last => i128::from(row.last.map(secs).unwrap_or_default()),
        };
        (first, row.uses)
    }
}

/// Returns a time in seconds since the Unix epoch; 0 before it.
pub(super) fn secs(time: SystemTime) -> u64 {
    UnixSeconds::from(time).0
}

/// Returns the time of seconds since the Unix epoch; the epoch if the system has no such time.
pub(super) fn at(secs: u64) -> SystemTime {
    UnixSeconds(secs).into()
}
