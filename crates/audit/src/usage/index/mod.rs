//! The usage index, by UTC day. It is derived from the audit log alone, so that it can be deleted.
//!
//! Each file names the last record of each log that it counts. So a record is counted once in each
//! day, wherever a crash interrupts the writing of several files, and whatever part of the log is
//! read again.

mod codec;
mod day;
mod files;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::warn;

use super::query::{Query, Sums};
use super::records::{OpenCalls, Record};
use crate::tail::{Position, Tail};
use base::seal;
use day::{DAY, Day, DayFile, DayPart, HOUR, Source, source};
use files::Files;

/// The days of an index, with those in memory that have changed.
pub(super) struct Index {
    files: Option<Files>,
    keep: Duration,
    /// The limit of all files, in bytes.
    size: u64,
    /// Where reading goes on, as of the last record.
    state: State,
    /// The days that are counted at present.
    open: BTreeMap<u64, Day>,
    changed: BTreeSet<u64>,
    /// The day on which old days were last looked for.
    tidied: u64,
}

/// The position in the audit log.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct State {
    /// The id of the log.
    instance: String,
    position: Position,
    /// The last record that was read.
    seq: u64,
    calls: OpenCalls,
}

/// Days that are kept in memory while they are counted: those of a log whose clock runs as it
/// should are two.
const MAX_OPEN_DAYS: usize = 4;

/// Age from which days have no sums by hour, in days.
const HOURS_KEPT: u64 = 31;

/// Periods up to this length are answered by hour, in seconds.
const BY_HOUR: u64 = 7 * DAY;

impl Index {
    /// Opens an index to write it. Files that are damaged are removed, and read again from the log
    /// as far as it goes back.
    ///
    /// # Errors
    /// When the folder cannot be read or written, or another process writes it (`WouldBlock`).
    pub(super) fn open(path: &Path, keep: Duration, size: u64) -> io::Result<Self> {
        let mut index = Self { keep, size, ..Self::of(Some(Files::open(path)?))? };
        index.remove_damaged()?;
        Ok(index)
    }

    /// Opens an index to read it; days that are counted from the log stay in memory. `None`: all is
    /// read from the log.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(super) fn reader(path: Option<&Path>) -> io::Result<Self> {
        Self::of(path.map(Files::reader))
    }

    fn of(files: Option<Files>) -> io::Result<Self> {
        let state = match files.as_ref().map(Files::state).transpose()?.flatten() {
            Some(bytes) => State::read(&bytes).unwrap_or_else(|| {
                warn!("the position of the usage index is damaged; the audit log is read again");
                State::default()
            }),
            None => State::default(),
        };
        Ok(Self {
            files,
            keep: Duration::MAX,
            size: u64::MAX,
            state,
            open: BTreeMap::new(),
            changed: BTreeSet::new(),
            tidied: 0,
        })
    }

    fn remove_damaged(&mut self) -> io::Result<()> {
        let Some(files) = &self.files else {
            return Ok(());
        };
        for (number, _) in files.days()? {
            let bytes = files.day(number)?.unwrap_or_default();
            if Day::read(&bytes).is_none_or(|day| day.number != number) {
                warn!(day = number, path = %files.path().display(), "a file of the usage index is damaged; the audit log is read again");
                files.remove_day(number)?;
                self.state = State::default();
            }
        }
        Ok(())
    }

    /// Applies changed limits.
    pub(super) fn limit(&mut self, keep: Duration, size: u64) {
        (self.keep, self.size, self.tidied) = (keep, size, 0);
    }

    /// Returns a reader of the log in a folder, from where this index ends.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(super) fn tail(&mut self, path: &Path) -> io::Result<Tail> {
        let instance = crate::tail::instance(path)?;
        if instance.as_ref() != Some(&self.state.instance) {
            // Each day says through which record of a log it counts.
            self.flush()?;
            self.state = State { instance: instance.unwrap_or_default(), ..State::default() };
        }
        Ok(Tail::new(path, self.state.position))
    }

    /// Reads about `limit` bytes of the log. Returns whether its end was reached.
    ///
    /// # Errors
    /// When the log or a day cannot be read, or a day not written.
    pub(super) fn follow(&mut self, tail: &mut Tail, limit: usize) -> io::Result<bool> {
        let mut failed = None;
        let at_end = tail.read(limit, |line| {
            if let Some(record) = Record::read(line)
                && let Err(error) = self.take(&record)
            {
                failed.get_or_insert(error);
            }
        })?;
        self.state.position = tail.position();
        if self.open.len() > MAX_OPEN_DAYS && self.files.as_ref().is_some_and(Files::is_writer) {
            self.flush()?;
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(at_end),
        }
    }

    /// Counts a record, unless it is counted.
    fn take(&mut self, record: &Record<'_>) -> io::Result<()> {
        if *record.instance != self.state.instance {
            self.flush()?;
            self.state = State { instance: record.instance.to_string(), ..State::default() };
        }
        // Lines of a segment that was abandoned are written again.
        if record.seq <= self.state.seq {
            return Ok(());
        }
        self.state.seq = record.seq;
        let number = record.secs / DAY;
        let mut ended = false;
        let mut calls = std::mem::take(&mut self.state.calls);
        let mut day = Ok(());
        calls.take(record, &mut |seen| {
            if !ended {
                day = self.load(number);
            }
            ended = true;
            let through = &self.state;
            if let Some(day) = self.open.get_mut(&number)
                && day.through.get(&through.instance).is_none_or(|seq| *seq < through.seq)
            {
                day.add(record.secs % DAY, seen);
                self.changed.insert(number);
            }
        });
        self.state.calls = calls;
        day
    }

    /// Makes sure that a day is in memory.
    fn load(&mut self, number: u64) -> io::Result<()> {
        if self.open.contains_key(&number) {
            return Ok(());
        }
        let bytes = self.files.as_ref().map(|files| files.day(number)).transpose()?.flatten();
        let day = bytes.and_then(|bytes| Day::read(&bytes)).unwrap_or_else(|| Day::new(number));
        self.open.insert(number, day);
        Ok(())
    }

    /// Writes the days that have changed, then the position.
    ///
    /// # Errors
    /// When a file cannot be written. What is in memory stays, and is written the next time.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(files) = self.files.as_ref().filter(|files| files.is_writer()) else {
            return Ok(());
        };
        for number in &self.changed {
            if let Some(day) = self.open.get_mut(number) {
                day.count_through(&self.state.instance, self.state.seq);
                files.write_day(*number, &day.write())?;
            }
        }
        files.write_state(&self.state.write())?;
        self.changed.clear();
        // The newest day is counted on; calls of others end rarely.
        while self.open.len() > 1 {
            self.open.pop_first();
        }
        Ok(())
    }

    /// Whether something has changed since the last flush.
    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Once a day: removes days beyond the limits, and drops the hours of days that are a month
    /// old. `now` is in seconds since the Unix epoch.
    ///
    /// # Errors
    /// When a file cannot be read, written or removed.
    pub(super) fn tidy(&mut self, now: u64) -> io::Result<()> {
        let today = now / DAY;
        let Some(files) = self.files.as_ref().filter(|_| self.tidied != today) else {
            return Ok(());
        };
        let first = today.saturating_sub(self.keep.as_secs() / DAY);
        let mut days = files.days()?;
        let mut total: u64 = days.iter().map(|(_, bytes)| bytes).sum();
        while let Some((number, bytes)) = days.first().copied()
            && (number < first || total > self.size)
            && number < today
        {
            files.remove_day(number)?;
            self.open.remove(&number);
            self.changed.remove(&number);
            total -= bytes;
            days.remove(0);
        }
        self.open.retain(|number, _| *number >= first);
        self.changed.retain(|number| *number >= first);
        // The files are read again below: they must contain the days in memory.
        self.flush()?;
        let Some(files) = &self.files else { return Ok(()) };
        for (number, _) in days {
            if number + HOURS_KEPT < today
                && let Some(bytes) = files.day(number)?
                && DayFile::read(&bytes).is_some_and(|file| file.has_hours())
                && let Some(mut day) = Day::read(&bytes)
            {
                day.drop_hours();
                files.write_day(number, &day.write())?;
                self.open.remove(&number);
            }
        }
        self.tidied = today;
        Ok(())
    }

    /// Returns a copy that answers questions without this index: the folder, and the days in
    /// memory.
    pub(super) fn snapshot(&self) -> Snapshot {
        let days = self.open.iter().map(|(number, day)| (*number, day.write())).collect();
        Snapshot { files: self.files.as_ref().map(|files| Files::reader(files.path())), days }
    }
}

