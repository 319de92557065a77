//! A call that was started: what is said before its answer, and the answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;

use super::admission::{Admission, BodyBudget};
use super::http::respond;
use crate::domain::fault::TransportFault;
use crate::domain::jsonrpc::Id;
use crate::session::dialect::{Dialect, result_message};
use crate::session::{CallOutcome, CallPermits, Dispatch, PreparedCall, Refusal, Sessions};

/// A call under way. Dropped, it is cancelled where going away means that.
pub struct PendingCall {
    told: mpsc::Receiver<String>,
    answer: Pin<Box<dyn Future<Output = CallResponse> + Send>>,
}

/// What comes next.
pub enum CallEvent {
    /// A message before the answer.
    Message(String),
    CallResponse(CallResponse),
}

/// What became of a call, ready to be sent.
pub enum CallResponse {
    Message(String),
    Refused(Refusal),
    /// The client asked for no answer any more.
    Cancelled,
}

/// Messages that wait for a client to read them, of one call.
const TOLD: usize = 16;

/// Bytes of all answers of one batch: a small request must not make the gateway hold gigabytes.
const BATCH_ANSWER: usize = 64 << 20;

/// Items of a batch that are worked on at once.
const AT_ONCE: usize = 8;

impl PendingCall {
    /// Starts a call.
    pub fn start(sessions: Arc<Sessions>, pending: PreparedCall, permits: CallPermits) -> Self {
        let (id, dialect) = (pending.id.clone(), pending.dialect);
        let (tell, told) = mpsc::channel(TOLD);
        let ending = sessions.perform(pending, permits, tell, now_secs());
        // On the heap: the future of a call is large, and moves more than once.
        let answer = Box::pin(async move {
            match ending.await {
                CallOutcome::Result(result) => CallResponse::Message(result_message(&id, &result)),
                CallOutcome::Fault(fault) => {
                    CallResponse::Refused(Refusal { fault, id: Some(id), dialect })
                }
                CallOutcome::Cancelled => CallResponse::Cancelled,
            }
        });
        Self { told, answer }
    }

    /// The next message, or the answer. Not to be called again behind the answer.
    pub async fn next(&mut self) -> CallEvent {
        tokio::select! {
            biased;
            Some(message) = self.told.recv() => CallEvent::Message(message),
            answer = self.answer.as_mut() => match self.told.try_recv() {
                // It was said before, and comes before.
                Ok(message) => {
                    self.answer = Box::pin(std::future::ready(answer));
                    CallEvent::Message(message)
                }
                Err(_) => CallEvent::CallResponse(answer),
            },
        }
    }

    /// The answer alone.
    pub async fn answer(&mut self) -> CallResponse {
        loop {
            if let CallEvent::CallResponse(answer) = self.next().await {
                return answer;
            }
        }
    }
}

impl CallResponse {
    pub fn into_message(self) -> Option<String> {
        match self {
            CallResponse::Message(message) => Some(message),
            CallResponse::Refused(refusal) => Some(respond::refusal_message(&refusal)),
            CallResponse::Cancelled => None,
        }
    }
}

/// The answers of a batch as one array; nothing if none of its messages has an answer. Each item is
/// refused by itself. A few run at once: their answers wait for those before them.
pub async fn batch(
    sessions: Arc<Sessions>,
    admission: Arc<Admission>,
    items: Vec<Result<Dispatch, Refusal>>,
    budget: Arc<BodyBudget>,
) -> Option<String> {
    let start = |item| start_item(&sessions, &admission, &budget, item);
    let mut waiting = items.into_iter();
    let mut started: VecDeque<_> = waiting.by_ref().take(AT_ONCE).map(start).collect();
    let (mut messages, mut left) = (Vec::new(), BATCH_ANSWER);
    while let Some(item) = started.pop_front() {
        let message = match item {
            Item::There(message) => message,
            Item::Running(id, dialect, mut pending) => {
                let message = pending.answer().await.into_message();
                let size = message.as_ref().map_or(0, String::len);
                match left.checked_sub(size) {
                    Some(rest) => {
                        left = rest;
                        message
                    }
                    None => {
                        let fault = TransportFault::Overloaded.into();
                        let refusal = Refusal { fault, id: Some(id), dialect };
                        Some(respond::refusal_message(&refusal))
                    }
                }
            }
        };
        messages.extend(message);
        started.extend(waiting.next().map(start));
    }
    (!messages.is_empty()).then(|| format!("[{}]", messages.join(",")))
}

fn start_item(
    sessions: &Arc<Sessions>,
    admission: &Admission,
    budget: &Arc<BodyBudget>,
    item: Result<Dispatch, Refusal>,
) -> Item {
    let refused = |refusal: Refusal| Item::There(Some(respond::refusal_message(&refusal)));
    match item {
        Ok(Dispatch::Answer { message, .. } | Dispatch::Opened { message, .. }) => {
            Item::There(Some(message))
        }
        Ok(Dispatch::Call(pending)) => match admission.call() {
            Ok(call) => {
                let permits = CallPermits { call, budget: budget.clone() };
                let (id, dialect) = (pending.id.clone(), pending.dialect);
                Item::Running(id, dialect, PendingCall::start(sessions.clone(), pending, permits))
            }
            Err(fault) => {
                let (id, dialect) = (Some(pending.id), pending.dialect);
                refused(Refusal { fault: fault.into(), id, dialect })
            }
        },
        Ok(Dispatch::Accepted | Dispatch::Listen(_) | Dispatch::Batch(_)) => Item::There(None),
        Err(refusal) => refused(refusal),
    }
}

/// One item of a batch.
enum Item {
    There(Option<String>),
    Running(Id, Dialect, PendingCall),
}

/// Seconds since the Unix epoch; a clock before it counts as there.
pub fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
