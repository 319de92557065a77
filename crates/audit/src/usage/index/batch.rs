//! Calls that are counted and not written yet, as rows of the tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::database::Database;
use super::{DAY, HOUR};
use crate::usage::counts::{Counts, Histogram, Seen};
use crate::usage::names::{NONE, OTHERS};

/// The id of a name in its table. [`NONE`] and [`OTHERS`] mean there what they mean in memory.
pub(super) type NameId = i64;

pub(super) const NO_NAME: NameId = NONE as i64;

pub(super) const OTHER_NAMES: NameId = OTHERS as i64;

/// The values of the column `kind`.
pub(super) const ALL: i64 = 0;
pub(super) const PROMPT: i64 = 1;
pub(super) const UPSTREAM: i64 = 2;
pub(super) const CALLER: i64 = 3;
pub(super) const ENDPOINT: i64 = 4;

/// Names of one kind in an hour or a day; the least used are joined.
const MAX_NAMES: i64 = 20_000;

/// Pairs of a day that is over: the most used; the rest is joined.
const MAX_PAIRS: i64 = 10_000;

/// Pairs of the newest day, from which the most used are chosen.
const MAX_NEWEST_PAIRS: i64 = 4 * MAX_PAIRS;

/// Rows of a batch from which on it should be written: some megabytes.
const FULL: usize = 50_000;

/// The limit of each number in a batch: sums of years stay below the limit of SQLite.
const MAX_NUMBER: u64 = 1 << 48;

/// The names of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
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
    calls: BTreeMap<(i64, u64, NameId), Sum>,
    /// By day, caller, prompt, upstream and endpoint.
    pairs: BTreeMap<(u64, [NameId; 4]), Sum>,
    /// By hour and upstream; that of all calls has no name.
    durations: HashMap<(u64, NameId), Histogram>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    counts: Counts,
    upstream: NameId,
    groups: NameId,
    last: u64,
}

impl Sum {
    fn add(&mut self, secs: u64, seen: &Seen<'_>) {
        let uses = self.counts.uses;
        self.counts.add(seen);
        if self.counts.uses > uses {
            self.last = self.last.max(secs);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.counts.merge(&other.counts);
        self.last = self.last.max(other.last);
    }

    /// Returns the columns from `uses` on.
    fn numbers(&self) -> [u64; 6] {
        let Counts { uses, failures, denied, limited, micros } = self.counts;
        [uses, failures, denied, limited, micros, self.last].map(|number| number.min(MAX_NUMBER))
    }
}

impl Batch {
    /// Counts a call at a time in seconds since the Unix epoch.
    pub(super) fn add(&mut self, secs: u64, seen: &Seen<'_>, named: Named) {
        let (hour, day) = (secs / HOUR * HOUR, secs / DAY * DAY);
        let Named { prompt, upstream, caller, endpoint, groups } = named;
        self.calls.entry((ALL, hour, NO_NAME)).or_default().add(secs, seen);
        let names =
            [(PROMPT, prompt), (UPSTREAM, upstream), (CALLER, caller), (ENDPOINT, endpoint)];
        for (kind, name) in names.into_iter().filter(|(_, name)| *name != NO_NAME) {
            let sum = self.calls.entry((kind, hour, name)).or_default();
            sum.add(secs, seen);
            match kind {
                PROMPT => sum.upstream = upstream,
                CALLER if groups != NO_NAME => sum.groups = groups,
                _ => {}
            }
        }
        let pair = (day, [caller, prompt, upstream, endpoint]);
        self.pairs.entry(pair).or_default().add(secs, seen);
        if let Some(micros) = seen.micros {
            self.durations.entry((hour, NO_NAME)).or_default().add(micros);
            if upstream != NO_NAME {
                self.durations.entry((hour, upstream)).or_default().add(micros);
            }
        }
    }

    /// Whether the batch should be written before it takes more.
    pub(super) fn is_full(&self) -> bool {
        self.calls.len() + self.pairs.len() >= FULL
    }

