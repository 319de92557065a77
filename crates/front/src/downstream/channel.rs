//! A long-lived connection to one client (standard streams, HTTP+SSE): it receives messages one by
//! one, and sends all messages to the client in one queue.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::admission::{Admission, BodyBudget, StreamPermit};
use super::batch::batch;
use super::calls::{CallOutput, PendingCall};
use super::clock;
use super::error_message::refusal_message;
use crate::session::connection::ClientConnection;
use crate::session::notify::notifications::NotificationStream;
use crate::session::{CallPermits, Dispatch, MessageRefusal, PreparedCall, Sessions};
use base::platform::Locked;
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;
use domain::calls::subject_token::SubjectToken;
use domain::fault::TransportFault;
use domain::json::Json;
use domain::json::jsonrpc::Id;
use upstream::call::result_memory::MessageMemory;

/// The receiving side of a client's channel. Clones are handles of the same channel.
#[derive(Clone)]
pub(crate) struct ClientChannel {
    connection: Arc<ClientConnection>,
    queue: mpsc::Sender<Queued>,
    /// The bytes that the queue may hold, in KiB.
    room: Arc<Semaphore>,
    /// The batches whose responses may be waited for, or wait to be queued.
    batches: Arc<Semaphore>,
    progress: ReadProgress,
    admission: Arc<Admission>,
    /// The calls in flight; each ends by itself.
    calls: TaskTracker,
    /// The notification streams; they end with the drain or with the channel.
    notifications: TaskTracker,
    /// Cancelled when the client has closed its input: notification streams end.
    input_closed: CancellationToken,
    /// Cancelled when the client no longer reads: the channel ends with all its calls and streams.
    abandoned: CancellationToken,
    /// How long a client may read nothing.
    stall: Duration,
}

/// A message in the queue, with its part of [`QUEUE_KIB`].
type Queued = (OutgoingMessage, OwnedSemaphorePermit);

/// A message to send to the client.
pub(crate) struct OutgoingMessage {
    pub text: String,
    /// Held until the client has taken the response to a call.
    pub memory: Option<Arc<dyn MessageMemory>>,
}

/// The messages to send to the client.
pub(crate) struct Outgoing {
    queue: mpsc::Receiver<Queued>,
    progress: ReadProgress,
}

/// When the client has read something last.
#[derive(Clone)]
pub(crate) struct ReadProgress(Arc<Mutex<Instant>>);

impl Outgoing {
    /// Returns the next message; `None` when the channel is closed. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<OutgoingMessage> {
        let (message, _room) = self.queue.recv().await?;
        self.progress.note();
        Some(message)
    }

    /// The progress of the client, to be noted while a message is written: that may take longer
    /// than the client may read nothing.
    pub(crate) fn progress(&self) -> &ReadProgress {
        &self.progress
    }
}

impl ReadProgress {
    pub(crate) fn begin() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Notes that the client reads.
    pub(crate) fn note(&self) {
        *self.0.locked() = Instant::now();
    }

    pub(crate) fn last(&self) -> Instant {
        *self.0.locked()
    }
}

/// The authenticated caller of a message or request, and its client address.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub caller: Caller,
    /// The token that the caller has brought, where calls may need it.
    pub subject_token: Option<SubjectToken>,
    /// `None` for standard streams.
    pub address: Option<IpAddr>,
}

impl Sender {
    /// Returns a sender without a token.
    pub(crate) fn new(caller: Caller, address: Option<IpAddr>) -> Self {
        Self { caller, subject_token: None, address }
    }

    /// Returns the holder for the shared resources that the sender uses.
    pub(crate) fn holder(&self) -> Holder {
        Holder::of(&self.caller, self.address)
    }
}

/// Why a channel receives no further message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum InputEnd {
    /// The client has closed its input.
    Closed,
    /// The gateway drains.
    Drain,
}

/// Messages that wait for the client to read. When the queue is full, calls wait to add theirs, and
/// keep their permits: so a slow client is bounded by admission control.
const QUEUE: usize = 64;

/// Bytes of the messages in the queue, in KiB. One message may be larger.
const QUEUE_KIB: u32 = 64 << 10;

/// Batches of one client at once; the others wait. Their responses are large, and are written once
/// all items have ended.
const BATCHES: usize = 4;

