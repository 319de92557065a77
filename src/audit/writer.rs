//! The one thread that writes, and the one that syncs beside it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use super::log::{Log, Signed};
use super::queue::{Entry, Queue, Tuning, Work};
use super::record::{Event, Stamp};
use super::sync_thread::{SyncThread, ended};

/// Writes what waits in the queue, as much at once as there is.
pub(super) struct Scribe {
    queue: Arc<Queue>,
    log: Log,
    /// Absent until it could be started.
    sync_thread: Option<SyncThread>,
    clock: Clock,
    tuning: Tuning,
    down: Option<Down>,
    /// Somebody wants another segment.
    rotates: bool,
    /// Nobody records any more.
    ended: bool,
    /// Checkpoints that are not known to be on the disk: told elsewhere, they must not be lost here.
    signed: Vec<Signed>,
    synced_at: Duration,
    is_nearly_full: bool,
}

type Clock = Box<dyn Fn() -> Stamp + Send>;

/// Since when nothing can be written, and why.
struct Down {
    since: Duration,
    retried: Duration,
    reason: String,
}

/// How often it is looked whether writing works again, and whether the file is still there.
const TICK: Duration = Duration::from_secs(1);

/// As much unsynced is synced before its time: a disk that is given much at once lets writers wait.
const SYNC_BYTES: usize = 1 << 20;

/// How long the last sync may take when the gateway ends.
const LAST_SYNC: Duration = Duration::from_secs(5);

/// From how many percent of `audit.max_size` on it is told that the folder gets full.
const NEARLY_FULL: u64 = 80;

impl Scribe {
    pub(super) fn new(queue: Arc<Queue>, log: Log, clock: Clock, tuning: Tuning) -> Self {
        Self {
            queue,
            log,
            sync_thread: None,
            clock,
            tuning,
            down: None,
            rotates: false,
            ended: false,
            signed: Vec::new(),
            synced_at: Duration::ZERO,
            is_nearly_full: false,
        }
    }

    /// Writes until the queue is closed.
    pub(super) fn run(mut self) {
        let queue = self.queue.clone();
        let started = self.restart_sync_thread();
        self.judge(started, (self.clock)());
        let mut ticked = Duration::ZERO;
        loop {
            // As long as too much is unsynced, nothing more is written: the queue fills up, and
            // callers are told.
            let takes = self.down.is_none()
                && !(self.log.is_syncing() && self.log.unsynced() > self.tuning.limit);
            let work = queue.wait(self.patience(), takes);
            let now = (self.clock)();
            if let Some(tuning) = work.tuning {
                self.log.tune(tuning.log.clone());
                self.tuning = tuning;
            }
            if let Some(result) = work.synced {
                let outcome = self.log.end_sync(result, now);
                self.judge(outcome, now);
            }
            if !self.has_sync_thread() {
                self.judge(Err(ended()), now);
            }
            let closing = work.closing;
            self.rotates |= work.rotate;
            self.ended |= work.ended;
            self.write(Work { synced: None, tuning: None, ..work }, now);
            if now.up.saturating_sub(ticked) >= TICK {
                ticked = now.up;
                self.tick(now);
            }
            self.keep_house(now);
            self.announce();
            // What cannot be written yet is tried again, as long as the gateway lives.
            if closing || (self.ended && self.down.is_none()) {
                break;
            }
        }
        self.finish();
        // Whoever hears of the end finds the folder free.
        drop(self.log);
        let lost = queue.closed();
        if lost > 0 {
            error!(
                count = lost,
                "audit records were never written: the end came before that was possible"
            );
        }
    }