    /// Adds the batch to the tables, and bounds what they hold of its days.
    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let newest_before = newest_day(db)?;
        for ((kind, hour, name), sum) in &self.calls {
            add_calls(db, "calls_by_hour", "hour", (*kind, *hour, *name), sum)?;
            add_calls(db, "calls_by_day", "day", (*kind, hour / DAY * DAY, *name), sum)?;
        }
        for (pair, sum) in &self.pairs {
            add_pair(db, *pair, sum)?;
        }
        for ((hour, upstream), histogram) in &self.durations {
            for (step, calls) in histogram.steps() {
                let row = (*upstream, *step, *calls);
                add_durations(db, "durations_by_hour", "hour", *hour, row)?;
                add_durations(db, "durations_by_day", "day", hour / DAY * DAY, row)?;
            }
        }
        self.bound(db, newest_before)
    }

    /// Joins what is beyond the limits of a day or an hour.
    fn bound(&self, db: &Connection, newest_before: Option<u64>) -> rusqlite::Result<()> {
        let hours: BTreeSet<_> = self.calls.keys().map(|(kind, hour, _)| (*kind, *hour)).collect();
        let days: BTreeSet<_> =
            hours.iter().map(|(kind, hour)| (*kind, hour / DAY * DAY)).collect();
        for (kind, hour) in hours {
            join_names(db, "calls_by_hour", "hour", kind, hour)?;
        }
        for (kind, day) in days {
            join_names(db, "calls_by_day", "day", kind, day)?;
        }
        let newest = newest_day(db)?;
        let days: BTreeSet<_> =
            self.pairs.keys().map(|(day, _)| *day).chain(newest_before).collect();
        for day in days {
            // The most used pairs of a day are known once it is over.
            let is_newest = newest == Some(day);
            let (limit, keep) =
                if is_newest { (MAX_NEWEST_PAIRS, MAX_PAIRS) } else { (MAX_PAIRS, MAX_PAIRS) };
            join_pairs(db, day, limit, keep)?;
        }
        Ok(())
    }
}

fn newest_day(db: &Connection) -> rusqlite::Result<Option<u64>> {
    db.query_row("SELECT max(day) FROM calls_by_day WHERE kind = 0", [], |row| row.get(0))
}

/// How numbers are added to a row that there is already.
const ADD: &str = "uses = uses + excluded.uses, failures = failures + excluded.failures, \
     denied = denied + excluded.denied, limited = limited + excluded.limited, \
     micros = micros + excluded.micros, last = max(last, excluded.last)";

fn add_calls(
    db: &Connection,
    table: &str,
    time: &str,
    (kind, start, name): (i64, u64, NameId),
    sum: &Sum,
) -> rusqlite::Result<()> {
    let mut statement = db.prepare_cached(&format!(
        "INSERT INTO {table} (kind, {time}, name, upstream, groups, uses, failures, denied, \
         limited, micros, last) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
         ON CONFLICT DO UPDATE SET upstream = iif(excluded.upstream, excluded.upstream, upstream), \
         groups = iif(excluded.groups, excluded.groups, groups), {ADD}"
    ))?;
    let [uses, failures, denied, limited, micros, last] = sum.numbers();
    let Sum { upstream, groups, .. } = sum;
    statement.execute(params![
        kind, start, name, upstream, groups, uses, failures, denied, limited, micros, last
    ])?;
    Ok(())
}

fn add_pair(
    db: &Connection,
    (day, [caller, prompt, upstream, endpoint]): (u64, [NameId; 4]),
    sum: &Sum,
) -> rusqlite::Result<()> {
    let mut statement = db.prepare_cached(&format!(
        "INSERT INTO pairs_by_day (day, caller, prompt, upstream, endpoint, uses, failures, \
         denied, limited, micros, last) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
         ON CONFLICT DO UPDATE SET {ADD}"
    ))?;
    let [uses, failures, denied, limited, micros, last] = sum.numbers();
    statement.execute(params![
        day, caller, prompt, upstream, endpoint, uses, failures, denied, limited, micros, last
    ])?;
    Ok(())
}

fn add_durations(
    db: &Connection,
    table: &str,
    time: &str,
    start: u64,
    (upstream, step, calls): (NameId, u8, u64),
) -> rusqlite::Result<()> {
    let mut statement = db.prepare_cached(&format!(
        "INSERT INTO {table} ({time}, upstream, step, calls) VALUES (?1, ?2, ?3, ?4) \
         ON CONFLICT DO UPDATE SET calls = calls + excluded.calls"
    ))?;
    statement.execute(params![start, upstream, step, calls.min(MAX_NUMBER)])?;
    Ok(())
}

