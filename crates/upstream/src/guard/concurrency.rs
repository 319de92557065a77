//! Concurrency limit of one upstream: the calls in flight (`in_flight`) and the queue for them
//! (`queue`, `queue_wait`), with a fair share of both for each caller.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use base::platform::Locked;
use domain::calls::fair_share::{FairShare, Holder, Share};
use domain::fault::UpstreamFaultKind as Kind;

/// The permits of one upstream, and the bounded queue for them. A free permit goes to the first
/// queued call whose caller is within its share, or to any call while half of the permits are free.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    in_flight: usize,
    /// Most calls in the queue.
    queue: usize,
    /// Longest wait of a call in the queue.
    queue_wait: Duration,
    state: Mutex<ConcurrencyState>,
}

#[derive(Debug)]
struct ConcurrencyState {
    permits: FairShare<Holder>,
    queued: FairShare<Holder>,
    /// The queue in the order of arrival.
    waiting: VecDeque<QueuedCall>,
    next: u64,
}

#[derive(Debug)]
struct QueuedCall {
    number: u64,
    holder: Holder,
    /// Most permits of the holder: its share, or all permits for a call that had a permit before.
    share: usize,
    granted: oneshot::Sender<Permit>,
}

/// A permit for one call, given to the next call on drop.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    limit: Arc<ConcurrencyLimit>,
    holder: Holder,
}

/// A waiting call; leaves the queue on drop.
struct WaitingCall<'a> {
    limit: &'a ConcurrencyLimit,
    number: u64,
    /// The holder of the call's place in the bounded queue.
    queued_by: Option<&'a Holder>,
}

impl ConcurrencyLimit {
    /// `in_flight` and `queue` are numbers of calls. Until [`ConcurrencyLimit::set_share`] callers
    /// have no shares.
    pub fn new(in_flight: usize, queue: usize, queue_wait: Duration) -> Arc<Self> {
        let state = ConcurrencyState {
            permits: FairShare::new(in_flight, in_flight),
            queued: FairShare::new(queue, queue),
            waiting: VecDeque::new(),
            next: 0,
        };
        Arc::new(Self { in_flight, queue, queue_wait, state: Mutex::new(state) })
    }

    /// Sets the part of the permits and of the queue that one caller may hold while other callers
    /// need places.
    pub fn set_share(&self, share: Share) {
        let mut state = self.state.locked();
        state.permits.resize(self.in_flight, share.of(self.in_flight));
        state.queued.resize(self.queue, share.of(self.queue));
    }

    /// Acquires a permit; waits in the queue if no permit is available to the caller.
    ///
    /// # Errors
    /// [`Kind::Busy`] when the queue has no room for the caller, or after `queue_wait`: an early
    /// refusal is better than a late one.
    ///
    /// # Cancel safety
    /// Cancel safe: when the future is dropped, the call is removed from the queue.
    pub async fn acquire(self: &Arc<Self>, holder: &Holder) -> Result<Permit, Kind> {
        let (waiting, granted) = {
            let mut state = self.state.locked();
            if state.permits.take(holder, 1).is_ok() {
                return Ok(self.permit(holder));
            }
            state.queued.take(holder, 1).map_err(|_| Kind::Busy)?;
            let share = state.permits.share();
            let (number, granted) = state.enqueue(holder, share);
            (WaitingCall { limit: self, number, queued_by: Some(holder) }, granted)
        };
        let permit = timeout(self.queue_wait, granted).await;
        drop(waiting);
        permit.ok().and_then(Result::ok).ok_or(Kind::Busy)
    }

    /// Acquires a permit for a call that was admitted and has released its permit. The wait has no
    /// timeout: the deadline of the call ends it. Cancel safe.
    pub(crate) async fn reacquire(self: &Arc<Self>, holder: &Holder) -> Option<Permit> {
        // The share does not apply: new calls would always overtake this call.
        self.wait(holder, |_| self.in_flight).await
    }

    /// Waits for a permit within the share of the caller. Neither the wait nor the queue is
    /// bounded: the deadline of each call ends its wait. Cancel safe.
    pub async fn turn(self: &Arc<Self>, holder: &Holder) -> Option<Permit> {
        self.wait(holder, FairShare::share).await
    }

    async fn wait(
        self: &Arc<Self>,
        holder: &Holder,
        share: impl FnOnce(&FairShare<Holder>) -> usize,
    ) -> Option<Permit> {
        let (_waiting, granted) = {
            let mut state = self.state.locked();
            let share = share(&state.permits);
            if state.permits.take_below(holder, 1, self.in_flight, share).is_ok() {
                return Some(self.permit(holder));
            }
            let (number, granted) = state.enqueue(holder, share);
            (WaitingCall { limit: self, number, queued_by: None }, granted)
        };
        granted.await.ok()
    }

    /// Returns a permit, if one is available to the caller.
    pub(crate) fn try_acquire(self: &Arc<Self>, holder: &Holder) -> Option<Permit> {
        self.state.locked().permits.take(holder, 1).ok()?;
        Some(self.permit(holder))
    }

    /// Whether the caller holds at least its share of the permits.
    pub fn has_share(&self, holder: &Holder) -> bool {
        let permits = &self.state.locked().permits;
        permits.held(holder) >= permits.share()
    }

    /// Returns the number of free permits.
    pub fn free(&self) -> usize {
        self.in_flight.saturating_sub(self.state.locked().permits.used())
    }

    /// Returns the number of queued calls.
    pub fn waiting(&self) -> usize {
        self.state.locked().queued.used()
    }

    fn permit(self: &Arc<Self>, holder: &Holder) -> Permit {
        Permit { limit: self.clone(), holder: holder.clone() }
    }

