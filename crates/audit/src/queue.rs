//! The bounded queue (in bytes) of records from callers to the log writer. A record without room is
//! refused or counted, never dropped silently.
//!
//! The log is written in turns ([`Turn`]). The holder of the turn takes all waiting records. While
//! callers may write, the first caller that finds the turn free takes it; else the thread does. The
//! end of each turn checks the queue again, so that no record is left waiting.
//!
//! Three kinds of records have separate room: records that calls wait for, with a fair share for
//! each caller; notes, which no call waits for; and the ends of recorded calls and streams, which
//! always fit.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::log::{Gap, LogSettings};
use super::record::{AuditEvent, MAX_LINE, Stamp};
use base::platform::{Condvar, Locked, yield_now};
use domain::calls::fair_share::{FairShare, Holder};

/// The queue, shared by all producers and the writer.
pub(super) struct Queue {
    state: Mutex<QueueState>,
    /// Wakes the thread of the log. No other thread waits here, so that `notify_one` cannot reach a
    /// different waiter.
    work: Condvar,
    /// Wakes the threads that wait until the log has ended.
    end: Condvar,
    /// The last record that is known to be on the disk: no later record is exported, since a power
    /// failure could replace it by a different one.
    pub synced: AtomicU64,
    /// The oldest segment that is not exported as a whole.
    pub unexported: AtomicU64,
}

/// The right to write the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Turn {
    Free,
    /// A caller writes, for all waiting callers.
    Caller,
    Thread,
}

/// A record that waits to be written.
pub(super) struct PendingRecord {
    pub written: oneshot::Receiver<WriteOutcome>,
    /// Whether the thread was not woken for the record: its caller takes the turn, or calls
    /// [`Queue::wake_for_waiting`].
    pub is_for_callers: bool,
    /// Whether the caller should first let other ready callers record.
    pub is_shared: bool,
}

/// The state in which a caller leaves the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TurnEnd {
    /// Callers may go on.
    ByCallers,
    /// The thread has something to do, such as a sync.
    ThreadDue,
}

/// A record in the queue, or two that are written together.
pub(super) struct QueueEntry {
    /// A record that is written right before `event`.
    pub before: Option<AuditEvent>,
    pub event: AuditEvent,
    pub stamp: Stamp,
    room: Room,
    /// Completed once the record is written; dropped when it is refused. `None` for a record that
    /// no caller waits for.
    pub written: Option<oneshot::Sender<WriteOutcome>>,
}

/// The outcome of writing a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WriteOutcome {
    /// The record is written.
    Written,
    /// The record is not known to be on the disk, and will be written again.
    Late,
}

/// The room that a record takes.
enum Room {
    /// The room of records that calls wait for.
    Call(Holder),
    /// The room of notes: records that no call waits for.
    Note,
    /// No room: the end of a call or stream whose start is on record.
    End,
}

/// The records without room by kind; there are few kinds.
pub(super) type OmittedNotes = BTreeMap<&'static str, Gap>;

/// The room of notes as a part of the limit, to which it is added.
const NOTES: usize = 4;

/// Turns in a row for a single caller, after which callers no longer wait for others.
const LONELY: u32 = 64;

/// The longest time that the thread waits without a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// The number of entries up to which debug builds check all of them after each change.
const MAX_CHECKED: usize = 256;

struct QueueState {
    settings: WriterSettings,
    /// Whether the writer still has older settings.
    settings_changed: bool,
    turn: Turn,
    /// Whether a caller may take the turn.
    is_for_callers: bool,
    /// Turns in a row that were for one caller alone.
    lone_turns: u32,
    /// Whether the thread has something to do, or waits for its turn.
    is_thread_due: bool,
    entries: Vec<QueueEntry>,
    /// Bytes of the entries that calls wait for.
    calls: FairShare<Holder>,
    /// Bytes of the notes, and of the ends.
    note_bytes: usize,
    end_bytes: usize,
    omitted: OmittedNotes,
    missing: Option<Gap>,
    is_down: bool,
    /// The `up` stamp of the oldest record that was taken and is not written.
    taken_since: Option<Duration>,
    /// The size of all segments, in bytes.
    size: u64,
    /// Set by [`Queue::drain`], until the writer has seen it.
    draining: bool,
    closing: bool,
    closed: bool,
    sync_outcome: Option<io::Result<()>>,
    /// Whether the thread sleeps and was not woken since.
    thread_waits: bool,
}

