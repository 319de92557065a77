//! A connection that lasts (stdio, HTTP+SSE): messages come in one by one, and whatever there is to
//! say goes out one way.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answering::{Answering, Part, batch, now_secs};
use super::load::Load;
use super::respond;
use crate::domain::fault::TransportFault;
use crate::session::connection::Connection;
use crate::session::notices::Notices;
use crate::session::{Pending, Refusal, Slot, Turn};

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
    over: CancellationToken,
}

/// Messages that wait for the client to read. Calls wait with theirs beyond that, and keep their
/// places, so that a client that does not read is not served more and more.
const OUT: usize = 64;

impl Line {
    /// A connection, and what goes out on it.
    pub fn new(connection: Connection, load: Arc<Load>) -> (Self, mpsc::Receiver<String>) {
        let (out, outgoing) = mpsc::channel(OUT);
        let (calls, notices) = (TaskTracker::new(), TaskTracker::new());
        let (connection, over) = (Arc::new(connection), CancellationToken::new());
        (Self { connection, out, load, calls, notices, over }, outgoing)
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes in a message. Nothing that can be said about it is an error of the connection.
    pub async fn take(&self, bytes: &[u8]) {
        let room = match self.load.room(bytes.len()) {
            Ok(room) => Arc::new(room),
            Err(fault) => return self.refuse(fault).await,
        };
        match self.connection.read(bytes, now_secs()) {
            Ok(Turn::Accepted) => {}
            Ok(Turn::Answer { message, .. }) => self.send(message).await,
            Ok(Turn::Opened { message, notices }) => {
                self.send(message).await;
                if let Some(notices) = notices {
                    self.tell(notices, None);
                }
            }
            Ok(Turn::Listen(notices)) => match self.load.stream() {
                Ok(place) => self.tell(notices, Some(place)),
                Err(fault) => self.refuse(fault).await,
            },
            Ok(Turn::Pending(pending)) => self.start(pending, room).await,
            Ok(Turn::Batch(items)) => {
                let answer = batch(self.connection.sessions(), &self.load, items, &room);
                let out = self.out.clone();
                self.calls.spawn(async move {
                    if let Some(message) = answer.await {
                        let _ = out.send(message).await;
                    }
                });
            }
            Err(refusal) => self.send(respond::refusal_message(&refusal)).await,
        }
    }

    /// Says that a message could not be taken in.
    pub async fn refuse(&self, fault: TransportFault) {
        let refusal = Refusal { fault: fault.into(), id: None, dialect: self.connection.dialect() };
        self.send(respond::refusal_message(&refusal)).await;
    }

    /// Waits until the calls under way have ended. At drain the streams of notices end by themselves,
    /// each in its way; otherwise nobody is left to hear them.
    pub async fn finish(&self, is_draining: bool) {
        self.calls.close();
        self.calls.wait().await;
        if !is_draining {
            self.over.cancel();
        }
        self.notices.close();
        self.notices.wait().await;
    }

    async fn start(&self, pending: Pending, bytes: Arc<OwnedSemaphorePermit>) {
        let call = match self.load.call() {
            Ok(call) => call,
            Err(fault) => {
                let (id, dialect) = (Some(pending.id), pending.dialect);
                let refusal = Refusal { fault: fault.into(), id, dialect };
                return self.send(respond::refusal_message(&refusal)).await;
            }
        };
        let sessions = self.connection.sessions().clone();
        let mut answering = Answering::start(sessions, pending, Slot { call, bytes });
        let out = self.out.clone();
        self.calls.spawn(async move {
            loop {
                let (message, is_last) = match answering.next().await {
                    Part::Said(message) => (Some(message), false),
                    Part::Answer(answer) => (answer.into_message(), true),
                };
                if let Some(message) = message {
                    // Nobody may read any more.
                    let _ = out.send(message).await;
                }
                if is_last {
                    return;
                }
            }
        });
    }

    /// Sends notices as long as somebody reads.
    fn tell(&self, mut notices: Notices, place: Option<OwnedSemaphorePermit>) {
        let (out, over) = (self.out.clone(), self.over.clone());
        self.notices.spawn(async move {
            let _place = place;
            loop {
                let notice = tokio::select! {
                    notice = notices.next() => notice,
                    () = out.closed() => return,
                    () = over.cancelled() => return,
                };
                let Some(notice) = notice else {
                    return;
                };
                let _ = out.send(notice.message).await;
            }
        });
    }

    async fn send(&self, message: String) {
        let _ = self.out.send(message).await;
    }
}
