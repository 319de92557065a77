//! Usage: the uses of prompts and skills by callers, with their outcomes and times
//! (docs/usage.md).
//!
//! Calls are counted from the audit log alone, by a [`follower`] that keeps an [`index`]: by minute
//! for a day, by hour for a month, and by day.

pub(crate) mod counts;
mod daily;
mod follower;
mod index;
pub(crate) mod query;
mod records;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::Audit;
use base::platform::{Locked, blocking, wall_clock};
use follower::Follower;
use index::{DAY, IndexSnapshot, is_damage};
use query::{Rounding, Sums, UNKNOWN, secs};

pub use counts::Histogram;
pub use daily::{DailyUses, WEEK_DAYS};
pub use query::{
    CallerUses, Dimension, Filter, Point, Query, RecentUses, Report, Row, Sort, UsagePart, UsedKind,
};

/// The usage of one gateway.
#[derive(Default)]
pub struct GatewayUsage {
    /// The configuration; `None` without an index. Separate from the history, which is locked while
    /// the database is read and written.
    wanted: Mutex<Option<config::Usage>>,
    /// Notified when `wanted` is set: the index is opened at once.
    configured: Notify,
    history: Mutex<History>,
}

/// The index with its state.
#[derive(Default)]
struct History {
    /// The configuration with which `follower` was opened.
    opened: Option<config::Usage>,
    follower: Option<Follower>,
    /// The reason why the last attempt failed; empty after a success.
    failure: String,
}

/// Prompts and skills that were used, by their public names.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct UsedPrompts {
    pub prompts: HashSet<String>,
    /// Whether there may be more.
    pub is_partial: bool,
}

/// The time between two reads of the audit log.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// The time after which an unusable index is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

impl GatewayUsage {
    /// Returns the path of the database in the folder of an index.
    pub fn database(folder: &Path) -> PathBuf {
        index::path(folder)
    }

    /// Reads the usage of a gateway, running or not: its index, and the later records of its log.
    /// Without an index the whole log is read. Blocks on the file system.
    ///
    /// # Errors
    /// When the index or the log cannot be read; `InvalidData` if the index is damaged, or of
    /// another version.
    pub fn read(index: Option<&Path>, log: Option<&Path>) -> io::Result<Self> {
        let follower = Some(Follower::read(index, log)?);
        let history = Mutex::new(History { follower, ..History::default() });
        Ok(Self { history, ..Self::default() })
    }

    /// Applies the configuration of the index; `None` without an index.
    pub fn configure(&self, config: Option<&config::Usage>) {
        *self.wanted.locked() = config.cloned();
        self.configured.notify_one();
    }

