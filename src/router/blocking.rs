//! Long computations beside the calls.

use tokio::task::spawn_blocking;

/// Most prompts that are merged on a runtime thread: about a millisecond.
pub(super) const MERGED_AT_ONCE: usize = 100;

/// Runs a computation on a thread that may block, so that calls go on meanwhile. A panic is passed on.
///
/// # Cancel safety
/// Dropping the future does not end the computation.
pub(crate) async fn beside_calls<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> T {
    match spawn_blocking(compute).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down.
            Err(_) => std::future::pending().await,
        },
    }
}
