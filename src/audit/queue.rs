//! What waits to be written: bounded, and never dropped in silence.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::log::{Gap, LogSettings};
use super::record::{Event, Stamp};

/// Between all who record and the one who writes.
pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes the writer. Only its thread waits here, so that `notify_one` cannot reach another one.
    work: Condvar,
    /// Wakes the threads that wait until the writer has ended.
    end: Condvar,
}

/// A record that waits.
pub(super) struct Entry {
    pub event: Event,
    pub stamp: Stamp,
    /// Told once it is written; nobody waits where there is none.
    pub written: Option<oneshot::Sender<()>>,
}

struct State {
    tuning: Tuning,
    /// Not yet told to the writer.
    is_tuned: bool,
    entries: Vec<Entry>,
    bytes: usize,
    missing: Option<Gap>,
    is_down: bool,
    rotate: bool,
    /// Nobody records any more; not yet told to the writer.
    ended: bool,
    /// It must be over.
    closing: bool,
    closed: bool,
    synced: Option<io::Result<()>>,
}

/// What may be set otherwise while records are written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Tuning {
    /// Bytes that may wait, and that may be written and not synced.
    pub limit: usize,
    /// Whether calls go on while nothing can be written.
    pub degrades: bool,
    /// How often what was written is synced; nothing: each time, before anybody is told that it is
    /// written.
    pub sync_every: Option<Duration>,
    pub log: LogSettings,
}

/// What the writer has to do.
pub(super) struct Work {
    /// Another one than before.
    pub tuning: Option<Tuning>,
    pub entries: Vec<Entry>,
    pub missing: Option<Gap>,
    pub rotate: bool,
    /// Nobody records any more: it may be over once all is written.
    pub ended: bool,
    /// It must be over.
    pub closing: bool,
    pub synced: Option<io::Result<()>>,
}

/// A record that cannot be written now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Refused;

impl Queue {
    pub(super) fn new(tuning: Tuning) -> Self {
        let state = State {
            tuning,
            is_tuned: false,
            entries: Vec::new(),
            bytes: 0,
            missing: None,
            is_down: false,
            rotate: false,
            ended: false,
            closing: false,
            closed: false,
            synced: None,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), end: Condvar::new() }
    }

    /// Bytes that wait, and when the oldest of them came.
    pub(super) fn waiting(&self) -> (usize, Option<Duration>) {
        let state = self.lock();
        (state.bytes, state.entries.first().map(|entry| entry.stamp.up))
    }

    /// From now on it is this way.
    pub(super) fn tune(&self, tuning: Tuning) {
        let mut state = self.lock();
        (state.tuning, state.is_tuned) = (tuning, true);
        drop(state);
        self.work.notify_one();
    }

    /// Whether calls go on while nothing can be written.
    pub(super) fn degrades(&self) -> bool {
        self.lock().tuning.degrades
    }

    /// Takes a record that somebody waits for, with the one that belongs before it; nothing to wait
    /// for where calls go on without. Both or none.
    pub(super) fn submit(
        &self,
        before: Option<Event>,
        event: Event,
        stamp: Stamp,
    ) -> Result<Option<oneshot::Receiver<()>>, Refused> {
        let mut state = self.lock();
        let size = event.size() + before.as_ref().map_or(0, Event::size);
        let fits = state.bytes + size <= state.tuning.limit;
        if state.closed || (!state.tuning.degrades && (state.is_down || !fits)) {
            return Err(Refused);
        }
        if state.is_down || !fits {
            before.into_iter().chain([event]).for_each(|event| state.note(event, stamp));
            return Ok(None);
        }
        if let Some(event) = before {
            state.push(Entry { event, stamp, written: None });
        }
        let (written, waits) = oneshot::channel();
        state.push(Entry { event, stamp, written: Some(written) });
        drop(state);
        self.work.notify_one();
        Ok(Some(waits))
    }

    /// Takes a record that nobody waits for. One for which there is no room is counted.
    pub(super) fn note(&self, event: Event, stamp: Stamp) {
        self.lock().note(event, stamp);
        self.work.notify_one();
    }

    pub(super) fn rotate(&self) {
        self.lock().rotate = true;
        self.work.notify_one();
    }

    /// Tells the writer how a sync ended.
    pub(super) fn synced(&self, result: io::Result<()>) {
        self.lock().synced = Some(result);
        self.work.notify_one();
    }

    /// Nobody records any more: what waits is written, however long that takes, and then it is over.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.work.notify_one();
    }

    /// Ends the writing, whether all is written or not.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.work.notify_one();
    }

    /// Waits for the end as long as that.
    pub(super) fn wait_for_end(&self, patience: Duration) {
        let waited = self.end.wait_timeout_while(self.lock(), patience, |state| !state.closed);
        drop(waited.map(drop));
    }

    /// Whether the writing has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn is_down(&self) -> bool {
        self.lock().is_down
    }

    /// Waits until there is something to do, or for `patience`. Records are left in the queue
    /// unless `takes`.
    pub(super) fn wait(&self, patience: Duration, takes: bool) -> Work {
        let idle = |state: &mut State| {
            let has_records = takes && (!state.entries.is_empty() || state.missing.is_some());
            !(has_records
                || state.is_tuned
                || state.rotate
                || state.ended
                || state.closing
                || state.synced.is_some())
        };
        let waited = self.work.wait_timeout_while(self.lock(), patience, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_tuned = std::mem::take(&mut state.is_tuned);
        let mut work = Work {
            tuning: is_tuned.then(|| state.tuning.clone()),
            entries: Vec::new(),
            missing: None,
            rotate: std::mem::take(&mut state.rotate),
            ended: std::mem::take(&mut state.ended),
            closing: state.closing,
            synced: state.synced.take(),
        };
        if takes {
            work.entries = std::mem::take(&mut state.entries);
            work.missing = state.missing.take();
            state.bytes = 0;
        }
        work
    }

    /// Waits for the end of a sync.
    pub(super) fn wait_for_sync(&self, patience: Duration) -> Option<io::Result<()>> {
        let is_under_way = |state: &mut State| state.synced.is_none();
        let waited = self.work.wait_timeout_while(self.lock(), patience, is_under_way);
        waited.unwrap_or_else(PoisonError::into_inner).0.synced.take()
    }

    /// From now on nothing can be written. Records whose callers wait are refused, or kept if calls
    /// go on; the others are kept.
    pub(super) fn go_down(&self, unwritten: Vec<Entry>, missing: Option<Gap>) {
        let mut state = self.lock();
        state.is_down = true;
        let degrades = state.tuning.degrades;
        // Whoever waits hears it by the end of the channel.
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

    pub(super) fn go_up(&self) {
        self.lock().is_down = false;
    }

    /// The writer has ended: nothing is taken any more. How many records were never written.
    pub(super) fn closed(&self) -> u64 {
        let mut state = self.lock();
        (state.closed, state.is_down) = (true, true);
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
        if self.bytes + event.size() <= self.tuning.limit {
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
        let tuning = Tuning { limit: 1 << 20, degrades: false, sync_every: None, log };
        Arc::new(Queue::new(tuning))
    }

    #[test]
    fn d12_a_record_wakes_the_writer_while_others_wait_for_the_close() {
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
                let work = waiting.wait(NEVER, true);
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
        queue.closed();
        closers.into_iter().for_each(|closer| closer.join().unwrap());
    }
}
