//! Follows the audit log and keeps the index, on a thread that may block, a slice at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::index::{Index, IndexSnapshot};
use super::query::secs;
use crate::tail::Tail;

/// An index with the log that it is derived from.
pub(super) struct Follower {
    index: Index,
    /// `None` while there is no log.
    tail: Option<Tail>,
    flushed: Instant,
}

/// Bytes of the log that are read at once: some milliseconds of work, so that questions wait no
/// longer.
const SLICE: usize = 1 << 20;

/// The limit of slices that a question reads: more than is written between two steps.
const CATCH_UP: usize = 8;

/// The interval in which the index is written while calls are counted: the maximum age of the
/// database for outside readers. The gateway's answers include all calls ([`Follower::snapshot`]).
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

impl Follower {
    /// Opens the index of a configuration for writing; `None` if the configuration has no index.
    pub(crate) fn open(config: &config::Usage) -> io::Result<Option<Self>> {
        let Some(path) = &config.path else {
            return Ok(None);
        };
        let index = Index::open(path, config.keep, config.size)?;
        Ok(Some(Self { index, tail: None, flushed: Instant::now() }))
    }

    /// Opens an index for reading, and reads the newer part of the log.
    pub(super) fn read(index: Option<&Path>, log: Option<&Path>) -> io::Result<Self> {
        let index = Index::reader(index)?;
        let mut follower = Self { index, tail: None, flushed: Instant::now() };
        if let Some(log) = log {
            let mut tail = follower.index.tail(log)?;
            while !follower.index.follow(&mut tail, SLICE)? {}
        }
        Ok(follower)
    }

    /// Reads a slice of the log in a folder, and writes the index when that is due. Returns whether
    /// the end of the log was reached.
    pub(super) fn step(&mut self, log: Option<PathBuf>, now: SystemTime) -> io::Result<bool> {
        // Tidies first, so that a full disk gets room.
        self.index.tidy(secs(now))?;
        let is_same = self.tail.as_ref().map(Tail::path) == log.as_deref();
        let mut at_end = true;
        if let Some(tail) = &mut self.tail {
            at_end = self.index.follow(tail, SLICE)?;
        }
        if at_end && !is_same {
            // The replaced log is read to its end before the log that continues it.
            self.tail = log.map(|log| self.index.tail(&log)).transpose()?;
            at_end = self.tail.is_none();
        }
        if self.index.has_changed() && self.flushed.elapsed() >= FLUSH_INTERVAL {
            self.flush()?;
        }
        Ok(at_end)
    }

    /// Writes the index.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.index.flush()
    }

    /// Writes the index, and releases its folder.
    pub(super) fn close(self) -> io::Result<()> {
        self.index.close()
    }

    /// Applies changed limits.
    pub(crate) fn limit(&mut self, config: &config::Usage) {
        self.index.limit(config.keep, config.size);
    }

    /// Reads the records since the last step: at most [`CATCH_UP`] slices, and none after `until`.
    /// Returns whether the end of the log was reached.
    pub(super) fn catch_up(&mut self, until: Instant) -> io::Result<bool> {
        let Some(tail) = &mut self.tail else {
            return Ok(true);
        };
        for _ in 0..CATCH_UP {
            if self.index.follow(tail, SLICE)? {
                return Ok(true);
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(false)
    }

    /// Returns the index as it is now.
    pub(super) fn snapshot(&mut self) -> io::Result<IndexSnapshot> {
        self.flushed = Instant::now();
        self.index.snapshot()
    }

    /// Moves a damaged database out of the way; see [`Index::set_aside`].
    pub(super) fn set_aside(self) -> io::Result<()> {
        self.index.set_aside()
    }
}