/// The settings that can change while the log is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct WriterSettings {
    /// The limit of records that calls wait for, and of lines that are written but not synced; in
    /// bytes.
    pub limit: usize,
    /// The time after which a record that waits counts as not written.
    pub timeout: Duration,
    /// The part of the limit that one caller may take while others want room, in bytes.
    pub share: usize,
    /// Whether calls continue unrecorded while the log is down (`audit.on_failure = "degrade"`).
    pub degrades: bool,
    /// The interval between syncs. `None`: every batch is synced before its callers are answered.
    pub sync_every: Option<Duration>,
    /// The interval of the regular verification.
    pub verify_every: Duration,
    pub log: LogSettings,
}

/// The next work of the thread.
pub(super) struct Work {
    /// `Some` if the settings have changed.
    pub settings: Option<WriterSettings>,
    pub entries: Vec<QueueEntry>,
    pub omitted: OmittedNotes,
    pub missing: Option<Gap>,
    /// The last producer is gone: the writer ends once everything is written.
    pub draining: bool,
    /// The writer ends now, whether or not everything is written.
    pub closing: bool,
    pub sync_outcome: Option<io::Result<()>>,
}

/// The side that takes records out of the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Intake {
    /// Callers; the thread takes the records that callers have left.
    ByCallers,
    /// The thread.
    ByThread,
    /// Records stay in the queue, which fills up, so that callers are refused.
    Paused,
}

/// A record was refused: the log is down or closed, or the queue is full.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RecordRefused;

impl Queue {
    pub(super) fn new(settings: WriterSettings) -> Self {
        let state = QueueState {
            calls: FairShare::new(settings.limit, settings.call_share()),
            settings,
            settings_changed: false,
            turn: Turn::Free,
            is_for_callers: false,
            lone_turns: LONELY,
            is_thread_due: false,
            entries: Vec::new(),
            note_bytes: 0,
            end_bytes: 0,
            omitted: OmittedNotes::new(),
            missing: None,
            is_down: false,
            taken_since: None,
            size: 0,
            draining: false,
            closing: false,
            closed: false,
            sync_outcome: None,
            thread_waits: false,
        };
        let state = Mutex::new(state);
        let (synced, unexported) = Default::default();
        Self { state, work: Condvar::default(), end: Condvar::default(), synced, unexported }
    }

    /// Returns the bytes of the waiting records, and the `up` stamp of the oldest one, which the
    /// writer may have taken.
    pub(super) fn waiting(&self) -> (usize, Option<Duration>) {
        let state = self.state.locked();
        (state.bytes(), state.oldest())
    }

    /// Whether the log cannot be written at present: writing fails, or takes too long. `up` is the
    /// present time, as stamps have it.
    pub(super) fn is_down_at(&self, up: Duration) -> bool {
        self.state.locked().is_down_at(up)
    }

    /// Returns the size of all segments, and the size at which records are refused; in bytes.
    pub(super) fn size(&self) -> (u64, Option<u64>) {
        let state = self.state.locked();
        let LogSettings { keep_size, refuses_when_full, .. } = state.settings.log;
        (state.size, refuses_when_full.then_some(keep_size))
    }

    /// Takes over the size of all segments.
    pub(super) fn set_size(&self, size: u64) {
        self.state.locked().size = size;
    }

    /// Returns the time after which a record that waits counts as not written.
    pub(super) fn timeout(&self) -> Duration {
        self.state.locked().settings.timeout
    }

    /// Returns the interval of the regular verification.
    pub(super) fn verify_every(&self) -> Duration {
        self.state.locked().settings.verify_every
    }

    /// Replaces the settings, and hands them to the writer.
    pub(super) fn reconfigure(&self, settings: WriterSettings) {
        let mut state = self.state.locked();
        state.calls.resize(settings.limit, settings.call_share());
        state.settings = settings;
        state.settings_changed = true;
        // The thread has them first: they may ask for a sync of each record.
        state.is_for_callers = false;
        self.wake(state);
    }

