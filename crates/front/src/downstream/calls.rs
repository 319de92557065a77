//! A call in flight for its transport: messages to the client, then the response.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::clock;
use super::error_message::refusal_message;
use crate::session::dialect::{Dialect, result_chunks};
use crate::session::{
    CallOutcome, CallPermits, MessageRefusal, PreparedCall, RunningCall, Sessions,
};
use domain::fault::{Fault, TransportFault};
use domain::json::jsonrpc::Id;
use domain::text::chunks::Chunks;
use upstream::call::result_memory::MessageMemory;

/// A call in flight. Dropping it means that the client has disconnected, which cancels the call
/// only in the modern era.
pub(crate) struct PendingCall {
    /// `None` where the client accepts no message before the response.
    messages: Option<mpsc::Receiver<String>>,
    call: RunningCall,
    id: Id,
    dialect: Dialect,
    /// Held until the client has taken the response.
    memory: Arc<dyn MessageMemory>,
    /// The response, while a message that was sent before it is returned.
    response: Option<CallResponse>,
}

/// The next output of a call.
pub(crate) enum CallOutput {
    /// A message before the response: a progress notification or a server request.
    Message(String),
    /// The response, which is the last event.
    Response(CallResponse),
}

/// The outcome of a call.
pub(crate) enum CallResponse {
    /// A JSON-RPC response with the result.
    Message(Chunks),
    /// A fault, which becomes a JSON-RPC error response.
    Refused(MessageRefusal),
    /// Cancelled by the client, which expects no response (MCP 2025-11-25, cancellation).
    Cancelled,
}

/// Most messages of one call in the queue of its client: a burst of progress notifications. When
/// the queue is full, messages of the call wait (flow control); at a drain they are dropped.
const MESSAGE_QUEUE: usize = 16;

impl PendingCall {
    /// Returns a call that runs while its events are awaited.
    pub(crate) fn new(
        sessions: Arc<Sessions>,
        prepared: PreparedCall,
        permits: CallPermits,
    ) -> Self {
        let id = prepared.id.clone();
        let dialect = prepared.dialect;
        let accepts_messages = prepared.call.client.accepts_messages();
        let queue = accepts_messages.then(|| mpsc::channel(MESSAGE_QUEUE));
        let (sender, messages) = queue.unzip();
        let memory = permits.budget.clone();
        let call = RunningCall::new(sessions, prepared, permits, sender, clock::now());
        Self { messages, call, id, dialect, memory, response: None }
    }

    /// Moves the call to a separate task, so that it runs whether or not its events are awaited.
    #[must_use]
    pub(crate) fn in_task(self) -> Self {
        Self { call: self.call.in_task(), ..self }
    }

    /// Returns the next message or the response. Must not be called after the response.
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    pub(crate) async fn next(&mut self) -> CallOutput {
        let Some(messages) = &mut self.messages else {
            let outcome = (&mut self.call).await;
            return CallOutput::Response(self.respond(outcome));
        };
        if self.response.is_none() {
            tokio::select! {
                biased;
                Some(message) = messages.recv() => return CallOutput::Message(message),
                outcome = &mut self.call => self.response = Some(self.respond(outcome)),
            }
        }
        let message = self.messages.as_mut().and_then(|messages| messages.try_recv().ok());
        match (message, self.response.take()) {
            (None, Some(response)) => CallOutput::Response(response),
            // The message was sent before the response was ready.
            (Some(message), response) => {
                self.response = response;
                CallOutput::Message(message)
            }
            (None, None) => std::future::pending().await,
        }
    }

    fn respond(&self, outcome: CallOutcome) -> CallResponse {
        match outcome {
            CallOutcome::Result(result) => CallResponse::Message(result_chunks(&self.id, result)),
            CallOutcome::Fault(fault) => CallResponse::Refused(self.refusal(fault)),
            CallOutcome::Cancelled => CallResponse::Cancelled,
        }
    }

    /// Returns the memory of the response, to be held until the client has taken it.
    pub(crate) fn memory(&self) -> Arc<dyn MessageMemory> {
        self.memory.clone()
    }

    /// Returns a response as one text; `None` for a cancelled call. Without room for the copied
    /// text, the call is refused.
    pub(crate) fn text_of(&self, response: CallResponse) -> Option<String> {
        match response {
            CallResponse::Message(message) if self.has_room_for_copy_of(&message) => {
                Some(message.into_text())
            }
            CallResponse::Message(_) => {
                Some(refusal_message(&self.refusal(TransportFault::Overloaded.into())))
            }
            CallResponse::Refused(refusal) => Some(refusal_message(&refusal)),
            CallResponse::Cancelled => None,
        }
    }

    fn refusal(&self, fault: Fault) -> MessageRefusal {
        MessageRefusal { fault, id: Some(self.id.clone()), dialect: self.dialect }
    }

    fn has_room_for_copy_of(&self, message: &Chunks) -> bool {
        let copied = message.kept_elsewhere();
        copied == 0 || self.memory.grow(copied)
    }

    /// Returns the response and drops the messages before it, for clients that accept only JSON.
    ///
    /// # Cancel safety
    /// Cancel safe: the response is not lost.
    pub(crate) async fn response(&mut self) -> CallResponse {
        loop {
            if let CallOutput::Response(response) = self.next().await {
                return response;
            }
        }
    }
}
