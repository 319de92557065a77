//! The channel from a running call to its client: progress and server requests before the response.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::domain::document::Document;
use crate::domain::server_request::{Answer, ServerRequest};

/// A message for the client before its response.
#[derive(Debug)]
pub(crate) enum CallEvent {
    /// `params` of `notifications/progress`, with the progress token of the upstream hop.
    Progress(Document),
    /// `params` of `notifications/elicitation/complete`.
    UrlElicitationComplete(Document),
    ServerRequest {
        server_request: ServerRequest,
        origin: RequestOrigin,
        answer: oneshot::Sender<Answer>,
    },
}

/// The upstream behind a server request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestOrigin {
    /// Id of the upstream.
    pub upstream: String,
    /// Whether the message of an elicitation is prefixed with the id.
    pub label: bool,
}

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct CallChannel(mpsc::Sender<CallEvent>);

/// Queued messages. Progress beyond that is dropped, since later progress replaces it.
const WAITING: usize = 16;

impl CallChannel {
    pub(crate) fn new() -> (Self, mpsc::Receiver<CallEvent>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Sends a message that may be lost if the queue is full.
    pub(crate) fn tell(&self, events: CallEvent) {
        let _ = self.0.try_send(events);
    }

    /// Sends a server request and waits for its outcome; `None` if none arrives within `patience`.
    pub(crate) async fn request(
        &self,
        server_request: ServerRequest,
        origin: RequestOrigin,
        patience: Duration,
    ) -> Option<Answer> {
        let (answer, answered) = oneshot::channel();
        let requesting = async {
            self.0.send(CallEvent::ServerRequest { server_request, origin, answer }).await.ok()?;
            answered.await.ok()
        };
        timeout(patience, requesting).await.ok()?
    }
}