    /// Whether calls continue unrecorded while the log is down.
    pub(super) fn degrades(&self) -> bool {
        self.state.locked().settings.degrades
    }

    /// Adds a record that `holder` waits for, and right before it the record `before`: both or
    /// none. Returns what to wait for; `None` where the log is down or full and calls continue
    /// unrecorded.
    pub(super) fn submit(
        &self,
        holder: &Holder,
        before: Option<AuditEvent>,
        event: AuditEvent,
        stamp: Stamp,
    ) -> Result<Option<PendingRecord>, RecordRefused> {
        let mut state = self.state.locked();
        let degrades = state.settings.degrades;
        let is_down = state.is_down_at(stamp.up);
        if state.closed || (is_down && !degrades) {
            return Err(RecordRefused);
        }
        let (written, receiver) = oneshot::channel();
        let room = Room::Call(holder.clone());
        let entry = QueueEntry { before, event, stamp, room, written: Some(written) };
        let records = entry.records();
        // While the log is down no call waits, but records that fit are kept.
        let fits = state.calls.take(holder, entry.size()).is_ok();
        match (fits, is_down) {
            (true, false) => state.entries.push(entry),
            (true, true) => state.entries.push(QueueEntry { written: None, ..entry }),
            (false, _) if degrades => state.miss(records, stamp),
            (false, _) => return Err(RecordRefused),
        }
        state.debug_assert_invariants();
        let is_for_callers = state.is_for_callers;
        let is_shared = state.lone_turns < LONELY;
        if !is_for_callers || is_down || !fits {
            self.wake(state);
        }
        let pending = PendingRecord { written: receiver, is_for_callers, is_shared };
        Ok((fits && !is_down).then_some(pending))
    }

    /// Takes the turn for a caller, with all records that wait. Returns `None` if there are none,
    /// or another holder has the turn: that holder takes them.
    pub(super) fn take_turn(&self) -> Option<Vec<QueueEntry>> {
        let mut state = self.state.locked();
        if state.turn != Turn::Free || state.entries.is_empty() {
            if state.turn == Turn::Caller {
                state.lone_turns = 0;
            }
            return None;
        }
        state.lone_turns = match state.entries.len() {
            1 => state.lone_turns.saturating_add(1),
            _ => 0,
        };
        if !state.is_for_callers || state.is_thread_due {
            self.wake(state);
            return None;
        }
        state.turn = Turn::Caller;
        Some(state.take_for_writing())
    }

    /// Ends a part of the turn of a caller. Returns the records that wait by now, with which the
    /// turn goes on; `None` once it has ended.
    pub(super) fn end_turn(&self, end: TurnEnd) -> Option<Vec<QueueEntry>> {
        let mut state = self.state.locked();
        state.taken_since = None;
        state.is_for_callers &= end == TurnEnd::ByCallers;
        state.is_thread_due |= end == TurnEnd::ThreadDue;
        if !state.is_thread_due && !state.entries.is_empty() {
            return Some(state.take_for_writing());
        }
        state.turn = Turn::Free;
        if state.has_work(true) {
            self.wake(state);
        }
        None
    }

    /// Puts records that a caller could not write back at the front.
    pub(super) fn put_back(&self, entries: Vec<QueueEntry>) {
        let mut state = self.state.locked();
        let later = state.take_entries();
        entries.into_iter().chain(later).for_each(|entry| state.push(entry));
        state.debug_assert_invariants();
    }

    /// Wakes the thread for records whose callers are gone.
    pub(super) fn wake_for_waiting(&self) {
        let state = self.state.locked();
        if !state.entries.is_empty() {
            self.wake(state);
        }
    }

    /// Adds a note. Without room only its kind is counted.
    pub(super) fn note(&self, event: AuditEvent, stamp: Stamp) {
        let mut state = self.state.locked();
        if state.note_bytes + event.size() <= state.settings.limit / NOTES {
            state.push(QueueEntry { before: None, event, stamp, room: Room::Note, written: None });
        } else {
            let omitted = state.omitted.entry(event.kind());
            omitted.or_insert(Gap { count: 0, first: stamp, last: stamp }).add(1, stamp);
        }
        state.debug_assert_invariants();
        self.wake(state);
    }

