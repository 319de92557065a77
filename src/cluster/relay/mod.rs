//! Relay: a message that reached the wrong replica is handed to the one that holds its call or connection, over a
//! channel of the store. One hop, handled at most once, acknowledged by the recipient.

mod message;
mod seen;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use redis::cmd;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::store::Push;
use super::{Cluster, Delivery, ReplicaId};
use crate::domain::fair_share::{FairShare, Holder, Share};
use crate::seal::random;
use message::{Content, Envelope, MessageId, Recipient};
use seen::{Rejected, SeenMessages};

pub(crate) use message::{Handling, Message};

/// The messages on their way to and from this replica.
pub(super) struct Relay {
    /// The messages of which the acknowledgement is awaited.
    waiting: DashMap<MessageId, mpsc::Sender<Handling>>,
    /// The same, by the callers whose messages they are.
    shares: Mutex<FairShare<Holder>>,
    seen: Mutex<SeenMessages>,
}

/// Why a message was not handed over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RelayError {
    /// It is larger than `cluster.relay_size`.
    TooLarge { limit: usize },
    /// The store or the other replica has not answered in time.
    Unreachable,
    /// This replica waits for too many acknowledgements, or the other one has no room.
    Overloaded,
}

/// A message of another replica, to be handled and then acknowledged.
pub(crate) struct Relayed {
    pub message: Message,
    cluster: Arc<Cluster>,
    from: ReplicaId,
    id: MessageId,
}

/// Most messages whose acknowledgements are awaited at once.
const WAITING: usize = 1024;

/// Acknowledgements of one message that wait to be read: one of each replica.
const ACKNOWLEDGEMENTS: usize = 64;

impl Cluster {
    /// The channels on which messages for this replica come.
    pub(super) fn channels(&self) -> [String; 2] {
        self.recipients().map(|recipient| self.store.key(&recipient.channel()))
    }

    fn recipients(&self) -> [Recipient; 2] {
        [Recipient::Replica(self.id), Recipient::All]
    }

    /// Hands a message to a replica, and waits for its acknowledgement, at most for `server.limits.request`.
    ///
    /// # Errors
    /// The message was not handed over, or nobody knows whether it was.
    pub(crate) async fn hand_over(
        &self,
        holder: &Holder,
        to: ReplicaId,
        message: Message,
    ) -> Result<Handling, RelayError> {
        self.send(holder, Recipient::Replica(to), message).await
    }

    /// Hands a message to all other replicas, and waits until one has handled it or all have answered.
    ///
    /// # Errors
    /// As [`Cluster::hand_over`].
    pub(crate) async fn ask_all(
        &self,
        holder: &Holder,
        message: Message,
    ) -> Result<Handling, RelayError> {
        self.send(holder, Recipient::All, message).await
    }

    async fn send(
        &self,
        holder: &Holder,
        to: Recipient,
        message: Message,
    ) -> Result<Handling, RelayError> {
        let kind = message.kind();
        let sent = self.send_and_wait(holder, to, message).await;
        let outcome = match sent {
            Ok(Handling::Handled) => "handled",
            Ok(Handling::NotFound) => "not_found",
            Ok(Handling::Overloaded) | Err(RelayError::Overloaded) => "overloaded",
            Err(RelayError::TooLarge { .. }) => "too_large",
            Err(RelayError::Unreachable) => "unreachable",
        };
        self.telemetry.metrics().relayed(kind, outcome);
        match sent {
            Ok(Handling::Overloaded) => Err(RelayError::Overloaded),
            sent => sent,
        }
    }

    async fn send_and_wait(
        &self,
        holder: &Holder,
        to: Recipient,
        message: Message,
    ) -> Result<Handling, RelayError> {
        let limit = self.config.relay_size;
        if message.body_len() > limit {
            return Err(RelayError::TooLarge { limit });
        }
        let patience = self.bounds.load().request;
        let deadline = Instant::now() + patience;
        let (waiting, mut acknowledged) = Waiting::register(&self.relay, holder)?;
        let envelope = Envelope {
            from: self.id,
            id: waiting.id,
            expires: now().saturating_add(millis(patience)),
            content: Content::Message(message),
        };
        let receivers = self.publish(to, envelope).await.ok_or(RelayError::Unreachable)?;
        // This replica hears itself.
        let others = receivers.saturating_sub(usize::from(to == Recipient::All));
        let nobody = match to {
            Recipient::All => true,
            // One that lives may be connecting again.
            Recipient::Replica(id) => !self.replicas.load().iter().any(|replica| replica.id == id),
        };
        if others == 0 && nobody {
            return Ok(Handling::NotFound);
        }
        let mut last = Err(RelayError::Unreachable);
        for _ in 0..others {
            match timeout_at(deadline, acknowledged.recv()).await {
                Ok(Some(Handling::Handled)) => return Ok(Handling::Handled),
                Ok(Some(handling)) => last = Ok(handling),
                Ok(None) | Err(_) => return Err(RelayError::Unreachable),
            }
        }
        last
    }

