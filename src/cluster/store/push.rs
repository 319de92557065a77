//! Messages of the channels that this replica subscribes to.

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

/// Messages that wait to be handled. More are dropped: their senders get no acknowledgement.
const QUEUE: usize = 256;

/// A message of a channel.
#[derive(Debug)]
pub(crate) struct Push {
    pub channel: Vec<u8>,
    pub payload: Vec<u8>,
}

/// The sending end, for each connection in turn.
#[derive(Clone)]
pub(super) struct PushSender(mpsc::Sender<Push>);

/// Returns both ends of the queue of messages.
pub(super) fn queue() -> (PushSender, mpsc::Receiver<Push>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (PushSender(sender), receiver)
}

/// A message that found no room. The connection lives on.
#[derive(Debug)]
pub(super) struct Dropped;

impl PushSender {
    /// Takes a push of the server; all others than messages are dropped.
    pub(super) fn send(&self, push: PushInfo) -> Result<(), Dropped> {
        if push.kind != PushKind::Message {
            return Ok(());
        }
        let Ok([Value::BulkString(channel), Value::BulkString(payload)]) =
            <[Value; 2]>::try_from(push.data)
        else {
            return Ok(());
        };
        self.0.try_send(Push { channel, payload }).map_err(|_| Dropped)
    }
}
