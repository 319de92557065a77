//! Usage: the uses of prompts and skills by callers, with their outcomes and times
//! (docs/usage.md).
//!
//! Calls are counted twice. [`GatewayUsage::count`] puts a call into a bounded buffer, which a task
//! moves to the counters of the last day in memory ([`minutes`]). Days before come from an
//! [`index`], which a [`follower`] derives from the audit log alone.

pub(crate) mod counts;
mod daily;
mod follower;
mod index;
mod minutes;
mod names;
pub(crate) mod query;
mod records;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::Audit;
use crate::tail::{self, Tail};
use base::platform::{blocking, wall_clock};
use counts::{CountedCall, OutcomeKind};
use domain::caller::Caller;
use domain::name::UpstreamId;
use follower::Follower;
use index::{DAY, IndexSnapshot, is_damage};
use minutes::Minutes;
use query::{Rounding, Sums, UNKNOWN, secs};
use records::{OpenCalls, Record};

pub use counts::Histogram;
pub use daily::{DailyUses, WEEK_DAYS};
pub use query::{
    CallerUses, Dimension, Filter, Point, Query, RecentUses, Report, Row, Sort, UsagePart, UsedKind,
};

/// The usage of one gateway.
pub struct GatewayUsage {
    buffer: Mutex<Vec<Used>>,
    /// Notified when the buffer is no longer empty.
    filled: Notify,
    half_full: Notify,
    /// Calls that found no room in the buffer.
    uncounted: AtomicU64,
    minutes: Mutex<Minutes>,
    history: Mutex<History>,
}

/// The counts of earlier days.
#[derive(Default)]
struct History {
    /// As configured; `None` without an index.
    pub wanted: Option<config::Usage>,
    /// The configuration that `follower` was opened with.
    pub opened: Option<config::Usage>,
    follower: Option<Follower>,
    /// Why the last attempt failed; empty after a success.
    failure: String,
}

/// Prompts and skills that were used, by their public names.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct UsedPrompts {
    pub prompts: HashSet<String>,
    /// Whether there may be more.
    pub is_partial: bool,
}

/// A call that has ended.
#[derive(Clone, Debug)]
pub struct Used {
    /// Public name of a prompt, or of a skill; `None` if none has the name.
    pub prompt: Option<Arc<str>>,
    pub upstream: Option<UpstreamId>,
    pub caller: Caller,
    /// Path of the endpoint.
    pub endpoint: Arc<str>,
    /// `ok`, `cancelled`, or the reason of the fault.
    pub outcome: &'static str,
    pub duration: Duration,
}

impl Used {
    /// Whether a call is counted: each use, and all calls that a rate limit refused.
    pub fn is_counted(is_use: bool, outcome: &str) -> bool {
        is_use || OutcomeKind::of(outcome) == OutcomeKind::Limited
    }
}

/// Calls in the buffer: more than a gateway serves between two drains.
const BUFFER: usize = 16_384;

const HALF: usize = BUFFER / 2;

/// The time between two drains of the buffer.
const DRAIN_INTERVAL: Duration = Duration::from_secs(1);

/// The time between two reads of the audit log.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// The time after which an index that cannot be used is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The memory of a day, in bytes.
const MEMORY: usize = 16 << 20;

/// Bytes of the audit log from which the last day is counted at the start: a second of work.
const SEED: u64 = 128 << 20;

/// The part of the day that the counters of a restarted gateway may lack, in seconds: the minutes
/// at its edges.
const SEED_GAP: u64 = 180;

/// Periods up to this length may be answered from memory, in seconds.
const BY_MINUTE: u64 = minutes::KEPT * 60;

impl Default for GatewayUsage {
    fn default() -> Self {
        Self {
            buffer: Mutex::default(),
            filled: Notify::new(),
            half_full: Notify::new(),
            uncounted: AtomicU64::new(0),
            minutes: Mutex::new(Minutes::new(MEMORY, minute(wall_clock()))),
            history: Mutex::default(),
        }
    }
}

impl GatewayUsage {
    /// Returns the path of the database in the folder of an index.
    pub fn database(folder: &Path) -> PathBuf {
        index::path(folder)
    }

