//! One call as it happens: its answer, and what is said before it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::correlator::InterimMessage;
use crate::domain::document::Document;
use crate::domain::fault::{UpstreamFault, UpstreamFaultKind as Kind};
use crate::telemetry::ClientOperation;
use crate::upstream::guard::breaker::{BreakerPermit, Transition};
use crate::upstream::guard::concurrency::ConcurrencyLimit;

type Call = Pin<Box<dyn Future<Output = Result<Document, Kind>> + Send>>;

/// A call under way. Dropped before its end it is cancelled upstream. It only goes on while it is
/// waited for, by [`Exchange::next`] or [`Exchange::meanwhile`].
pub(crate) struct Exchange {
    upstream: String,
    call: Call,
    /// Absent where nothing can be said before the answer.
    interim: Option<mpsc::Receiver<InterimMessage>>,
    /// The answer, where something was said that is to be told before it.
    early: Option<Result<Document, Kind>>,
    place: Arc<ConcurrencyPermit>,
    /// To be given back with how it went; absent once it was.
    permit: Option<BreakerPermit>,
    deadline: Instant,
    /// Absent where it is not measured, or has ended.
    operation: Option<ClientOperation>,
}

/// A call's place among those that an upstream works on at once. It is taken when there is a
/// connection, and given up while a user thinks.
pub(crate) struct ConcurrencyPermit {
    concurrency: Arc<ConcurrencyLimit>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    permit: Option<OwnedSemaphorePermit>,
    /// Taken once, it has to be taken again before the call goes on.
    is_needed: bool,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum ExchangeEvent {
    Interim(InterimMessage),
    Response(Document),
}

impl ConcurrencyPermit {
    pub(crate) fn new(concurrency: Arc<ConcurrencyLimit>) -> Arc<Self> {
        Arc::new(Self { concurrency, held: Mutex::default() })
    }

    /// Waits for a place, if that is allowed.
    ///
    /// # Errors
    /// When too many wait already, or it takes too long.
    pub(crate) async fn acquire(&self) -> Result<(), Kind> {
        let permit = Some(self.concurrency.acquire().await?);
        *self.held() = Held { permit, is_needed: true };
        Ok(())
    }

    async fn reacquire(&self) {
        let is_missing = {
            let held = self.held();
            held.is_needed && held.permit.is_none()
        };
        if is_missing {
            self.held().permit = self.concurrency.reacquire().await;
        }
    }

