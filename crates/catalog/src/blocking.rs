//! Long computations, outside the threads of calls.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

pub use base::platform::run_blocking;
use domain::fault::TransportFault;

/// Most prompts that are merged on a runtime thread: about a millisecond.
pub(crate) const MERGED_AT_ONCE: usize = 100;

/// Waits for a permit of a semaphore that is never closed. A computation holds the permit until it
/// ends, even if its caller no longer waits for the result.
pub async fn turn(turns: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    turns.clone().acquire_owned().await.ok()
}

/// Awaits a computation for a call until the deadline of the call.
///
/// # Errors
/// [`TransportFault::Overloaded`] at the deadline: too many calls wait for the same.
pub async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = T>,
) -> Result<T, TransportFault> {
    timeout_at(deadline, work).await.map_err(|_| TransportFault::Overloaded)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_its_turn_until_its_deadline_only() {
        let turns = Arc::new(Semaphore::new(1));
        let taken = turn(&turns).await;
        let deadline = Instant::now() + Duration::from_secs(3);
        let found = within(deadline, turn(&turns)).await;
        assert_eq!(found.err(), Some(TransportFault::Overloaded));
        assert_eq!(Instant::now(), deadline);
        drop(taken);
        assert!(turn(&turns).await.is_some());
    }
}
