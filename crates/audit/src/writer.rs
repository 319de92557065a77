//! The writer of a log, which [`SharedWriter`](super::shared_writer) gives to one thread at a time.
//! It appends all waiting records at once, and hands syncs to the sync thread. On the thread of a
//! caller the writer only appends: all work that may block is left to the thread of the log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::{debug, error, info, warn};

use super::log::{Gap, Log};
use super::queue::{
    Intake, Queue, QueueEntry, TurnEnd, UnwrittenEntries, Work, WriteOutcome, WriterSettings,
};
use super::record::{AuditEvent, Stamp, time_text};
use super::retention::Retention;
use super::segments::compressor::Compressor;
use super::sync_thread::{SyncThread, ended};

/// The state of the writer.
pub(super) struct LogWriter {
    queue: Arc<Queue>,
    log: Log,
    /// `None` until it could be started.
    sync_thread: Option<SyncThread>,
    compressor: Compressor,
    clock: Clock,
    settings: WriterSettings,
    /// `Some` while the log cannot be written.
    outage: Option<Outage>,
    /// Whether the last write was done within [`QUICK_WRITE`].
    was_quick: bool,
    /// Whether the last producer is gone: the writer ends once everything is written.
    draining: bool,
    synced_at: Duration,
    /// When the checks of each [`TICK`] were done last.
    ticked_at: Duration,
    is_nearly_full: bool,
    retention: Retention,
}

type Clock = Box<dyn Fn() -> Stamp + Send>;

/// A time in which the log cannot be written.
struct Outage {
    since: Duration,
    retried: Duration,
    /// The first failure, for the event `resumed`.
    reason: String,
    /// The failure that was logged last.
    logged: String,
}

/// The interval of retries, and of the check that the segment's file is still in its place.
const TICK: Duration = Duration::from_secs(1);

/// The time of a write to the page cache, and more. After one that took longer, the disk is behind,
/// and callers do not write.
const QUICK_WRITE: Duration = Duration::from_millis(2);

/// Unsynced bytes from which on a sync is due before its time: a disk that gets much at once blocks
/// its writers.
const EARLY_SYNC_BYTES: usize = 1 << 20;

/// The timeout of the last sync at a shutdown.
const FINAL_SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// The percentage of `audit.keep_size` from which on a warning is logged, with
/// `audit.on_full = "refuse"`.
const NEARLY_FULL_PERCENT: u64 = 80;

impl LogWriter {
    pub(super) fn new(queue: Arc<Queue>, log: Log, clock: Clock, settings: WriterSettings) -> Self {
        Self {
            queue,
            log,
            sync_thread: None,
            compressor: Compressor::default(),
            clock,
            settings,
            outage: None,
            was_quick: true,
            draining: false,
            synced_at: Duration::ZERO,
            ticked_at: Duration::ZERO,
            is_nearly_full: false,
            retention: Retention::default(),
        }
    }

    /// Starts the sync thread.
    pub(super) fn start(&mut self) {
        self.report_synced();
        let started = self.restart_sync_thread();
        self.go_down_on_error(started, (self.clock)());
    }

    /// Writes the waiting records, and does the due work. Returns whether this was the last turn.
    pub(super) fn take_turn(&mut self, work: Work) -> bool {
        let now = (self.clock)();
        if let Some(settings) = work.settings {
            self.log.reconfigure(settings.log.clone());
            self.settings = settings;
        }
        if let Some(result) = work.sync_outcome {
            let outcome = self.log.end_sync(result, now);
            self.go_down_on_error(outcome, now);
        }
        if self.outage.is_none() && !self.has_sync_thread() {
            self.go_down_on_error(Err(ended()), now);
        }
        let closing = work.closing;
        self.draining |= work.draining;
        let Work { entries, omitted, missing, .. } = work;
        self.write(UnwrittenEntries { entries, omitted, missing }, now);
        if now.up.saturating_sub(self.ticked_at) >= TICK {
            self.ticked_at = now.up;
            self.tick(now);
        }
        self.maintain(now);
        self.report_synced();
        // A log that drains is retried as long as the gateway runs.
        closing || (self.draining && self.outage.is_none())
    }

    fn report_synced(&self) {
        self.queue.synced.store(self.log.synced(), Ordering::Release);
    }

    /// Writes records on the thread of a caller. On failure the records return to the queue.
    pub(super) fn write_for_callers(&mut self, entries: Vec<QueueEntry>) -> TurnEnd {
        let begin = (self.clock)();
        if self.log.append_to_segment(entries.iter().flat_map(QueueEntry::events)).is_err() {
            self.queue.put_back(entries);
            return TurnEnd::ThreadDue;
        }
        let end = (self.clock)();
        self.was_quick = end.up.saturating_sub(begin.up) <= QUICK_WRITE;
        answer(entries, WriteOutcome::Written);
        let is_due = self.log.wants_checkpoint(end)
            || self.log.wants_rotation(end)
            || self.log.unsynced() >= EARLY_SYNC_BYTES;
        if self.was_quick && !is_due { TurnEnd::ByCallers } else { TurnEnd::ThreadDue }
    }