    /// Adds the end of a call or stream whose start is on record. In refuse mode the end always
    /// fits: no call starts without a record.
    pub(super) fn end(&self, event: AuditEvent, stamp: Stamp) {
        let mut state = self.state.locked();
        if state.settings.degrades && state.end_bytes + event.size() > state.settings.limit {
            state.miss(1, stamp);
        } else {
            state.push(QueueEntry { before: None, event, stamp, room: Room::End, written: None });
        }
        state.debug_assert_invariants();
        self.wake(state);
    }

    /// Reports the outcome of a sync to the writer.
    pub(super) fn sync_finished(&self, result: io::Result<()>) {
        let mut state = self.state.locked();
        state.sync_outcome = Some(result);
        self.wake(state);
    }

    /// Ends the writer once every waiting record is written, however long that takes.
    pub(super) fn drain(&self) {
        let mut state = self.state.locked();
        state.draining = true;
        self.wake(state);
    }

    /// Ends the writer after one more try to write, even if records are lost.
    pub(super) fn close(&self) {
        let mut state = self.state.locked();
        state.closing = true;
        self.wake(state);
    }

    /// Blocks until the writer has ended, or for `timeout`.
    pub(super) fn wait_for_end(&self, timeout: Duration) {
        drop(self.end.wait_while(&self.state, timeout, |state| !state.closed));
    }

    /// Whether the writer has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.state.locked().closed
    }

    /// Ends the turn of the thread, and blocks it until there is work, or for `timeout`, and it has
    /// the turn again.
    pub(super) fn wait(&self, timeout: Duration, intake: Intake) -> Work {
        {
            let mut state = self.state.locked();
            state.taken_since = None;
            state.turn = Turn::Free;
            state.is_for_callers = intake == Intake::ByCallers;
        }
        let takes = intake != Intake::Paused;
        drop(
            self.wait_while(timeout, |state| state.turn == Turn::Caller || !state.has_work(takes)),
        );
        // Yields first: the thread would otherwise take the core of a thread that serves calls, to
        // write a single record.
        yield_now();
        self.state.locked().is_thread_due = true;
        let mut state = loop {
            let state = self.wait_while(LONG, |state| state.turn == Turn::Caller);
            if state.turn != Turn::Caller {
                break state;
            }
        };
        state.turn = Turn::Thread;
        state.is_thread_due = false;
        let settings_changed = std::mem::take(&mut state.settings_changed);
        let mut work = Work {
            settings: settings_changed.then(|| state.settings.clone()),
            entries: Vec::new(),
            omitted: OmittedNotes::new(),
            missing: None,
            draining: std::mem::take(&mut state.draining),
            closing: state.closing,
            sync_outcome: state.sync_outcome.take(),
        };
        if takes {
            work.entries = state.take_for_writing();
            work.omitted = std::mem::take(&mut state.omitted);
            work.missing = state.missing.take();
        }
        state.debug_assert_invariants();
        work
    }

    /// Blocks the thread until a sync has ended. Returns its outcome; `None` after `timeout`.
    pub(super) fn wait_for_sync(&self, timeout: Duration) -> Option<io::Result<()>> {
        self.wait_while(timeout, |state| state.sync_outcome.is_none()).sync_outcome.take()
    }

    /// Blocks the thread while there is nothing for it, or for `timeout`.
    fn wait_while(
        &self,
        timeout: Duration,
        is_idle: impl Fn(&QueueState) -> bool,
    ) -> MutexGuard<'_, QueueState> {
        let waits = |state: &mut QueueState| {
            state.thread_waits = is_idle(state);
            state.thread_waits
        };
        let mut state = self.work.wait_while(&self.state, timeout, waits);
        state.thread_waits = false;
        state
    }

    /// Wakes the thread if it waits. While a caller writes, records join the next group, and cost
    /// no system call.
    fn wake(&self, mut state: MutexGuard<'_, QueueState>) {
        if state.turn != Turn::Caller && std::mem::take(&mut state.thread_waits) {
            drop(state);
            self.work.notify_one();
        }
    }

    /// Marks the log as down. Records whose callers wait are refused, unless calls continue
    /// unrecorded; all other records, with what could not be written before them, stay in the
    /// queue.
    pub(super) fn go_down(&self, unwritten: UnwrittenEntries) {
        let UnwrittenEntries { entries, omitted, missing } = unwritten;
        let mut state = self.state.locked();
        state.is_down = true;
        state.taken_since = None;
        let degrades = state.settings.degrades;
        // A dropped sender refuses its caller. A caller that no longer waits has learned that the
        // record is late.
        let is_refused = |written: Option<oneshot::Sender<WriteOutcome>>| {
            !degrades && written.is_some_and(|written| !written.is_closed())
        };
        let keep = |mut entry: QueueEntry| (!is_refused(entry.written.take())).then_some(entry);
        let later = state.take_entries();
        for entry in entries.into_iter().chain(later).filter_map(keep) {
            state.push(entry);
        }
        for (kind, gap) in omitted {
            let merged = gap.followed_by(state.omitted.remove(kind));
            state.omitted.insert(kind, merged);
        }
        state.missing = match missing {
            Some(first) => Some(first.followed_by(state.missing.take())),
            None => state.missing.take(),
        };
        state.debug_assert_invariants();
    }

    /// Marks the log as up again.
    pub(super) fn go_up(&self) {
        self.state.locked().is_down = false;
    }

    /// Closes the queue after the writer has ended. Returns how many records were never written.
    pub(super) fn mark_closed(&self) -> u64 {
        let mut state = self.state.locked();
        state.closed = true;
        state.is_down = true;
        let waiting: u64 = state.take_entries().iter().map(QueueEntry::records).sum();
        let omitted: u64 = state.omitted.values().map(|gap| gap.count).sum();
        let missing = state.missing.take().map_or(0, |gap| gap.count);
        drop(state);
        self.end.notify_all();
        waiting + omitted + missing
    }
}