impl State {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (digest, text) = bytes.split_at_checked(32)?;
        (seal::sha256(text) == *digest).then(|| serde_json::from_slice(text).ok()).flatten()
    }

    fn write(&self) -> Vec<u8> {
        // Texts and numbers always serialise.
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = seal::sha256(&text).to_vec();
        bytes.extend_from_slice(&text);
        bytes
    }
}

/// An index as it is at one time.
pub(super) struct Snapshot {
    files: Option<Files>,
    /// The files of the days in memory.
    days: BTreeMap<u64, Vec<u8>>,
}

impl Snapshot {
    /// Returns the seconds of one point in an answer.
    pub(super) fn step(query: &Query, (from, to): (u64, u64)) -> u64 {
        let is_by_hour =
            to.saturating_sub(from) <= BY_HOUR && source(query.by, &query.filter) == Source::Keys;
        if is_by_hour { HOUR } else { DAY }
    }

    /// Adds the counts of `from..to`, in seconds since the Unix epoch, newest day first until
    /// `until`. Points take `step` seconds, an hour or a day, and the times are rounded outwards to
    /// it.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(super) fn collect(
        &self,
        query: &Query,
        (from, to): (u64, u64),
        step: u64,
        until: Instant,
        sums: &mut Sums,
    ) -> io::Result<()> {
        let mut numbers: BTreeSet<u64> = self.days.keys().copied().collect();
        if let Some(files) = &self.files {
            numbers.extend(files.days()?.into_iter().map(|(number, _)| number));
        }
        let days = from / DAY..to.div_ceil(DAY);
        for number in numbers.range(days).rev() {
            if Instant::now() >= until {
                sums.partial = true;
                break;
            }
            let hours = hours(*number, (from, to));
            let is_whole = step == DAY;
            let part = DayPart { by: query.by, filter: &query.filter, hours, is_whole };
            let bytes = match (self.days.get(number), &self.files) {
                (Some(bytes), _) => bytes.clone(),
                (None, Some(files)) => match files.part_of_day(*number, part.detail())? {
                    Some(bytes) => bytes,
                    // It was removed meanwhile.
                    None => continue,
                },
                (None, None) => continue,
            };
            let file = DayFile::read(&bytes).filter(|file| file.number() == *number);
            if file.and_then(|file| file.collect(&part, sums)).is_none() {
                sums.partial = true;
            }
        }
        Ok(())
    }
}

/// Returns the hours of a day that are in `from..to`.
fn hours(day: u64, (from, to): (u64, u64)) -> Range<u8> {
    let start = day * DAY;
    let hour = |time: u64| u8::try_from(time.min(DAY) / HOUR).unwrap_or(24);
    hour(from.saturating_sub(start))..hour(to.saturating_sub(start).div_ceil(HOUR) * HOUR)
}
