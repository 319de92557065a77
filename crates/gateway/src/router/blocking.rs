//! Long computations, outside the threads of calls.

use base::platform::{BlockingError, blocking};

/// Most prompts that are merged on a runtime thread: about a millisecond.
pub(super) const MERGED_AT_ONCE: usize = 100;

/// Runs a computation on a thread that may block, so that calls go on meanwhile. A panic is passed
/// on.
///
/// # Cancel safety
/// Dropping the future does not end the computation.
pub async fn beside_calls<T: Send + 'static>(compute: impl FnOnce() -> T + Send + 'static) -> T {
    match blocking(compute).await {
        Ok(value) => value,
        Err(BlockingError::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(BlockingError::Ended) => std::future::pending().await,
    }
}