/// Joins the least used names of one kind and time as `(others)`, where there are too many.
fn join_names(
    db: &Connection,
    table: &str,
    time: &str,
    kind: i64,
    start: u64,
) -> rusqlite::Result<()> {
    let of = format!("FROM {table} WHERE kind = ?1 AND {time} = ?2");
    let mut count = db.prepare_cached(&format!("SELECT count(*) {of}"))?;
    if count.query_row(params![kind, start], |row| row.get::<_, i64>(0))? <= MAX_NAMES {
        return Ok(());
    }
    let rest = joined(
        db,
        &format!(
            "DELETE {of} AND name IN (SELECT name {of} AND name <> 1 \
             ORDER BY uses + denied + limited DESC, name LIMIT -1 OFFSET ?3) RETURNING"
        ),
        params![kind, start, MAX_NAMES - 1],
    )?;
    add_calls(db, table, time, (kind, start, OTHER_NAMES), &rest)
}

/// Joins the least used pairs of a day as `(others)`, where there are more than `limit`, so that
/// `keep` are left.
fn join_pairs(db: &Connection, day: u64, limit: i64, keep: i64) -> rusqlite::Result<()> {
    let mut count = db.prepare_cached("SELECT count(*) FROM pairs_by_day WHERE day = ?1")?;
    if count.query_row([day], |row| row.get::<_, i64>(0))? <= limit {
        return Ok(());
    }
    let rest = joined(
        db,
        "DELETE FROM pairs_by_day WHERE day = ?1 AND (caller, prompt, upstream, endpoint) IN \
         (SELECT caller, prompt, upstream, endpoint FROM pairs_by_day \
         WHERE day = ?1 AND (caller <> 1 OR prompt <> 1) \
         ORDER BY uses + denied + limited DESC, caller, prompt LIMIT -1 OFFSET ?2) RETURNING",
        params![day, keep - 1],
    )?;
    add_pair(db, (day, [OTHER_NAMES; 4]), &rest)
}

/// Deletes rows, and returns their sum.
fn joined(db: &Connection, delete: &str, values: impl rusqlite::Params) -> rusqlite::Result<Sum> {
    let mut statement =
        db.prepare_cached(&format!("{delete} uses, failures, denied, limited, micros, last"))?;
    let mut rows = statement.query(values)?;
    let mut sum = Sum::default();
    while let Some(row) = rows.next()? {
        let counts = counts(row, 0)?;
        sum.merge(&Sum { counts, last: row.get(5)?, ..Sum::default() });
    }
    Ok(sum)
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
pub(super) struct Names {
    /// With the last day on which the name was used.
    known: HashMap<Arc<str>, (NameId, u64)>,
    bytes: usize,
    next: NameId,
    /// The names that the table has not, or not with this day.
    changed: Vec<(NameId, Arc<str>, u64)>,
}

/// The memory of names, in bytes: 50,000 of them.
const NAMES: usize = 8 << 20;

/// Bytes that a name takes beside its text, approximately.
const OVERHEAD: usize = 80;

impl Names {
    /// # Errors
    /// When the database cannot be read.
    pub(super) fn load(database: &Database) -> io::Result<Self> {
        let next = database
            .with(|db| db.query_row("SELECT max(id) + 1 FROM names", [], |row| row.get(0)))?;
        Ok(Self { known: HashMap::new(), bytes: 0, next, changed: Vec::new() })
    }

    /// Returns the id of a name that is used on a day; a new one if it has none.
    ///
    /// # Errors
    /// When the database cannot be read.
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

    /// Notes that the names are written. Those in memory are forgotten if they take too much.
    pub(super) fn written(&mut self) {
        self.changed.clear();
        if self.bytes > NAMES {
            self.forget();
        }
    }

    /// Forgets the names in memory; all must be written.
    pub(super) fn forget(&mut self) {
        (self.known, self.bytes) = (HashMap::new(), 0);
    }
}

/// Returns the id of a name, and the last day on which it was used.
pub(super) fn find(db: &Connection, name: &str) -> rusqlite::Result<Option<(NameId, u64)>> {
    let mut statement = db.prepare_cached("SELECT id, last_day FROM names WHERE name = ?1")?;
    statement.query_row([name], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}