    /// Publishes an envelope. Returns how many connections got it; `None` if the store is not available.
    async fn publish(&self, to: Recipient, envelope: Envelope) -> Option<usize> {
        let sealed = envelope.seal(&self.sealer.load(), to);
        let channel = self.store.key(&to.channel());
        let published = self.store.run(async |mut connection| {
            cmd("PUBLISH").arg(channel).arg(sealed).query_async::<usize>(&mut connection).await
        });
        published.await.ok()
    }

    /// Takes a message of a channel: an acknowledgement, or a message to be delivered.
    pub(super) fn receive(self: &Arc<Self>, push: &Push, deliveries: &mpsc::Sender<Delivery>) {
        let mut recipients = self.recipients().into_iter();
        let meant =
            |recipient: &Recipient| self.store.key(&recipient.channel()).as_bytes() == push.channel;
        let Some(recipient) = recipients.find(meant) else {
            return;
        };
        let opened = Envelope::open(&self.sealer.load(), recipient, &push.payload);
        let Some(Envelope { from, id, expires, content }) = opened else {
            debug!("a message on a channel of the cluster was not sealed with server.seal_key");
            return;
        };
        if from == self.id {
            return;
        }
        let message = match content {
            Content::Acknowledgement(handling) => {
                if let Some(waiting) = self.relay.waiting.get(&id) {
                    // The sender may have its answer already.
                    let _ = waiting.try_send(handling);
                }
                return;
            }
            Content::Message(message) => message,
        };
        let relayed = Relayed { message, cluster: self.clone(), from, id };
        let longest = self.bounds.load().request;
        let noted = {
            let mut seen = self.relay.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.note(id, expires, longest, now())
        };
        let refused = match noted {
            Ok(()) => deliveries.try_send(Delivery::Relayed(relayed)).err().map(|refused| {
                match refused.into_inner() {
                    Delivery::Relayed(relayed) => Some(relayed),
                    Delivery::Terminated { .. } => None,
                }
            }),
            Err(Rejected::Full) => Some(Some(relayed)),
            Err(rejected) => {
                debug!(?rejected, replica = %from, "a message of another replica was not handled");
                None
            }
        };
        if let Some(Some(relayed)) = refused {
            self.tasks.spawn(relayed.acknowledge(Handling::Overloaded));
        }
    }
}

impl Relay {
    pub(super) fn new(share: Share) -> Self {
        let shares = Mutex::new(FairShare::new(WAITING, share.of(WAITING)));
        Self { waiting: DashMap::new(), shares, seen: Mutex::default() }
    }

    /// Changes the share of one caller.
    pub(super) fn resize(&self, share: Share) {
        self.shares().resize(WAITING, share.of(WAITING));
    }

    fn shares(&self) -> MutexGuard<'_, FairShare<Holder>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relayed {
    /// Tells the sender what became of the message.
    pub(crate) async fn acknowledge(self, handling: Handling) {
        let Self { cluster, from, id, .. } = self;
        let expires = now().saturating_add(millis(cluster.bounds.load().request));
        let content = Content::Acknowledgement(handling);
        let envelope = Envelope { from: cluster.id, id, expires, content };
        // Without the store the sender gives up at its deadline.
        let _ = cluster.publish(Recipient::Replica(from), envelope).await;
    }
}

/// The registration of a message that waits for its acknowledgements. Dropping it removes the registration.
struct Waiting<'a> {
    relay: &'a Relay,
    holder: &'a Holder,
    id: MessageId,
}

impl<'a> Waiting<'a> {
    fn register(
        relay: &'a Relay,
        holder: &'a Holder,
    ) -> Result<(Self, mpsc::Receiver<Handling>), RelayError> {
        relay.shares().take(holder, 1).map_err(|_| RelayError::Overloaded)?;
        let (sender, acknowledged) = mpsc::channel(ACKNOWLEDGEMENTS);
        let id = random();
        relay.waiting.insert(id, sender);
        Ok((Self { relay, holder, id }, acknowledged))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.relay.waiting.remove(&self.id);
        self.relay.shares().put_back(self.holder, 1);
    }
}

/// The wall-clock time, in milliseconds since the Unix epoch.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    millis(since.unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