    /// Returns how long the thread waits for work, and who takes records meanwhile.
    pub(super) fn next_wait(&self) -> (Duration, Intake) {
        (self.wait_time(), self.intake())
    }

    fn intake(&self) -> Intake {
        // With too much unsynced nothing more is written: the queue fills up, and callers are
        // refused.
        let is_behind = self.log.is_syncing() && self.log.unsynced() > self.settings.limit;
        if self.outage.is_some() || is_behind {
            return Intake::Paused;
        }
        let syncs_later = self.settings.sync_every.is_some();
        if syncs_later && self.was_quick && self.log.is_quick() {
            Intake::ByCallers
        } else {
            Intake::ByThread
        }
    }

    fn wait_time(&self) -> Duration {
        if self.outage.is_some() {
            return TICK;
        }
        let sync = self.settings.sync_every.unwrap_or(TICK);
        let until = self.log.checkpoint_due().saturating_sub((self.clock)().up);
        sync.min(TICK).min(until).max(Duration::from_millis(1))
    }

    fn has_sync_thread(&self) -> bool {
        self.sync_thread.as_ref().is_some_and(SyncThread::is_alive)
    }

    fn restart_sync_thread(&mut self) -> io::Result<()> {
        if !self.has_sync_thread() {
            self.sync_thread = Some(SyncThread::start(self.queue.clone())?);
        }
        Ok(())
    }

    fn write(&mut self, work: UnwrittenEntries, now: Stamp) {
        if let Err(error) = self.append(&work, now) {
            self.queue.go_down(work);
            return self.go_down_on_error(Err(error), now);
        }
        let UnwrittenEntries { entries, missing, .. } = work;
        // A sync that began under `durability = "interval"` ends before the next one begins.
        if self.settings.sync_every.is_none()
            && self.log.is_syncing()
            && let Some(result) = self.queue.wait_for_sync(FINAL_SYNC_TIMEOUT)
        {
            let outcome = self.log.end_sync(result, now);
            self.go_down_on_error(outcome, now);
        }
        let synced = match self.settings.sync_every {
            None => self.log.sync(now),
            Some(_) => Ok(()),
        };
        // Lines that are not synced are kept, and written again.
        let outcome = if synced.is_ok() { WriteOutcome::Written } else { WriteOutcome::Late };
        answer(entries, outcome);
        let Some(gap) = missing else {
            return self.go_down_on_error(synced, now);
        };
        match synced.and_then(|()| self.log.append_gap(&gap, now)) {
            Ok(()) => warn!(
                path = %self.log.path().display(),
                count = gap.count,
                "audit records are missing: audit.buffer was full"
            ),
            Err(error) => {
                self.queue.go_down(UnwrittenEntries {
                    missing: Some(gap),
                    ..UnwrittenEntries::default()
                });
                self.go_down_on_error(Err(error), now);
            }
        }
    }

    fn append(&mut self, work: &UnwrittenEntries, now: Stamp) -> io::Result<()> {
        let UnwrittenEntries { entries, omitted, .. } = work;
        if entries.is_empty() && omitted.is_empty() {
            return Ok(());
        }
        let omitted: Vec<_> = omitted.iter().map(|(kind, gap)| omitted_event(kind, gap)).collect();
        let records = entries.iter().flat_map(QueueEntry::events);
        let begin = (self.clock)();
        let written = self.log.append(records.chain(omitted.iter().map(|event| (event, now))), now);
        self.was_quick = (self.clock)().up.saturating_sub(begin.up) <= QUICK_WRITE;
        written
    }

    /// Does the work that no caller waits for: checkpoints, rotation, syncs.
    fn maintain(&mut self, now: Stamp) {
        if self.outage.is_some() {
            return;
        }
        self.warn_if_nearly_full(now);
        let outcome = self.try_maintain(now);
        self.go_down_on_error(outcome, now);
    }

    fn try_maintain(&mut self, now: Stamp) -> io::Result<()> {
        if self.log.wants_checkpoint(now) {
            self.log.sign(now)?;
        }
        if self.log.wants_rotation(now) && !self.log.is_syncing() {
            self.log.rotate(now)?;
            // A small log would be beyond its size before the next tick.
            self.compressor.compress_before(self.log.path(), self.log.number());
            self.remove_surplus(now)?;
        }
        let is_due = |every| {
            let is_time = now.up.saturating_sub(self.synced_at) >= every;
            is_time || (!self.log.is_syncing() && self.log.unsynced() >= EARLY_SYNC_BYTES)
        };
        match self.settings.sync_every {
            Some(every) if is_due(every) => {
                self.synced_at = now.up;
                self.begin_sync(now)
            }
            Some(_) => Ok(()),
            None => self.log.sync(now),
        }
    }

    /// Hands unsynced lines to the sync thread. A failure to do so counts as a failed sync.
    fn begin_sync(&mut self, now: Stamp) -> io::Result<()> {
        let Some(job) = self.log.begin_sync() else {
            return Ok(());
        };
        let sent = job.and_then(|job| match &self.sync_thread {
            Some(thread) => thread.sync(job),
            None => Err(ended()),
        });
        match sent {
            Ok(()) => Ok(()),
            Err(error) => self.log.end_sync(Err(error), now),
        }
    }

