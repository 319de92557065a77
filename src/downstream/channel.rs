//! A connection that lasts (stdio, HTTP+SSE): messages come in one by one, and whatever there is to
//! say goes out one way.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::admission::{Load, Room, StreamPlace};
use super::calls::{Answering, Part, batch, now_secs};
use super::http::respond;
use crate::domain::fault::TransportFault;
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;
use crate::session::connection::Connection;
use crate::session::notify::notifications::Notices;
use crate::session::{Pending, Refusal, Sessions, Slot, Turn};

/// The side of a connection on which messages are taken in.
#[derive(Clone)]
pub struct Line {
    connection: Arc<Connection>,
    out: mpsc::Sender<String>,
    load: Arc<Load>,
    /// Calls under way, each of which ends by itself.
    calls: TaskTracker,
    /// Streams of notices, which end at drain, or with the connection.
    notices: TaskTracker,
    /// Cancelled when nobody hears notices any more.
    hung_up: CancellationToken,
    /// Cancelled when nobody reads any more.
    over: CancellationToken,
    /// How long a client may take no message.
    patience: Duration,
}

/// Messages that wait for the client to read. Calls wait with theirs beyond that, and keep their
/// places.
const OUT: usize = 64;

/// As deep as an id may be looked for in a message that is refused anyway.
const MAX_DEPTH: usize = 64;

impl Line {
    /// A connection, and what goes out on it.
    pub fn new(
        connection: Connection,
        load: Arc<Load>,
        patience: Duration,
    ) -> (Self, mpsc::Receiver<String>) {
        let (out, outgoing) = mpsc::channel(OUT);
        let (calls, notices) = (TaskTracker::new(), TaskTracker::new());
        let (connection, hung_up) = (Arc::new(connection), CancellationToken::new());
        let over = CancellationToken::new();
        (Self { connection, out, load, calls, notices, hung_up, over, patience }, outgoing)
    }

    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Takes in a message, for which there is room. Nothing that can be said about it is an error of
    /// the connection.
    pub async fn take(&self, bytes: &[u8], room: Room) {
        let room = Arc::new(room);
        let sessions = self.connection.sessions();
        match self.connection.read(&sessions, bytes, now_secs()) {
            Ok(Turn::Accepted) => {}
            Ok(Turn::Answer { message, .. }) => self.send(message).await,
            Ok(Turn::Opened { message, notices }) => {
                self.send(message).await;
                if let Some(notices) = notices {
                    self.tell(notices, None);
                }
            }
            Ok(Turn::Listen(notices)) => match self.load.stream(self.connection.caller()) {
                Ok(place) => self.tell(notices, Some(place)),
                Err(fault) => self.refuse(fault, notices.request().cloned()).await,
            },
            Ok(Turn::Pending(pending)) => self.start(sessions, pending, room).await,
            Ok(Turn::Batch(items)) => {
                let line = self.clone();
                self.calls.spawn(async move {
                    let answer = batch(sessions, line.load.clone(), items, room);
                    if let Some(Some(message)) = line.over.run_until_cancelled(answer).await {
                        line.send(message).await;
                    }
                });
            }
            Err(refusal) => self.send(respond::refusal_message(&refusal)).await,
        }
    }

    /// Room for a message of this size; a message without room is refused.
    pub async fn room_for(&self, bytes: &[u8]) -> Option<Room> {
        match self.load.room(bytes.len()) {
            Ok(room) => Some(room),
            Err(fault) => {
                let message = Json::parse(bytes, MAX_DEPTH).ok();
                let id = message.and_then(|message| message.get("id")).and_then(Id::read);
                self.refuse(fault, id).await;
                None
            }
        }
    }

    /// Says that a message could not be taken in.
    pub async fn refuse(&self, fault: TransportFault, id: Option<Id>) {
        let dialect = self.connection.dialect();
        self.connection.sessions().telemetry().metrics().refused(fault.reason(), None);
        let refusal = Refusal { fault: fault.into(), id, dialect };
        self.send(respond::refusal_message(&refusal)).await;
    }

    /// Waits until the calls under way have ended; nothing more comes from the client. At drain the
    /// streams of notices end by themselves, each in its way; otherwise nobody is left to hear them.
    pub async fn finish(&self, is_draining: bool) {
        self.connection.hang_up();
        self.calls.close();
        self.calls.wait().await;
        if !is_draining {
            self.hung_up.cancel();
        }
        self.notices.close();
        self.notices.wait().await;
    }

    /// Ends everything: nobody reads any more.
    pub fn abandon(&self) {
        self.connection.abandon();
        self.over.cancel();
    }

    /// Cancelled when nobody reads any more.
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    async fn start(&self, sessions: Arc<Sessions>, pending: Pending, room: Arc<Room>) {
        let call = match self.load.call() {
            Ok(call) => call,
            Err(fault) => {
                return self.refuse(fault, Some(pending.id)).await;
            }
        };
        // Held until the answer has been taken: a client that does not read is not served more and
        // more.
        let (slot, line) = (Slot { call, room }, self.clone());
        let mut answering = Answering::start(sessions, pending, slot.clone());
        self.calls.spawn(async move {
            let _slot = slot;
            loop {
                let next = line.over.run_until_cancelled(answering.next()).await;
                let (message, is_last) = match next {
                    Some(Part::Said(message)) => (Some(message), false),
                    Some(Part::Answer(answer)) => (answer.into_message(), true),
                    None => return,
                };
                if let Some(message) = message {
                    line.send(message).await;
                }
                if is_last {
                    return;
                }
            }
        });
    }

    /// Sends notices as long as somebody reads.
    fn tell(&self, mut notices: Notices, place: Option<StreamPlace>) {
        let line = self.clone();
        self.notices.spawn(async move {
            let _place = place;
            loop {
                let next = tokio::select! {
                    next = notices.next() => next,
                    () = line.out.closed() => None,
                    () = line.hung_up.cancelled() => None,
                    () = line.over.cancelled() => None,
                };
                let Some(notice) = next else {
                    return;
                };
                line.send(notice.message).await;
            }
        });
    }

    /// Sends a message. A client that takes none for too long is left.
    async fn send(&self, message: String) {
        match self.out.send_timeout(message, self.patience).await {
            Ok(()) | Err(SendTimeoutError::Closed(_)) => {}
            Err(SendTimeoutError::Timeout(_)) => {
                info!(reason = "slow_consumer", "a client does not read what it asked for");
                self.abandon();
            }
        }
    }
}
