//! Relay: a message that reached the wrong replica is handed to the replica that holds its call or
//! connection, over a channel of the store. One hop, handled at most once, acknowledged by the
//! recipient.

mod message;
mod seen;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use redis::cmd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::store::Push;
use super::{Link, ReplicaId};
use base::platform::{Locked, wall_clock};
use base::seal::{TokenKind, random};
use domain::calls::caller::{Caller, PROBER};
use domain::calls::fair_share::{Holder, Places, Share, SharePlace};
use domain::time::millis::whole_millis;
use message::{Envelope, EnvelopeContent, MessageId, Recipient};
use seen::{LateReplicas, MessageRejection, SeenMessages, VALIDITY};
use shutdown::Supervisor;
use telemetry::Telemetry;

pub use message::{Handling, RelayMessage};

/// The messages on their way to and from this replica.
pub struct Relay {
    link: Arc<Link>,
    /// `cluster.relay_size`: the longest body of a message, in bytes.
    size_max: usize,
    telemetry: Telemetry,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// The messages that wait for acknowledgements.
    waiting: DashMap<MessageId, mpsc::Sender<Acknowledgement>>,
    /// Bounds the waiting messages, with a share for each holder.
    places: Places,
    /// Held while a large message is published. Several at once would delay rate limits at the
    /// store.
    large: Semaphore,
    seen: Mutex<SeenMessages>,
    late: Mutex<LateReplicas>,
}

/// The acknowledgement of a message by one replica.
#[derive(Debug)]
struct Acknowledgement {
    from: ReplicaId,
    handling: Handling,
    /// The answer to a question that was handled.
    answer: Vec<u8>,
}

/// Why a message was not handed over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RelayError {
    /// The message is larger than `cluster.relay_size`.
    TooLarge { limit: usize },
    /// The store or the other replica has not answered in time.
    Unreachable,
    /// The other replica reads another version of the messages.
    OtherVersion,
    /// This replica waits for too many acknowledgements, or the other replica has no room.
    Overloaded,
}

impl RelayError {
    /// Its name, as metrics label it.
    fn outcome(self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::Unreachable => "unreachable",
            Self::OtherVersion => "other_version",
            Self::Overloaded => "overloaded",
        }
    }
}

/// A message of another replica, to be handled and then acknowledged.
pub struct Relayed {
    pub message: RelayMessage,
    pub receipt: Receipt,
}

/// The acknowledgement that is due for a message of another replica.
pub struct Receipt {
    relay: Arc<Relay>,
    from: ReplicaId,
    id: MessageId,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Most messages whose acknowledgements are awaited at once.
const WAITING: usize = 1024;

/// Acknowledgements of one message that wait to be read.
const ACKNOWLEDGEMENTS: usize = 256;

/// Interval in which the relay checks whether replicas that have not answered still live.
const LOOK: Duration = Duration::from_secs(1);

/// A larger message, in bytes, takes its turn to be published.
const LARGE: usize = 64 << 10;

impl Relay {
    pub(super) fn new(
        link: Arc<Link>,
        size_max: usize,
        share: Share,
        telemetry: Telemetry,
        supervisor: &Supervisor,
    ) -> Self {
        Self {
            link,
            size_max,
            telemetry,
            tasks: supervisor.tasks().clone(),
            stop: supervisor.stop().clone(),
            waiting: DashMap::new(),
            places: Places::new(WAITING),
            large: Semaphore::new(1),
            seen: Mutex::new(SeenMessages::new(share)),
            late: Mutex::default(),
        }
    }

    /// The channels on which messages for this replica come.
    pub(super) fn channels(&self) -> [String; 2] {
        self.recipients().map(|recipient| self.link.store.channel(&recipient.channel()))
    }

    fn recipients(&self) -> [Recipient; 2] {
        [Recipient::Replica(self.link.id), Recipient::All]
    }

    /// Hands a message of `holder` to a replica, and waits for its acknowledgement, at most for
    /// `server.limits.request` and a minute.
    ///
    /// # Errors
    /// The message was not delivered, or its delivery was not acknowledged.
    pub async fn deliver(
        &self,
        holder: &Holder,
        to: ReplicaId,
        message: RelayMessage,
    ) -> Result<Handling, RelayError> {
        self.send(holder, Recipient::Replica(to), HashSet::from([to]), message).await
    }

