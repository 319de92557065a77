//! The index of usage: a SQLite database (`schema.sql`), derived from the audit log alone, so that
//! it can be deleted.
//!
//! The position in the log is written in the same transaction as the counts, so that each record is
//! counted once, even after a crash and if a part of the log is read again.

mod batch;
mod database;
mod reading;
#[cfg(test)]
pub(super) mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::counts::CountedCall;
use super::records::{OpenCalls, Record};
use crate::tail::{Position, Tail};
use base::platform::disk::File;
use batch::{Batch, CallNames, NameIds};
use database::Database;

pub(super) use database::is_damage;
pub(super) use reading::IndexSnapshot;

/// Seconds of a day.
pub(super) const DAY: u64 = 86_400;

/// Seconds of an hour.
const HOUR: u64 = 3_600;

/// Seconds of a minute.
const MINUTE: u64 = 60;

/// An index for writing; or a read-only index, with the newer part of the log.
pub(super) struct Index {
    /// The folder with its lock; `None` for a reader, whose database is temporary.
    folder: Option<(PathBuf, File)>,
    database: Database,
    /// The database that a reader found in the folder.
    stored: Option<Database>,
    keep: Duration,
    /// The limit of the database, in bytes.
    size: u64,
    log: IndexedLog,
    names: NameIds,
    batch: Batch,
    /// Whether records were read since the last flush.
    has_changed: bool,
    /// The day of the last check for old days.
    tidied: u64,
}

/// A log, and the position up to which it was read.
#[derive(Clone, Debug, Default)]
struct IndexedLog {
    /// The id of the log; empty before its first record.
    instance: String,
    position: Position,
    /// The last record that was read.
    seq: u64,
    calls: OpenCalls,
    /// The time of the last record, in seconds since the Unix epoch.
    read_at: u64,
}

/// The limit of logs with a known position: more than share a folder.
const MAX_LOGS: u64 = 64;

/// Days that have sums by hour, in addition to today.
const HOURS_KEPT: u64 = 31;

/// Returns the path of the database in the folder of an index.
pub(super) fn path(folder: &Path) -> PathBuf {
    database::path(folder)
}

impl Index {
    /// Opens an index for writing. An unusable database is set aside; the log is then read again
    /// from its begin.
    pub(super) fn open(path: &Path, keep: Duration, size: u64) -> io::Result<Self> {
        let lock = database::lock(path)?;
        let index = Self::of(Database::open(path)?, None)?;
        Ok(Self { folder: Some((path.to_owned(), lock)), keep, size, ..index })
    }

    /// Opens an index for reading; records read from the log are counted in a separate database.
    /// Without a folder, or an index in it, the whole log is read.
    pub(super) fn reader(path: Option<&Path>) -> io::Result<Self> {
        let stored = path.map(Database::reader).transpose()?.flatten();
        Self::of(Database::temporary()?, stored)
    }

    fn of(database: Database, stored: Option<Database>) -> io::Result<Self> {
        Ok(Self {
            folder: None,
            names: NameIds::load(&database)?,
            database,
            stored,
            keep: Duration::MAX,
            size: u64::MAX,
            log: IndexedLog::default(),
            batch: Batch::default(),
            has_changed: false,
            tidied: 0,
        })
    }

    /// Applies changed limits.
    pub(super) fn limit(&mut self, keep: Duration, size: u64) {
        (self.keep, self.size, self.tidied) = (keep, size, 0);
    }

    /// Returns a reader of the log in a folder, from the end of this index on.
    pub(super) fn tail(&mut self, path: &Path) -> io::Result<Tail> {
        self.change_log(&crate::tail::instance(path)?.unwrap_or_default())?;
        Ok(Tail::new(path, self.log.position))
    }

    /// Continues with another log, from its last position.
    fn change_log(&mut self, instance: &str) -> io::Result<()> {
        if self.log.instance == instance {
            return Ok(());
        }
        self.flush()?;
        let mut found = self.database.with(|db| IndexedLog::read(db, instance))?;
        if let (None, Some(stored)) = (&found, &self.stored) {
            found = stored.with(|db| IndexedLog::read(db, instance))?;
        }
        let unknown = || IndexedLog { instance: instance.to_owned(), ..IndexedLog::default() };
        self.log = found.unwrap_or_else(unknown);
        Ok(())
    }

    /// Reads about `limit` bytes of the log. Returns whether its end was reached.
    pub(super) fn follow(&mut self, tail: &mut Tail, limit: usize) -> io::Result<bool> {
        let mut taken = Ok(());
        let at_end = tail.read(limit, |line| {
            if taken.is_ok()
                && let Some(record) = Record::read(line)
            {
                taken = self.take(&record);
            }
        })?;
        taken?;
        self.has_changed |= self.log.position != tail.position();
        self.log.position = tail.position();
        if self.batch.is_full() {
            self.flush()?;
        }
        Ok(at_end)
    }

    /// Counts a record, unless it was counted before.
    fn take(&mut self, record: &Record<'_>) -> io::Result<()> {
        self.change_log(&record.instance)?;
        // Lines of an abandoned segment are written again.
        if record.seq <= self.log.seq {
            return Ok(());
        }
        (self.log.seq, self.log.read_at, self.has_changed) = (record.seq, record.secs, true);
        let mut calls = std::mem::take(&mut self.log.calls);
        let mut counted = Ok(());
        calls.take(record, &mut |seen| {
            if counted.is_ok() {
                counted = self.count(record.secs, seen);
            }
        });
        self.log.calls = calls;
        counted
    }

