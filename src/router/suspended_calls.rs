//! Suspended calls: a URL elicitation cannot be replayed, so the exchange itself is kept until the client
//! retries.

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

/// An exchange, and the server request that it waits for.
pub(crate) struct SuspendedCall {
    pub exchange: Exchange,
    pub server_request: ServerRequest,
    pub answer: oneshot::Sender<Answer>,
    /// When it is given up.
    pub until: Instant,
}

/// The random id of a suspended call, known to this process alone.
pub(crate) type Ticket = [u8; 16];

/// The suspended calls of this process.
pub(crate) struct SuspendedCalls {
    calls: Arc<DashMap<Ticket, Place>>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// Bounds on the number of suspended calls.
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

    /// Suspends a call and returns its ticket; `None` if a bound is reached.
    pub(crate) fn suspend(
        &self,
        caller: &Caller,
        upstream: &UpstreamId,
        limits: Limits,
        waiting: SuspendedCall,
    ) -> Option<Ticket> {
        let count = |is: &dyn Fn(&Place) -> bool| self.calls.iter().filter(|p| is(p)).count();
        // Two calls at once may both find the last place; one call over the bound is harmless.
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
        let calls = self.calls.clone();
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let SuspendedCall { mut exchange, server_request, answer, until } = waiting;
            let waiting = shutdown.run_until_cancelled(timeout_at(until, taken));
            let taken = exchange.wait_for_client(waiting).await;
            calls.remove(&ticket);
            if let Some(Some(Ok(Ok(retry)))) = taken {
                // If the client that resumes it is gone by now, the call ends.
                let _ = retry.send(SuspendedCall { exchange, server_request, answer, until });
            }
        });
        Some(ticket)
    }

    /// The number of suspended calls.
    pub(crate) fn count(&self) -> usize {
        self.calls.len()
    }

    /// Removes and returns a call, for the caller that it belongs to.
    pub(crate) async fn take(&self, ticket: &Ticket, caller: &Caller) -> Option<SuspendedCall> {
        let (_, place) = self.calls.remove_if(ticket, |_, place| place.caller == *caller)?;
        let (retry, waiting) = oneshot::channel();
        place.take.send(retry).ok()?;
        waiting.await.ok()
    }
}