/// Entries that the writer has taken and could not write.
#[derive(Default)]
pub(super) struct UnwrittenEntries {
    pub entries: Vec<QueueEntry>,
    pub omitted: OmittedNotes,
    pub missing: Option<Gap>,
}

impl PendingRecord {
    /// Returns the outcome; `None` if the record is refused. A disk that hangs makes no call hang.
    pub(super) async fn outcome(mut self, queue: &Queue) -> Result<Option<WriteOutcome>, Elapsed> {
        match self.written.try_recv() {
            Err(TryRecvError::Empty) => {
                timeout(queue.timeout(), self.written).await.map(Result::ok)
            }
            known => Ok(known.ok()),
        }
    }
}

impl WriterSettings {
    /// Room for one call's records of the greatest length, at least.
    fn call_share(&self) -> usize {
        self.share.max(2 * MAX_LINE)
    }
}

impl QueueEntry {
    /// Returns the records of the entry in their order.
    pub(super) fn events(&self) -> impl Iterator<Item = (&AuditEvent, Stamp)> {
        self.before.iter().chain([&self.event]).map(|event| (event, self.stamp))
    }

    fn size(&self) -> usize {
        self.event.size() + self.before.as_ref().map_or(0, AuditEvent::size)
    }

    /// Returns the number of records.
    fn records(&self) -> u64 {
        1 + u64::from(self.before.is_some())
    }
}

impl QueueState {
    /// Whether there is work for the thread, which `takes` records or not.
    fn has_work(&self, takes: bool) -> bool {
        let has_records = takes
            && !(self.entries.is_empty() && self.omitted.is_empty() && self.missing.is_none());
        has_records
            || self.is_thread_due
            || self.settings_changed
            || self.draining
            || self.closing
            || self.sync_outcome.is_some()
    }

    /// Takes all records. Until the next turn, the oldest of them counts as waiting.
    fn take_for_writing(&mut self) -> Vec<QueueEntry> {
        self.taken_since = self.oldest();
        self.take_entries()
    }

