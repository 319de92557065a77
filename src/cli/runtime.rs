//! The tokio runtime of a command.

use tokio::runtime::{Builder, Runtime};

use super::failure::Failure;

/// Builds a multi-threaded runtime.
///
/// # Errors
/// If the system gives no thread or file descriptor.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}
