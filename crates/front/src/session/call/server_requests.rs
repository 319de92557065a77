//! Pending server requests: sent to a client, without a response so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use tokio::sync::oneshot;

use crate::session::token::Nonce;
use base::seal::hex::hex;
use base::seal::random;
use cluster::ReplicaId;
use domain::fault::excerpt;
use domain::json::Json;
use domain::json::jsonrpc::{Id, ResponseOutcome};
use domain::protocol::server_request::{Answer, ServerRequest};

/// The pending server requests by session and id. Each call in flight adds at most
/// as many entries as it may send server requests.
#[derive(Clone, Debug)]
pub(crate) struct PendingServerRequests {
    open: Arc<DashMap<(Nonce, Id), OpenServerRequest>>,
    next: Arc<AtomicU64>,
    /// Part of the ids that only this process uses: the replica id, or a random name of another
    /// length. A session outlives the process. An answer to a server request of an earlier process
    /// must not be taken for an answer to a later request.
    process: Arc<str>,
}

/// The beginning of the ids of server requests.
const PREFIX: &str = "promptgate-";

/// Random bytes in the name of a process that is no replica.
const PROCESS_BYTES: usize = 6;

#[derive(Debug)]
struct OpenServerRequest {
    server_request: ServerRequest,
    answer: oneshot::Sender<Answer>,
}

/// The registration of one server request. Dropping it withdraws the request: a later response is
/// ignored.
#[derive(Debug)]
pub(crate) struct PendingServerRequest {
    open: Arc<DashMap<(Nonce, Id), OpenServerRequest>>,
    key: (Nonce, Id),
}

impl PendingServerRequests {
    /// Returns the server requests of a gateway that stands alone.
    pub(crate) fn new() -> Self {
        Self::of_process(hex(&random::<PROCESS_BYTES>()))
    }

    /// Returns the server requests of one of several replicas.
    pub(crate) fn of_replica(replica: ReplicaId) -> Self {
        Self::of_process(replica.to_string())
    }

    fn of_process(name: String) -> Self {
        Self { open: Arc::default(), next: Arc::default(), process: name.into() }
    }

    /// Returns the replica that sent a server request, by its id.
    pub(crate) fn sender_of(id: &Id) -> Option<ReplicaId> {
        let name = id.text().strip_prefix('"')?.strip_prefix(PREFIX)?;
        let (replica, number) = name.split_at_checked(ReplicaId::LEN)?;
        number.starts_with('-').then(|| ReplicaId::parse(replica))?
    }

    /// Registers a server request to the client of a session under a new id. The client's answer is
    /// sent to `answer`.
    pub(crate) fn register(
        &self,
        session: Nonce,
        server_request: ServerRequest,
        answer: oneshot::Sender<Answer>,
    ) -> PendingServerRequest {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = (session, Id::of_text(&format!("{PREFIX}{}-{number}", self.process)));
        self.open.insert(key.clone(), OpenServerRequest { server_request, answer });
        PendingServerRequest { open: self.open.clone(), key }
    }

    /// Resolves a server request with the client's response. Returns whether there is one: a
    /// response that belongs to no server request of the session is ignored.
    pub(crate) fn resolve(&self, session: Nonce, id: Id, outcome: ResponseOutcome<'_>) -> bool {
        let Some((_, OpenServerRequest { server_request, answer })) =
            self.open.remove(&(session, id))
        else {
            return false;
        };
        let error = |code, message: &str| Answer::Error { code, message: excerpt(message) };
        let response = match outcome {
            ResponseOutcome::Result(result) => match server_request.read_answer(result) {
                Some(result) => Answer::Result(result),
                None => error(-32602, "the client's response does not match the server request"),
            },
            ResponseOutcome::Error { code, message, .. } => {
                error(code, &message.and_then(Json::as_str).unwrap_or_default())
            }
        };
        // The call may have ended meanwhile.
        let _ = answer.send(response);
        true
    }
}

impl PendingServerRequest {
    /// Returns whether the server request still waits for a response.
    pub(crate) fn is_open(&self) -> bool {
        self.open.contains_key(&self.key)
    }

    /// Returns whether the server request is open although its call no longer receives the answer.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.open.get(&self.key).is_some_and(|open| open.answer.is_closed())
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
        let pending = PendingServerRequests::new();
        let server_request = || ServerRequest::read("roots/list", None).unwrap();
        let (sender, answer) = oneshot::channel();
        let registered = pending.register(Nonce::from_bytes([1; 16]), server_request(), sender);
        let result = Json::parse(br#"{"roots":[]}"#, 4).unwrap();
        let respond = |session| {
            pending.resolve(session, registered.id().clone(), ResponseOutcome::Result(result))
        };
        let [own, other] = [1, 2].map(|n| Nonce::from_bytes([n; 16]));
        assert_eq!([respond(other), respond(own), respond(own)], [false, true, false]);
        assert!(matches!(answer.await, Ok(Answer::Result(_))));
        let (sender, answer) = oneshot::channel();
        drop(pending.register(Nonce::from_bytes([1; 16]), server_request(), sender));
        assert!(answer.await.is_err() && pending.open.is_empty());
    }

    #[tokio::test]
    async fn the_id_of_a_server_request_names_the_replica_that_sent_it() {
        let replica = ReplicaId::parse("00112233445566ff").unwrap();
        let register = |pending: &PendingServerRequests| {
            let server_request = ServerRequest::read("roots/list", None).unwrap();
            let (sender, _) = oneshot::channel();
            pending.register(Nonce::from_bytes([1; 16]), server_request, sender).id().clone()
        };
        let of_replica = register(&PendingServerRequests::of_replica(replica));
        assert_eq!(of_replica.text(), "\"promptgate-00112233445566ff-0\"");
        assert_eq!(PendingServerRequests::sender_of(&of_replica), Some(replica));
        let [alone, restarted] = [(); 2].map(|()| register(&PendingServerRequests::new()));
        assert_ne!(alone, restarted, "an answer to the first is none to the other");
        let others = [Id::of_text("promptgate-0000000000000000"), Id::number(1), alone];
        for id in others {
            assert_eq!(PendingServerRequests::sender_of(&id), None);
        }
    }
}
