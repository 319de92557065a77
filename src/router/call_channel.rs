//! The way to a client while its call runs.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::domain::document::Document;
use crate::domain::server_request::{Answer, ServerRequest};

/// What a client is told, or asked, before its answer.
#[derive(Debug)]
pub(crate) enum CallEvent {
    /// `params` of `notifications/progress`, with the token of another hop.
    Progress(Document),
    /// `params` of `notifications/elicitation/complete`.
    UrlElicitationComplete(Document),
    ServerRequest {
        server_request: ServerRequest,
        origin: RequestOrigin,
        answer: oneshot::Sender<Answer>,
    },
}

/// Who wants to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestOrigin {
    /// Id of the upstream.
    pub upstream: String,
    /// Whether the message of an elicitation is led by it.
    pub label: bool,
}

/// The end of the way at the router.
#[derive(Clone, Debug)]
pub(crate) struct CallChannel(mpsc::Sender<CallEvent>);

/// News that wait to be dressed. Progress beyond that is dropped: there is more to come.
const WAITING: usize = 16;

impl CallChannel {
    pub(crate) fn new() -> (Self, mpsc::Receiver<CallEvent>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Tells what may be missed.
    pub(crate) fn tell(&self, events: CallEvent) {
        let _ = self.0.try_send(events);
    }

    /// Asks, and waits for the answer as long as a user may think; nothing if none comes.
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
