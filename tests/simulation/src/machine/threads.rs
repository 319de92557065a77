//! Threads that take turns. A thread of the gateway is a thread of the system, so its code is the
//! real one, but only one of them runs at a time, and only while the runtime waits for it: a task
//! for each thread, its pump, hands it the turn and takes it back when the thread waits. So tasks
//! and threads have one order, which the seed decides.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use base::platform::threads::{Parking, Threads};
use fastrand::Rng;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::trace;

/// The threads of the simulated machine.
pub struct TakingTurns {
    runtime: Handle,
    rng: Mutex<Rng>,
}

/// A thread that takes turns with the runtime.
struct Thread {
    name: String,
    turn: Mutex<Turn>,
    changed: Condvar,
    /// Wakes the pump, and so the thread.
    wake: Notify,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Turn {
    Runtime,
    Thread,
    /// The thread waits for at most this time.
    Waits(Duration),
    Ended,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Thread>>> = const { RefCell::new(None) };
}

/// The longest pause before a thread of the pool begins.
const POOL_DELAY: Duration = Duration::from_millis(3);

impl TakingTurns {
    pub fn new(runtime: Handle, rng: Rng) -> Self {
        Self { runtime, rng: Mutex::new(rng) }
    }

    fn start(&self, name: &str, delay: Duration, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let thread = Arc::new(Thread {
            name: name.to_owned(),
            turn: Mutex::new(Turn::Runtime),
            changed: Condvar::new(),
            wake: Notify::new(),
        });
        let jitter = self.rng.lock().unwrap_or_else(PoisonError::into_inner).u64(..);
        let (own, runtime) = (thread.clone(), self.runtime.clone());
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            own.await_turn();
            // The clock of the thread is that of the runtime.
            let _entered = runtime.enter();
            fastrand::seed(jitter);
            CURRENT.set(Some(own.clone()));
            if catch_unwind(AssertUnwindSafe(body)).is_err() {
                trace::note(&own.name, "panicked");
            }
            CURRENT.set(None);
            own.give(Turn::Ended);
        })?;
        self.runtime.spawn(pump(thread, delay));
        Ok(())
    }
}

/// Gives the thread its turns.
async fn pump(thread: Arc<Thread>, delay: Duration) {
    sleep(delay).await;
    loop {
        match thread.run() {
            Turn::Waits(time) => drop(timeout(time, thread.wake.notified()).await),
            _ => return,
        }
    }
}

impl Thread {
    /// Lets the thread run until it waits or ends.
    fn run(&self) -> Turn {
        self.give(Turn::Thread);
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.changed.wait_while(turn, |turn| *turn == Turn::Thread);
        *turn.unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks the thread until it has the turn.
    fn await_turn(&self) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(turn, |turn| *turn != Turn::Thread));
    }

    fn give(&self, turn: Turn) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
        self.changed.notify_all();
    }

    fn wait(&self, time: Duration) {
        self.give(Turn::Waits(time));
        self.await_turn();
    }
}

/// The thread that has the turn.
///
/// # Panics
/// On the thread of the runtime: it would wait for itself.
fn current() -> Arc<Thread> {
    let current = CURRENT.with_borrow(Clone::clone);
    current.expect("no task may block: use `platform::blocking`")
}

/// Blocks this thread for a time in which others run. The thread of the runtime does not wait.
pub fn pause(time: Duration) {
    if let Some(thread) = CURRENT.with_borrow(Clone::clone) {
        thread.wait(time);
    }
}

impl Threads for TakingTurns {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.start(name, Duration::ZERO, body)
    }

    fn spawn_blocking(&self, body: Box<dyn FnOnce() + Send>) {
        let longest = POOL_DELAY.as_micros() as u64;
        let delay = self.rng.lock().unwrap_or_else(PoisonError::into_inner).u64(..longest);
        self.start("pool", Duration::from_micros(delay), body).expect("a thread");
    }

    fn sleep(&self, time: Duration) {
        current().wait(time);
    }

    fn parking(&self) -> Option<Box<dyn Parking>> {
        Some(Box::new(Parked::default()))
    }
}

/// The threads that wait at one condition variable.
#[derive(Default)]
struct Parked(Mutex<Vec<Arc<Thread>>>);

impl Parking for Parked {
    fn park(&self, timeout: Duration) {
        let thread = current();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thread.clone());
        thread.wait(timeout);
        let mut parked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parked.retain(|other| !Arc::ptr_eq(other, &thread));
    }

    fn unpark(&self) {
        let parked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parked.iter().for_each(|thread| thread.wake.notify_one());
    }
}
