//! One call as it happens: its answer, and what is said before it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};

use super::asides::Aside;
use crate::domain::document::Document;
use crate::domain::fault::{UpstreamFault, UpstreamFaultKind as Kind};

type Call = Pin<Box<dyn Future<Output = Result<Document, Kind>> + Send>>;

/// A call under way. Dropped before its end it is cancelled upstream. It only goes on while it is
/// waited for, by [`Exchange::next`] or [`Exchange::meanwhile`].
pub struct Exchange {
    upstream: String,
    call: Call,
    /// Absent where nothing can be said before the answer.
    asides: Option<mpsc::Receiver<Aside>>,
    /// The answer, where it came while a user was thinking.
    early: Option<Result<Document, Kind>>,
    /// Calls at once. A call holds its place while it runs, not while a user thinks.
    slots: Arc<Semaphore>,
    slot: Option<OwnedSemaphorePermit>,
    deadline: Instant,
}

/// What comes next.
#[derive(Debug)]
pub enum Step {
    Said(Aside),
    Answered(Document),
}

impl Exchange {
    pub(super) fn new(
        upstream: String,
        call: Call,
        asides: Option<mpsc::Receiver<Aside>>,
        slots: Arc<Semaphore>,
        deadline: Instant,
    ) -> Self {
        Self { upstream, call, asides, early: None, slots, slot: None, deadline }
    }

    /// Goes on until something is said, or the answer is there, or the deadline passes.
    pub async fn next(&mut self) -> Result<Step, UpstreamFault> {
        let step = tokio::select! {
            step = Self::step(
                &mut self.call,
                &mut self.asides,
                &mut self.early,
                &mut self.slot,
                &self.slots,
            ) => step,
            () = sleep_until(self.deadline) => Err(Kind::Timeout),
        };
        step.map_err(|kind| UpstreamFault { upstream: self.upstream.clone(), kind })
    }

    async fn step(
        call: &mut Call,
        asides: &mut Option<mpsc::Receiver<Aside>>,
        early: &mut Option<Result<Document, Kind>>,
        slot: &mut Option<OwnedSemaphorePermit>,
        slots: &Arc<Semaphore>,
    ) -> Result<Step, Kind> {
        if let Some(answer) = early.take() {
            return answer.map(Step::Answered);
        }
        if slot.is_none() {
            // Never closed, so waiting is the only thing that can happen.
            *slot = slots.clone().acquire_owned().await.ok();
        }
        let said = async {
            match asides {
                Some(asides) => asides.recv().await,
                None => None,
            }
        };
        tokio::select! {
            // What was said before the answer is told before it.
            biased;
            Some(aside) = said => Ok(Step::Said(aside)),
            answer = call => answer.map(Step::Answered),
        }
    }

    /// Waits for somebody else, with the clock stopped, while the call goes on. Nothing if the call
    /// has ended by itself: its answer is the next step.
    pub async fn meanwhile<T>(&mut self, other: impl Future<Output = T>) -> Option<T> {
        let started = Instant::now();
        self.slot = None;
        let result = tokio::select! {
            biased;
            result = other => Some(result),
            answer = &mut self.call, if self.early.is_none() => {
                self.early = Some(answer);
                None
            }
        };
        self.deadline += started.elapsed();
        result
    }

    /// Gives a call that is taken up again the time of the one that takes it up.
    pub fn extend_to(&mut self, deadline: Instant) {
        self.deadline = self.deadline.max(deadline);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;
    use crate::domain::question::Asks;
    use crate::upstream::asides::Asides;

    fn exchange(
        call: impl Future<Output = Result<Document, Kind>> + Send + 'static,
        asides: Option<mpsc::Receiver<Aside>>,
        slots: &Arc<Semaphore>,
    ) -> Exchange {
        let deadline = Instant::now() + Duration::from_secs(30);
        Exchange::new("up".into(), Box::pin(call), asides, slots.clone(), deadline)
    }

    fn empty() -> Document {
        Document::parse(b"{}".to_vec(), 2).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_thinks_costs_neither_time_nor_a_place() {
        let slots = Arc::new(Semaphore::new(1));
        let (asked, go_on) = oneshot::channel();
        let call = async {
            let _ = go_on.await;
            sleep(Duration::from_secs(20)).await;
            Ok(empty())
        };
        let (_asides, heard) = Asides::channel(Asks::FORM, true);
        let mut exchange = exchange(call, Some(heard), &slots);
        let thinking = async {
            sleep(Duration::from_secs(300)).await;
            assert_eq!(slots.available_permits(), 1);
        };
        exchange.meanwhile(thinking).await.unwrap();
        asked.send(()).unwrap();
        assert!(matches!(exchange.next().await, Ok(Step::Answered(_))));
        assert_eq!(slots.available_permits(), 0);
        drop(exchange);
        assert_eq!(slots.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn u4_the_deadline_covers_the_whole_exchange() {
        let slots = Arc::new(Semaphore::new(1));
        let mut hangs = exchange(std::future::pending(), None, &slots);
        let started = Instant::now();
        let fault = hangs.next().await.unwrap_err();
        assert_eq!((fault.kind, started.elapsed().as_secs()), (Kind::Timeout, 30));
        // A place among the calls is waited for within the same time.
        let mut waits = exchange(async { Ok(empty()) }, None, &slots);
        assert_eq!(waits.next().await.unwrap_err().kind, Kind::Timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_wait_for_the_user_is_not_lost() {
        let slots = Arc::new(Semaphore::new(1));
        let mut exchange = exchange(async { Ok(empty()) }, None, &slots);
        let never = std::future::pending::<()>();
        assert_eq!(exchange.meanwhile(never).await, None);
        assert!(matches!(exchange.next().await, Ok(Step::Answered(_))));
    }
}