    /// Hands a message to all other replicas, and waits until one has handled it or all that live
    /// have answered.
    ///
    /// # Errors
    /// As [`Relay::deliver`].
    pub async fn send_to_all(
        &self,
        holder: &Holder,
        message: RelayMessage,
    ) -> Result<Handling, RelayError> {
        let replicas = self.link.replicas.load_full();
        let others = replicas.iter().map(|replica| replica.id).filter(|id| *id != self.link.id);
        self.send(holder, Recipient::All, others.collect(), message).await
    }

    /// Sends a message to all other replicas. A failure is only logged: they can do without it.
    pub async fn tell_all(&self, message: RelayMessage) {
        let kind = message.kind();
        let gateway = Holder::Caller(Caller::new(PROBER));
        if let Err(error) = self.send_to_all(&gateway, message).await {
            debug!(?error, kind, "the other replicas were not told");
        }
    }

    /// Sends a message, and waits for the answers of `whom`.
    async fn send(
        &self,
        holder: &Holder,
        to: Recipient,
        whom: HashSet<ReplicaId>,
        message: RelayMessage,
    ) -> Result<Handling, RelayError> {
        if whom.is_empty() {
            return Ok(Handling::NotFound);
        }
        let kind = message.kind();
        let sent = self.send_to_readers(holder, to, whom, message).await;
        let outcome = match sent {
            Ok(Handling::Handled) => "handled",
            Ok(Handling::NotFound) => "not_found",
            Ok(Handling::Overloaded) => RelayError::Overloaded.outcome(),
            Err(error) => error.outcome(),
        };
        self.telemetry.metrics().relayed(kind, outcome);
        match sent {
            Ok(Handling::Overloaded) => Err(RelayError::Overloaded),
            sent => sent,
        }
    }

    /// Sends a message to the replicas of `whom` that can read it. [`RelayError::OtherVersion`]: no
    /// reader holds the call or connection, so a replica that cannot read the message may hold it.
    async fn send_to_readers(
        &self,
        holder: &Holder,
        to: Recipient,
        whom: HashSet<ReplicaId>,
        message: RelayMessage,
    ) -> Result<Handling, RelayError> {
        let replicas = self.link.replicas.load_full();
        let cannot_read = |id: &ReplicaId| {
            let other = replicas.iter().find(|replica| replica.id == *id);
            other.is_some_and(|other| other.presence.relay != TokenKind::Relay.version())
        };
        let (others, readers): (HashSet<_>, HashSet<_>) = whom.into_iter().partition(cannot_read);
        if others.is_empty() {
            return self.send_and_wait(holder, to, readers, message).await;
        }
        match self.send_and_wait(holder, to, readers, message).await {
            Ok(Handling::NotFound) => Err(RelayError::OtherVersion),
            sent => sent,
        }
    }

    async fn send_and_wait(
        &self,
        holder: &Holder,
        to: Recipient,
        mut whom: HashSet<ReplicaId>,
        message: RelayMessage,
    ) -> Result<Handling, RelayError> {
        let limit = self.size_max;
        if message.body_len() > limit {
            return Err(RelayError::TooLarge { limit });
        }
        let bounds = self.link.bounds.load_full();
        let patience = bounds.request.min(VALIDITY);
        let deadline = Instant::now() + patience;
        let (waiting, mut acknowledged) =
            PendingAcknowledgement::register(self, holder, bounds.share)?;
        let envelope = Envelope {
            from: self.link.id,
            id: waiting.id,
            expires: now().saturating_add(whole_millis(patience)),
            content: EnvelopeContent::Message(message),
        };
        let mut publishing = pin!(self.publish(to, envelope, patience));
        let mut is_published = false;
        let mut look = interval_at(Instant::now() + LOOK, LOOK);
        let mut answer = Handling::NotFound;
        while !whom.is_empty() {
            let Acknowledgement { from, handling, .. } = tokio::select! {
                Some(acknowledgement) = acknowledged.recv() => acknowledgement,
                published = &mut publishing, if !is_published => {
                    // No subscriber received the message. A live replica may be reconnecting to the
                    // store.
                    match (published?, self.lives(to)) {
                        (0, true) => return Err(RelayError::Unreachable),
                        (0, false) => return Ok(Handling::NotFound),
                        _ => is_published = true,
                    }
                    continue;
                }
                _ = look.tick() => {
                    whom.retain(|id| self.lives(Recipient::Replica(*id)));
                    continue;
                }
                () = self.stop.cancelled() => return Err(RelayError::Unreachable),
                () = sleep_until(deadline) => return Err(RelayError::Unreachable),
            };
            match handling {
                Handling::Handled => return Ok(Handling::Handled),
                Handling::Overloaded => answer = Handling::Overloaded,
                Handling::NotFound => {}
            }
            whom.remove(&from);
        }
        Ok(answer)
    }

