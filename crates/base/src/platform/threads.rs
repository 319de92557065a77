//! Threads: long-lived threads of the gateway, the pool of threads that may block, and the ways in
//! which threads wait.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{self, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{System, platform};

/// The threads of the machine.
pub trait Threads: Send + Sync {
    /// Starts a thread.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Runs `body` on a thread of a pool, on which it may block.
    fn spawn_blocking(&self, body: Box<dyn FnOnce() + Send>);

    /// Blocks this thread for a time.
    fn sleep(&self, time: Duration);

    /// Returns the parking of a new [`Condvar`]; `None`: the `Condvar` of the standard library is
    /// used.
    fn parking(&self) -> Option<Box<dyn Parking>>;
}

/// How the threads of one [`Condvar`] wait.
pub trait Parking: Send + Sync {
    /// Blocks this thread until [`Parking::unpark`], or for `timeout`; may return earlier.
    fn park(&self, timeout: Duration);

    /// Wakes all threads that are parked here.
    fn unpark(&self);
}

impl Threads for System {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }

    fn spawn_blocking(&self, body: Box<dyn FnOnce() + Send>) {
        drop(tokio::task::spawn_blocking(body));
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn parking(&self) -> Option<Box<dyn Parking>> {
        None
    }
}

/// Starts a thread that runs as long as the gateway.
///
/// # Errors
/// When the system cannot start one.
pub fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    platform().threads.spawn(name, Box::new(body))
}

/// Blocks this thread for a time.
pub fn sleep(time: Duration) {
    platform().threads.sleep(time);
}

/// Lets threads that can run go first. No caller can observe its effect, so it is not part of
/// [`Threads`].
pub fn yield_now() {
    std::thread::yield_now();
}

/// Why the work of [`blocking`] has no result.
#[derive(thiserror::Error)]
pub enum BlockingError {
    #[error("it has panicked")]
    Panicked(Box<dyn Any + Send>),
    #[error("the process ends")]
    Ended,
}

/// Runs `work` on a thread that may block. It begins at once, and ends also when the future is
/// dropped.
///
/// # Errors
/// When it panics, or the process ends before it has begun.
pub fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, BlockingError>> + Send + 'static {
    let (sender, receiver) = oneshot::channel();
    let body = move || drop(sender.send(catch_unwind(AssertUnwindSafe(work))));
    platform().threads.spawn_blocking(Box::new(body));
    async {
        match receiver.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => Err(BlockingError::Panicked(panic)),
            Err(_) => Err(BlockingError::Ended),
        }
    }
}

/// Runs a computation on a thread that may block, so that calls go on meanwhile. A panic is passed
/// on.
///
/// # Cancel safety
/// Dropping the future does not end the computation.
pub async fn run_blocking<T: Send + 'static>(compute: impl FnOnce() -> T + Send + 'static) -> T {
    match blocking(compute).await {
        Ok(value) => value,
        Err(BlockingError::Panicked(panic)) => resume_unwind(panic),
        Err(BlockingError::Ended) => std::future::pending().await,
    }
}

impl std::fmt::Debug for BlockingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A mutex whose value is valid after each change, so that a panic of a holder does not poison it.
pub trait Locked<T> {
    /// Locks the mutex; blocks while another thread holds it.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable for the threads of the gateway.
pub struct Condvar {
    std: sync::Condvar,
    parking: Option<Box<dyn Parking>>,
}

impl Condvar {
    /// Blocks while `condition` holds for what `mutex` guards, or for `timeout`.
    pub fn wait_while<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        timeout: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let mut guard = mutex.locked();
        let Some(parking) = &self.parking else {
            let waited = self.std.wait_timeout_while(guard, timeout, condition);
            return waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        let until = Instant::now() + timeout;
        while condition(&mut guard) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            drop(guard);
            parking.park(left);
            guard = mutex.locked();
        }
        guard
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        match &self.parking {
            None => self.std.notify_one(),
            Some(parking) => parking.unpark(),
        }
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        match &self.parking {
            None => self.std.notify_all(),
            Some(parking) => parking.unpark(),
        }
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self { std: sync::Condvar::new(), parking: platform().threads.parking() }
    }
}
