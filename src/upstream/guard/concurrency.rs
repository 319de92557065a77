//! Concurrency limit of one upstream: the calls in flight (`in_flight`) and the queue for them (`queue`,
//! `queue_wait`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::domain::fault::UpstreamFaultKind as Kind;

/// The concurrency permits of one upstream, and the bounded queue for them.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Most calls in the queue.
    queue: usize,
    /// Longest wait of a call in the queue.
    queue_wait: Duration,
}

/// Guard of one call in the queue: counts it until dropped.
struct QueueGuard<'a>(&'a AtomicUsize);

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConcurrencyLimit {
    /// `in_flight` and `queue` are numbers of calls.
    pub(crate) fn new(in_flight: usize, queue: usize, queue_wait: Duration) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(in_flight));
        Arc::new(Self { free, waiting: AtomicUsize::new(0), queue, queue_wait })
    }

    /// Acquires a permit, in the queue if all are in use.
    ///
    /// # Errors
    /// [`Kind::Busy`] when the queue is full, or after `queue_wait`: an early refusal is better
    /// than a late one.
    ///
    /// # Cancel safety
    /// Cancel safe: when the future is dropped, the call is removed from the queue.
    pub(crate) async fn acquire(&self) -> Result<OwnedSemaphorePermit, Kind> {
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _guard = QueueGuard(&self.waiting);
        if before >= self.queue {
            return Err(Kind::Busy);
        }
        match timeout(self.queue_wait, self.free.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Kind::Busy),
        }
    }

    /// Acquires a permit for a call that was admitted and has released its permit. The wait has no bound
    /// of its own: the deadline of the call ends it. Cancel safe.
    pub(crate) async fn reacquire(&self) -> Option<OwnedSemaphorePermit> {
        self.free.clone().acquire_owned().await.ok()
    }

    /// Returns the number of free permits.
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// Returns the number of queued calls.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_waits_are_bounded() {
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
        let (acquired, ()) = tokio::join!(concurrency.acquire(), freed);
        assert_eq!((acquired.is_ok(), concurrency.waiting()), (true, 0));
    }
}
