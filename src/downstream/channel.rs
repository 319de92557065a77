//! A connection that lasts (stdio, HTTP+SSE): messages come in one by one, and whatever there is to
//! say goes out one way.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::admission::{Admission, BodyBudget, StreamPermit};
use super::batch::batch;
use super::calls::{CallEvent, PendingCall};
use super::clock::now_secs;
use super::error_message::refusal_message;
use crate::domain::fault::TransportFault;
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;
use crate::session::connection::Connection;
use crate::session::notify::notifications::NotificationStream;
use crate::session::{CallPermits, Dispatch, PreparedCall, Refusal, Sessions};

/// The side of a connection on which messages are taken in.
#[derive(Clone)]
pub(crate) struct ClientChannel {
    connection: Arc<Connection>,
    out: mpsc::Sender<String>,
    admission: Arc<Admission>,
    /// Calls under way, each of which ends by itself.
    calls: TaskTracker,
    /// Streams of notices, which end at drain, or with the connection.
    notifications: TaskTracker,
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

impl ClientChannel {
    /// A connection, and what goes out on it.
    pub(crate) fn new(
        connection: Connection,
        admission: Arc<Admission>,
        patience: Duration,
    ) -> (Self, mpsc::Receiver<String>) {
        let (out, outgoing) = mpsc::channel(OUT);
        let (calls, notifications) = (TaskTracker::new(), TaskTracker::new());
        let (connection, hung_up) = (Arc::new(connection), CancellationToken::new());
        let over = CancellationToken::new();
        (
            Self { connection, out, admission, calls, notifications, hung_up, over, patience },
            outgoing,
        )
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Takes in a message, for which there is room. Nothing that can be said about it is an error of
    /// the connection.
    pub(crate) async fn take(&self, bytes: &[u8], budget: BodyBudget) {
        let budget = Arc::new(budget);
        let sessions = self.connection.sessions();
        match self.connection.read(&sessions, bytes, now_secs()) {
            Ok(Dispatch::Accepted) => {}
            Ok(Dispatch::Answer { message, .. }) => self.send(message).await,
            Ok(Dispatch::Opened { message, notifications }) => {
                self.send(message).await;
                if let Some(notifications) = notifications {
                    self.tell(notifications, None);
                }
            }
            Ok(Dispatch::Listen(notifications)) => {
                match self.admission.stream(self.connection.caller()) {
                    Ok(permit) => self.tell(notifications, Some(permit)),
                    Err(fault) => self.refuse(fault, notifications.request().cloned()).await,
                }
            }
            Ok(Dispatch::Call(pending)) => self.start(sessions, pending, budget).await,
            Ok(Dispatch::Batch(items)) => {
                let channel = self.clone();
                self.calls.spawn(async move {
                    let answer = batch(sessions, channel.admission.clone(), items, budget);
                    if let Some(Some(message)) = channel.over.run_until_cancelled(answer).await {
                        channel.send(message).await;
                    }
                });
            }
            Err(refusal) => self.send(refusal_message(&refusal)).await,
        }
    }

    /// Room for a message of this size; a message without room is refused.
    pub(crate) async fn budget_for(&self, bytes: &[u8]) -> Option<BodyBudget> {
        match self.admission.budget(bytes.len()) {
            Ok(budget) => Some(budget),
            Err(fault) => {
                let message = Json::parse(bytes, MAX_DEPTH).ok();
                let id = message.and_then(|message| message.get("id")).and_then(Id::read);
                self.refuse(fault, id).await;
                None
            }
        }
    }

    /// Says that a message could not be taken in.
    pub(crate) async fn refuse(&self, fault: TransportFault, id: Option<Id>) {
        let dialect = self.connection.dialect();
        self.connection.sessions().telemetry().metrics().refused(fault.reason(), None);
        let refusal = Refusal { fault: fault.into(), id, dialect };
        self.send(refusal_message(&refusal)).await;
    }

    /// Waits until the calls under way have ended; nothing more comes from the client. At drain the
    /// streams of notices end by themselves, each in its way; otherwise nobody is left to hear them.
    pub(crate) async fn finish(&self, is_draining: bool) {
        self.connection.close_input();
        self.calls.close();
        self.calls.wait().await;
        if !is_draining {
            self.hung_up.cancel();
        }
        self.notifications.close();
        self.notifications.wait().await;
    }

    /// Ends everything: nobody reads any more.
    pub(crate) fn abandon(&self) {
        self.connection.disconnect();
        self.over.cancel();
    }

    /// Cancelled when nobody reads any more.
    pub(crate) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    async fn start(&self, sessions: Arc<Sessions>, pending: PreparedCall, budget: Arc<BodyBudget>) {
        let call = match self.admission.call() {
            Ok(call) => call,
            Err(fault) => {
                return self.refuse(fault, Some(pending.id)).await;
            }
        };
        // Held until the answer has been taken: a client that does not read is not served more and
        // more.
        let (permits, channel) = (CallPermits { call, budget }, self.clone());
        let mut pending = PendingCall::start(sessions, pending, permits.clone());
        self.calls.spawn(async move {
            let _slot = permits;
            loop {
                let next = channel.over.run_until_cancelled(pending.next()).await;
                let (message, is_last) = match next {
                    Some(CallEvent::Message(message)) => (Some(message), false),
                    Some(CallEvent::Response(answer)) => (answer.into_message(), true),
                    None => return,
                };
                if let Some(message) = message {
                    channel.send(message).await;
                }
                if is_last {
                    return;
                }
            }
        });
    }

    /// Sends notices as long as somebody reads.
    fn tell(&self, mut notifications: NotificationStream, permit: Option<StreamPermit>) {
        let channel = self.clone();
        self.notifications.spawn(async move {
            let _place = permit;
            loop {
                let next = tokio::select! {
                    next = notifications.next() => next,
                    () = channel.out.closed() => None,
                    () = channel.hung_up.cancelled() => None,
                    () = channel.over.cancelled() => None,
                };
                let Some(notice) = next else {
                    return;
                };
                channel.send(notice.message).await;
            }
        });
    }

    /// Sends a message. A client that takes none for too long is left.
    async fn send(&self, message: String) {
        match self.out.send_timeout(message, self.patience).await {
            Ok(()) | Err(SendTimeoutError::Closed(_)) => {}
            Err(SendTimeoutError::Timeout(_)) => {
                info!(
                    reason = "slow_consumer",
                    "client does not read its responses; disconnecting"
                );
                self.abandon();
            }
        }
    }
}
