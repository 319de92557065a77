//! The lines of evidence on standard error: checkpoints of the audit log. They have a separate
//! queue, so that no flood of other lines drops them.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::platform::{Condvar, sleep, spawn_thread};

/// A handle that adds lines; cheap to clone. It never blocks.
#[derive(Clone, Default)]
pub(super) struct EvidenceLines(Arc<Queue>);

/// Ends the thread when it is dropped, once all lines are out or after [`END_TIMEOUT`].
pub(super) struct EvidenceGuard(EvidenceLines);

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Vec<u8>>,
    /// Whether the thread has a line that is not out yet.
    is_writing: bool,
    is_over: bool,
    dropped: usize,
}

/// The limit of lines that wait. Beyond it the oldest lines are dropped, because a later checkpoint
/// signs the same records.
const MAX_LINES: usize = 256;

/// The pause after which a line that could not be written is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// The interval in which dropped lines are reported.
const REPORT: Duration = Duration::from_secs(10);

const END_TIMEOUT: Duration = Duration::from_secs(1);

impl EvidenceLines {
    /// Starts the thread that writes the lines to `out`. It calls `report` every [`REPORT`].
    pub(super) fn start(
        out: impl Write + Send + 'static,
        report: impl FnMut(usize) + Send + 'static,
    ) -> io::Result<(Self, EvidenceGuard)> {
        let lines = Self::default();
        let thread = lines.clone();
        spawn_thread("log-evidence", move || thread.run(out, report))?;
        Ok((lines.clone(), EvidenceGuard(lines)))
    }

    /// Returns how many lines were dropped.
    pub(super) fn dropped(&self) -> usize {
        self.lock().dropped
    }

    fn run(&self, mut out: impl Write, mut report: impl FnMut(usize)) {
        loop {
            let idle = |state: &mut QueueState| state.waiting.is_empty() && !state.is_over;
            let mut state = self.0.changed.wait_while(&self.0.state, REPORT, idle);
            let dropped = state.dropped;
            let Some(line) = state.waiting.pop_front() else {
                let is_over = state.is_over;
                drop(state);
                if is_over {
                    return;
                }
                report(dropped);
                continue;
            };
            state.is_writing = true;
            drop(state);
            self.write(&line, &mut out);
            self.lock().is_writing = false;
            self.0.changed.notify_all();
        }
    }

    /// Writes a line; retries until the write succeeds, or a newer line waits.
    fn write(&self, line: &[u8], out: &mut impl Write) {
        while out.write_all(line).and_then(|()| out.flush()).is_err() {
            let mut state = self.lock();
            if !state.waiting.is_empty() || state.is_over {
                state.dropped += 1;
                return;
            }
            drop(state);
            sleep(RETRY);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for EvidenceLines {
    /// Adds a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if state.waiting.len() >= MAX_LINES {
            state.waiting.pop_front();
            state.dropped += 1;
        }
        state.waiting.push_back(line.to_vec());
        drop(state);
        self.0.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for EvidenceGuard {
    fn drop(&mut self) {
        let queue = &self.0.0;
        self.0.lock().is_over = true;
        queue.changed.notify_all();
        let is_busy = |state: &mut QueueState| state.is_writing || !state.waiting.is_empty();
        drop(queue.changed.wait_while(&queue.state, END_TIMEOUT, is_busy));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that stalls until it is told to read, and fails the first time.
    struct Stalling(mpsc::Receiver<()>, mpsc::Sender<Vec<u8>>, bool);

    impl Write for Stalling {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            if std::mem::take(&mut self.2) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.1.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_newest_line_is_written_however_long_its_reader_stalls() {
        let (read, reading) = mpsc::channel();
        let (sender, written) = mpsc::channel();
        let (mut lines, guard) =
            EvidenceLines::start(Stalling(reading, sender, true), |_| {}).unwrap();
        for number in 0..10 * MAX_LINES {
            lines.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let dropped = lines.lock().dropped;
        assert!(dropped >= 9 * MAX_LINES - 1, "{dropped}");
        (0..=MAX_LINES + 1).for_each(|_| read.send(()).unwrap());
        drop(guard);
        let newest = format!("{}\n", 10 * MAX_LINES - 1).into_bytes();
        assert_eq!(written.try_iter().last(), Some(newest));
    }
}
