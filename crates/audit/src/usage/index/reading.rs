//! Answers questions from the tables: reads each row of a question once, newest first, and sums by
//! the ids of names.

use std::collections::{BTreeSet, HashMap};
use std::io;

use rusqlite::{Connection, OptionalExtension};
use tokio::time::Instant;

use super::batch::{ALL, CALLER, ENDPOINT, NO_NAME, NameId, PROMPT, UPSTREAM, counts, find};
use super::database::Database;
use super::{DAY, HOUR, MINUTE};
use crate::usage::counts::{Counts, Histogram};
use crate::usage::daily::{DailyUses, WEEK_DAYS};
use crate::usage::query::{Dimension, Filter, Query, Rounding, SumPart, Sums, UNKNOWN};
use domain::name::{VERSION_MARK, prompt_of_version};

/// Periods up to this length are answered by minute, in seconds.
const BY_MINUTE: u64 = DAY;

/// Periods up to this length are answered by hour, in seconds.
const BY_HOUR: u64 = 7 * DAY;

/// Periods by minute up to this length have points of a minute, in seconds; others of five.
const BY_POINT: u64 = 5 * HOUR;

/// Rows between two checks of the deadline.
const ROWS: u64 = 1024;

/// Prompts between two checks of the deadline, each with the rows of a week.
const PROMPTS: usize = 128;

/// A snapshot of the index: databases whose sums make the answer.
pub(in crate::usage) struct IndexSnapshot(pub(super) Vec<Database>);

impl IndexSnapshot {
    /// Adds the calls in `from..to`, in seconds since the Unix epoch, newest first until `until`.
    /// Returns the length of one point in seconds. The ends are rounded to points, by minute to
    /// minutes.
    pub(in crate::usage) fn collect(
        &self,
        query: &Query,
        (from, to): (u64, u64),
        rounding: Rounding,
        until: Instant,
        sums: &mut Sums,
    ) -> io::Result<u64> {
        // SQLite has no greater numbers.
        let range = (from, to.min(u64::from(u32::MAX) * DAY));
        let (unit, step) = self.unit(query, range, sums)?;
        let (first, end) = rounding.points(range, unit);
        let range = (first * unit, end * unit);
        for database in &self.0 {
            database.with(|db| match DatabaseQuery::new(db, query, (unit, step), range)? {
                Some(reading) => reading.collect(until, sums),
                None => Ok(()),
            })?;
        }
        Ok(step)
    }

    /// Returns the begin of the first minute with calls, or else of the first day with calls, in
    /// seconds since the Unix epoch.
    pub(in crate::usage) fn known_since(&self) -> io::Result<u64> {
        let first = "SELECT iif(since > day, day, minute) FROM \
            (SELECT min(day) AS day FROM calls_by_day WHERE kind = 0), \
            (SELECT min(minute) AS minute FROM calls_by_minute), minutes";
        let of = |database: &Database| {
            database.with(|db| db.query_row(first, [], |row| row.get::<_, Option<u64>>(0)))
        };
        let known: io::Result<Vec<_>> = self.0.iter().map(of).collect();
        Ok(known?.into_iter().flatten().min().unwrap_or(UNKNOWN))
    }