    /// Asks a replica a question, and returns its answer, if it gives one by `until`.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(
        &self,
        to: ReplicaId,
        question: Vec<u8>,
        until: Instant,
    ) -> Result<Vec<u8>, RelayError> {
        let message = RelayMessage::Question { body: question };
        let kind = message.kind();
        let answered = self.ask_within(to, message, until).await;
        let outcome = match answered {
            Ok(_) => "handled",
            Err(error) => error.outcome(),
        };
        self.telemetry.metrics().relayed(kind, outcome);
        answered
    }

    async fn ask_within(
        &self,
        to: ReplicaId,
        message: RelayMessage,
        until: Instant,
    ) -> Result<Vec<u8>, RelayError> {
        let limit = self.size_max;
        if message.body_len() > limit {
            return Err(RelayError::TooLarge { limit });
        }
        let patience = until.saturating_duration_since(Instant::now()).min(VALIDITY);
        let share = self.link.bounds.load().share;
        let asker = Holder::Caller(Caller::new(PROBER));
        let (waiting, mut acknowledged) = PendingAcknowledgement::register(self, &asker, share)?;
        let expires = now().saturating_add(whole_millis(patience));
        let content = EnvelopeContent::Message(message);
        let envelope = Envelope { from: self.link.id, id: waiting.id, expires, content };
        if self.publish(Recipient::Replica(to), envelope, patience).await? == 0 {
            return Err(RelayError::Unreachable);
        }
        tokio::select! {
            Some(acknowledgement) = acknowledged.recv() => match acknowledgement.handling {
                Handling::Handled => Ok(acknowledgement.answer),
                Handling::NotFound => Err(RelayError::OtherVersion),
                Handling::Overloaded => Err(RelayError::Overloaded),
            },
            () = self.stop.cancelled() => Err(RelayError::Unreachable),
            () = sleep_until(until) => Err(RelayError::Unreachable),
        }
    }

    /// Whether a recipient has sent a heartbeat lately.
    fn lives(&self, recipient: Recipient) -> bool {
        match recipient {
            Recipient::Replica(id) => {
                self.link.replicas.load().iter().any(|replica| replica.id == id)
            }
            Recipient::All => true,
        }
    }

    /// Publishes an envelope. Returns how many connections got it.
    async fn publish(
        &self,
        to: Recipient,
        envelope: Envelope,
        patience: Duration,
    ) -> Result<usize, RelayError> {
        let _turn =
            if envelope.content.len() > LARGE { self.large.acquire().await.ok() } else { None };
        let sealed = envelope.seal(&self.link.sealer.load(), to);
        let channel = self.link.store.channel(&to.channel());
        let published = self.link.store.run_within(patience, async |mut connection| {
            cmd("PUBLISH").arg(channel).arg(sealed).query_async::<usize>(&mut connection).await
        });
        published.await.map_err(|_| RelayError::Unreachable)
    }

