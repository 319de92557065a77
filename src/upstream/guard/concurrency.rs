//! How many calls an upstream is asked at once, and how many may wait for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::domain::fault::UpstreamFaultKind as Kind;

/// Places among the calls of one upstream, and the queue for them.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Calls that may wait.
    queue: usize,
    /// How long each may.
    queue_wait: Duration,
}

/// One of those who wait, as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConcurrencyLimit {
    pub(crate) fn new(in_flight: usize, queue: usize, queue_wait: Duration) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(in_flight));
        Arc::new(Self { free, waiting: AtomicUsize::new(0), queue, queue_wait })
    }

    /// A place; waits for one if it must and may.
    ///
    /// # Errors
    /// When too many wait already, or it takes too long: better told at once than late.
    pub(crate) async fn acquire(&self) -> Result<OwnedSemaphorePermit, Kind> {
        if let Ok(place) = self.free.clone().try_acquire_owned() {
            return Ok(place);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        if before >= self.queue {
            return Err(Kind::Busy);
        }
        match timeout(self.queue_wait, self.free.clone().acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Kind::Busy),
        }
    }

    /// A place for a call that had one before: it was let in, and waits as long as it must.
    pub(crate) async fn reacquire(&self) -> Option<OwnedSemaphorePermit> {
        self.free.clone().acquire_owned().await.ok()
    }

    /// Places that nobody holds.
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// Calls that wait for one.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_wait_for_a_while_and_the_rest_is_told_at_once() {
        let concurrency = ConcurrencyLimit::new(1, 1, Duration::from_secs(1));
        let held = concurrency.acquire().await.unwrap();
        let started = Instant::now();
        let (first, second) = tokio::join!(concurrency.acquire(), concurrency.acquire());
        assert!(matches!((first, second), (Err(Kind::Busy), Err(Kind::Busy))));
        assert_eq!(started.elapsed(), Duration::from_secs(1), "one of them waited");
        let freed = async {
            tokio::time::sleep(Duration::from_millis(999)).await;
            drop(held);
        };
        let (taken, ()) = tokio::join!(concurrency.acquire(), freed);
        assert_eq!((taken.is_ok(), concurrency.waiting()), (true, 0));
    }
}