    /// Adds the uses of prompts, with those of their versions, on the days of the week that begins
    /// at `first`, until `until`.
    pub(in crate::usage) fn daily(
        &self,
        prompts: &[String],
        first: u64,
        until: Instant,
        daily: &mut DailyUses,
    ) -> io::Result<()> {
        // Without duplicates: a prompt and the skill that it stands for share a name.
        let prompts: BTreeSet<_> = prompts.iter().collect();
        let days = (0..WEEK_DAYS).zip((first..).step_by(DAY as usize));
        for database in &self.0 {
            database.with(|db| {
                let mut statement = db.prepare_cached(
                    "SELECT uses FROM calls_by_day WHERE kind = 1 AND day = ?1 AND name = ?2",
                )?;
                for (number, prompt) in prompts.iter().enumerate() {
                    if number % PROMPTS == 0 && Instant::now() >= until {
                        daily.is_partial = true;
                        break;
                    }
                    for id in with_versions(db, prompt)? {
                        for (day, start) in days.clone() {
                            let uses = statement.query_row((start, id), |row| row.get(0));
                            daily.add(prompt, day, uses.optional()?.unwrap_or_default());
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns the unit of the rows' times, and the length of one point, in seconds.
    fn unit(
        &self,
        query: &Query,
        (from, to): (u64, u64),
        sums: &mut Sums,
    ) -> io::Result<(u64, u64)> {
        let length = to.saturating_sub(from);
        if length <= BY_MINUTE && self.has_minutes(from)? {
            return Ok((MINUTE, if length <= BY_POINT { MINUTE } else { 5 * MINUTE }));
        }
        if length > BY_HOUR || !is_by_key(query.by, &query.filter) {
            return Ok((DAY, DAY));
        }
        for database in &self.0 {
            if !database.with(|db| has_hours(db, (from, to)))? {
                // Sums by hour were dropped with age: whole days are the closest.
                sums.partial = true;
                return Ok((DAY, DAY));
            }
        }
        Ok((HOUR, HOUR))
    }

    /// Whether all calls from a time on are known by minute.
    fn has_minutes(&self, from: u64) -> io::Result<bool> {
        let since = |db: &mut Connection| {
            db.query_row("SELECT since FROM minutes", [], |row| row.get::<_, u64>(0))
        };
        for database in &self.0 {
            if from < database.with(since)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether each day of a period that has sums also has sums by hour.
fn has_hours(db: &Connection, (from, to): (u64, u64)) -> rusqlite::Result<bool> {
    db.query_row(
        "SELECT NOT EXISTS (SELECT 1 FROM calls_by_day d \
         WHERE d.kind = 0 AND d.day >= ?1 AND d.day < ?2 AND NOT EXISTS \
         (SELECT 1 FROM calls_by_hour h WHERE h.kind = 0 AND h.hour >= d.day \
         AND h.hour < d.day + 86400))",
        [from / DAY * DAY, to],
        |row| row.get(0),
    )
}

/// Whether the sums of single names answer: a filter by another kind than that of the rows needs
/// pairs, which have no hours.
fn is_by_key(by: Dimension, filter: &Filter) -> bool {
    let Filter { prompt, name, caller, upstream, endpoint } = filter;
    let is_set = [
        (PROMPT, prompt),
        (PROMPT, name),
        (UPSTREAM, upstream),
        (CALLER, caller),
        (ENDPOINT, endpoint),
    ];
    is_set.into_iter().all(|(kind, name)| name.is_none() || kind == kind_of(by))
}

/// Returns the ids of the names under which a prompt is counted: its name, and the names of its
/// versions.
fn with_versions(db: &Connection, prompt: &str) -> rusqlite::Result<Vec<NameId>> {
    let mut ids: Vec<_> = find(db, prompt)?.into_iter().map(|(id, _)| id).collect();
    let mut statement =
        db.prepare_cached("SELECT id, name FROM names WHERE name >= ?1 AND name < ?2")?;
    // The names that begin with the prompt and the mark, as the key of the table finds them.
    let next = char::from(VERSION_MARK as u8 + 1);
    let bounds = [VERSION_MARK, next].map(|end| format!("{prompt}{end}"));
    let mut rows = statement.query(bounds)?;
    while let Some(row) = rows.next()? {
        if prompt_of_version(row.get_ref(1)?.as_str()?) == Some(prompt) {
            ids.push(row.get(0)?);
        }
    }
    Ok(ids)
}

fn kind_of(by: Dimension) -> i64 {
    match by {
        Dimension::Prompt => PROMPT,
        Dimension::Upstream => UPSTREAM,
        Dimension::Caller | Dimension::Group => CALLER,
        Dimension::View => ENDPOINT,
    }
}

/// One question to one database.
struct DatabaseQuery<'a> {
    db: &'a Connection,
    by: Dimension,
    /// The pair's column of a name, with the requested names.
    filter: Vec<(&'static str, Vec<NameId>)>,
    /// Whether the sums of single names answer.
    is_by_key: bool,
    /// `minute`, `hour` or `day`.
    time: &'static str,
    /// Seconds of one point.
    step: u64,
    from: u64,
    to: u64,
}

/// The sums of a name, or of a caller with the same groups.
#[derive(Default)]
struct NameSum {
    counts: Counts,
    /// By minute.
    histogram: Histogram,
    upstream: NameId,
    last: u64,
}

impl<'a> DatabaseQuery<'a> {
    /// Returns `None` if a name in the filter was never seen.
    fn new(
        db: &'a Connection,
        query: &Query,
        (unit, step): (u64, u64),
        (from, to): (u64, u64),
    ) -> rusqlite::Result<Option<Self>> {
        let Filter { prompt, name, caller, upstream, endpoint } = &query.filter;
        let wanted =
            [("prompt", name), ("caller", caller), ("upstream", upstream), ("endpoint", endpoint)];
        let mut filter: Vec<(_, Vec<_>)> = Vec::new();
        if let Some(prompt) = prompt {
            filter.push(("prompt", with_versions(db, prompt)?));
        }
        for (column, name) in wanted {
            if let Some(name) = name {
                filter.push((column, find(db, name)?.into_iter().map(|(id, _)| id).collect()));
            }
        }
        if filter.iter().any(|(_, ids)| ids.is_empty()) {
            return Ok(None);
        }
        let is_by_key = unit != MINUTE && is_by_key(query.by, &query.filter);
        let time = match unit {
            MINUTE => "minute",
            HOUR => "hour",
            _ => "day",
        };
        Ok(Some(Self { db, by: query.by, filter, is_by_key, time, step, from, to }))
    }

    fn is_by_minute(&self) -> bool {
        self.time == "minute"
    }

    /// Whether the rows of the sums also make the points; else all calls do.
    fn has_points(&self) -> bool {
        self.is_by_minute() || !self.filter.is_empty()
    }

    fn collect(&self, until: Instant, sums: &mut Sums) -> rusqlite::Result<()> {
        // Some of the joined pairs may match the filter.
        sums.partial |= !self.is_by_key && !self.is_by_minute() && self.has_joined_pairs()?;
        let found = self.sum(until, sums)?;
        for ((key, groups), sum) in found {
            self.add(key, groups, &sum, sums)?;
        }
        if !self.has_points() {
            self.add_points(sums)?;
        }
        let has_durations =
            matches!(self.by, Dimension::Prompt | Dimension::Upstream | Dimension::Caller);
        if has_durations && self.is_by_key {
            self.add_durations(sums)?;
        }
        Ok(())
    }

    /// Sums the rows by name and groups, and adds the points that they make.
    fn sum(
        &self,
        until: Instant,
        sums: &mut Sums,
    ) -> rusqlite::Result<HashMap<(NameId, NameId), NameSum>> {
        let mut statement = self.db.prepare(&self.rows())?;
        let mut rows = statement.query([self.from, self.to])?;
        let mut found: HashMap<_, NameSum> = HashMap::new();
        let mut point = (0, Counts::default(), Histogram::default());
        let mut caller = (0, NO_NAME, NO_NAME);
        let needs_groups = !self.is_by_key && self.by == Dimension::Group;
        let mut read = 0;
        while let Some(row) = rows.next()? {
            if read % ROWS == 0 && Instant::now() >= until {
                sums.partial = true;
                break;
            }
            read += 1;
            let time: u64 = row.get(0)?;
            let key = row.get(1)?;
            let mut groups = row.get(2)?;
            let counts = counts(row, 4)?;
            let last: u64 = row.get(9)?;
            let step: i64 = row.get(10)?;
            let latency = u8::try_from(step).map(|step| Histogram::of(step, counts.uses));
            let latency = latency.unwrap_or_default();
            let start = time / self.step * self.step;
            if start != point.0 {
                self.add_point(&point, sums);
                point = (start, Counts::default(), Histogram::default());
            }
            point.1.merge(&counts);
            point.2.merge(&latency);
            if needs_groups {
                // The rows of a time are in the order of their callers.
                if (time, key) != (caller.0, caller.1) {
                    caller = (time, key, self.groups(time / DAY * DAY, key)?);
                }
                groups = caller.2;
            }
            let sum = found.entry((key, groups)).or_default();
            sum.counts.merge(&counts);
            sum.histogram.merge(&latency);
            if last >= sum.last {
                (sum.upstream, sum.last) = (row.get(3)?, last);
            }
        }
        self.add_point(&point, sums);
        Ok(found)
    }

    /// Adds the sums of one point.
    fn add_point(&self, (start, counts, latency): &(u64, Counts, Histogram), sums: &mut Sums) {
        if self.has_points() && *counts != Counts::default() {
            sums.add_point(*start, counts, Some(latency));
        }
    }

    /// Returns the groups of a caller on a day.
    fn groups(&self, day: u64, caller: NameId) -> rusqlite::Result<NameId> {
        let mut statement = self.db.prepare_cached(
            "SELECT groups FROM calls_by_day WHERE kind = 3 AND day = ?1 AND name = ?2",
        )?;
        let groups = statement.query_row((day, caller), |row| row.get(0)).optional()?;
        Ok(groups.unwrap_or(NO_NAME))
    }

    /// Returns the query of the rows: time, name, groups, upstream, sums, last use and step.
    fn rows(&self) -> String {
        let Self { by, time, is_by_key, .. } = self;
        let sums = "c.uses, c.failures, c.denied, c.limited, c.micros, c.last";
        let names = self.names();
        let range = format!("c.{time} >= ?1 AND c.{time} < ?2");
        if *is_by_key {
            let kind = kind_of(*by);
            return format!(
                "SELECT c.{time}, c.name, c.groups, c.upstream, {sums}, -1 FROM calls_by_{time} c \
                 WHERE c.kind = {kind} AND {range}{names} ORDER BY c.{time} DESC"
            );
        }
        let key = match by {
            Dimension::Prompt => "prompt",
            Dimension::Upstream => "upstream",
            Dimension::Caller | Dimension::Group => "caller",
            Dimension::View => "endpoint",
        };
        if self.is_by_minute() {
            return format!(
                "SELECT c.minute, c.{key}, 0, c.upstream, {sums}, c.step FROM calls_by_minute c \
                 WHERE {range}{names} ORDER BY c.minute DESC"
            );
        }
        // By day and caller the rows are found by the key of the table.
        format!(
            "SELECT c.day, c.{key}, 0, c.upstream, {sums}, -1 \
             FROM calls_by_day d CROSS JOIN pairs_by_day c ON c.day = d.day{names} \
             WHERE d.kind = 0 AND d.day >= ?1 AND d.day < ?2 ORDER BY d.day DESC"
        )
    }

    /// Returns the condition of the requested names on a row `c`.
    fn names(&self) -> String {
        let mut names = String::new();
        for (column, ids) in &self.filter {
            let column = if self.is_by_key { "name" } else { column };
            let ids = ids.iter().map(NameId::to_string).collect::<Vec<_>>().join(", ");
            names += &format!(" AND c.{column} IN ({ids})");
        }
        names
    }

    fn has_joined_pairs(&self) -> rusqlite::Result<bool> {
        self.db.query_row(
            "SELECT EXISTS (SELECT 1 FROM calls_by_day d CROSS JOIN pairs_by_day c \
             ON c.day = d.day AND c.caller = 1 AND c.prompt = 1 \
             WHERE d.kind = 0 AND d.day >= ?1 AND d.day < ?2)",
            [self.from, self.to],
            |row| row.get(0),
        )
    }

    /// Adds the sums of a name, or adds the sums of a caller to the rows of its groups.
    fn add(
        &self,
        key: NameId,
        groups: NameId,
        sum: &NameSum,
        sums: &mut Sums,
    ) -> rusqlite::Result<()> {
        let histogram = Some(&sum.histogram);
        let part = SumPart { counts: sum.counts, last: sum.last, histogram, ..SumPart::default() };
        if self.by == Dimension::Group {
            if groups != NO_NAME {
                let groups: Vec<String> =
                    serde_json::from_str(&self.name(groups)?).unwrap_or_default();
                groups.iter().for_each(|group| sums.add(group, part));
            }
            return Ok(());
        }
        if key == NO_NAME {
            return Ok(());
        }
        let upstream =
            if self.by == Dimension::Prompt { self.name(sum.upstream)? } else { String::new() };
        let upstream = Some(upstream.as_str()).filter(|upstream| !upstream.is_empty());
        sums.add(&self.name(key)?, SumPart { upstream, ..part });
        Ok(())
    }

    /// Adds the points of all calls.
    fn add_points(&self, sums: &mut Sums) -> rusqlite::Result<()> {
        let Self { time, from, to, .. } = self;
        let mut statement = self.db.prepare(&format!(
            "SELECT {time}, uses, failures, denied, limited, micros FROM calls_by_{time} \
             WHERE kind = {ALL} AND {time} >= ?1 AND {time} < ?2"
        ))?;
        let mut rows = statement.query([from, to])?;
        while let Some(row) = rows.next()? {
            sums.add_point(row.get(0)?, &counts(row, 1)?, None);
        }
        let mut statement = self.db.prepare(&format!(
            "SELECT {time}, step, calls FROM durations_by_{time} \
             WHERE kind = {ALL} AND {time} >= ?1 AND {time} < ?2"
        ))?;
        let mut rows = statement.query([from, to])?;
        while let Some(row) = rows.next()? {
            let histogram = Histogram::of(row.get(1)?, row.get(2)?);
            sums.add_point(row.get(0)?, &Counts::default(), Some(&histogram));
        }
        Ok(())
    }

    /// Adds the latencies of single names, as far as the tables keep them.
    fn add_durations(&self, sums: &mut Sums) -> rusqlite::Result<()> {
        let Self { time, from, to, .. } = self;
        let names = self.names();
        let kind = kind_of(self.by);
        let mut statement = self.db.prepare(&format!(
            "SELECT c.name, c.step, sum(c.calls) FROM durations_by_{time} c \
             WHERE c.kind = {kind} AND c.{time} >= ?1 AND c.{time} < ?2{names} \
             GROUP BY c.name, c.step"
        ))?;
        let mut rows = statement.query([*from, *to])?;
        let mut name = NO_NAME;
        let mut histogram = Histogram::default();
        while let Some(row) = rows.next()? {
            let next = row.get(0)?;
            if next != name && name != NO_NAME {
                sums.add_latency(&self.name(name)?, &std::mem::take(&mut histogram));
            }
            name = next;
            histogram.merge(&Histogram::of(row.get(1)?, row.get(2)?));
        }
        if name != NO_NAME {
            sums.add_latency(&self.name(name)?, &histogram);
        }
        Ok(())
    }

    fn name(&self, id: NameId) -> rusqlite::Result<String> {
        let mut statement = self.db.prepare_cached("SELECT name FROM names WHERE id = ?1")?;
        statement.query_row([id], |row| row.get(0))
    }
}