    /// Gives free permits to waiting calls.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = self.state.locked().next_waiter();
            let Some(QueuedCall { holder, granted, .. }) = next else {
                return;
            };
            // If the call has ended, its permit is dropped, which grants it to the next call.
            let _ = granted.send(Permit { limit: self.clone(), holder });
        }
    }
}

impl ConcurrencyState {
    fn enqueue(&mut self, holder: &Holder, share: usize) -> (u64, oneshot::Receiver<Permit>) {
        let (granted, receiver) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(QueuedCall { number, holder: holder.clone(), share, granted });
        (number, receiver)
    }

    /// Removes the first waiting call whose caller may have a permit, and takes the permit for it.
    fn next_waiter(&mut self) -> Option<QueuedCall> {
        let Self { permits, waiting, .. } = self;
        let mut may_have = |waiter: &QueuedCall| {
            permits.take_below(&waiter.holder, 1, usize::MAX, waiter.share).is_ok()
        };
        let at = waiting.iter().position(&mut may_have)?;
        waiting.remove(at)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.state.locked().permits.put_back(&self.holder, 1);
        self.limit.grant();
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let mut state = self.limit.state.locked();
        if let Some(holder) = self.queued_by {
            state.queued.put_back(holder, 1);
        }
        let number = self.number;
        if let Ok(at) = state.waiting.binary_search_by_key(&number, |waiter| waiter.number) {
            state.waiting.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;
    use domain::calls::caller::Caller;

    const SECOND: Duration = Duration::from_secs(1);

    fn holder(id: &str) -> Holder {
        Holder::Caller(Caller::new(id))
    }

    /// Waits for a permit in a task of its own, which is in the queue once this returns.
    async fn queue(limit: &Arc<ConcurrencyLimit>, id: &str) -> JoinHandle<Result<Permit, Kind>> {
        let limit = limit.clone();
        let holder = holder(id);
        let task = tokio::spawn(async move { limit.acquire(&holder).await });
        tokio::task::yield_now().await;
        task
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_waits_are_bounded() {
        let concurrency = ConcurrencyLimit::new(1, 1, SECOND);
        let a = holder("a");
        let held = concurrency.acquire(&a).await.unwrap();
        let started = Instant::now();
        let (first, second) = tokio::join!(concurrency.acquire(&a), concurrency.acquire(&a));
        assert!(matches!((first, second), (Err(Kind::Busy), Err(Kind::Busy))));
        assert_eq!(started.elapsed(), SECOND, "one of them waited");
        let freed = async {
            tokio::time::sleep(Duration::from_millis(999)).await;
            drop(held);
        };
        let (acquired, ()) = tokio::join!(concurrency.acquire(&a), freed);
        assert_eq!((acquired.is_ok(), concurrency.waiting()), (true, 0));
        drop(acquired);
        assert_eq!(concurrency.free(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn f3_a_busy_caller_leaves_permits_and_the_head_of_the_queue_to_others() {
        let concurrency = ConcurrencyLimit::new(8, 8, SECOND);
        concurrency.set_share(Share::new(0.25));
        let mut busy = Vec::new();
        for _ in 0..5 {
            busy.push(concurrency.acquire(&holder("busy")).await.unwrap());
        }
        // Less than half is free: it waits, and at most half of the queue and one more is its own.
        let mut waiting = Vec::new();
        for _ in 0..9 {
            waiting.push(queue(&concurrency, "busy").await);
        }
        assert_eq!(concurrency.waiting(), 5);
        let _others = [
            concurrency.acquire(&holder("a")).await.unwrap(),
            concurrency.acquire(&holder("a")).await.unwrap(),
            concurrency.acquire(&holder("b")).await.unwrap(),
        ];
        let late = queue(&concurrency, "b").await;
        drop(busy.pop());
        assert!(late.await.unwrap().is_ok(), "before those who came first and have more");
        assert_eq!(concurrency.waiting(), 5);
        drop(busy);
        let served = waiting.remove(0).await.unwrap();
        assert!(served.is_ok(), "in turn once half is free");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_given_up_while_it_waits_leaves_nothing_behind() {
        let concurrency = ConcurrencyLimit::new(1, 9, 60 * SECOND);
        let held = concurrency.acquire(&holder("a")).await.unwrap();
        let gone = queue(&concurrency, "b").await;
        let next = queue(&concurrency, "c").await;
        gone.abort();
        assert!(gone.await.is_err());
        assert_eq!(concurrency.waiting(), 1);
        drop(held);
        let permit = next.await.unwrap().unwrap();
        let again = concurrency.clone();
        let resumed = tokio::spawn(async move { again.reacquire(&holder("a")).await.is_some() });
        tokio::task::yield_now().await;
        assert_eq!(
            concurrency.waiting(),
            0,
            "a call that was admitted takes no place in the queue"
        );
        drop(permit);
        assert!(resumed.await.unwrap());
        assert_eq!(concurrency.free(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_with_many_turns_leaves_some_for_others() {
        let limit = ConcurrencyLimit::new(16, 0, Duration::ZERO);
        limit.set_share(Share::QUARTER);
        let turn = |id: &str| {
            let limit = limit.clone();
            let holder = holder(id);
            tokio::spawn(async move { limit.turn(&holder).await })
        };
        let turns: Vec<_> = (0..40).map(|_| turn("a")).collect();
        tokio::task::yield_now().await;
        assert_eq!((limit.free(), limit.has_share(&holder("a"))), (7, true));
        let of_b = turn("b").await.unwrap();
        assert_eq!((of_b.is_some(), limit.free()), (true, 6));
        let got: Vec<_> = turns.into_iter().filter(|turn| turn.is_finished()).collect();
        assert_eq!(got.len(), 9);
    }
}