    /// Takes a message of a channel: an acknowledgement, or a message to be handled, which goes to
    /// `handlers`.
    pub(super) fn receive(self: &Arc<Self>, push: Push, handlers: &mpsc::Sender<Relayed>) {
        let Push { channel, payload, memory } = push;
        let mut recipients = self.recipients().into_iter();
        let is_meant = |recipient: &Recipient| {
            self.link.store.channel(&recipient.channel()).as_bytes() == channel
        };
        let Some(recipient) = recipients.find(is_meant) else {
            return;
        };
        let Some(envelope) = Envelope::open(&self.link.sealer.load(), recipient, &payload) else {
            debug!("a message on a channel of the cluster was not sealed with server.seal_key");
            return;
        };
        drop(payload);
        let Envelope { from, id, expires, content } = envelope;
        if from == self.link.id {
            return;
        }
        let message = match content {
            EnvelopeContent::Acknowledgement(handling) => {
                let answer = Vec::new();
                return self.acknowledged(id, Acknowledgement { from, handling, answer });
            }
            EnvelopeContent::Answer(answer) => {
                let handling = Handling::Handled;
                return self.acknowledged(id, Acknowledgement { from, handling, answer });
            }
            EnvelopeContent::Message(message) => message,
        };
        let admitted = self.admit(&message, id, expires);
        if admitted != Err(MessageRejection::Expired) {
            self.late.locked().note_in_time(from);
        }
        let receipt = Receipt { relay: self.clone(), from, id, _memory: memory };
        let relayed = Relayed { message, receipt };
        let refused = match admitted {
            Ok(()) => match handlers.try_send(relayed) {
                Ok(()) => return,
                Err(refused) => refused.into_inner(),
            },
            Err(MessageRejection::Full) => relayed,
            Err(MessageRejection::Repeated) => return,
            Err(MessageRejection::Expired) => {
                if self.late.locked().note_late(from) {
                    warn!(
                        replica = %from,
                        "a message of another replica has expired, or its clock differs by more than 5 s"
                    );
                } else {
                    debug!(replica = %from, "another message has expired");
                }
                return;
            }
        };
        self.tasks.spawn(refused.receipt.acknowledge(Handling::Overloaded));
    }

    /// Hands an acknowledgement to the sender of the message, which may no longer wait for it.
    fn acknowledged(&self, id: MessageId, acknowledgement: Acknowledgement) {
        if let Some(waiting) = self.waiting.get(&id) {
            let _ = waiting.try_send(acknowledgement);
        }
    }

    /// Changes the share of one caller.
    pub(super) fn resize(&self, share: Share) {
        self.seen.locked().resize(share);
    }

    /// Decides whether a message is handled. Only a post would do harm if handled twice: a second
    /// response or cancellation finds no call.
    fn admit(
        &self,
        message: &RelayMessage,
        id: MessageId,
        expires: u64,
    ) -> Result<(), MessageRejection> {
        let now = now();
        if !seen::is_valid(expires, now) {
            return Err(MessageRejection::Expired);
        }
        match message {
            RelayMessage::Post { caller, address, .. } => {
                self.seen.locked().note(id, &Holder::of(caller, *address), now)
            }
            RelayMessage::Response { .. }
            | RelayMessage::Cancelled { .. }
            | RelayMessage::Question { .. }
            | RelayMessage::Hint { .. }
            | RelayMessage::Rollback { .. } => Ok(()),
        }
    }
}

impl Receipt {
    /// Acknowledges a message to its sender, with its outcome.
    pub async fn acknowledge(self, handling: Handling) {
        self.send(EnvelopeContent::Acknowledgement(handling)).await;
    }

    /// Answers a question.
    pub async fn answer(self, answer: Vec<u8>) {
        self.send(EnvelopeContent::Answer(answer)).await;
    }

    async fn send(self, content: EnvelopeContent) {
        let Self { relay, from, id, .. } = self;
        let expires = now().saturating_add(whole_millis(VALIDITY));
        let envelope = Envelope { from: relay.link.id, id, expires, content };
        // Without the store the sender gives up at its deadline.
        let _ = relay.publish(Recipient::Replica(from), envelope, VALIDITY).await;
    }
}

/// The registration of a message that waits for its acknowledgements. Dropping it removes the
/// registration.
struct PendingAcknowledgement<'a> {
    relay: &'a Relay,
    id: MessageId,
    _place: SharePlace,
}

impl<'a> PendingAcknowledgement<'a> {
    fn register(
        relay: &'a Relay,
        holder: &Holder,
        share: Share,
    ) -> Result<(Self, mpsc::Receiver<Acknowledgement>), RelayError> {
        let place = relay.places.take(holder.clone(), share).ok_or(RelayError::Overloaded)?;
        let (sender, acknowledged) = mpsc::channel(ACKNOWLEDGEMENTS);
        let id = random();
        relay.waiting.insert(id, sender);
        Ok((Self { relay, id, _place: place }, acknowledged))
    }
}

impl Drop for PendingAcknowledgement<'_> {
    fn drop(&mut self) {
        self.relay.waiting.remove(&self.id);
    }
}

/// The wall-clock time, in milliseconds since the Unix epoch.
fn now() -> u64 {
    let since = wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    whole_millis(since.unwrap_or_default())
}
