//! The tokio runtime of a command.

use std::env;
use std::num::NonZero;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Runtime};

use super::failure::Failure;

/// Builds a multi-threaded runtime, with one thread more than cores unless `TOKIO_WORKER_THREADS`
/// is set. A disk that hangs makes the audit log block at most one of several threads.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    if env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let cores = available_parallelism().map_or(1, NonZero::get);
        builder.worker_threads(cores + 1);
    }
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}
