//! Shares the writer of a log between its callers and its thread: the queue gives the turn to one
//! of them at a time.

use std::sync::{Arc, Mutex};

use tracing::error;

use super::queue::{Queue, TurnEnd};
use super::writer::LogWriter;
use base::platform::Locked;

pub(super) struct SharedWriter {
    queue: Arc<Queue>,
    /// `None` once the log has ended. Only the holder of the turn locks it.
    writer: Mutex<Option<LogWriter>>,
}

/// Closes the queue when a writer panics: the log cannot state then which records are missing, so
/// every record is refused, also under `audit.on_failure = "degrade"`.
struct CloseOnPanic<'a>(&'a Queue);

impl Drop for CloseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lost = self.0.mark_closed();
            error!(
                count = lost,
                "the audit writer has panicked; calls are refused until the gateway is restarted"
            );
        }
    }
}

/// The limit of groups that one caller writes for others before the thread takes its turn.
const MAX_GROUPS: usize = 16;

impl SharedWriter {
    pub(super) fn new(queue: Arc<Queue>, writer: LogWriter) -> Self {
        Self { queue, writer: Mutex::new(Some(writer)) }
    }

    /// Writes on this thread until the queue is closed or drained, as far as callers do not.
    pub(super) fn run(&self) {
        let _close_on_panic = CloseOnPanic(&self.queue);
        self.with(LogWriter::start);
        while let Some((time, intake)) = self.with(|writer| writer.next_wait()) {
            let work = self.queue.wait(time, intake);
            if self.with(|writer| writer.take_turn(work)) != Some(false) {
                break;
            }
        }
        let last = self.writer.locked().take();
        if let Some(writer) = last {
            writer.finish();
        }
        let lost = self.queue.mark_closed();
        if lost > 0 {
            error!(
                count = lost,
                "audit records were never written: the log could not be written until its end"
            );
        }
    }

    /// Wakes the thread for the records that wait.
    pub(super) fn leave_to_thread(&self) {
        self.queue.wake_for_waiting();
    }

    /// Writes all waiting records on the thread of a caller, unless another thread writes them. At
    /// most one caller is here at a time, for as long as the disk takes.
    pub(super) fn write_waiting(&self) {
        let Some(mut group) = self.queue.take_turn() else {
            return;
        };
        let _close_on_panic = CloseOnPanic(&self.queue);
        let mut writer = self.writer.locked();
        let Some(writer) = writer.as_mut() else { return };
        for written in 1.. {
            let end = match writer.write_for_callers(group) {
                TurnEnd::ByCallers if written < MAX_GROUPS => TurnEnd::ByCallers,
                _ => TurnEnd::ThreadDue,
            };
            match self.queue.end_turn(end) {
                Some(next) => group = next,
                None => return,
            }
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut LogWriter) -> T) -> Option<T> {
        self.writer.locked().as_mut().map(act)
    }
}
