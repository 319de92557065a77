//! Calls that wait while their users visit a page: what was done there cannot be replayed, so the
//! call itself is kept until the client comes back.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::caller::Caller;
use crate::domain::name::UpstreamId;
use crate::domain::server_request::{Answer, ServerRequest};
use crate::seal::random;
use crate::upstream::call::exchange::Exchange;

/// A call, and the question that it waits with.
pub(crate) struct SuspendedCall {
    pub exchange: Exchange,
    pub server_request: ServerRequest,
    pub answer: oneshot::Sender<Answer>,
    /// How long it may wait in all.
    pub until: Instant,
}

/// Names a parked call, here alone.
pub(crate) type Ticket = [u8; 16];

/// The parked calls of this process.
pub(crate) struct SuspendedCalls {
    calls: Arc<DashMap<Ticket, Place>>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// How many calls may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub all: usize,
    pub per_caller: usize,
    pub per_upstream: usize,
}

struct Place {
    caller: Caller,
    upstream: UpstreamId,
    take: oneshot::Sender<oneshot::Sender<SuspendedCall>>,
}

impl SuspendedCalls {
    pub(crate) fn new(tasks: TaskTracker, shutdown: CancellationToken) -> Self {
        Self { calls: Arc::default(), tasks, shutdown }
    }

    /// Keeps a call going; nothing if there is no place for it.
    pub(crate) fn suspend(
        &self,
        caller: &Caller,
        upstream: &UpstreamId,
        limits: Limits,
        waiting: SuspendedCall,
    ) -> Option<Ticket> {
        let count = |is: &dyn Fn(&Place) -> bool| self.calls.iter().filter(|p| is(p)).count();
        // Two at once may both find the last place: one more does no harm.
        let full = self.calls.len() >= limits.all
            || count(&|place| place.caller == *caller) >= limits.per_caller
            || count(&|place| place.upstream == *upstream) >= limits.per_upstream;
        if full {
            return None;
        }
        let ticket: Ticket = random();
        let (take, taken) = oneshot::channel();
        let place = Place { caller: caller.clone(), upstream: upstream.clone(), take };
        self.calls.insert(ticket, place);
        let (calls, shutdown) = (self.calls.clone(), self.shutdown.clone());
        self.tasks.spawn(async move {
            let SuspendedCall { mut exchange, server_request, answer, until } = waiting;
            let waiting = shutdown.run_until_cancelled(timeout_at(until, taken));
            let taken = exchange.meanwhile(waiting).await;
            calls.remove(&ticket);
            if let Some(Some(Ok(Ok(retry)))) = taken {
                // Whoever asked for it may have gone away by now; the call then ends.
                let _ = retry.send(SuspendedCall { exchange, server_request, answer, until });
            }
        });
        Some(ticket)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.calls.len()
    }

    /// Takes a call back, for the caller that it belongs to.
    pub(crate) async fn take(&self, ticket: &Ticket, caller: &Caller) -> Option<SuspendedCall> {
        let (_, place) = self.calls.remove_if(ticket, |_, place| place.caller == *caller)?;
        let (retry, waiting) = oneshot::channel();
        place.take.send(retry).ok()?;
        waiting.await.ok()
    }
}
