//! Calls that are counted and not written yet, as rows of the tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::database::Database;
use super::{DAY, HOUR, MINUTE};
use crate::usage::counts::{CountedCall, Counts, Histogram};

/// The id of a name in its table.
pub(super) type NameId = i64;

/// The id of no name.
pub(super) const NO_NAME: NameId = 0;

/// The id that stands for all names without room.
pub(super) const OTHER_NAMES: NameId = 1;

/// The values of the column `kind`.
pub(super) const ALL: i64 = 0;
pub(super) const PROMPT: i64 = 1;
pub(super) const UPSTREAM: i64 = 2;
pub(super) const CALLER: i64 = 3;
pub(super) const ENDPOINT: i64 = 4;

const HOURS: &str = "calls_by_hour";
const DAYS: &str = "calls_by_day";
const PAIRS: &str = "pairs_by_day";
const MINUTES: &str = "calls_by_minute";

/// The step of calls without a latency.
const NO_STEP: i64 = -1;

/// Seconds that are kept by minute: a day, and an hour for rounding.
const MINUTES_KEPT: u64 = DAY + HOUR;

/// The limit of rows by minute: some megabytes. Beyond it the oldest minutes are removed.
const MAX_MINUTE_ROWS: i64 = 200_000;

/// The limit of names of one kind in an hour or a day; the least used are joined.
const MAX_NAMES: i64 = 20_000;

/// The limit of pairs of a day that is over: the most used are kept, the rest is joined.
const MAX_PAIRS: i64 = 10_000;

/// The limit of pairs of the newest day, from which the most used are chosen later.
const MAX_NEWEST_PAIRS: i64 = 4 * MAX_PAIRS;

/// Prompts, upstreams or callers of an hour or a day whose durations are kept: each takes a row for
/// every step of its latency.
const MAX_TIMED: i64 = 500;

/// Rows of a batch from which on it should be written: some megabytes.
const FULL: usize = 50_000;

/// The limit of each number in a batch: sums of years stay below the limit of SQLite.
const MAX_NUMBER: u64 = 1 << 48;

/// The names of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallNames {
    pub prompt: NameId,
    pub upstream: NameId,
    pub caller: NameId,
    pub endpoint: NameId,
    /// The groups of the caller, as one name.
    pub groups: NameId,
}

/// Sums that are added to those of the tables.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// By kind, hour and name.
    calls: BTreeMap<(i64, u64, NameId), BatchSum>,
    /// By day, caller, prompt, upstream and endpoint.
    pairs: BTreeMap<(u64, [NameId; 4]), BatchSum>,
    /// By minute, caller, prompt, upstream, endpoint and step.
    minutes: BTreeMap<(u64, [NameId; 4], i64), BatchSum>,
    /// By kind, hour and name.
    durations: HashMap<(i64, u64, NameId), Histogram>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BatchSum {
    counts: Counts,
    upstream: NameId,
    groups: NameId,
    last: u64,
}

impl Batch {
    /// Counts a call at a time in seconds since the Unix epoch.
    pub(super) fn add(&mut self, secs: u64, seen: &CountedCall<'_>, named: CallNames) {
        let hour = secs / HOUR * HOUR;
        let day = secs / DAY * DAY;
        let CallNames { prompt, upstream, caller, endpoint, groups } = named;
        let mut add = |kind, name, upstream, groups| {
            let sum = self.calls.entry((kind, hour, name)).or_default();
            sum.add(secs, seen);
            sum.upstream = upstream;
            if groups != NO_NAME {
                sum.groups = groups;
            }
        };
        add(ALL, NO_NAME, NO_NAME, NO_NAME);
        for (kind, name, upstream, groups) in [
            (PROMPT, prompt, upstream, NO_NAME),
            (UPSTREAM, upstream, NO_NAME, NO_NAME),
            (CALLER, caller, NO_NAME, groups),
            (ENDPOINT, endpoint, NO_NAME, NO_NAME),
        ] {
            if name != NO_NAME {
                add(kind, name, upstream, groups);
            }
        }
        let pair = [caller, prompt, upstream, endpoint];
        self.pairs.entry((day, pair)).or_default().add(secs, seen);
        let step = seen.use_micros().map_or(NO_STEP, |micros| int(Histogram::step(micros) as u64));
        let minute = secs / MINUTE * MINUTE;
        self.minutes.entry((minute, pair, step)).or_default().add(secs, seen);
        let Some(micros) = seen.use_micros() else { return };
        let named = [(PROMPT, prompt), (UPSTREAM, upstream), (CALLER, caller)];
        let named = named.into_iter().filter(|(_, name)| *name != NO_NAME);
        for (kind, name) in named.chain([(ALL, NO_NAME)]) {
            self.durations.entry((kind, hour, name)).or_default().add(micros);
        }
    }

