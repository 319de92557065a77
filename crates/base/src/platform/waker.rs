//! Wakers that do not wake the task that is running.
//!
//! Parts of a future wake each other through the task, as the two ends of a channel do. tokio
//! schedules a task that wakes itself for another poll, often on another thread.

use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::Locked;

/// Wakes a task, unless it is muted. Whoever unmutes it learns of the wakes in between.
pub struct MutableWaker {
    task: Mutex<Waker>,
    state: AtomicU8,
}

const AWAKE: u8 = 0;
const MUTED: u8 = 1;
/// Muted, and woken since.
const MISSED: u8 = 2;

impl MutableWaker {
    /// Returns a muted waker.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { task: Mutex::new(Waker::noop().clone()), state: AtomicU8::new(MUTED) })
    }

    /// Wakes no task from now on.
    pub fn mute(&self) {
        self.state.store(MUTED, Ordering::SeqCst);
    }

    /// Wakes `task` from now on. Returns whether it would have been woken while it was muted: the
    /// future must then be polled again, now or by the task.
    #[must_use]
    pub fn unmute(&self, task: &Waker) -> bool {
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

/// A future that is polled again at once where it has woken itself.
pub struct PolledAgain<F> {
    future: F,
    waker: Arc<MutableWaker>,
}

/// Most polls in a row. A future that yields wakes itself, too: other tasks are then run.
const IN_A_ROW: usize = 3;

impl<F> PolledAgain<F> {
    pub fn new(future: F) -> Self {
        Self { future, waker: MutableWaker::new() }
    }

    /// Returns the future.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }
}

impl<F: Future + Unpin> Future for PolledAgain<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, waker } = &mut *self;
        let own = Waker::from(waker.clone());
        for _ in 0..IN_A_ROW {
            waker.mute();
            if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut Context::from_waker(&own))
            {
                return Poll::Ready(output);
            }
            if !waker.unmute(context.waker()) {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls once a future that wakes itself in each of its first polls, and keeps its waker.
    /// Returns its polls, the wakes of its task, and the waker.
    fn poll_once(wakes: usize) -> (usize, Arc<Counted>, Waker) {
        let (mut polls, mut kept) = (0, None);
        let task = Arc::new(Counted::default());
        {
            let future = poll_fn(|context| {
                polls += 1;
                kept = Some(context.waker().clone());
                if polls <= wakes {
                    context.waker().wake_by_ref();
                }
                Poll::<()>::Pending
            });
            let mut polled = pin!(PolledAgain::new(future));
            let waker = Waker::from(task.clone());
            assert!(polled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        (polls, task, kept.unwrap())
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again_without_its_task() {
        for (wakes, expected) in [(0, (1, 0)), (1, (2, 0)), (2, (3, 0)), (3, (3, 1)), (9, (3, 1))] {
            let (polls, task, waker) = poll_once(wakes);
            assert_eq!((polls, task.0.load(Ordering::SeqCst)), expected);
            // From outside it is woken as ever.
            waker.wake();
            assert_eq!(task.0.load(Ordering::SeqCst), expected.1 + 1);
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