    fn remove_surplus(&mut self, now: Stamp) -> io::Result<()> {
        let unexported = self.queue.unexported.load(Ordering::Acquire);
        self.retention.remove_surplus(&mut self.log, unexported, now)
    }

    /// Does the checks that are due once every [`TICK`].
    fn tick(&mut self, now: Stamp) {
        if let Some(damage) = self.log.abandon_if_damaged() {
            error!(
                path = %self.log.path().display(),
                damage,
                "the audit segment is damaged; starting a new one"
            );
            self.queue.note(AuditEvent::new("segment_lost").text("damage", damage), now);
        }
        self.log.recount();
        self.queue.set_size(self.log.size());
        self.compressor.compress_before(self.log.path(), self.log.number());
        self.retry(now);
        if self.outage.is_none() && !self.log.is_syncing() {
            let outcome = self.remove_surplus(now);
            self.go_down_on_error(outcome, now);
        }
    }

    fn warn_if_nearly_full(&mut self, now: Stamp) {
        let fill = self.log.fill_percent();
        if fill >= NEARLY_FULL_PERCENT && !self.is_nearly_full {
            warn!(
                path = %self.log.path().display(),
                percent = fill,
                "the audit log is nearly full; raise audit.keep_size, or set audit.on_full = \"remove\""
            );
            self.queue.note(AuditEvent::new("nearly_full").number("percent", fill), now);
        }
        self.is_nearly_full = fill >= NEARLY_FULL_PERCENT;
    }

    /// Tries to write again, at most once every [`TICK`].
    fn retry(&mut self, now: Stamp) {
        let Some(outage) = &mut self.outage else {
            return;
        };
        if self.log.is_syncing() || now.up.saturating_sub(outage.retried) < TICK {
            return;
        }
        outage.retried = now.up;
        let for_ms = now.up.saturating_sub(outage.since).as_millis();
        let event = AuditEvent::new("resumed")
            .text("after", &outage.reason)
            .number("down_ms", u64::try_from(for_ms).unwrap_or(u64::MAX));
        let tried = self.restart_sync_thread().and_then(|()| self.log.sync(now));
        let tried = tried.and_then(|()| self.log.append(std::iter::once((&event, now)), now));
        if tried.is_ok() {
            self.outage = None;
            self.queue.go_up();
            info!(path = %self.log.path().display(), "the audit log is written again");
        }
        self.go_down_on_error(tried, now);
    }

    /// Marks the log as down after a failure: from then on calls are refused, or continue
    /// unrecorded, until a retry succeeds.
    fn go_down_on_error(&mut self, outcome: io::Result<()>, now: Stamp) {
        let Err(error) = outcome else {
            return;
        };
        let reason = error.to_string();
        let path = self.log.path().display();
        if self.outage.as_ref().is_some_and(|outage| outage.logged == reason) {
            debug!(%path, %error, "the audit log still cannot be written; retrying");
            return;
        }
        let calls = if self.settings.degrades { "unrecorded" } else { "refused" };
        error!(%path, %error, calls, "the audit log cannot be written; retrying");
        match &mut self.outage {
            Some(outage) => outage.logged = reason,
            None => {
                let logged = reason.clone();
                self.outage = Some(Outage { since: now.up, retried: now.up, reason, logged });
                self.queue.go_down(UnwrittenEntries::default());
            }
        }
    }

    /// Writes the waiting records, the event `stopped` and a checkpoint, and releases the lock of
    /// the folder.
    pub(super) fn finish(mut self) {
        if self.log.is_syncing()
            && let Some(result) = self.queue.wait_for_sync(FINAL_SYNC_TIMEOUT)
        {
            let _ = self.log.end_sync(result, (self.clock)());
        }
        let work = self.queue.wait(Duration::ZERO, Intake::ByThread);
        let now = (self.clock)();
        let Work { entries, omitted, missing, .. } = work;
        self.write(UnwrittenEntries { entries, omitted, missing }, now);
        let event = AuditEvent::new("stopped");
        let last = self.log.append(std::iter::once((&event, now)), now);
        let last = last.and_then(|()| self.log.sign(now));
        if let Err(error) = last.and_then(|()| self.log.sync(now)) {
            error!(
                path = %self.log.path().display(),
                %error,
                "the audit log ends without a checkpoint"
            );
        }
    }
}

/// Sends the outcome to the callers that wait for records.
fn answer(entries: Vec<QueueEntry>, outcome: WriteOutcome) {
    for written in entries.into_iter().filter_map(|entry| entry.written) {
        let _ = written.send(outcome);
    }
}

/// Returns the record of the notes of one kind that had no room, with their number.
fn omitted_event(kind: &str, gap: &Gap) -> AuditEvent {
    AuditEvent::new("omitted")
        .text("of", kind)
        .number("count", gap.count)
        .json("first_time", &time_text(gap.first))
        .json("last_time", &time_text(gap.last))
}
