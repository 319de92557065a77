//! The queue of records between the threads that record and the writer: bounded in bytes. A record
//! without room is refused or counted, never dropped silently.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::log::{Gap, LogSettings};
use super::record::{Event, Stamp};

/// The queue, shared by all producers and the one writer.
pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes the writer. Only its thread waits here, so that `notify_one` cannot reach a different waiter.
    work: Condvar,
    /// Wakes the threads that wait until the writer has ended.
    end: Condvar,
}

/// A record in the queue.
pub(super) struct Entry {
    pub event: Event,
    pub stamp: Stamp,
    /// Completed once the record is written; dropped when it is refused. `None` for a record that
    /// no caller waits for.
    pub written: Option<oneshot::Sender<()>>,
}

struct State {
    settings: WriterSettings,
    /// Whether `settings` is newer than what the writer has.
    settings_changed: bool,
    entries: Vec<Entry>,
    /// Bytes of `entries`.
    bytes: usize,
    missing: Option<Gap>,
    is_down: bool,
    rotate: bool,
    /// Set by [`Queue::drain`], until the writer has seen it.
    draining: bool,
    closing: bool,
    closed: bool,
    sync_outcome: Option<io::Result<()>>,
}

/// The settings that can change while the log is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct WriterSettings {
    /// The limit of waiting records, and of lines that are written but not synced; in bytes.
    pub limit: usize,
    /// Whether calls continue unrecorded while the log is down (`audit.on_failure = "degrade"`).
    pub degrades: bool,
    /// The interval between syncs. `None`: every batch is synced before its callers are answered.
    pub sync_every: Option<Duration>,
    pub log: LogSettings,
}

/// The next work of the writer.
pub(super) struct Work {
    /// `Some` if the settings have changed.
    pub settings: Option<WriterSettings>,
    pub entries: Vec<Entry>,
    pub missing: Option<Gap>,
    pub rotate: bool,
    /// The last producer is gone: the writer ends once everything is written.
    pub draining: bool,
    /// The writer ends now, whether or not everything is written.
    pub closing: bool,
    pub sync_outcome: Option<io::Result<()>>,
}

/// Whether the writer takes records out of the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Intake {
    Open,
    /// Records stay in the queue, which fills up, so that callers are refused.
    Paused,
}

/// A record was refused: the log is down or closed, or the queue is full.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Refused;