    /// Whether the batch should be written before it takes more.
    pub(super) fn is_full(&self) -> bool {
        self.calls.len() + self.pairs.len() + self.minutes.len() + self.durations.len() >= FULL
    }

    /// Adds the batch to the tables, and joins or removes rows beyond the limits.
    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let newest_before = newest_day(db)?;
        let mut times = BTreeSet::new();
        for ((kind, hour, name), sum) in &self.calls {
            for (table, unit) in [(HOURS, HOUR), (DAYS, DAY)] {
                let start = hour / unit * unit;
                times.insert((*kind, table, start));
                add(db, table, &[*kind, int(start), *name, sum.upstream, sum.groups], sum)?;
            }
        }
        for ((day, [caller, prompt, upstream, endpoint]), sum) in &self.pairs {
            add(db, PAIRS, &[int(*day), *caller, *prompt, *upstream, *endpoint], sum)?;
        }
        self.write_minutes(db)?;
        self.write_durations(db)?;
        for (kind, table, start) in times {
            let of = format!("kind = {kind} AND {} = {start}", time_of(table));
            let others = [kind, int(start), OTHER_NAMES, NO_NAME, NO_NAME];
            join(db, (table, "name", &of), (MAX_NAMES, MAX_NAMES), others)?;
        }
        let newest = newest_day(db)?;
        let days: BTreeSet<_> =
            self.pairs.keys().map(|(day, _)| *day).chain(newest_before).collect();
        for day in days {
            // The most used pairs of a day are only known once the day is over.
            let limit = if newest == Some(day) { MAX_NEWEST_PAIRS } else { MAX_PAIRS };
            let names = "caller, prompt, upstream, endpoint";
            let of = format!("day = {day}");
            let others = [int(day), OTHER_NAMES, OTHER_NAMES, OTHER_NAMES, OTHER_NAMES];
            join(db, (PAIRS, names, &of), (limit, MAX_PAIRS), others)?;
        }
        Ok(())
    }

    /// Adds the calls by minute. Removes minutes that are a day older than the newest, or exceed
    /// the limit of rows.
    fn write_minutes(&self, db: &Connection) -> rusqlite::Result<()> {
        let Some(((newest, ..), _)) = self.minutes.last_key_value() else {
            return Ok(());
        };
        let since: u64 = db.query_row("SELECT since FROM minutes", [], |row| row.get(0))?;
        let mut first = since.max((newest + MINUTE).saturating_sub(MINUTES_KEPT));
        for ((minute, [caller, prompt, upstream, endpoint], step), sum) in &self.minutes {
            if *minute >= first {
                add(
                    db,
                    MINUTES,
                    &[int(*minute), *caller, *prompt, *upstream, *endpoint, *step],
                    sum,
                )?;
            }
        }
        let beyond = db
            .prepare_cached(
                "SELECT minute FROM calls_by_minute ORDER BY minute DESC LIMIT 1 OFFSET ?1",
            )?
            .query_row([MAX_MINUTE_ROWS], |row| row.get::<_, u64>(0))
            .optional()?;
        first = first.max(beyond.map_or(0, |minute| minute + MINUTE));
        db.execute("DELETE FROM calls_by_minute WHERE minute < ?1", [first])?;
        db.execute("UPDATE minutes SET since = ?1", [first])?;
        Ok(())
    }

    fn write_durations(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut times = BTreeSet::new();
        for ((kind, hour, name), histogram) in &self.durations {
            for (time, unit) in [("hour", HOUR), ("day", DAY)] {
                let start = hour / unit * unit;
                times.insert((*kind, time, start));
                let mut statement = db.prepare_cached(&format!(
                    "INSERT INTO durations_by_{time} VALUES (?1, ?2, ?3, ?4, ?5) \
                     ON CONFLICT DO UPDATE SET calls = calls + excluded.calls"
                ))?;
                for (step, calls) in histogram.steps() {
                    let calls = calls.min(&MAX_NUMBER);
                    statement.execute((kind, int(start), name, step, calls))?;
                }
            }
        }
        for (kind, time, start) in times {
            forget_rare_durations(db, kind, time, start)?;
        }
        Ok(())
    }
}