    fn oldest(&self) -> Option<Duration> {
        self.taken_since.or_else(|| self.entries.first().map(|entry| entry.stamp.up))
    }

    /// Whether the log is down: writing fails, or takes longer than the timeout.
    fn is_down_at(&self, up: Duration) -> bool {
        let waits = |since| up.saturating_sub(since) > self.settings.timeout;
        self.is_down || self.oldest().is_some_and(waits)
    }

    fn bytes(&self) -> usize {
        self.calls.used() + self.note_bytes + self.end_bytes
    }

    /// Adds an entry, whether or not there is room.
    fn push(&mut self, entry: QueueEntry) {
        let size = entry.size();
        match &entry.room {
            Room::Call(holder) => self.calls.force(holder, size),
            Room::Note => self.note_bytes += size,
            Room::End => self.end_bytes += size,
        }
        self.entries.push(entry);
    }

    fn take_entries(&mut self) -> Vec<QueueEntry> {
        self.calls.clear();
        self.note_bytes = 0;
        self.end_bytes = 0;
        std::mem::take(&mut self.entries)
    }

    /// Counts records of calls that continue unrecorded.
    fn miss(&mut self, records: u64, stamp: Stamp) {
        let gap = Gap { count: 0, first: stamp, last: stamp };
        self.missing.get_or_insert(gap).add(records, stamp);
    }

    /// Panics in debug builds if the room that is taken is not that of the entries, or a call waits
    /// for a record while the log is down. A scan is linear in the entries, so beyond
    /// [`MAX_CHECKED`] only the newest are looked at.
    fn debug_assert_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let newest = &self.entries[self.entries.len().saturating_sub(MAX_CHECKED)..];
        let mut calls = 0;
        let mut notes = 0;
        let mut ends = 0;
        for entry in newest {
            let waits = entry.written.is_some();
            assert!(!(waits && self.is_down), "no call waits for a log that is down");
            match entry.room {
                Room::Call(_) => calls += entry.size(),
                Room::Note => notes += entry.size(),
                Room::End => ends += entry.size(),
            }
        }
        let taken = [self.calls.used(), self.note_bytes, self.end_bytes];
        if newest.len() == self.entries.len() {
            assert_eq!(taken, [calls, notes, ends], "entries take their room");
        }
        assert!(self.omitted.values().all(|gap| gap.count > 0), "a kind without notes is left");
        assert!(self.missing.as_ref().is_none_or(|gap| gap.count > 0), "a gap of nothing is left");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use domain::calls::caller::Caller;

    /// Far longer than the test runs: a wait that ends has been woken.
    const NEVER: Duration = Duration::from_secs(3600);

    fn queue() -> Arc<Queue> {
        let log = LogSettings {
            segment_size: 1,
            segment_age: NEVER,
            keep_size: 1,
            keep_for: NEVER,
            export_reserve: None,
            refuses_when_full: true,
            checkpoint_records: 1,
            checkpoint_every: NEVER,
        };
        let settings = WriterSettings {
            limit: 64 << 10,
            timeout: NEVER,
            share: 16 << 10,
            degrades: false,
            sync_every: None,
            verify_every: NEVER,
            log,
        };
        Arc::new(Queue::new(settings))
    }

