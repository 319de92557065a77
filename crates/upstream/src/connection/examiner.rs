//! Examination of a connection on which a request has failed: does the upstream still serve it?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Connection;

/// Examines one connection at a time. Clones are handles of the same examiner.
#[derive(Clone, Debug, Default)]
pub struct Examiner {
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
        let Some(examination) = self.begin() else { return };
        tasks.spawn(async move {
            let _examination = examination;
            let is_served = ended.run_until_cancelled(connection.is_served(patience)).await;
            drop(connection);
            if is_served == Some(false) {
                lost().await;
            }
        });
    }

    /// Begins an examination; `None` while another examination is under way.
    fn begin(&self) -> Option<Examination> {
        let is_busy = self.is_busy.swap(true, Ordering::Relaxed);
        (!is_busy).then(|| Examination(self.is_busy.clone()))
    }
}

/// An examination in progress; ends on drop, even in a panic.
struct Examination(Arc<AtomicBool>);

impl Drop for Examination {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_examination_that_panics_is_not_the_last_one() {
        let examiner = Examiner::default();
        let examination = examiner.begin().expect("none is under way");
        assert!(examiner.begin().is_none());
        let panicking = tokio::spawn(async move {
            let _examination = examination;
            panic!("the examination has panicked");
        });
        assert!(panicking.await.is_err());
        assert!(examiner.begin().is_some());
    }
}