    fn count(&mut self, secs: u64, seen: &CountedCall<'_>) -> io::Result<()> {
        let day = secs / DAY * DAY;
        let database = &self.database;
        // A list of texts always serialises.
        let groups = (!seen.groups.is_empty())
            .then(|| serde_json::to_string(seen.groups).unwrap_or_default());
        let mut id = |name| self.names.id(database, name, day);
        let named = CallNames {
            prompt: id(seen.prompt)?,
            upstream: id(seen.upstream)?,
            caller: id(seen.caller)?,
            endpoint: id(seen.endpoint)?,
            groups: id(groups.as_deref())?,
        };
        self.batch.add(secs, seen, named);
        Ok(())
    }

    /// Writes the counts, with the position in the log.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if !self.has_changed {
            return Ok(());
        }
        self.database.change(|db| {
            self.names.write(db)?;
            self.batch.write(db)?;
            self.log.write(db)
        })?;
        self.names.written();
        (self.batch, self.has_changed) = (Batch::default(), false);
        Ok(())
    }

    /// Whether records were read since the last flush.
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Once a day: removes days beyond the limits, and the hours of days that are a month old.
    /// `now` is in seconds since the Unix epoch.
    pub(super) fn tidy(&mut self, now: u64) -> io::Result<()> {
        let today = now / DAY * DAY;
        if self.folder.is_none() || self.tidied == today {
            return Ok(());
        }
        self.flush()?;
        let first = today.saturating_sub(self.keep.as_secs() / DAY * DAY);
        let first_with_hours = today.saturating_sub(HOURS_KEPT * DAY);
        let size = self.size;
        self.database.change(|db| {
            remove_before(db, "hour", first_with_hours)?;
            remove_before(db, "day", first)?;
            while used_bytes(db)? > size
                && let Some(oldest) = oldest_day(db)?.filter(|day| *day < today)
            {
                remove_before(db, "hour", oldest + DAY)?;
                remove_before(db, "day", oldest + DAY)?;
            }
            let first = oldest_day(db)?.unwrap_or(today);
            db.execute("DELETE FROM names WHERE last_day < ?1", [first])
        })?;
        // Some names may be removed.
        self.names.forget();
        self.database.with(|db| db.execute_batch("PRAGMA incremental_vacuum"))?;
        self.tidied = today;
        Ok(())
    }

    /// Returns the databases that answer questions without this index, with all counts so far.
    pub(super) fn snapshot(&mut self) -> io::Result<IndexSnapshot> {
        self.flush()?;
        Ok(IndexSnapshot(match &self.folder {
            Some((folder, _)) => Database::reader(folder)?.into_iter().collect(),
            None => self.stored.iter().chain([&self.database]).cloned().collect(),
        }))
    }

    /// Writes the counts. The database is then a single file that can be copied, and read on
    /// read-only storage.
    pub(super) fn close(mut self) -> io::Result<()> {
        self.flush()?;
        self.database.rest();
        Ok(())
    }

    /// Sets a damaged database aside; the next index starts empty.
    pub(super) fn set_aside(self) -> io::Result<()> {
        let Self { folder, database, .. } = self;
        drop(database);
        match &folder {
            Some((path, _)) => database::set_aside(path, "damaged"),
            None => Ok(()),
        }
    }
}

impl IndexedLog {
    fn read(db: &Connection, instance: &str) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT segment, bytes, seq, open_calls, read_at FROM logs WHERE instance = ?1";
        let read = |row: &rusqlite::Row<'_>| {
            let calls: String = row.get(3)?;
            let calls = serde_json::from_str(&calls).map_err(|error| {
                let text = rusqlite::types::Type::Text;
                rusqlite::Error::FromSqlConversionFailure(3, text, Box::new(error))
            })?;
            Ok(Self {
                instance: instance.to_owned(),
                position: Position { segment: row.get(0)?, offset: row.get(1)? },
                seq: row.get(2)?,
                calls,
                read_at: row.get(4)?,
            })
        };
        db.query_row(sql, [instance], read).optional()
    }

    fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        if self.instance.is_empty() {
            return Ok(());
        }
        let Self { instance, position, seq, calls, read_at } = self;
        // Texts and numbers always serialise.
        let calls = serde_json::to_string(calls).unwrap_or_default();
        let Position { segment, offset } = position;
        db.execute(
            "INSERT OR REPLACE INTO logs (instance, segment, bytes, seq, open_calls, read_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![instance, segment, offset, seq, calls, read_at],
        )?;
        db.execute(
            "DELETE FROM logs WHERE instance NOT IN \
             (SELECT instance FROM logs ORDER BY read_at DESC LIMIT ?1)",
            [MAX_LOGS],
        )?;
        Ok(())
    }
}

/// Removes the rows before `first` from the tables by `time`, an hour or a day.
fn remove_before(db: &Connection, time: &str, first: u64) -> rusqlite::Result<()> {
    for kind in batch::ALL..=batch::ENDPOINT {
        for table in ["calls", "durations"] {
            let sql = format!("DELETE FROM {table}_by_{time} WHERE kind = ?1 AND {time} < ?2");
            db.execute(&sql, params![kind, first])?;
        }
    }
    if time == "day" {
        db.execute("DELETE FROM pairs_by_day WHERE day < ?1", [first])?;
    }
    Ok(())
}

fn oldest_day(db: &Connection) -> rusqlite::Result<Option<u64>> {
    db.query_row("SELECT min(day) FROM calls_by_day WHERE kind = 0", [], |row| row.get(0))
}

/// Returns the bytes of the pages in use.
fn used_bytes(db: &Connection) -> rusqlite::Result<u64> {
    let value = |name| db.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
    Ok((value("page_count")? - value("freelist_count")?) * value("page_size")?)
}