    /// Gives the place back; it is taken again before the call goes on.
    pub(crate) fn release(&self) {
        self.held().permit = None;
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Exchange {
    pub(crate) fn new(
        upstream: String,
        call: Call,
        interim: Option<mpsc::Receiver<InterimMessage>>,
        place: Arc<ConcurrencyPermit>,
        permit: Option<BreakerPermit>,
        deadline: Instant,
    ) -> Self {
        Self { upstream, call, interim, early: None, place, permit, deadline, operation: None }
    }

    /// The same, as it is measured.
    pub(crate) fn measured(mut self, operation: Option<ClientOperation>) -> Self {
        self.operation = operation;
        self
    }

    /// Goes on until something is said, or the answer is there, or the deadline passes.
    pub(crate) async fn next(&mut self) -> Result<ExchangeEvent, UpstreamFault> {
        let Self { call, interim, early, place, .. } = self;
        let step = tokio::select! {
            step = step(call, interim, early, place) => step,
            () = sleep_until(self.deadline) => Err(Kind::Timeout),
        };
        match &step {
            Ok(ExchangeEvent::Interim(_)) => {
                let turn = self.permit.as_mut().and_then(BreakerPermit::heard);
                self.tell(turn);
            }
            step => self.end(step.as_ref().err()),
        }
        step.map_err(|kind| UpstreamFault { upstream: self.upstream.clone(), kind })
    }

    /// Logs what has become of the upstream's standing.
    fn tell(&self, turn: Option<Transition>) {
        match turn {
            Some(Transition::Opened) => {
                warn!(upstream = self.upstream, "left alone after failed calls in a row (breaker)");
            }
            Some(Transition::Closed) => info!(upstream = self.upstream, "answers again (breaker)"),
            None => {}
        }
    }

    fn end(&mut self, error: Option<&Kind>) {
        let turn = self.permit.take().and_then(|permit| permit.end(error, Instant::now()));
        self.tell(turn);
        if let Some(operation) = self.operation.take() {
            operation.end(error);
        }
    }

    /// Waits for somebody else, with the clock stopped, while the call goes on. Nothing if the call
    /// has ended by itself: its answer is among the next steps.
    pub(crate) async fn meanwhile<T>(&mut self, other: impl Future<Output = T>) -> Option<T> {
        let started = Instant::now();
        self.place.release();
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
    pub(crate) fn extend_to(&mut self, deadline: Instant) {
        self.deadline = self.deadline.max(deadline);
    }
}

async fn step(
    call: &mut Call,
    interim: &mut Option<mpsc::Receiver<InterimMessage>>,
    early: &mut Option<Result<Document, Kind>>,
    place: &ConcurrencyPermit,
) -> Result<ExchangeEvent, Kind> {
    loop {
        // What was said before the answer is told before it.
        if let Some(interim) = interim.as_mut().and_then(|interim| interim.try_recv().ok()) {
            return Ok(ExchangeEvent::Interim(interim));
        }
        if let Some(answer) = early.take() {
            return answer.map(ExchangeEvent::Response);
        }
        place.reacquire().await;
        let said = async {
            match interim {
                Some(interim) => interim.recv().await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            Some(interim) = said => return Ok(ExchangeEvent::Interim(interim)),
            answer = &mut *call => *early = Some(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;
    use crate::domain::jsonrpc::Id;
    use crate::domain::server_request::ClientCapabilities;
    use crate::upstream::call::correlator::{Correlator, InterimSender, NotificationSinks};

    fn exchange(
        call: impl Future<Output = Result<Document, Kind>> + Send + 'static,
        interim: Option<mpsc::Receiver<InterimMessage>>,
        concurrency: &Arc<ConcurrencyLimit>,
    ) -> Exchange {
        let (deadline, place) =
            (Instant::now() + Duration::from_secs(30), ConcurrencyPermit::new(concurrency.clone()));
        let entered = place.clone();
        let call = async move {
            entered.acquire().await?;
            call.await
        };
        Exchange::new("up".into(), Box::pin(call), interim, place, None, deadline)
    }

    fn empty() -> Document {
        Document::parse(b"{}".to_vec(), 2).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_thinks_costs_neither_time_nor_a_place() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let (asked, go_on) = oneshot::channel();
        let call = async {
            let _ = go_on.await;
            sleep(Duration::from_secs(20)).await;
            Ok(empty())
        };
        let (_asides, heard) = InterimSender::channel(ClientCapabilities::FORM, true);
        let mut exchange = exchange(call, Some(heard), &concurrency);
        let _ = tokio::time::timeout(Duration::from_secs(5), exchange.next()).await;
        assert_eq!(concurrency.free(), 0);
        let thinking = async {
            sleep(Duration::from_secs(300)).await;
            assert_eq!(concurrency.free(), 1);
        };
        exchange.meanwhile(thinking).await.unwrap();
        asked.send(()).unwrap();
        assert!(matches!(exchange.next().await, Ok(ExchangeEvent::Response(_))));
        assert_eq!(concurrency.free(), 0);
        drop(exchange);
        assert_eq!(concurrency.free(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn u4_the_deadline_covers_the_whole_exchange() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let mut hangs = exchange(std::future::pending(), None, &concurrency);
        let started = Instant::now();
        let fault = hangs.next().await.unwrap_err();
        assert_eq!((fault.kind, started.elapsed().as_secs()), (Kind::Timeout, 30));
        // A place among the calls is waited for within the same time.
        let mut waits = exchange(async { Ok(empty()) }, None, &concurrency);
        assert_eq!(waits.next().await.unwrap_err().kind, Kind::Timeout);
    }

    proptest! {
        #[test]
        fn a_call_that_is_dropped_at_any_step_leaves_its_place(polls in 0..12_usize, thinks in any::<bool>()) {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
                let call = async {
                    for _ in 0..10 {
                        tokio::task::yield_now().await;
                    }
                    Ok(empty())
                };
                let mut exchange = exchange(call, None, &concurrency);
                let mut going = Box::pin(async move {
                    if thinks {
                        exchange.meanwhile(tokio::task::yield_now()).await;
                    }
                    exchange.next().await
                });
                for _ in 0..polls {
                    if polled(going.as_mut()).await {
                        break;
                    }
                }
                drop(going);
                assert_eq!((concurrency.free(), concurrency.waiting()), (1, 0));
            });
        }
    }

    /// Polls once; whether that was the end.
    async fn polled<F: Future>(mut future: Pin<&mut F>) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(future.as_mut().poll(context).is_ready())
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_wait_for_the_user_is_not_lost() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let mut exchange = exchange(async { Ok(empty()) }, None, &concurrency);
        let never = std::future::pending::<()>();
        assert_eq!(exchange.meanwhile(never).await, None);
        assert!(matches!(exchange.next().await, Ok(ExchangeEvent::Response(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_once_with_the_answer_is_told_before_it() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let (interim, heard) = InterimSender::channel(ClientCapabilities::NONE, true);
        let correlator = Correlator::new(NotificationSinks::new("up"));
        let call = async move {
            let _listening = correlator.register(&Id::number(7), Some(interim));
            for _ in 0..3 {
                let progress = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7}}"#;
                correlator.deliver(Document::parse(progress.to_vec(), 4).unwrap());
            }
            Ok(empty())
        };
        let mut exchange = exchange(call, Some(heard), &concurrency);
        for _ in 0..3 {
            assert!(matches!(
                exchange.next().await,
                Ok(ExchangeEvent::Interim(InterimMessage::Progress(_)))
            ));
        }
        assert!(matches!(exchange.next().await, Ok(ExchangeEvent::Response(_))));
    }
}
