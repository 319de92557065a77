//! Pending server requests: sent to a client, without a response so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::oneshot;

use crate::domain::fault::excerpt;
use crate::domain::json::Json;
use crate::domain::jsonrpc::{Id, Outcome};
use crate::domain::server_request::{Answer, ServerRequest};
use crate::session::token::Nonce;

/// The pending server requests by session and id. Each call in flight adds at most `question_rounds`
/// entries.
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

/// The registration of one server request. Dropping it withdraws the request: a later response is
/// ignored.
#[derive(Debug)]
pub(crate) struct PendingServerRequest {
    open: Arc<DashMap<(Nonce, Id), Open>>,
    key: (Nonce, Id),
}

impl PendingServerRequests {
    /// Registers a server request to the client of a session under a new id. The client's answer is sent
    /// to `answer`.
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

    /// Resolves a server request with the client's response. A response that belongs to no server request
    /// of the session is ignored.
    pub(crate) fn resolve(&self, session: Nonce, id: Id, outcome: Outcome<'_>) {
        let Some((_, Open { server_request, answer })) = self.open.remove(&(session, id)) else {
            return;
        };
        let error = |code, message: &str| Answer::Error { code, message: excerpt(message) };
        let response = match outcome {
            Outcome::Result(result) => match server_request.read_answer(result) {
                Some(result) => Answer::Result(result),
                None => error(-32602, "the client's response does not match the server request"),
            },
            Outcome::Error { code, message, .. } => {
                error(code, &message.and_then(Json::as_str).unwrap_or_default())
            }
        };
        // The call may have ended meanwhile.
        let _ = answer.send(response);
    }
}

impl PendingServerRequest {
    /// Returns whether the server request still waits for a response.
    pub(crate) fn is_open(&self) -> bool {
        self.open.contains_key(&self.key)
    }

    /// Returns the JSON-RPC id of the server request.
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
    async fn a8_only_the_session_of_a_server_request_can_answer_it_and_only_once() {
        let pending = PendingServerRequests::default();
        let server_request = || ServerRequest::read("roots/list", None).unwrap();
        let (sender, answer) = oneshot::channel();
        let registered = pending.register(Nonce::from_bytes([1; 16]), server_request(), sender);
        let result = Json::parse(br#"{"roots":[]}"#, 4).unwrap();
        let respond = |session| {
            pending.resolve(session, registered.id().clone(), Outcome::Result(result));
        };
        respond(Nonce::from_bytes([2; 16]));
        respond(Nonce::from_bytes([1; 16]));
        respond(Nonce::from_bytes([1; 16]));
        assert!(matches!(answer.await, Ok(Answer::Result(_))));
        let (sender, answer) = oneshot::channel();
        drop(pending.register(Nonce::from_bytes([1; 16]), server_request(), sender));
        assert!(answer.await.is_err() && pending.open.is_empty());
    }
}
