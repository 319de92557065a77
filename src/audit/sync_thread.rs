//! The thread that syncs segments beside the writer, so that no record waits until the disk has
//! the records before it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::folder::PendingSync;
use super::queue::Queue;

/// A handle on the thread, which ends when the handle is dropped.
pub(super) struct SyncThread {
    jobs: SyncSender<PendingSync>,
    is_alive: Arc<AtomicBool>,
}

impl SyncThread {
    /// Starts the thread. It reports the outcome of each sync to the queue.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub(super) fn start(queue: Arc<Queue>) -> io::Result<Self> {
        // The log has at most one sync under way.
        let (jobs, waiting) = sync_channel(1);
        let is_alive = Arc::new(AtomicBool::new(true));
        let death = DeathReport { queue, is_alive: is_alive.clone() };
        let thread = std::thread::Builder::new().name("audit-sync".to_owned());
        thread.spawn(move || run(waiting, &death))?;
        Ok(Self { jobs, is_alive })
    }

    /// Whether the thread still runs.
    pub(super) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Hands a sync to the thread.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(super) fn sync(&self, job: PendingSync) -> io::Result<()> {
        self.jobs.try_send(job).map_err(|_| ended())
    }
}

/// Why the log is down while the thread does not run.
pub(super) fn ended() -> io::Error {
    io::Error::other("the sync thread has ended unexpectedly; restarting it")
}

/// Owns the receiver: when a job panics, it is dropped before `death`, so that each job that was
/// sent successfully is covered by a report.
fn run(jobs: Receiver<PendingSync>, death: &DeathReport) {
    for job in jobs {
        death.queue.sync_finished(job.run());
    }
}

/// Reports the end of the thread, also by a panic, as a failed sync.
struct DeathReport {
    queue: Arc<Queue>,
    is_alive: Arc<AtomicBool>,
}

impl Drop for DeathReport {
    fn drop(&mut self) {
        self.is_alive.store(false, Ordering::Release);
        self.queue.sync_finished(Err(ended()));
    }
}