/// Nesting within which the id of a message is read that is refused before it is processed. Ids are
/// at the top; the rest only has to be skipped.
const MAX_DEPTH: usize = 64;

impl ClientChannel {
    /// Creates the channel of a connection, and the queue of messages to send to the client.
    pub(crate) fn new(
        connection: ClientConnection,
        admission: Arc<Admission>,
        stall: Duration,
    ) -> (Self, Outgoing) {
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let progress = ReadProgress::begin();
        let outgoing = Outgoing { queue: outgoing, progress: progress.clone() };
        let channel = Self {
            connection: Arc::new(connection),
            queue,
            room: Arc::new(Semaphore::new(QUEUE_KIB as usize)),
            batches: Arc::new(Semaphore::new(BATCHES)),
            progress,
            admission,
            calls: TaskTracker::new(),
            notifications: TaskTracker::new(),
            input_closed: CancellationToken::new(),
            abandoned: CancellationToken::new(),
            stall,
        };
        (channel, outgoing)
    }

    /// Returns the connection of this channel.
    pub(crate) fn connection(&self) -> &Arc<ClientConnection> {
        &self.connection
    }

    /// Processes a message from the client, with the rights of its sender. Every failure becomes an
    /// error response; the channel stays open.
    pub(crate) async fn receive(&self, sender: &Sender, bytes: &[u8], budget: BodyBudget) {
        let budget = Arc::new(budget);
        let sessions = self.connection.sessions();
        let Sender { caller, subject_token, address } = sender;
        let token = subject_token.as_ref();
        let now = clock::now();
        let read = self.connection.read(&sessions, caller, token, *address, bytes, now).await;
        if let Ok(Dispatch::Call(_)) = &read
            && let Some(notifications) = sessions.legacy().resume(&self.connection, caller)
        {
            self.forward(notifications, None);
        }
        match read {
            Ok(Dispatch::Accepted) => {}
            Ok(Dispatch::Answer { message, .. }) => self.send(message).await,
            Ok(Dispatch::Opened { message, notifications }) => {
                self.send(message).await;
                if let Some(notifications) = notifications {
                    self.forward(notifications, None);
                }
            }
            Ok(Dispatch::Listen(notifications)) => {
                let request = notifications.request().cloned();
                if let Err(fault) = self.listen(&sessions, sender, notifications).await {
                    self.refuse(fault, request).await;
                }
            }
            Ok(Dispatch::Call(prepared)) => {
                self.start_call(sessions, sender.holder(), prepared, budget).await;
            }
            Ok(Dispatch::Batch(items)) => {
                self.start_batch(sessions, sender.holder(), items, budget);
            }
            Err(refusal) => self.send(refusal_message(&refusal)).await,
        }
    }

    /// Admits and records the notification stream of a subscription, and sends its notifications.
    async fn listen(
        &self,
        sessions: &Sessions,
        sender: &Sender,
        notifications: NotificationStream,
    ) -> Result<(), TransportFault> {
        let permit = self.admission.stream(&sender.holder())?;
        let Sender { caller, address, .. } = sender;
        let endpoint = self.connection.endpoint();
        let record = sessions.gate().stream(caller, *address, endpoint).await?;
        self.forward(notifications.admitted(record, permit.revocation()), Some(permit));
        Ok(())
    }

    /// Reserves memory for a message. Without memory it refuses the message and returns `None`.
    pub(crate) async fn budget_for(&self, sender: &Sender, bytes: &[u8]) -> Option<BodyBudget> {
        match self.admission.budget(&sender.holder(), bytes.len()) {
            Ok(budget) => Some(budget),
            Err(fault) => {
                let message = Json::parse(bytes, MAX_DEPTH).ok();
                let id = message.and_then(|message| message.get("id")).and_then(Id::read);
                self.refuse(fault, id).await;
                None
            }
        }
    }

    /// Sends the error response to a message that was refused, and counts the refusal.
    pub(crate) async fn refuse(&self, fault: TransportFault, id: Option<Id>) {
        let dialect = self.connection.dialect();
        self.connection.sessions().gate().telemetry().metrics().refused(fault.reason(), None);
        let refusal = MessageRefusal { fault: fault.into(), id, dialect };
        self.send(refusal_message(&refusal)).await;
    }

