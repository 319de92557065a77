//! Questions that clients were asked on a stream, until they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::oneshot;

use crate::domain::fault::excerpt;
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Id, Outcome};
use crate::domain::server_request::{Answer, ServerRequest};
use crate::session::token::Nonce;

/// As many entries as calls in flight have asked, each at most `question_rounds` times.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingServerRequests {
    open: Arc<DashMap<(Nonce, Id), Open>>,
    next: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Open {
    server_request: ServerRequest,
    answer: oneshot::Sender<Answer>,
}

/// A question that was asked; taken back with this value.
#[derive(Debug)]
pub(crate) struct PendingServerRequest {
    open: Arc<DashMap<(Nonce, Id), Open>>,
    key: (Nonce, Id),
}

impl PendingServerRequests {
    /// Notes a question to the client of a session.
    pub(crate) fn register(
        &self,
        session: Nonce,
        server_request: ServerRequest,
        answer: oneshot::Sender<Answer>,
    ) -> PendingServerRequest {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = (session, Id::of_text(&format!("promptgate-{number}")));
        self.open.insert(key.clone(), Open { server_request, answer });
        PendingServerRequest { open: self.open.clone(), key }
    }

    /// Takes in what a client says to a question; what is no answer to one of its own passes by.
    pub(crate) fn resolve(&self, session: Nonce, id: Id, outcome: Outcome<'_>) {
        let Some((_, Open { server_request, answer })) = self.open.remove(&(session, id)) else {
            return;
        };
        let error = |code, message: &str| Answer::Error { code, message: excerpt(message) };
        let said = match outcome {
            Outcome::Result(result) => match server_request.read_answer(result) {
                Some(result) => Answer::Result(result),
                None => error(-32602, "the client's answer does not fit the question"),
            },
            Outcome::Error { code, message, .. } => {
                error(code, &message.and_then(Json::as_str).unwrap_or_default())
            }
        };
        // Nobody may wait any more.
        let _ = answer.send(said);
    }
}

impl PendingServerRequest {
    /// Whether it was not answered yet.
    pub(crate) fn is_open(&self) -> bool {
        self.open.contains_key(&self.key)
    }

    /// The id under which the client is asked.
    pub(crate) fn id(&self) -> &Id {
        &self.key.1
    }
}

impl Drop for PendingServerRequest {
    fn drop(&mut self) {
        self.open.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a8_only_the_session_that_was_asked_can_answer_and_once() {
        let questions = PendingServerRequests::default();
        let server_request = || ServerRequest::read("roots/list", None).unwrap();
        let (sender, answer) = oneshot::channel();
        let asked = questions.register([1; 16], server_request(), sender);
        let result = Json::parse(br#"{"roots":[]}"#, 4).unwrap();
        let say = |session| {
            questions.resolve(session, asked.id().clone(), Outcome::Result(result));
        };
        say([2; 16]);
        say([1; 16]);
        say([1; 16]);
        assert!(matches!(answer.await, Ok(Answer::Result(_))));
        let (sender, answer) = oneshot::channel();
        drop(questions.register([1; 16], server_request(), sender));
        assert!(answer.await.is_err() && questions.open.is_empty());
    }
}
