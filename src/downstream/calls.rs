//! A call that was started: what is said before its answer, and the answer.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::clock::now_secs;
use super::error_message::refusal_message;
use super::http::event_stream::{Event, EventSource, NextEvent};
use crate::session::dialect::result_message;
use crate::session::{CallOutcome, CallPermits, PreparedCall, Refusal, Sessions};

/// A call under way. Dropped, it is cancelled where going away means that.
pub(crate) struct PendingCall {
    told: mpsc::Receiver<String>,
    answer: Pin<Box<dyn Future<Output = CallResponse> + Send>>,
}

/// What comes next.
pub(crate) enum CallEvent {
    /// A message before the answer.
    Message(String),
    Response(CallResponse),
}

/// What became of a call, ready to be sent.
pub(crate) enum CallResponse {
    Message(String),
    Refused(Refusal),
    /// The client asked for no answer any more.
    Cancelled,
}

/// Messages that wait for a client to read them, of one call.
const TOLD: usize = 16;

impl PendingCall {
    /// Starts a call.
    pub(crate) fn start(
        sessions: Arc<Sessions>,
        pending: PreparedCall,
        permits: CallPermits,
    ) -> Self {
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
    pub(crate) async fn next(&mut self) -> CallEvent {
        tokio::select! {
            biased;
            Some(message) = self.told.recv() => CallEvent::Message(message),
            answer = self.answer.as_mut() => match self.told.try_recv() {
                // It was said before, and comes before.
                Ok(message) => {
                    self.answer = Box::pin(std::future::ready(answer));
                    CallEvent::Message(message)
                }
                Err(_) => CallEvent::Response(answer),
            },
        }
    }

    /// The answer alone.
    pub(crate) async fn answer(&mut self) -> CallResponse {
        loop {
            if let CallEvent::Response(answer) = self.next().await {
                return answer;
            }
        }
    }
}

impl CallResponse {
    pub(crate) fn into_message(self) -> Option<String> {
        match self {
            CallResponse::Message(message) => Some(message),
            CallResponse::Refused(refusal) => Some(refusal_message(&refusal)),
            CallResponse::Cancelled => None,
        }
    }
}

impl EventSource for PendingCall {
    async fn next_event(mut self) -> NextEvent<Self> {
        match self.next().await {
            CallEvent::Message(message) => Some((Event::message(None, &message), Some(self))),
            CallEvent::Response(response) => {
                Some((Event::message(None, &response.into_message()?), None))
            }
        }
    }
}
