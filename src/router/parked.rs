//! Calls that wait while their users visit a page: what was done there cannot be replayed, so the
//! call itself is kept until the client comes back.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::caller::Caller;
use crate::domain::question::{Answer, Question};
use crate::seal::random;
use crate::upstream::exchange::Exchange;

/// A call, and the question that it waits with.
pub struct Waiting {
    pub exchange: Exchange,
    pub question: Question,
    pub answer: oneshot::Sender<Answer>,
    /// How long it may wait in all.
    pub until: Instant,
}

/// Names a parked call, here alone.
pub type Ticket = [u8; 16];

/// The parked calls of this process.
pub struct Parked {
    calls: Arc<DashMap<Ticket, Place>>,
    limits: Limits,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// How many calls may wait.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub all: usize,
    pub per_caller: usize,
}

struct Place {
    caller: Caller,
    /// Index of the upstream.
    upstream: usize,
    take: oneshot::Sender<oneshot::Sender<Waiting>>,
}

impl Parked {
    pub fn new(limits: Limits, tasks: TaskTracker, shutdown: CancellationToken) -> Self {
        Self { calls: Arc::default(), limits, tasks, shutdown }
    }

    /// Keeps a call going; nothing if there is no place for it. Of one upstream's calls at most
    /// `per_upstream` may wait.
    pub fn park(
        &self,
        caller: &Caller,
        upstream: usize,
        per_upstream: usize,
        waiting: Waiting,
    ) -> Option<Ticket> {
        let count = |is: &dyn Fn(&Place) -> bool| self.calls.iter().filter(|p| is(p)).count();
        // Two at once may both find the last place: one more does no harm.
        let full = self.calls.len() >= self.limits.all
            || count(&|place| place.caller == *caller) >= self.limits.per_caller
            || count(&|place| place.upstream == upstream) >= per_upstream;
        if full {
            return None;
        }
        let ticket: Ticket = random();
        let (take, taken) = oneshot::channel();
        self.calls.insert(ticket, Place { caller: caller.clone(), upstream, take });
        let (calls, shutdown) = (self.calls.clone(), self.shutdown.clone());
        self.tasks.spawn(async move {
            let Waiting { mut exchange, question, answer, until } = waiting;
            let waiting = shutdown.run_until_cancelled(timeout_at(until, taken));
            let taken = exchange.meanwhile(waiting).await;
            calls.remove(&ticket);
            if let Some(Some(Ok(Ok(back)))) = taken {
                // Whoever asked for it may have gone away by now; the call then ends.
                let _ = back.send(Waiting { exchange, question, answer, until });
            }
        });
        Some(ticket)
    }

    /// Takes a call back, for the caller that it belongs to.
    pub async fn take(&self, ticket: &Ticket, caller: &Caller) -> Option<Waiting> {
        let (_, place) = self.calls.remove_if(ticket, |_, place| place.caller == *caller)?;
        let (back, waiting) = oneshot::channel();
        place.take.send(back).ok()?;
        waiting.await.ok()
    }
}
