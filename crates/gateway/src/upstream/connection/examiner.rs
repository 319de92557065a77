//! Examination of a connection on which a request has failed: does the upstream still serve it?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Connection;

/// Examines one connection at a time. Clones are handles of the same examiner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Examiner {
    is_busy: Arc<AtomicBool>,
}

impl Examiner {
    /// Asks the upstream beside the calls, as [`Connection::is_served`] does, unless an examination
    /// is under way. Runs `lost` if the connection is not served. The examiner drops its own
    /// reference to the connection before it runs `lost`. Ends without a result once `ended` is
    /// cancelled.
    pub(crate) fn examine<F: Future<Output = ()> + Send>(
        &self,
        tasks: &TaskTracker,
        connection: Arc<Connection>,
        patience: Duration,
        ended: CancellationToken,
        lost: impl FnOnce() -> F + Send + 'static,
    ) {
        if self.is_busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_busy = self.is_busy.clone();
        tasks.spawn(async move {
            let is_served = ended.run_until_cancelled(connection.is_served(patience)).await;
            drop(connection);
            if is_served == Some(false) {
                lost().await;
            }
            is_busy.store(false, Ordering::Relaxed);
        });
    }
}