impl BatchSum {
    fn add(&mut self, secs: u64, seen: &CountedCall<'_>) {
        let uses = self.counts.uses;
        self.counts.add(seen);
        if self.counts.uses > uses {
            self.last = self.last.max(secs);
        }
    }
}

fn int(time: u64) -> i64 {
    time.try_into().unwrap_or(i64::MAX)
}

fn time_of(table: &str) -> &'static str {
    if table == HOURS { "hour" } else { "day" }
}

fn newest_day(db: &Connection) -> rusqlite::Result<Option<u64>> {
    db.query_row("SELECT max(day) FROM calls_by_day WHERE kind = 0", [], |row| row.get(0))
}

/// Adds sums to a row, whose first columns are `key`.
fn add(db: &Connection, table: &str, key: &[i64], sum: &BatchSum) -> rusqlite::Result<()> {
    // `upstream` and `groups` are the last ones of a name; in a pair `upstream` is part of the key.
    let related = if [PAIRS, MINUTES].contains(&table) {
        ""
    } else {
        "upstream = iif(excluded.upstream, excluded.upstream, upstream), \
         groups = iif(excluded.groups, excluded.groups, groups), "
    };
    let mut statement = db.prepare_cached(&format!(
        "INSERT INTO {table} VALUES ({}?, ?, ?, ?, ?, ?) \
         ON CONFLICT DO UPDATE SET {related}uses = uses + excluded.uses, \
         failures = failures + excluded.failures, denied = denied + excluded.denied, \
         limited = limited + excluded.limited, micros = micros + excluded.micros, \
         last = max(last, excluded.last)",
        "?, ".repeat(key.len())
    ))?;
    let Counts { uses, failures, denied, limited, micros } = sum.counts;
    let sums = [uses, failures, denied, limited, micros, sum.last];
    let sums = sums.map(|number| int(number.min(MAX_NUMBER)));
    statement.execute(params_from_iter(key.iter().copied().chain(sums)))?;
    Ok(())
}

/// Joins the least used rows of a time as `(others)` if there are more than `limit`, so that `keep`
/// are left. `names` are the columns that identify a row.
fn join(
    db: &Connection,
    (table, names, of): (&str, &str, &str),
    (limit, keep): (i64, i64),
    others: [i64; 5],
) -> rusqlite::Result<()> {
    let mut count = db.prepare(&format!("SELECT count(*) FROM {table} WHERE {of}"))?;
    if count.query_row([], |row| row.get::<_, i64>(0))? <= limit {
        return Ok(());
    }
    let first = names.split(',').next().unwrap_or_default();
    let mut statement = db.prepare(&format!(
        "DELETE FROM {table} WHERE {of} AND ({names}) IN (SELECT {names} FROM {table} \
         WHERE {of} AND {first} <> {OTHER_NAMES} ORDER BY uses + denied + limited DESC, {names} \
         LIMIT -1 OFFSET ?1) RETURNING uses, failures, denied, limited, micros, last"
    ))?;
    let mut rows = statement.query([keep - 1])?;
    let mut rest = BatchSum::default();
    while let Some(row) = rows.next()? {
        rest.counts.merge(&counts(row, 0)?);
        rest.last = rest.last.max(row.get(5)?);
    }
    add(db, table, &others, &rest)
}

