//! A waker that does not wake the task that is running.
//!
//! The ends of a channel in one future wake each other through the task, and tokio schedules a task
//! that wakes itself for another poll, often on another thread.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use base::platform::Locked;

/// Wakes a task, unless it is muted. Whoever unmutes it learns of the wakes in between.
pub(super) struct MutableWaker {
    task: Mutex<Waker>,
    state: AtomicU8,
}

const AWAKE: u8 = 0;
const MUTED: u8 = 1;
/// Muted, and woken since.
const MISSED: u8 = 2;

impl MutableWaker {
    /// Returns a muted waker.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { task: Mutex::new(Waker::noop().clone()), state: AtomicU8::new(MUTED) })
    }

    /// Wakes no task from now on.
    pub(super) fn mute(&self) {
        self.state.store(MUTED, Ordering::SeqCst);
    }

    /// Wakes `task` from now on. Returns whether it would have been woken while it was muted: the
    /// future must then be polled again, now or by the task.
    #[must_use]
    pub(super) fn unmute(&self, task: &Waker) -> bool {
        self.task.locked().clone_from(task);
        self.state.swap(AWAKE, Ordering::SeqCst) == MISSED
    }
}

impl Wake for MutableWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let missed = self.state.compare_exchange(MUTED, MISSED, Ordering::SeqCst, Ordering::SeqCst);
        if missed == Err(AWAKE) {
            self.task.locked().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn no_wake_is_lost_between_threads() {
        let waker = MutableWaker::new();
        let task = Arc::new(Counted::default());
        let own = Waker::from(task.clone());
        for round in 0..1_000 {
            waker.mute();
            let other = std::thread::spawn({
                let waker = waker.clone();
                move || waker.wake()
            });
            let missed = waker.unmute(&own);
            other.join().unwrap();
            let woken = task.0.swap(0, Ordering::SeqCst);
            assert_eq!(usize::from(missed) + woken, 1, "round {round}");
        }
    }
}
