//! Suspended calls: a URL elicitation cannot be replayed, so the exchange itself is kept until the
//! client retries.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use base::seal::random;
use domain::calls::caller::Caller;
use domain::calls::fair_share::{FairShare, Holder, Share};
use domain::name::UpstreamId;
use domain::protocol::server_request::{Answer, ServerRequest};
use upstream::call::exchange::CallExchange;

/// An exchange, and the server request that it waits for.
pub(crate) struct SuspendedCall {
    pub exchange: CallExchange,
    pub server_request: ServerRequest,
    pub answer: oneshot::Sender<Answer>,
    /// When the call is given up.
    pub until: Instant,
}

/// The random id of a suspended call, known to this process alone.
pub(crate) type Ticket = [u8; 16];

/// The suspended calls of this process.
pub(crate) struct SuspendedCalls {
    calls: Arc<Mutex<Suspended>>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

/// Suspended calls over all callers. Each keeps a connection to its upstream.
const MAX_CALLS: usize = 256;

/// Suspended calls of one caller: a user visits one page at a time.
const MAX_PER_CALLER: usize = 4;

/// Limits on the number of suspended calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuspendedLimits {
    pub per_upstream: usize,
    /// The part of [`MAX_CALLS`] and of `per_upstream` that one caller may hold while other callers
    /// need places.
    pub share: Share,
}

struct Suspended {
    places: HashMap<Ticket, SuspendedPlace>,
    all: FairShare<Holder>,
    /// By upstream. Upstreams without suspended calls have no entry.
    by_upstream: HashMap<UpstreamId, FairShare<Holder>>,
}

struct SuspendedPlace {
    caller: Caller,
    holder: Holder,
    upstream: UpstreamId,
    take: oneshot::Sender<oneshot::Sender<SuspendedCall>>,
}

impl Default for Suspended {
    fn default() -> Self {
        let all = FairShare::new(0, 0);
        Self { places: HashMap::new(), all, by_upstream: HashMap::new() }
    }
}

impl Suspended {
    /// Takes a place for one call, if all bounds allow it.
    fn take(&mut self, holder: &Holder, upstream: &UpstreamId, limits: SuspendedLimits) -> bool {
        let SuspendedLimits { per_upstream, share } = limits;
        self.all.resize(MAX_CALLS, share.of(MAX_CALLS));
        if self.all.held(holder) >= MAX_PER_CALLER || self.all.take(holder, 1).is_err() {
            return false;
        }
        let of_upstream = self.by_upstream.entry(upstream.clone());
        let of_upstream = of_upstream.or_insert_with(|| FairShare::new(0, 0));
        of_upstream.resize(per_upstream, share.of(per_upstream));
        let taken = of_upstream.take(holder, 1).is_ok();
        if !taken {
            self.all.put_back(holder, 1);
        }
        taken
    }

    fn release(&mut self, place: &SuspendedPlace) {
        self.all.put_back(&place.holder, 1);
        if let Some(of_upstream) = self.by_upstream.get_mut(&place.upstream) {
            of_upstream.put_back(&place.holder, 1);
            if of_upstream.used() == 0 {
                self.by_upstream.remove(&place.upstream);
            }
        }
    }
}

impl SuspendedCalls {
    pub(crate) fn new(tasks: TaskTracker, shutdown: CancellationToken) -> Self {
        Self { calls: Arc::default(), tasks, shutdown }
    }

    /// Suspends a call of a caller, counts it for `holder`, and returns its ticket; `None` if a
    /// limit is reached.
    pub(crate) fn suspend(
        &self,
        caller: &Caller,
        holder: &Holder,
        upstream: &UpstreamId,
        limits: SuspendedLimits,
        waiting: SuspendedCall,
    ) -> Option<Ticket> {
        let ticket: Ticket = random();
        let (take, taken) = oneshot::channel();
        {
            let mut calls = lock(&self.calls);
            if !calls.take(holder, upstream, limits) {
                return None;
            }
            let caller = caller.clone();
            let holder = holder.clone();
            let upstream = upstream.clone();
            calls.places.insert(ticket, SuspendedPlace { caller, holder, upstream, take });
        }
        let calls = self.calls.clone();
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let SuspendedCall { mut exchange, server_request, answer, until } = waiting;
            let waiting = shutdown.run_until_cancelled(timeout_at(until, taken));
            let taken = exchange.wait_for_client(waiting).await;
            remove(&calls, &ticket, |_| true);
            if let Some(Some(Ok(Ok(retry)))) = taken {
                // If the client that resumes the call has disconnected, the call ends here.
                let _ = retry.send(SuspendedCall { exchange, server_request, answer, until });
            }
        });
        Some(ticket)
    }

    /// Ends a suspended call whose ticket was not given to its client.
    pub(crate) fn end(&self, ticket: &Ticket) {
        drop(remove(&self.calls, ticket, |_| true));
    }

    /// The number of suspended calls.
    pub(crate) fn count(&self) -> usize {
        lock(&self.calls).places.len()
    }

    /// Removes and returns the call of a ticket, if the call belongs to `caller`.
    pub(crate) async fn take(&self, ticket: &Ticket, caller: &Caller) -> Option<SuspendedCall> {
        let place = remove(&self.calls, ticket, |place| place.caller == *caller)?;
        let (retry, waiting) = oneshot::channel();
        place.take.send(retry).ok()?;
        waiting.await.ok()
    }
}

/// Removes the call of a ticket, and frees its place.
fn remove(
    calls: &Mutex<Suspended>,
    ticket: &Ticket,
    is_meant: impl FnOnce(&SuspendedPlace) -> bool,
) -> Option<SuspendedPlace> {
    let mut calls = lock(calls);
    if !calls.places.get(ticket).is_some_and(is_meant) {
        return None;
    }
    let place = calls.places.remove(ticket)?;
    calls.release(&place);
    Some(place)
}

fn lock(calls: &Mutex<Suspended>) -> MutexGuard<'_, Suspended> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f23_a_few_callers_do_not_take_all_places_of_an_upstream() {
        let limits = SuspendedLimits { per_upstream: 16, share: Share::new(0.125) };
        let mut suspended = Suspended::default();
        let upstream = UpstreamId::parse("up").unwrap();
        let other = UpstreamId::parse("other").unwrap();
        let mut take = |id: &str, upstream| {
            let holder = Holder::Caller(Caller::new(id));
            (0..9).filter(|_| suspended.take(&holder, upstream, limits)).count()
        };
        assert_eq!(take("a", &upstream), 4, "the bound of one caller");
        assert_eq!(take("a", &other), 0);
        assert_eq!(take("b", &upstream), 4, "half was free");
        assert_eq!(["c", "d", "e", "f", "g"].map(|id| take(id, &upstream)), [2, 2, 2, 2, 0]);
        assert_eq!(suspended.all.used(), 16);
    }
}