/// Removes the durations of all but the [`MAX_TIMED`] most used names of one kind in an hour or a
/// day, where there are twice as many.
fn forget_rare_durations(
    db: &Connection,
    kind: i64,
    time: &str,
    start: u64,
) -> rusqlite::Result<()> {
    let of = format!("durations_by_{time} WHERE kind = {kind} AND {time} = {start}");
    let mut count = db.prepare_cached(&format!("SELECT count(DISTINCT name) FROM {of}"))?;
    if count.query_row([], |row| row.get::<_, i64>(0))? > 2 * MAX_TIMED {
        let used = format!("SELECT name FROM {of} GROUP BY name ORDER BY sum(calls) DESC, name");
        db.execute(&format!("DELETE FROM {of} AND name NOT IN ({used} LIMIT {MAX_TIMED})"), [])?;
    }
    Ok(())
}

/// Reads the sums of a row, from a column on.
pub(super) fn counts(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Counts> {
    Ok(Counts {
        uses: row.get(first)?,
        failures: row.get(first + 1)?,
        denied: row.get(first + 2)?,
        limited: row.get(first + 3)?,
        micros: row.get(first + 4)?,
    })
}

/// The ids of names. There is one writer, so new ones are given out before they are written.
#[derive(Debug)]
pub(super) struct NameIds {
    /// With the last day on which the name was used.
    known: HashMap<Arc<str>, (NameId, u64)>,
    bytes: usize,
    next: NameId,
    /// The names that the table lacks, or has with an earlier day.
    changed: Vec<(NameId, Arc<str>, u64)>,
}

/// The memory of names, in bytes: 50,000 of them.
const NAMES: usize = 8 << 20;

/// The overhead of a name in addition to its text, in bytes, approximately.
const OVERHEAD: usize = 80;

impl NameIds {
    pub(super) fn load(database: &Database) -> io::Result<Self> {
        let next = database
            .with(|db| db.query_row("SELECT max(id) + 1 FROM names", [], |row| row.get(0)))?;
        Ok(Self { known: HashMap::new(), bytes: 0, next, changed: Vec::new() })
    }

    /// Returns the id of a name that is used on a day; a new one if it has none.
    pub(super) fn id(
        &mut self,
        database: &Database,
        name: Option<&str>,
        day: u64,
    ) -> io::Result<NameId> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(NO_NAME);
        };
        let known = match self.known.get(name) {
            Some((id, last)) if *last >= day => return Ok(*id),
            Some(known) => Some(*known),
            None => {
                self.bytes += name.len() + OVERHEAD;
                database.with(|db| find(db, name))?
            }
        };
        let (id, last) = known.unwrap_or((self.next, 0));
        self.next = self.next.max(id + 1);
        let name: Arc<str> = name.into();
        if known.is_none() || day > last {
            self.changed.push((id, name.clone(), day));
        }
        self.known.insert(name, (id, day.max(last)));
        Ok(id)
    }

    /// Writes the names that the table does not have yet.
    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut statement = db.prepare_cached(
            "INSERT INTO names (id, name, last_day) VALUES (?1, ?2, ?3) \
             ON CONFLICT (id) DO UPDATE SET last_day = max(last_day, excluded.last_day)",
        )?;
        for (id, name, day) in &self.changed {
            statement.execute(params![id, &**name, day])?;
        }
        Ok(())
    }

    /// Marks the names as written. Drops the names in memory if they take too much.
    pub(super) fn written(&mut self) {
        self.changed.clear();
        if self.bytes > NAMES {
            self.forget();
        }
    }

    /// Drops the names in memory; all must be written.
    pub(super) fn forget(&mut self) {
        (self.known, self.bytes) = (HashMap::new(), 0);
    }
}

/// Returns the id of a name, and the last day on which it was used.
pub(super) fn find(db: &Connection, name: &str) -> rusqlite::Result<Option<(NameId, u64)>> {
    let mut statement = db.prepare_cached("SELECT id, last_day FROM names WHERE name = ?1")?;
    statement.query_row([name], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}