    /// Waits until the calls in flight and the notification streams have ended. No further message
    /// is received. In a drain, notification streams end by themselves, as each revision requires;
    /// otherwise they are ended here.
    pub(crate) async fn finish(&self, end: InputEnd) {
        self.connection.close_input();
        self.calls.close();
        self.calls.wait().await;
        if end == InputEnd::Closed {
            self.input_closed.cancel();
        }
        self.notifications.close();
        self.notifications.wait().await;
    }

    /// Ends all calls and notification streams: the client no longer reads.
    fn abandon(&self) {
        self.connection.disconnect();
        self.abandoned.cancel();
    }

    /// Returns a token that ends the notification streams.
    pub(crate) fn input_closed(&self) -> CancellationToken {
        self.input_closed.clone()
    }

    /// Returns a token that is cancelled when the client no longer reads.
    pub(crate) fn abandoned(&self) -> CancellationToken {
        self.abandoned.clone()
    }

    async fn start_call(
        &self,
        sessions: Arc<Sessions>,
        holder: Holder,
        prepared: PreparedCall,
        budget: Arc<BodyBudget>,
    ) {
        let call = match self.admission.call(&holder) {
            Ok(call) => call,
            Err(fault) => {
                return self.refuse(fault, Some(prepared.id)).await;
            }
        };
        let permits = CallPermits { call, budget };
        let channel = self.clone();
        let mut call = PendingCall::new(sessions, prepared, permits.clone()).in_task();
        self.calls.spawn(async move {
            // Held until the response is in the queue: a client that does not read gets no further
            // calls admitted.
            let _permits = permits;
            while let Some(event) = channel.abandoned.run_until_cancelled(call.next()).await {
                match event {
                    CallOutput::Message(message) => channel.send(message).await,
                    CallOutput::Response(response) => {
                        if let Some(text) = call.text_of(response) {
                            let memory = Some(call.memory());
                            channel.queue(OutgoingMessage { text, memory }).await;
                        }
                        return;
                    }
                }
            }
        });
    }

    fn start_batch(
        &self,
        sessions: Arc<Sessions>,
        holder: Holder,
        items: Vec<Result<Dispatch, MessageRefusal>>,
        budget: Arc<BodyBudget>,
    ) {
        let channel = self.clone();
        self.calls.spawn(async move {
            let admission = channel.admission.clone();
            let batches = channel.batches.clone();
            let answering = async {
                // Held until the response is in the queue.
                let _turn = batches.acquire().await;
                let memory: Option<Arc<dyn MessageMemory>> = Some(budget.clone());
                let text = batch(sessions, admission, holder, items, budget).await;
                if let Some(text) = text {
                    channel.queue(OutgoingMessage { text, memory }).await;
                }
            };
            channel.abandoned.run_until_cancelled(answering).await;
        });
    }

    /// Sends the notifications of a stream until the stream or the channel ends.
    fn forward(&self, mut notifications: NotificationStream, permit: Option<StreamPermit>) {
        let channel = self.clone();
        self.notifications.spawn(async move {
            loop {
                let next = tokio::select! {
                    next = notifications.next() => next,
                    () = channel.queue.closed() => None,
                    () = channel.input_closed.cancelled() => None,
                    () = channel.abandoned.cancelled() => None,
                };
                let Some(notification) = next else {
                    return;
                };
                channel.send(notification.message).await;
                if let Some(permit) = &permit {
                    permit.sent();
                }
            }
        });
    }

    async fn send(&self, text: String) {
        self.queue(OutgoingMessage { text, memory: None }).await;
    }

    /// Adds a message to the queue. A client that reads nothing for too long is disconnected.
    async fn queue(&self, message: OutgoingMessage) {
        let size = u32::try_from(message.text.len().div_ceil(1024)).unwrap_or(QUEUE_KIB);
        let mut adding = pin!(async {
            let place = self.queue.reserve().await.ok()?;
            let room = self.room.clone().acquire_many_owned(size.min(QUEUE_KIB)).await.ok()?;
            place.send((message, room));
            Some(())
        });
        let begun = Instant::now();
        let read_last = || begun.max(self.progress.last());
        // Other messages may be queued before this one: the time since the client last read counts.
        while timeout_at(read_last() + self.stall, adding.as_mut()).await.is_err() {
            if read_last() + self.stall <= Instant::now() {
                info!(
                    reason = "slow_consumer",
                    "client does not read its responses; disconnecting"
                );
                return self.abandon();
            }
        }
    }
}
