//! One call in flight: the interim messages, the response, the deadline and the permits.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::time::{Instant, sleep_until};

use super::call_secrets::CallSecrets;
use super::correlator::{InterimMessage, InterimReceiver};
use crate::guard::circuit_breaker::BreakerPermit;
use crate::guard::concurrency::{ConcurrencyLimit, Permit};
use crate::guard::large_texts::{AT_ONCE, work_on};
use crate::recent_calls::RecentCalls;
use base::platform::Locked;
use domain::calls::fair_share::Holder;
use domain::fault::{UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::document::Document;
use telemetry::ClientOperation;

type Call = Pin<Box<dyn Future<Output = Result<Document, Kind>> + Send>>;

/// A large event while the secrets are removed from it.
type Cleaning = Pin<Box<dyn Future<Output = Result<Option<ExchangeEvent>, Kind>> + Send>>;

/// A call in flight. It makes progress only while [`CallExchange::next`] or
/// [`CallExchange::wait_for_client`] is polled. When it is dropped before its end, the request is
/// cancelled upstream.
pub struct CallExchange {
    /// Id of the upstream.
    upstream: String,
    call: Call,
    /// `None` if the client accepts no message before the response.
    interim: Option<InterimReceiver>,
    /// The response, while interim messages that came before it are still queued.
    response: Option<Result<Document, Kind>>,
    concurrency: Arc<ConcurrencyPermit>,
    /// `None` after the outcome was reported, and for a call that the open circuit breaker refused.
    breaker: Option<BreakerPermit>,
    deadline: Instant,
    /// `None` for a call without telemetry, and after the end of the call.
    operation: Option<ClientOperation>,
    /// The counter for the end of the call; `None` if the call is not sent.
    recent: Option<RecentCall>,
    /// Secrets to remove from all messages except the results of gets.
    secrets: Option<CallSecrets>,
    cleaning: Option<Cleaning>,
}

/// A call that is counted in the numbers of the last hour.
pub struct RecentCall {
    pub calls: Arc<RecentCalls>,
    pub began: Instant,
    pub(crate) speaks_http: bool,
}

/// The permit of one call under its upstream's concurrency limit. The permit is acquired once a
/// connection is open, and released while the client answers a server request.
pub struct ConcurrencyPermit {
    limit: Arc<ConcurrencyLimit>,
    holder: Holder,
    state: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    permit: Option<Permit>,
    /// Whether the permit was acquired once: a released permit is then acquired again before the
    /// call continues.
    is_required: bool,
}

/// The next event of an exchange.
#[derive(Debug)]
pub enum ExchangeEvent {
    Interim(InterimMessage),
    /// The result, which ends the exchange.
    Response(Document),
}

impl ExchangeEvent {
    /// Bytes to search for secrets.
    fn searched(&self, secrets: &CallSecrets) -> usize {
        match self {
            Self::Interim(message) => CallSecrets::searched_interim(message),
            Self::Response(result) => secrets.searched_response(result),
        }
    }

    /// Removes the secrets; `None` if an interim message must be dropped.
    fn without(self, secrets: &CallSecrets) -> Result<Option<Self>, Kind> {
        Ok(match self {
            Self::Interim(message) => secrets.remove_from_interim(message).map(Self::Interim),
            Self::Response(result) => Some(Self::Response(secrets.remove_from_response(result)?)),
        })
    }
}

impl ConcurrencyPermit {
    /// Returns a permit of `holder` that is not acquired.
    pub(crate) fn new(limit: Arc<ConcurrencyLimit>, holder: Holder) -> Arc<Self> {
        Arc::new(Self { limit, holder, state: Mutex::default() })
    }

    /// Acquires the permit, in the queue if all are in use.
    ///
    /// # Cancel safety
    /// Cancel safe: when the future is dropped, the call is removed from the queue.
    pub(crate) async fn acquire(&self) -> Result<(), Kind> {
        let permit = Some(self.limit.acquire(&self.holder).await?);
        *self.state.locked() = PermitState { permit, is_required: true };
        Ok(())
    }

    async fn reacquire(&self) {
        let is_missing = {
            let state = self.state.locked();
            state.is_required && state.permit.is_none()
        };
        if is_missing {
            let permit = self.limit.reacquire(&self.holder).await;
            self.state.locked().permit = permit;
        }
    }

    /// Releases the permit until the call continues.
    pub(crate) fn release(&self) {
        let permit = self.state.locked().permit.take();
        // The lock is released first: the permit goes to the next call.
        drop(permit);
    }
}

impl CallExchange {
    /// Returns the exchange of a call that has not been polled. `deadline` is the end of the call
    /// without the time in which it waits for its client.
    pub fn new(
        upstream: String,
        call: Call,
        interim: Option<InterimReceiver>,
        concurrency: Arc<ConcurrencyPermit>,
        breaker: Option<BreakerPermit>,
        deadline: Instant,
    ) -> Self {
        let response = None;
        let operation = None;
        let recent = None;
        let secrets = None;
        let cleaning = None;
        Self {
            upstream,
            call,
            interim,
            response,
            concurrency,
            breaker,
            deadline,
            operation,
            recent,
            secrets,
            cleaning,
        }
    }

    /// Returns the exchange with the secrets removed from its messages.
    pub fn without(mut self, secrets: CallSecrets) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// Returns the exchange with its measurements: span, metrics and the numbers of the last hour.
    pub fn measured(
        mut self,
        operation: Option<ClientOperation>,
        recent: Option<RecentCall>,
    ) -> Self {
        (self.operation, self.recent) = (operation, recent);
        self
    }

    /// Waits for the next interim message or the response.
    ///
    /// # Errors
    /// The failure of the call, which ends the exchange; [`Kind::Timeout`] at the deadline.
    ///
    /// # Cancel safety
    /// Cancel safe: the next call returns a message or response that was received.
    pub async fn next(&mut self) -> Result<ExchangeEvent, UpstreamFault> {
        let deadline = self.deadline;
        let step = tokio::select! {
            step = self.clean_step() => step,
            () = sleep_until(deadline) => Err(Kind::Timeout),
        };
        if !matches!(step, Ok(ExchangeEvent::Interim(_))) {
            self.end(step.as_ref().err());
        }
        step.map_err(|kind| {
            let upstream = self.upstream.clone();
            UpstreamFault { upstream, kind, correlation: None }
        })
    }

    /// The next event, without secrets. A large event is searched outside the threads of calls, and
    /// kept until the search ends.
    async fn clean_step(&mut self) -> Result<ExchangeEvent, Kind> {
        let Self { call, interim, response, concurrency, secrets, cleaning, .. } = self;
        loop {
            let cleaned = match cleaning {
                Some(running) => {
                    let cleaned = running.await;
                    *cleaning = None;
                    cleaned
                }
                None => {
                    let event = step(call, interim, response, concurrency).await?;
                    let Some(secrets) = secrets else { return Ok(event) };
                    let bytes = event.searched(secrets);
                    if bytes == 0 {
                        return Ok(event);
                    }
                    if bytes > AT_ONCE {
                        let secrets = secrets.clone();
                        let holder = concurrency.holder.clone();
                        *cleaning = Some(Box::pin(async move {
                            work_on(bytes, &holder, move || event.without(&secrets)).await
                        }));
                        continue;
                    }
                    event.without(secrets)
                }
            };
            // An interim message from which the secrets cannot be removed is dropped.
            if let Some(event) = cleaned? {
                return Ok(event);
            }
        }
    }

    fn end(&mut self, error: Option<&Kind>) {
        let now = Instant::now();
        if let Some(permit) = self.breaker.take() {
            permit.end(error, now);
        }
        // A call that the concurrency limit has refused did not reach the upstream.
        if let Some(RecentCall { calls, began, speaks_http }) = self.recent.take()
            && error != Some(&Kind::Busy)
        {
            calls.add(now.saturating_duration_since(began), error, speaks_http, now);
        }
        if let Some(operation) = self.operation.take() {
            operation.end(error);
        }
    }

    /// Waits for the client's answer with the deadline suspended and without a concurrency permit,
    /// while the call stays open. Returns `None` if the call ended first: its response is among the
    /// next events.
    ///
    /// # Cancel safety
    /// Cancel safe: no message of the call is lost. When the future is dropped, the deadline is not
    /// extended, and the permit stays released until [`CallExchange::next`].
    pub async fn wait_for_client<T>(&mut self, client: impl Future<Output = T>) -> Option<T> {
        let started = Instant::now();
        self.concurrency.release();
        let answer = tokio::select! {
            biased;
            answer = client => Some(answer),
            response = &mut self.call, if self.response.is_none() => {
                self.response = Some(response);
                None
            }
        };
        self.deadline += started.elapsed();
        answer
    }

    /// Extends the deadline of a suspended call to the deadline of the request that resumes it.
    pub fn extend_to(&mut self, deadline: Instant) {
        self.deadline = self.deadline.max(deadline);
    }
}

async fn step(
    call: &mut Call,
    interim: &mut Option<InterimReceiver>,
    response: &mut Option<Result<Document, Kind>>,
    concurrency: &ConcurrencyPermit,
) -> Result<ExchangeEvent, Kind> {
    loop {
        // Messages that came before the response are yielded before it, but server requests are
        // skipped: the upstream has not waited for the answer.
        while let Some(message) = interim.as_mut().and_then(|interim| interim.try_recv()) {
            let is_server_request = matches!(message, InterimMessage::ServerRequest { .. });
            if !is_server_request || response.is_none() {
                return Ok(ExchangeEvent::Interim(message));
            }
        }
        if let Some(response) = response.take() {
            return response.map(ExchangeEvent::Response);
        }
        concurrency.reacquire().await;
        let next_message = async {
            match interim {
                Some(interim) => interim.recv().await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            Some(message) = next_message => return Ok(ExchangeEvent::Interim(message)),
            result = &mut *call => *response = Some(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::pin::pin;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::*;
    use crate::call::call_secrets::SecretSource;
    use crate::call::correlator::{Correlator, InterimSender, NotificationSinks};
    use domain::calls::caller::Caller;
    use domain::json::jsonrpc::Id;
    use domain::protocol::method::Method;
    use domain::protocol::server_request::ClientCapabilities;
    use domain::redaction::Secrets;

    fn exchange(
        call: impl Future<Output = Result<Document, Kind>> + Send + 'static,
        interim: Option<InterimReceiver>,
        concurrency: &Arc<ConcurrencyLimit>,
    ) -> CallExchange {
        let deadline = Instant::now() + Duration::from_secs(30);
        let permit = ConcurrencyPermit::new(concurrency.clone(), Holder::Caller(Caller::new("ci")));
        let acquired = permit.clone();
        let call = async move {
            acquired.acquire().await?;
            call.await
        };
        CallExchange::new("up".into(), Box::pin(call), interim, permit, None, deadline)
    }

    fn empty() -> Document {
        Document::parse(b"{}".to_vec(), 2).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_client_uses_neither_the_deadline_nor_a_permit() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let (answered, answer) = oneshot::channel();
        let call = async {
            let _ = answer.await;
            sleep(Duration::from_secs(20)).await;
            Ok(empty())
        };
        let (_interim, messages) = InterimSender::channel(ClientCapabilities::FORM, true);
        let mut exchange = exchange(call, Some(messages), &concurrency);
        let _ = tokio::time::timeout(Duration::from_secs(5), exchange.next()).await;
        assert_eq!(concurrency.free(), 0);
        let client = async {
            sleep(Duration::from_secs(300)).await;
            assert_eq!(concurrency.free(), 1);
        };
        exchange.wait_for_client(client).await.unwrap();
        answered.send(()).unwrap();
        assert!(matches!(exchange.next().await, Ok(ExchangeEvent::Response(_))));
        assert_eq!(concurrency.free(), 0);
        drop(exchange);
        assert_eq!(concurrency.free(), 1);
    }

    struct Key(Secrets);

    impl SecretSource for Key {
        fn secrets(&self) -> Cow<'_, Secrets> {
            Cow::Borrowed(&self.0)
        }
    }

    #[tokio::test]
    async fn a_large_response_is_searched_beside_the_calls_and_not_lost_meanwhile() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let text = format!("[\"{} s3cret-key\"]", "\\\\".repeat(AT_ONCE));
        let response = Document::parse(text.into_bytes(), 4).unwrap();
        let held = Arc::new(Key(Secrets::new(["s3cret-key"])));
        let secrets = CallSecrets { held, overlay: None, method: Method::Complete };
        let call = std::future::ready(Ok(response));
        let mut exchange = exchange(call, None, &concurrency).without(secrets);
        // The runtime's only thread does not search: it is there again before the search has ended.
        assert!(!polled(pin!(exchange.next()).as_mut()).await);
        let found = exchange.next().await;
        let Ok(ExchangeEvent::Response(response)) = found else { panic!("{found:?}") };
        assert!(response.json().text().ends_with("[redacted]\"]"));
    }

    #[tokio::test(start_paused = true)]
    async fn u4_the_deadline_covers_the_whole_exchange() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let mut hangs = exchange(std::future::pending(), None, &concurrency);
        let started = Instant::now();
        let fault = hangs.next().await.unwrap_err();
        assert_eq!((fault.kind, started.elapsed().as_secs()), (Kind::Timeout, 30));
        // The wait for a concurrency permit counts towards the deadline.
        let mut waits = exchange(async { Ok(empty()) }, None, &concurrency);
        assert_eq!(waits.next().await.unwrap_err().kind, Kind::Timeout);
    }

    proptest! {
        #[test]
        fn a_call_that_is_dropped_at_any_step_releases_its_permit(polls in 0..12_usize, waits in any::<bool>()) {
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
                let mut running = Box::pin(async move {
                    if waits {
                        exchange.wait_for_client(tokio::task::yield_now()).await;
                    }
                    exchange.next().await
                });
                for _ in 0..polls {
                    if polled(running.as_mut()).await {
                        break;
                    }
                }
                drop(running);
                assert_eq!((concurrency.free(), concurrency.waiting()), (1, 0));
            });
        }
    }

    /// Polls once and returns whether the future is ready.
    async fn polled<F: Future>(mut future: Pin<&mut F>) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(future.as_mut().poll(context).is_ready())
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_comes_before_the_client_answers_is_not_lost() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let mut exchange = exchange(async { Ok(empty()) }, None, &concurrency);
        let never = std::future::pending::<()>();
        assert_eq!(exchange.wait_for_client(never).await, None);
        assert!(matches!(exchange.next().await, Ok(ExchangeEvent::Response(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn no_user_is_asked_once_the_response_is_there() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let (interim, messages) = InterimSender::channel(ClientCapabilities::ROOTS, false);
        let correlator = Correlator::new(NotificationSinks::new("up"));
        correlator.set_accepts_requests(true);
        let call = async move {
            let _registration = correlator.register(&Id::number(7), Some(interim));
            for _ in 0..2 {
                let roots = br#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
                correlator.deliver(Document::parse(roots.to_vec(), 4).unwrap());
            }
            Ok(empty())
        };
        let mut exchange = exchange(call, Some(messages), &concurrency);
        assert!(matches!(exchange.next().await, Ok(ExchangeEvent::Response(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_come_with_the_response_are_yielded_before_it() {
        let concurrency = ConcurrencyLimit::new(1, 9, Duration::from_secs(60));
        let (interim, messages) = InterimSender::channel(ClientCapabilities::NONE, true);
        let correlator = Correlator::new(NotificationSinks::new("up"));
        let call = async move {
            let _registration = correlator.register(&Id::number(7), Some(interim));
            for _ in 0..3 {
                let progress = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7}}"#;
                correlator.deliver(Document::parse(progress.to_vec(), 4).unwrap());
            }
            Ok(empty())
        };
        let mut exchange = exchange(call, Some(messages), &concurrency);
        for _ in 0..3 {
            assert!(matches!(
                exchange.next().await,
                Ok(ExchangeEvent::Interim(InterimMessage::Progress(_)))
            ));
        }
        assert!(matches!(exchange.next().await, Ok(ExchangeEvent::Response(_))));
    }
}