impl Queue {
    pub(super) fn new(settings: WriterSettings) -> Self {
        let state = State {
            settings,
            settings_changed: false,
            entries: Vec::new(),
            bytes: 0,
            missing: None,
            is_down: false,
            rotate: false,
            draining: false,
            closing: false,
            closed: false,
            sync_outcome: None,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), end: Condvar::new() }
    }

    /// Returns the bytes of the waiting records, and the `up` stamp of the oldest one.
    pub(super) fn waiting(&self) -> (usize, Option<Duration>) {
        let state = self.lock();
        (state.bytes, state.entries.first().map(|entry| entry.stamp.up))
    }

    /// Replaces the settings, and hands them to the writer.
    pub(super) fn reconfigure(&self, settings: WriterSettings) {
        let mut state = self.lock();
        state.settings = settings;
        state.settings_changed = true;
        drop(state);
        self.work.notify_one();
    }

    /// Whether calls continue unrecorded while the log is down.
    pub(super) fn degrades(&self) -> bool {
        self.lock().settings.degrades
    }

    /// Adds a record whose caller waits, and right before it the record `before`: both or none.
    /// Returns the channel to wait on; `None` where the log is down or full and calls continue
    /// unrecorded.
    ///
    /// # Errors
    /// When the queue is closed, or the log is down or full and calls are refused then.
    pub(super) fn submit(
        &self,
        before: Option<Event>,
        event: Event,
        stamp: Stamp,
    ) -> Result<Option<oneshot::Receiver<()>>, Refused> {
        let mut state = self.lock();
        let size = event.size() + before.as_ref().map_or(0, Event::size);
        let fits = state.bytes + size <= state.settings.limit;
        if state.closed || (!state.settings.degrades && (state.is_down || !fits)) {
            return Err(Refused);
        }
        if state.is_down || !fits {
            before.into_iter().chain([event]).for_each(|event| state.note(event, stamp));
            return Ok(None);
        }
        if let Some(event) = before {
            state.push(Entry { event, stamp, written: None });
        }
        let (written, receiver) = oneshot::channel();
        state.push(Entry { event, stamp, written: Some(written) });
        drop(state);
        self.work.notify_one();
        Ok(Some(receiver))
    }

    /// Adds a record that no caller waits for. Without room it is counted as missing.
    pub(super) fn note(&self, event: Event, stamp: Stamp) {
        self.lock().note(event, stamp);
        self.work.notify_one();
    }

    /// Requests a new segment.
    pub(super) fn rotate(&self) {
        self.lock().rotate = true;
        self.work.notify_one();
    }

    /// Reports the outcome of a sync to the writer.
    pub(super) fn sync_finished(&self, result: io::Result<()>) {
        self.lock().sync_outcome = Some(result);
        self.work.notify_one();
    }

    /// Ends the writer once every waiting record is written, however long that takes.
    pub(super) fn drain(&self) {
        self.lock().draining = true;
        self.work.notify_one();
    }

    /// Ends the writer after one more try to write, even if records are lost.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_one();
    }

    /// Blocks until the writer has ended, or for `timeout`.
    pub(super) fn wait_for_end(&self, timeout: Duration) {
        let waited = self.end.wait_timeout_while(self.lock(), timeout, |state| !state.closed);
        drop(waited.map(drop));
    }

    /// Whether the writer has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether the log cannot be written at present.
    pub(super) fn is_down(&self) -> bool {
        self.lock().is_down
    }

    /// Blocks the writer until there is work, or for `timeout`.
    pub(super) fn wait(&self, timeout: Duration, intake: Intake) -> Work {
        let takes = intake == Intake::Open;
        let idle = |state: &mut State| {
            let has_records = takes && (!state.entries.is_empty() || state.missing.is_some());
            !(has_records
                || state.settings_changed
                || state.rotate
                || state.draining
                || state.closing
                || state.sync_outcome.is_some())
        };
        let waited = self.work.wait_timeout_while(self.lock(), timeout, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let settings_changed = std::mem::take(&mut state.settings_changed);
        let mut work = Work {
            settings: settings_changed.then(|| state.settings.clone()),
            entries: Vec::new(),
            missing: None,
            rotate: std::mem::take(&mut state.rotate),
            draining: std::mem::take(&mut state.draining),
            closing: state.closing,
            sync_outcome: state.sync_outcome.take(),
        };
        if takes {
            work.entries = std::mem::take(&mut state.entries);
            work.missing = state.missing.take();
            state.bytes = 0;
        }
        work
    }

    /// Blocks the writer until a sync has ended. Returns its outcome; `None` after `timeout`.
    pub(super) fn wait_for_sync(&self, timeout: Duration) -> Option<io::Result<()>> {
        let is_under_way = |state: &mut State| state.sync_outcome.is_none();
        let waited = self.work.wait_timeout_while(self.lock(), timeout, is_under_way);
        waited.unwrap_or_else(PoisonError::into_inner).0.sync_outcome.take()
    }

    /// Marks the log as down. Records whose callers wait are refused, unless calls continue
    /// unrecorded; all other records, with `unwritten` before them, stay in the queue.
    pub(super) fn go_down(&self, unwritten: Vec<Entry>, missing: Option<Gap>) {
        let mut state = self.lock();
        state.is_down = true;
        let degrades = state.settings.degrades;
        // A dropped sender refuses its caller.
        let keep = |mut entry: Entry| (entry.written.take().is_none() || degrades).then_some(entry);
        let later = std::mem::take(&mut state.entries);
        state.bytes = 0;
        for entry in unwritten.into_iter().chain(later).filter_map(keep) {
            state.push(entry);
        }
        state.missing = match (missing, state.missing.take()) {
            (Some(first), Some(last)) => {
                Some(Gap { count: first.count + last.count, first: first.first, last: last.last })
            }
            (one, other) => one.or(other),
        };
    }

    /// Marks the log as up again.
    pub(super) fn go_up(&self) {
        self.lock().is_down = false;
    }

    /// Closes the queue after the writer has ended. Returns how many records were never written.
    pub(super) fn mark_closed(&self) -> u64 {
        let mut state = self.lock();
        state.closed = true;
        state.is_down = true;
        let waiting = std::mem::take(&mut state.entries).len() as u64;
        let missing = state.missing.take().map_or(0, |gap| gap.count);
        drop(state);
        self.end.notify_all();
        waiting + missing
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, entry: Entry) {
        self.bytes += entry.event.size();
        self.entries.push(entry);
    }

    fn note(&mut self, event: Event, stamp: Stamp) {
        if self.bytes + event.size() <= self.settings.limit {
            return self.push(Entry { event, stamp, written: None });
        }
        let gap = self.missing.get_or_insert(Gap { count: 0, first: stamp, last: stamp });
        gap.count += 1;
        gap.last = stamp;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;

    /// Far longer than the test runs: a wait that ends has been woken.
    const NEVER: Duration = Duration::from_secs(3600);

    fn queue() -> Arc<Queue> {
        let log = LogSettings {
            segment_size: 1,
            segment_age: NEVER,
            max_size: 1,
            keep: 0,
            checkpoint_records: 1,
            checkpoint_every: NEVER,
        };
        let settings = WriterSettings { limit: 1 << 20, degrades: false, sync_every: None, log };
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
                let work = waiting.wait(NEVER, Intake::Open);
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
            queue.note(Event::new("test"), stamp);
            // A deadline only so that the lost wake-up fails the test rather than hanging it.
            let entries = taken.recv_timeout(Duration::from_secs(10));
            assert_eq!(entries, Ok(1), "the wake-up of round {round} is lost");
        }
        queue.close();
        writer.join().unwrap();
        queue.mark_closed();
        closers.into_iter().for_each(|closer| closer.join().unwrap());
    }
}