    fn patience(&self) -> Duration {
        if self.down.is_some() {
            return TICK;
        }
        let sync = self.tuning.sync_every.unwrap_or(TICK);
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

    fn write(&mut self, Work { entries, missing, .. }: Work, now: Stamp) {
        if let Err(error) = self.append(&entries, now) {
            self.queue.go_down(entries, missing);
            return self.judge(Err(error), now);
        }
        // What is being synced, since it was not always waited for, ends first.
        if self.tuning.sync_every.is_none()
            && self.log.is_syncing()
            && let Some(result) = self.queue.wait_for_sync(LAST_SYNC)
        {
            let outcome = self.log.end_sync(result, now);
            self.judge(outcome, now);
        }
        // Those who wait for records that are written but not synced hear nothing, and are refused.
        let synced = match self.tuning.sync_every {
            None => self.log.sync(now),
            Some(_) => Ok(()),
        };
        if synced.is_ok() {
            for written in entries.into_iter().filter_map(|entry| entry.written) {
                let _ = written.send(());
            }
        }
        let Some(gap) = missing else {
            return self.judge(synced, now);
        };
        match synced.and_then(|()| self.log.append_gap(&gap, now)) {
            Ok(()) => warn!(count = gap.count, "audit records are missing: there was no room"),
            Err(error) => {
                self.queue.go_down(Vec::new(), Some(gap));
                self.judge(Err(error), now);
            }
        }
    }

    fn append(&mut self, entries: &[Entry], now: Stamp) -> io::Result<()> {
        match entries.is_empty() {
            true => Ok(()),
            false => self.log.append(entries.iter().map(|entry| (&entry.event, entry.stamp)), now),
        }
    }

    /// Looks after what nobody waits for.
    fn keep_house(&mut self, now: Stamp) {
        if self.down.is_some() {
            return;
        }
        self.watch_fill(now);
        let kept = self.try_keep_house(now);
        self.judge(kept, now);
    }

    fn try_keep_house(&mut self, now: Stamp) -> io::Result<()> {
        if self.log.wants_checkpoint(now) {
            self.signed.push(self.log.sign(now)?);
        }
        if (self.rotates || self.log.wants_rotation(now)) && !self.log.is_syncing() {
            self.rotates = false;
            self.signed.push(self.log.rotate(now)?);
            self.remove_surplus(now)?;
        }
        let is_due = |every| {
            let is_time = now.up.saturating_sub(self.synced_at) >= every;
            is_time || (!self.log.is_syncing() && self.log.unsynced() >= SYNC_BYTES)
        };
        match self.tuning.sync_every {
            Some(every) if is_due(every) => {
                self.synced_at = now.up;
                self.begin_sync(now)
            }
            Some(_) => Ok(()),
            None => self.log.sync(now),
        }
    }

    /// Hands what was written to the sync thread. What cannot be handed over counts as a failed sync.
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

    /// Removes the oldest segments beyond those that are kept; that they are gone stands in the log
    /// before.
    fn remove_surplus(&mut self, now: Stamp) -> io::Result<()> {
        while let Some((name, last_seq)) = self.log.surplus()? {
            let event =
                Event::new("segment_removed").text("name", &name).number("last_seq", last_seq);
            self.log.append(std::iter::once((&event, now)), now)?;
            self.log.sync(now)?;
            self.log.remove(&name)?;
        }
        Ok(())
    }

    /// What is looked at once in a while.
    fn tick(&mut self, now: Stamp) {
        if self.log.check_place() {
            error!("the audit log's file was taken away; another segment is started");
            self.queue.note(Event::new("segment_lost"), now);
        }
        self.log.recount();
        self.retry(now);
    }

    fn watch_fill(&mut self, now: Stamp) {
        let fill = self.log.fill();
        if fill >= NEARLY_FULL && !self.is_nearly_full {
            warn!(
                percent = fill,
                "the audit log gets full: move old segments away, or raise audit.max_size"
            );
            self.queue.note(Event::new("nearly_full").number("percent", fill), now);
        }
        self.is_nearly_full = fill >= NEARLY_FULL;
    }

    /// Tries whether writing works again.
    fn retry(&mut self, now: Stamp) {
        let Some(down) = &mut self.down else {
            return;
        };
        if self.log.is_syncing() || now.up.saturating_sub(down.retried) < TICK {
            return;
        }
        down.retried = now.up;
        let for_ms = now.up.saturating_sub(down.since).as_millis();
        let event = Event::new("resumed")
            .text("after", &down.reason)
            .number("down_ms", u64::try_from(for_ms).unwrap_or(u64::MAX));
        let tried = self.restart_sync_thread().and_then(|()| self.log.sync(now));
        let tried = tried.and_then(|()| self.log.append(std::iter::once((&event, now)), now));
        if tried.is_ok() {
            self.down = None;
            self.queue.go_up();
            info!("the audit log is written again");
        }
    }

    /// Takes note of a failure: from then on callers are refused, or go on unrecorded.
    fn judge(&mut self, outcome: io::Result<()>, now: Stamp) {
        let Err(failure) = outcome else {
            return;
        };
        if self.down.is_none() {
            error!(%failure, "the audit log cannot be written; audit.on_failure says what becomes of calls");
            let reason = failure.to_string();
            self.down = Some(Down { since: now.up, retried: now.up, reason });
            self.queue.go_down(Vec::new(), None);
        }
    }

    /// The last words: what waits, that it was the end, and a checkpoint.
    fn finish(&mut self) {
        if self.log.is_syncing()
            && let Some(result) = self.queue.wait_for_sync(LAST_SYNC)
        {
            let _ = self.log.end_sync(result, (self.clock)());
        }
        let work = self.queue.wait(Duration::ZERO, true);
        let now = (self.clock)();
        self.write(Work { synced: None, tuning: None, ..work }, now);
        let event = Event::new("stopped");
        let last = self.log.append(std::iter::once((&event, now)), now);
        let last = last.and_then(|()| self.log.sign(now));
        match last.and_then(|signed| self.log.sync(now).map(|()| signed)) {
            Ok(signed) => self.signed.push(signed),
            Err(failure) => error!(%failure, "the audit log has no proper end"),
        }
        self.announce();
    }

    /// Says a checkpoint where it can be kept by others: the log that ends before it was cut.
    fn announce(&mut self) {
        let (durable, instance) = (self.log.durable_seq(), &self.log.writer().instance);
        self.signed.retain(|Signed { seq, mac, signature }| {
            let is_kept = *seq <= durable;
            if is_kept {
                info!(count = seq, head = mac, instance, signature, "audit checkpoint");
            }
            !is_kept
        });
    }
}