    /// Maintains the index until `stop`.
    pub async fn follow(self: Arc<Self>, audit: Audit, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let usage = self.clone();
            let log = audit.clone();
            let stepped = blocking(move || usage.step(&log, wall_clock())).await;
            let pause = stepped.unwrap_or(RETRY_INTERVAL);
            if !pause.is_zero() {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = self.configured.notified() => {}
                    () = sleep(pause) => {}
                }
            }
        }
        let _ = blocking(move || {
            self.step(&audit, wall_clock());
            self.history.locked().close();
        })
        .await;
    }

    /// Reads a slice of the log; returns the time until the next one.
    fn step(&self, audit: &Audit, now: SystemTime) -> Duration {
        let wanted = self.wanted.locked().clone();
        let mut history = self.history.locked();
        match history.step(audit, wanted, now) {
            Ok(true) => FOLLOW_INTERVAL,
            Ok(false) => Duration::ZERO,
            Err(error) => {
                history.failed(&error);
                RETRY_INTERVAL
            }
        }
    }

    /// Answers a question from the data that can be read by `until`.
    pub async fn part(self: &Arc<Self>, query: Query, until: Instant) -> UsagePart {
        let usage = self.clone();
        let answering = blocking(move || usage.part_now(&query, until));
        match timeout_at(until + LEEWAY, answering).await {
            Ok(Ok(part)) => part,
            _ => UsagePart::unknown(),
        }
    }

    /// Answers a question from the data that can be read by `until`. Blocks on the file system.
    pub fn report_now(&self, query: &Query, until: Instant) -> Report {
        Report::of(vec![self.part_now(query, until)], query)
    }

    fn part_now(&self, query: &Query, until: Instant) -> UsagePart {
        let Some(snapshot) = self.snapshot(until) else {
            return UsagePart::unknown();
        };
        let from = secs(query.from);
        let to = secs(query.to);
        let (sums, seconds) = self.sums(&snapshot, query, (from, to), Rounding::Outwards, until);
        let earlier = (from.saturating_sub(to.saturating_sub(from)), from);
        let (before, _) = self.sums(&snapshot, query, earlier, Rounding::Earlier, until);
        let known_since = snapshot.index.known_since().unwrap_or_else(|error| {
            self.unreadable(&error);
            UNKNOWN
        });
        UsagePart { sums, before, seconds, known_since }
    }

    /// Returns the prompts that were used since `from`, and whether there may be more.
    pub async fn used(self: &Arc<Self>, from: SystemTime, until: Instant) -> UsedPrompts {
        let usage = self.clone();
        let now = wall_clock();
        let reading = blocking(move || usage.used_now(from, now, until));
        let (prompts, is_partial) = match timeout_at(until + LEEWAY, reading).await {
            Ok(Ok(used)) => used,
            _ => (HashSet::new(), true),
        };
        UsedPrompts { prompts, is_partial }
    }

    /// Returns the prompts that were used in `from..=now`, and whether there may be more. Blocks on
    /// the file system.
    pub fn used_now(
        &self,
        from: SystemTime,
        now: SystemTime,
        until: Instant,
    ) -> (HashSet<String>, bool) {
        let Some(snapshot) = self.snapshot(until) else {
            return (HashSet::new(), true);
        };
        let by = Dimension::Prompt;
        let filter = Filter::default();
        let sort = Sort::Uses;
        let query = Query { by, from, to: now, filter, limit: usize::MAX, sort };
        let range = (secs(from), secs(now) + 1);
        let (sums, _) = self.sums(&snapshot, &query, range, Rounding::Outwards, until);
        (sums.used().map(str::to_owned).collect(), sums.partial)
    }

    /// Returns the sums of a period, in seconds since the Unix epoch, and the seconds of a point.
    fn sums(
        &self,
        snapshot: &UsageSnapshot,
        query: &Query,
        range: (u64, u64),
        rounding: Rounding,
        until: Instant,
    ) -> (Sums, u64) {
        let mut sums = Sums::default();
        sums.partial = snapshot.is_behind;
        let collected = snapshot.index.collect(query, range, rounding, until, &mut sums);
        let seconds = collected.unwrap_or_else(|error| {
            sums.partial = true;
            self.unreadable(&error);
            DAY
        });
        (sums, seconds)
    }

    fn unreadable(&self, error: &io::Error) {
        warn!(%error, "the usage index cannot be read");
        if is_damage(error) {
            self.history.locked().failed(error);
        }
    }

    /// Returns the uses of prompts on each day of the week that ends now, as far as they can be
    /// read by `until`.
    pub async fn daily(self: &Arc<Self>, prompts: Vec<String>, until: Instant) -> DailyUses {
        let usage = self.clone();
        let now = wall_clock();
        let reading = blocking(move || usage.daily_now(&prompts, now, until));
        match timeout_at(until + LEEWAY, reading).await {
            Ok(Ok(daily)) => daily,
            _ => DailyUses { is_partial: true, ..DailyUses::default() },
        }
    }

    /// Returns the same for the week that ends at `now`. Blocks on the file system.
    pub fn daily_now(&self, prompts: &[String], now: SystemTime, until: Instant) -> DailyUses {
        let first = (secs(now) / DAY + 1).saturating_sub(WEEK_DAYS as u64) * DAY;
        let mut daily = DailyUses::default();
        let Some(snapshot) = self.snapshot(until) else {
            return DailyUses { is_partial: true, ..daily };
        };
        daily.is_partial = snapshot.is_behind;
        if let Err(error) = snapshot.index.daily(prompts, first, until, &mut daily) {
            daily.is_partial = true;
            self.unreadable(&error);
        }
        daily
    }

    /// Reads newer records by `until`, and returns a snapshot; `None` without an index.
    fn snapshot(&self, until: Instant) -> Option<UsageSnapshot> {
        let mut history = self.history.locked();
        let follower = history.follower.as_mut()?;
        let snapshot = follower.catch_up(until).and_then(|at_end| {
            Ok(UsageSnapshot { index: follower.snapshot()?, is_behind: !at_end })
        });
        snapshot.inspect_err(|error| history.failed(error)).ok()
    }
}

/// The time for an answer beyond the deadline of its search.
const LEEWAY: Duration = Duration::from_millis(100);

/// A snapshot of the index.
struct UsageSnapshot {
    index: IndexSnapshot,
    /// Whether the log has records that the index lacks.
    is_behind: bool,
}

impl History {
    /// Opens the index as configured, if it is not open, and reads a slice of the log. Returns
    /// whether the end of the log was reached. Without a log, no usage is counted.
    fn step(
        &mut self,
        audit: &Audit,
        wanted: Option<config::Usage>,
        now: SystemTime,
    ) -> io::Result<bool> {
        if wanted != self.opened && audit.is_on() {
            self.reopen(wanted)?;
        }
        let Some(follower) = &mut self.follower else {
            return Ok(true);
        };
        let at_end = follower.step(audit.path(), now)?;
        self.failure.clear();
        Ok(at_end)
    }

    fn reopen(&mut self, wanted: Option<config::Usage>) -> io::Result<()> {
        let path = |config: &Option<config::Usage>| config.as_ref().and_then(|c| c.path.clone());
        if path(&wanted) == path(&self.opened) {
            if let (Some(follower), Some(config)) = (&mut self.follower, &wanted) {
                follower.limit(config);
            }
        } else {
            self.close();
            self.follower = wanted.as_ref().map(Follower::open).transpose()?.flatten();
            if let Some(path) = path(&wanted).filter(|_| self.follower.is_some()) {
                info!(path = %path.display(), "usage index opened");
            }
        }
        self.opened = wanted;
        Ok(())
    }

    /// Writes the counts, and releases the folder.
    fn close(&mut self) {
        if let Some(follower) = self.follower.take()
            && let Err(error) = follower.close()
        {
            warn!(%error, "the usage index cannot be written");
        }
        self.opened = None;
    }

    /// Warns once for each cause. The index is reopened from its database, since its memory may
    /// lack a record. A damaged database is replaced by an empty one.
    fn failed(&mut self, error: &io::Error) {
        self.opened = None;
        if let Some(follower) = self.follower.take()
            && is_damage(error)
            && let Err(error) = follower.set_aside()
        {
            warn!(%error, "a damaged usage index cannot be set aside");
        }
        let failure = error.to_string();
        if failure != self.failure {
            warn!(%error, "the usage index cannot be kept; trying again");
        }
        self.failure = failure;
    }
}