    #[test]
    fn a_record_wakes_the_writer_while_threads_wait_for_its_end() {
        let queue = queue();
        let closers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.wait_for_end(NEVER))
            })
            .collect();
        let (sender, taken) = mpsc::channel();
        let waiting = queue.clone();
        let writer = thread::spawn(move || {
            loop {
                let work = waiting.wait(NEVER, Intake::ByThread);
                if work.closing {
                    break;
                }
                sender.send(work.entries.len()).unwrap();
            }
        });
        let stamp = Stamp { wall: std::time::SystemTime::UNIX_EPOCH, up: Duration::ZERO };
        // Often enough that the writer is asleep in some rounds when its record comes.
        for round in 0..200 {
            (0..20).for_each(|_| thread::yield_now());
            queue.note(AuditEvent::new("test"), stamp);
            // A deadline only so that the lost wake-up fails the test rather than hanging it.
            let entries = taken.recv_timeout(Duration::from_secs(10));
            assert_eq!(entries, Ok(1), "the wake-up of round {round} is lost");
        }
        queue.close();
        writer.join().unwrap();
        queue.mark_closed();
        closers.into_iter().for_each(|closer| closer.join().unwrap());
    }

    const START: Stamp = Stamp { wall: std::time::SystemTime::UNIX_EPOCH, up: Duration::ZERO };

    fn holder(id: &str) -> Holder {
        Holder::Caller(Caller::new(id))
    }

    /// An event of about this many bytes.
    fn event(size: usize) -> AuditEvent {
        let filler = "x".repeat(size - AuditEvent::new("test").size());
        // A clone has no room to spare, which would count.
        AuditEvent::new("test").long_text("x", &filler, size).clone()
    }

    #[test]
    fn f1_records_that_nobody_waits_for_take_no_room_from_those_that_calls_wait_for() {
        let queue = queue();
        for _ in 0..10_000 {
            queue.note(event(1 << 10), START);
            queue.note(AuditEvent::new("other"), START);
        }
        let (notes, _) = queue.waiting();
        assert!(notes <= (64 << 10) / NOTES, "{notes}");
        assert!(queue.submit(&holder("a"), None, event(15 << 10), START).unwrap().is_some());
        let work = queue.wait(NEVER, Intake::ByThread);
        assert_eq!(work.missing, None, "counted by their kinds, and no gap");
        let omitted: u64 = work.omitted.values().map(|omitted| omitted.count).sum();
        assert_eq!(work.omitted.len(), 2);
        assert_eq!(omitted + work.entries.len() as u64, 20_001);
    }

    proptest! {
        /// The queue itself checks after each step that the room which is taken is that of its
        /// records.
        #[test]
        fn whatever_happens_in_any_order_each_record_is_written_refused_or_counted_as_missing(
            degrades in any::<bool>(),
            steps in prop::collection::vec((0..8_u8, 0..3_u8, 300..9_000_usize), 1..100),
        ) {
            let queue = queue();
            let settings = queue.state.locked().settings.clone();
            queue.reconfigure(WriterSettings { degrades, ..settings });
            let mut recorded = 0;
            let mut taken = 0;
            let mut waiting = Vec::new();
            for (step, id, size) in steps {
                match step {
                    0..=2 => {
                        let holder = holder(&id.to_string());
                        let submitted = queue.submit(&holder, None, event(size), START);
                        recorded += u64::from(submitted.is_ok());
                        waiting.extend(submitted.ok().flatten());
                    }
                    3 => queue.note(event(size), START),
                    4 => queue.end(event(size), START),
                    5 => taken += written(queue.wait(Duration::ZERO, Intake::ByThread)),
                    6 => {
                        let work = queue.wait(Duration::ZERO, Intake::ByThread);
                        let Work { entries, omitted, missing, .. } = work;
                        queue.go_down(UnwrittenEntries { entries, omitted, missing });
                    }
                    _ => queue.go_up(),
                }
                recorded += u64::from((3..=4).contains(&step));
            }
            let is_refused = |waiting: &mut PendingRecord| {
                // Where calls continue unrecorded, the record stays.
                !degrades && waiting.written.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            };
            let refused: u64 = waiting.iter_mut().map(|waiting| u64::from(is_refused(waiting))).sum();
            prop_assert_eq!(taken + refused + queue.mark_closed(), recorded);
        }
    }

    /// Answers those who wait, and returns the number of records.
    fn written(work: Work) -> u64 {
        let omitted: u64 = work.omitted.values().map(|gap| gap.count).sum();
        let missing = work.missing.map_or(0, |gap| gap.count);
        let mut entries = 0;
        for entry in work.entries {
            entries += entry.records();
            if let Some(written) = entry.written {
                let _ = written.send(WriteOutcome::Written);
            }
        }
        entries + omitted + missing
    }

    #[test]
    fn records_that_wait_too_long_count_as_not_written_until_the_writer_is_done() {
        let queue = queue();
        let settings = queue.state.locked().settings.clone();
        queue.reconfigure(WriterSettings { timeout: Duration::from_secs(5), ..settings });
        let at = |up| Stamp { up: Duration::from_secs(up), ..START };
        let submit = |up| queue.submit(&holder("a"), None, AuditEvent::new("test"), at(up));
        let mut first = submit(1).unwrap().unwrap();
        assert!(!queue.is_down_at(at(6).up) && queue.is_down_at(at(7).up), "nobody takes it");
        let taken = queue.wait(Duration::ZERO, Intake::ByThread);
        assert_eq!(queue.waiting(), (0, Some(at(1).up)), "it is taken, and not written");
        assert!(submit(5).is_ok());
        assert_eq!(submit(7).err(), Some(RecordRefused), "refused at once");
        assert!(first.written.try_recv().is_err());
        for entry in taken.entries {
            let _ = entry.written.map(|written| written.send(WriteOutcome::Written));
        }
        assert_eq!(queue.wait(Duration::ZERO, Intake::ByThread).entries.len(), 1);
        queue.wait(Duration::ZERO, Intake::ByThread);
        assert!(!queue.is_down_at(at(100).up) && submit(100).is_ok());
    }

    #[tokio::test]
    async fn an_outcome_that_is_known_before_its_caller_asks_is_the_outcome() {
        let queue = queue();
        let submit = || queue.submit(&holder("a"), None, AuditEvent::new("test"), START);
        let refused = submit().unwrap().unwrap();
        queue.go_down(UnwrittenEntries::default());
        assert_eq!(refused.outcome(&queue).await, Ok(None));
        queue.go_up();
        let pending = submit().unwrap().unwrap();
        written(queue.wait(Duration::ZERO, Intake::ByThread));
        assert_eq!(pending.outcome(&queue).await, Ok(Some(WriteOutcome::Written)));
    }

    #[test]
    fn f1_one_caller_leaves_room_for_the_records_of_others() {
        let queue = queue();
        let submit = |id| queue.submit(&holder(id), None, event(8 << 10), START).is_ok();
        let flood = (0..100).filter(|_| submit("flood")).count();
        assert_eq!(flood, 4, "its share is half of the least buffer");
        assert!(submit("a") && submit("b"));
        queue.wait(NEVER, Intake::ByThread);
        assert!(submit("flood"), "written");
    }

    #[test]
    fn f2_ends_of_what_is_on_record_always_have_room_in_refuse_mode() {
        let queue = queue();
        let submit = || queue.submit(&holder("a"), None, event(15 << 10), START).ok().flatten();
        let _callers: Vec<_> = std::iter::from_fn(submit).collect();
        queue.go_down(UnwrittenEntries::default());
        for _ in 0..1_000 {
            queue.end(event(1 << 10), START);
        }
        let work = queue.wait(NEVER, Intake::ByThread);
        assert_eq!((work.missing, work.entries.len()), (None, 1_000), "the others were refused");
    }

    #[test]
    fn f2_two_records_that_belong_together_are_refused_together() {
        let queue = queue();
        let mut pending = queue
            .submit(
                &holder("a"),
                Some(AuditEvent::new("received")),
                AuditEvent::new("completed"),
                START,
            )
            .unwrap()
            .unwrap();
        let entries = queue.wait(NEVER, Intake::ByThread).entries;
        assert_eq!(entries.len(), 1);
        queue.go_down(UnwrittenEntries { entries, ..UnwrittenEntries::default() });
        assert!(pending.written.try_recv().is_err());
        // The receiver is dropped, as that of a call that was answered as late: its record stays.
        drop(queue.submit(&holder("a"), None, AuditEvent::new("refused"), START));
        queue.go_up();
        drop(queue.submit(&holder("a"), None, AuditEvent::new("late"), START).unwrap());
        queue.go_down(UnwrittenEntries::default());
        queue.note(AuditEvent::new("later"), START);
        let work = queue.wait(NEVER, Intake::ByThread);
        let kinds: Vec<_> = work.entries.iter().map(|entry| entry.event.kind()).collect();
        assert_eq!(kinds, ["late", "later"], "no `received` without an end is left behind");
    }
}
