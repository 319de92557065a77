//! The tokio runtime of a command.

use std::num::NonZero;

use tokio::runtime::{Builder, Runtime};

use super::failure::Failure;

/// Builds a multi-threaded runtime, with a thread more than there are cores: the audit log holds at
/// most one of them with a disk that hangs.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let runtime = Builder::new_multi_thread().worker_threads(cores + 1).enable_all().build();
    runtime.map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}
