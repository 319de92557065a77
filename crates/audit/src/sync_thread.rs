//! The thread that syncs segments while the writer appends, so that no record waits until the disk
//! has the records before it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::queue::Queue;
use super::segments::folder::PendingSync;
use base::platform::{Condvar, Locked, spawn_thread};

/// A handle on the thread, which ends when the handle is dropped.
pub(super) struct SyncThread {
    jobs: Arc<Jobs>,
    is_alive: Arc<AtomicBool>,
}

/// The next job of the thread. The log has at most one sync under way.
#[derive(Default)]
struct Jobs {
    state: Mutex<JobState>,
    changed: Condvar,
}

#[derive(Default)]
struct JobState {
    next: Option<PendingSync>,
    /// Whether the handle was dropped, or the thread has ended.
    is_over: bool,
}

/// How often the idle thread looks for a job without being woken.
const LOOK: Duration = Duration::from_secs(3600);

impl SyncThread {
    /// Starts the thread. It reports the outcome of each sync to the queue.
    pub(super) fn start(queue: Arc<Queue>) -> io::Result<Self> {
        let jobs: Arc<Jobs> = Arc::default();
        let is_alive = Arc::new(AtomicBool::new(true));
        let death = DeathReport { queue, is_alive: is_alive.clone() };
        let waiting = ThreadJobs(jobs.clone());
        spawn_thread("audit-sync", move || {
            // Dropped in this order, also by a panic: each job that was accepted is covered by a
            // report.
            let death = death;
            let waiting = waiting;
            run(&waiting, &death);
        })?;
        Ok(Self { jobs, is_alive })
    }

    /// Whether the thread still runs.
    pub(super) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Hands a sync to the thread.
    pub(super) fn sync(&self, job: PendingSync) -> io::Result<()> {
        let mut state = self.jobs.state.locked();
        if state.is_over || state.next.is_some() {
            return Err(ended());
        }
        state.next = Some(job);
        drop(state);
        self.jobs.changed.notify_one();
        Ok(())
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.jobs.end();
    }
}

impl Jobs {
    fn end(&self) {
        self.state.locked().is_over = true;
        self.changed.notify_all();
    }
}

/// The side of the jobs that the thread has. When it is dropped, no job is accepted.
struct ThreadJobs(Arc<Jobs>);

impl ThreadJobs {
    /// Waits for a job; `None` when the handle was dropped.
    fn next(&self) -> Option<PendingSync> {
        loop {
            let is_idle = |state: &mut JobState| state.next.is_none() && !state.is_over;
            let mut state = self.0.changed.wait_while(&self.0.state, LOOK, is_idle);
            if let Some(job) = state.next.take() {
                return Some(job);
            }
            if state.is_over {
                return None;
            }
        }
    }
}

impl Drop for ThreadJobs {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Why the log is down while the thread does not run.
pub(super) fn ended() -> io::Error {
    io::Error::other("the sync thread has ended unexpectedly; restarting it")
}

fn run(jobs: &ThreadJobs, death: &DeathReport) {
    while let Some(job) = jobs.next() {
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