    /// Reads the usage of a gateway that need not run: its index, and the later records of its log.
    /// Without an index all is read from the log. Blocks on the file system.
    ///
    /// # Errors
    /// When the index or the log cannot be read; `InvalidData` where the index is damaged, or of
    /// another version.
    pub fn read(index: Option<&Path>, log: Option<&Path>) -> io::Result<Self> {
        let follower = Some(Follower::read(index, log)?);
        let history = Mutex::new(History { follower, ..History::default() });
        Ok(Self { history, ..Self::default() })
    }

    /// Reads the minutes of the last day from a log, as far as memory permits: without them an
    /// index answers by the hour. Blocks on the file system.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn read_minutes(&self, log: &Path, now: SystemTime) -> io::Result<()> {
        let last = tail::last_seq(log)?;
        // The second that has begun has calls, too.
        self.seed_from(log, last, now + Duration::from_secs(1))
    }

    /// Counts a call ([`Used::is_counted`]). It waits for no other work than that of other calls
    /// that are counted.
    pub fn count(&self, used: Used) {
        let mut buffer = lock(&self.buffer);
        if buffer.len() == BUFFER {
            drop(buffer);
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            return;
        }
        buffer.push(used);
        let length = buffer.len();
        drop(buffer);
        match length {
            1 => self.filled.notify_one(),
            HALF => self.half_full.notify_one(),
            _ => {}
        }
    }

    /// Moves buffered calls to the counters of the day, until `stop`.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(self.filled.notified()).await.is_some() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.half_full.notified() => {}
                () = sleep(DRAIN_INTERVAL) => {}
            }
            let usage = self.clone();
            let _ = blocking(move || usage.drain(wall_clock())).await;
        }
    }

    /// Counts buffered calls, as of `now`.
    fn drain(&self, now: SystemTime) {
        let mut minutes = lock(&self.minutes);
        let all = {
            let mut buffer = lock(&self.buffer);
            // The next calls find room that is allocated already.
            let room = Vec::with_capacity(buffer.len());
            std::mem::replace(&mut *buffer, room)
        };
        for used in &all {
            minutes.add(minute(now), &used.seen());
        }
    }

    /// Applies the configuration of the index; `None`: there is none.
    pub fn configure(&self, config: Option<&config::Usage>) {
        lock(&self.history).wanted = config.cloned();
    }

    /// Keeps the index, until `stop`. At first it counts the last day of the log in memory.
    pub fn follow(
        self: Arc<Self>,
        audit: Audit,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> {
        // Calls from here on are counted as they end.
        let earlier = audit.path().map(|path| (tail::last_seq(&path).unwrap_or_default(), path));
        async move {
            if let Some((last, path)) = earlier {
                let usage = self.clone();
                let _ = blocking(move || usage.seed(&path, last, wall_clock())).await;
            }
            self.keep_index(audit, stop).await;
        }
    }

    async fn keep_index(self: Arc<Self>, audit: Audit, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = if lock(&self.history).is_idle(&audit) {
                FOLLOW_INTERVAL
            } else {
                let (usage, log) = (self.clone(), audit.clone());
                let stepped = blocking(move || usage.step(&log, wall_clock())).await;
                stepped.unwrap_or(RETRY_INTERVAL)
            };
            if !pause.is_zero() {
                let _ = stop.run_until_cancelled(sleep(pause)).await;
            }
        }
        let _ = blocking(move || {
            self.step(&audit, wall_clock());
            lock(&self.history).close();
        })
        .await;
    }

    /// Reads a slice of the log; returns the time until the next one.
    fn step(&self, audit: &Audit, now: SystemTime) -> Duration {
        let mut history = lock(&self.history);
        match history.step(audit, now) {
            Ok(true) => FOLLOW_INTERVAL,
            Ok(false) => Duration::ZERO,
            Err(error) => {
                history.failed(&error);
                RETRY_INTERVAL
            }
        }
    }

    /// Counts the records of the last day up to the record `last`, so that a gateway that was
    /// restarted knows it.
    fn seed(&self, path: &Path, last: u64, now: SystemTime) {
        if let Err(error) = self.seed_from(path, last, now) {
            warn!(%error, "the usage of the last day cannot be read from the audit log");
        }
    }

    fn seed_from(&self, path: &Path, last: u64, now: SystemTime) -> io::Result<()> {
        let since = now.checked_sub(Duration::from_secs(BY_MINUTE - SEED_GAP + 60)).unwrap_or(now);
        let (position, is_cut) = tail::since(path, since, SEED)?;
        let mut tail = Tail::new(path, position);
        let mut calls = OpenCalls::default();
        let since = secs(since);
        // A log of which nothing was cut off has all calls of the day.
        let mut first = (!is_cut).then_some(since);
        let (mut newest, mut at_end) = (0, false);
        while !at_end && newest < last {
            // A slice at a time, so that calls are counted meanwhile.
            let mut minutes = lock(&self.minutes);
            at_end = tail.read(1 << 20, |line| {
                let Some(record) = Record::read(line) else {
                    return;
                };
                newest = newest.max(record.seq);
                minutes.note_record(record.secs / 60);
                let is_earlier = record.seq <= last && (since..secs(now)).contains(&record.secs);
                if is_earlier {
                    let begin = (*first.get_or_insert(record.secs)).max(since);
                    minutes.begin(begin.div_ceil(60));
                    calls.take(&record, &mut |seen| minutes.add(record.secs / 60, seen));
                }
            })?;
        }
        if let Some(first) = first {
            lock(&self.minutes).begin(first.div_ceil(60));
        }
        Ok(())
    }

    /// Answers a question from the data that can be read by `until`.
    pub async fn part(self: &Arc<Self>, query: Query, until: Instant) -> UsagePart {
        let usage = self.clone();
        let now = wall_clock();
        let answering = blocking(move || usage.part_now(&query, now, until));
        match timeout_at(until + LEEWAY, answering).await {
            Ok(Ok(part)) => part,
            _ => UsagePart::unknown(),
        }
    }

    /// Answers a question as of `now`, from the data that can be read by `until`. Blocks on the
    /// file system.
    pub fn report_now(&self, query: &Query, now: SystemTime, until: Instant) -> Report {
        Report::of(vec![self.part_now(query, now, until)], query)
    }

    fn part_now(&self, query: &Query, now: SystemTime, until: Instant) -> UsagePart {
        self.drain(now);
        let (from, to) = (secs(query.from), secs(query.to));
        let (sums, source) = self.sums(query, (from, to), Rounding::Outwards, until);
        let earlier = (from.saturating_sub(to.saturating_sub(from)), from);
        let (before, _) = self.sums(query, earlier, Rounding::Earlier, until);
        UsagePart {
            sums,
            before,
            seconds: source.seconds,
            known_since: source.known_since,
            uncounted: self.uncounted.load(Ordering::Relaxed),
            from_index: source.is_index,
        }
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

    /// Returns the prompts that were used since `from`, and whether there may be more. Blocks on
    /// the file system.
    pub fn used_now(
        &self,
        from: SystemTime,
        now: SystemTime,
        until: Instant,
    ) -> (HashSet<String>, bool) {
        self.drain(now);
        let (by, filter, sort) = (Dimension::Prompt, Filter::default(), Sort::Uses);
        let query = Query { by, from, to: now, filter, limit: usize::MAX, sort };
        let range = (secs(from), secs(now) + 1);
        let (sums, source) = self.sums(&query, range, Rounding::Outwards, until);
        let mut used: HashSet<String> = sums.used().map(str::to_owned).collect();
        if source.is_index {
            // The index is some seconds behind.
            let (from, to) = (secs(from) / 60, secs(now) / 60 + 1);
            let mut recent = Sums::default();
            lock(&self.minutes).collect(by, (from, to), &query.filter, 1, &mut recent);
            used.extend(recent.used().map(str::to_owned));
        }
        (used, sums.partial)
    }

    /// Returns the sums of a period, in seconds since the Unix epoch, from memory as far as it goes
    /// back, else from the index.
    fn sums(
        &self,
        query: &Query,
        (from, to): (u64, u64),
        rounding: Rounding,
        until: Instant,
    ) -> (Sums, SumSource) {
        let mut sums = Sums::default();
        let length = to.saturating_sub(from);
        let is_short = length <= BY_MINUTE;
        let (known_since, begun) = {
            let minutes = lock(&self.minutes);
            (minutes.known_since() * 60, minutes.begun() * 60)
        };
        let gap = if length + SEED_GAP >= BY_MINUTE { SEED_GAP } else { 0 };
        let is_known = from + gap >= known_since;
        let snapshot = if is_short && is_known { None } else { self.snapshot() };
        let Some(snapshot) = snapshot else {
            let step = if length <= 5 * 3600 { 1 } else { 5 };
            let range = rounding.points((from, to), 60);
            lock(&self.minutes).collect(query.by, range, &query.filter, step, &mut sums);
            sums.partial |= !is_known;
            let source = SumSource { seconds: step * 60, known_since: begun, is_index: false };
            return (sums, source);
        };
        let collected = snapshot.collect(query, (from, to), rounding, until, &mut sums);
        let read = collected.and_then(|step| Ok((step, snapshot.known_since()?)));
        let (seconds, known_since) = read.unwrap_or_else(|error| {
            sums.partial = true;
            self.unreadable(&error);
            (DAY, UNKNOWN)
        });
        (sums, SumSource { seconds, known_since, is_index: true })
    }

    fn unreadable(&self, error: &io::Error) {
        warn!(%error, "the usage index cannot be read");
        if is_damage(error) {
            lock(&self.history).failed(error);
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

    /// The same as of `now`; memory has a day of it. Blocks on the file system.
    pub fn daily_now(&self, prompts: &[String], now: SystemTime, until: Instant) -> DailyUses {
        self.drain(now);
        let first = (secs(now) / DAY + 1).saturating_sub(WEEK_DAYS as u64) * DAY;
        let mut daily = DailyUses::default();
        if let Some(snapshot) = self.snapshot() {
            if let Err(error) = snapshot.daily(prompts, first, until, &mut daily) {
                daily.is_partial = true;
                self.unreadable(&error);
            }
        } else {
            daily.is_partial = true;
            lock(&self.minutes).daily(prompts, first, &mut daily);
        }
        daily
    }

    fn snapshot(&self) -> Option<IndexSnapshot> {
        let mut history = lock(&self.history);
        let snapshot = history.follower.as_mut()?.snapshot();
        snapshot.inspect_err(|error| history.failed(error)).ok()
    }
}

/// The time for an answer beside the deadline of its search.
const LEEWAY: Duration = Duration::from_millis(100);

/// Where sums come from: the index, or memory.
#[derive(Clone, Copy, Debug)]
struct SumSource {
    is_index: bool,
    /// Seconds of a point.
    seconds: u64,
    /// As [`Report::known_since`].
    known_since: u64,
}

impl History {
    /// Whether there is no index to write, and none to open. Without a log there is nothing to
    /// count from.
    fn is_idle(&self, audit: &Audit) -> bool {
        self.follower.is_none() && (self.wanted == self.opened || !audit.is_on())
    }

    /// Opens the index as configured, if it is not open, and reads a slice of the log. Returns
    /// whether its end was reached.
    fn step(&mut self, audit: &Audit, now: SystemTime) -> io::Result<bool> {
        if self.wanted != self.opened && audit.is_on() {
            self.reopen()?;
        }
        let Some(follower) = &mut self.follower else {
            return Ok(true);
        };
        let at_end = follower.step(audit.path(), now)?;
        self.failure.clear();
        Ok(at_end)
    }

    fn reopen(&mut self) -> io::Result<()> {
        let path = |config: &Option<config::Usage>| config.as_ref().and_then(|c| c.path.clone());
        if path(&self.wanted) == path(&self.opened) {
            if let (Some(follower), Some(config)) = (&mut self.follower, &self.wanted) {
                follower.limit(config);
            }
        } else {
            self.close();
            let opened = self.wanted.as_ref().map(Follower::open).transpose()?.flatten();
            self.follower = opened;
            if let Some(path) = path(&self.wanted).filter(|_| self.follower.is_some()) {
                info!(path = %path.display(), "usage index opened");
            }
        }
        self.opened.clone_from(&self.wanted);
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

    /// Warns once of each cause. The index is opened again as its database is: in memory it may
    /// lack a record. A damaged one is begun anew.
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

impl Used {
    fn seen(&self) -> CountedCall<'_> {
        CountedCall {
            prompt: self.prompt.as_deref(),
            upstream: self.upstream.as_ref().map(UpstreamId::as_str),
            caller: Some(self.caller.id()),
            groups: self.caller.groups(),
            endpoint: Some(&self.endpoint),
            kind: OutcomeKind::of(self.outcome),
            count: 1,
            micros: Some(u64::try_from(self.duration.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}

fn minute(time: SystemTime) -> u64 {
    secs(time) / 60
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
