//! The channel from a running call to its client: progress, log messages and server requests before
//! the response.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use catalog::reply::RequestOrigin;
use domain::calls::call::ClientMessages;
use domain::json::document::Document;
use domain::protocol::server_request::{Answer, ServerRequest};

/// A message for the client before its response.
#[derive(Debug)]
pub enum CallEvent {
    /// `params` of `notifications/progress`, with the progress token of the upstream hop.
    Progress(Document),
    /// `params` of `notifications/message`.
    Log(Document),
    /// `params` of `notifications/elicitation/complete`.
    UrlElicitationComplete(Document),
    ServerRequest {
        server_request: ServerRequest,
        origin: RequestOrigin,
        answer: oneshot::Sender<Answer>,
    },
    /// A server request has ended without an answer, because its call or its timeout has ended.
    ServerRequestEnded,
}

/// The sending end; `None` for a client that accepts no message before its response.
#[derive(Clone, Debug)]
pub struct CallChannel(Option<mpsc::Sender<CallEvent>>);

/// Queued messages. Progress beyond that is dropped, since later progress replaces it.
const WAITING: usize = 16;

impl CallChannel {
    /// Returns the channel of a call, with its receiving end where the client accepts messages
    /// before its response.
    pub fn of(client: ClientMessages) -> (Self, Option<mpsc::Receiver<CallEvent>>) {
        let channel = client.accepts_messages().then(|| mpsc::channel(WAITING));
        let (sender, receiver) = channel.unzip();
        (Self(sender), receiver)
    }

    /// A channel that drops all messages.
    pub fn silent() -> Self {
        Self(None)
    }

    /// Sends a message that may be lost if the queue is full.
    pub fn tell(&self, event: CallEvent) {
        if let Some(sender) = &self.0 {
            let _ = sender.try_send(event);
        }
    }

    /// Sends a server request and waits for its outcome. `None`: no outcome arrived within
    /// `patience`, or the client accepts no server requests.
    pub async fn request(
        &self,
        server_request: ServerRequest,
        origin: RequestOrigin,
        patience: Duration,
    ) -> Option<Answer> {
        let sender = self.0.as_ref()?;
        let mut waiting = AnswerWait(Some(self));
        let (answer, answered) = oneshot::channel();
        let requesting = async {
            sender.send(CallEvent::ServerRequest { server_request, origin, answer }).await.ok()?;
            answered.await.ok()
        };
        let answer = timeout(patience, requesting).await.ok()?;
        waiting.0 = None;
        answer
    }
}

/// Waits for the answer to a server request. If dropped before the answer, sends
/// [`CallEvent::ServerRequestEnded`].
struct AnswerWait<'a>(Option<&'a CallChannel>);

impl Drop for AnswerWait<'_> {
    fn drop(&mut self) {
        if let Some(channel) = self.0 {
            channel.tell(CallEvent::ServerRequestEnded);
        }
    }
}
