//! A call in flight for its transport: messages to the client, then the response.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::clock;
use super::error_message::refusal_message;
use crate::session::dialect::result_message;
use crate::session::{CallOutcome, CallPermits, PreparedCall, Refusal, Sessions};

/// A call in flight. Dropping it means that the client has disconnected, which cancels the call only in
/// the modern era.
pub(crate) struct PendingCall {
    messages: mpsc::Receiver<String>,
    response: Pin<Box<dyn Future<Output = CallResponse> + Send>>,
}

/// The next output of a call.
pub(crate) enum CallEvent {
    /// A message before the response: a progress notification or a server request.
    Message(String),
    /// The response, which is the last event.
    Response(CallResponse),
}

/// The outcome of a call.
pub(crate) enum CallResponse {
    /// A JSON-RPC response with the result.
    Message(String),
    /// A fault, which becomes a JSON-RPC error response.
    Refused(Refusal),
    /// Cancelled by the client, which expects no response (MCP 2025-11-25, cancellation).
    Cancelled,
}

/// Most messages of one call in the queue of its client: a burst of progress notifications. When the
/// queue is full, messages of the call wait (flow control).
const MESSAGE_QUEUE: usize = 16;

impl PendingCall {
    /// Starts a call.
    pub(crate) fn start(
        sessions: Arc<Sessions>,
        prepared: PreparedCall,
        permits: CallPermits,
    ) -> Self {
        let id = prepared.id.clone();
        let dialect = prepared.dialect;
        let (sender, messages) = mpsc::channel(MESSAGE_QUEUE);
        let outcome = sessions.perform(prepared, permits, sender, clock::now());
        // On the heap: the future of a call is large, and is moved more than once.
        let response = Box::pin(async move {
            match outcome.await {
                CallOutcome::Result(result) => CallResponse::Message(result_message(&id, &result)),
                CallOutcome::Fault(fault) => {
                    CallResponse::Refused(Refusal { fault, id: Some(id), dialect })
                }
                CallOutcome::Cancelled => CallResponse::Cancelled,
            }
        });
        Self { messages, response }
    }

    /// Returns the next message or the response. Must not be called after the response.
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    pub(crate) async fn next(&mut self) -> CallEvent {
        tokio::select! {
            biased;
            Some(message) = self.messages.recv() => CallEvent::Message(message),
            response = self.response.as_mut() => match self.messages.try_recv() {
                // The message was sent before the response was ready.
                Ok(message) => {
                    self.response = Box::pin(std::future::ready(response));
                    CallEvent::Message(message)
                }
                Err(_) => CallEvent::Response(response),
            },
        }
    }

    /// Returns the response and drops the messages before it, for clients that accept only JSON.
    ///
    /// # Cancel safety
    /// Cancel safe: the response is not lost.
    pub(crate) async fn response(&mut self) -> CallResponse {
        loop {
            if let CallEvent::Response(response) = self.next().await {
                return response;
            }
        }
    }
}

impl CallResponse {
    /// Returns the JSON-RPC response; `None` for a cancelled call.
    pub(crate) fn into_message(self) -> Option<String> {
        match self {
            CallResponse::Message(message) => Some(message),
            CallResponse::Refused(refusal) => Some(refusal_message(&refusal)),
            CallResponse::Cancelled => None,
        }
    }
}
