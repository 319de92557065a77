//! A count that a test can wait for.

use std::panic::Location;

use tokio::sync::watch;
use tokio::time::timeout;

use super::PATIENCE;

#[derive(Clone)]
pub struct Counter(watch::Sender<usize>);

impl Counter {
    pub fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Adds one; returns the count before.
    pub fn increment(&self) -> usize {
        let mut before = 0;
        self.0.send_modify(|count| {
            before = *count;
            *count += 1;
        });
        before
    }

    pub fn get(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until the count is more than this, without a deadline.
    pub async fn above(&self, count: usize) {
        let mut counted = self.0.subscribe();
        // The sender is `self`: the channel is open.
        let _ = counted.wait_for(|now| *now > count).await;
    }

    /// Waits until the count is at least this.
    #[track_caller]
    pub fn reaches(&self, least: usize) -> impl Future<Output = ()> {
        let caller = Location::caller();
        async move {
            if self.get() < least {
                let reached = timeout(PATIENCE, self.above(least - 1)).await;
                assert!(reached.is_ok(), "{caller}: {} of {least} in {PATIENCE:?}", self.get());
            }
        }
    }
}
