//! Messages of the channels that this replica subscribes to.

use std::sync::Arc;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Messages that wait to be taken. Beyond that they are dropped: senders get no acknowledgement.
const QUEUE: usize = 1024;

/// Memory for messages until they are handled, in KiB, in addition to one of the largest size.
const MEMORY: usize = 64 << 10;

/// Messages up to this size, in bytes, are bounded by [`QUEUE`] alone.
const SMALL: usize = 1024;

/// A message of a channel.
#[derive(Debug)]
pub(crate) struct Push {
    pub channel: Vec<u8>,
    pub payload: Vec<u8>,
    /// Held until the message is handled; `None` for a small one.
    pub memory: Option<OwnedSemaphorePermit>,
}

/// The sending end, for each connection in turn.
#[derive(Clone)]
pub(super) struct PushSender {
    queue: mpsc::Sender<Push>,
    memory: Arc<Semaphore>,
}

/// Returns both ends of the queue of messages of at most `largest` bytes.
pub(super) fn queue(largest: usize) -> (PushSender, mpsc::Receiver<Push>) {
    let (queue, receiver) = mpsc::channel(QUEUE);
    // Sealed and encoded, a message has a third more bytes.
    let memory = Arc::new(Semaphore::new(MEMORY + (largest * 2).div_ceil(1024)));
    (PushSender { queue, memory }, receiver)
}

/// The error for a message that found no room. The connection stays open.
#[derive(Debug)]
pub(super) struct Dropped;

impl PushSender {
    /// Takes a push of the server; pushes that are no messages are dropped.
    pub(super) fn send(&self, push: PushInfo) -> Result<(), Dropped> {
        if push.kind != PushKind::Message {
            return Ok(());
        }
        let Ok([Value::BulkString(channel), Value::BulkString(payload)]) =
            <[Value; 2]>::try_from(push.data)
        else {
            return Ok(());
        };
        let size = u32::try_from(payload.len().div_ceil(1024)).map_err(|_| Dropped)?;
        // Small messages are acknowledgements, which must not wait for other messages.
        let memory = if payload.len() <= SMALL {
            None
        } else {
            Some(self.memory.clone().try_acquire_many_owned(size).map_err(|_| Dropped)?)
        };
        self.queue.try_send(Push { channel, payload, memory }).map_err(|_| Dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_by_their_memory() {
        let (sender, mut receiver) = queue(1 << 20);
        let push = |kind, size| {
            let [channel, payload] = [1, size].map(|size| Value::BulkString(vec![0; size]));
            PushInfo { kind, data: vec![channel, payload] }
        };
        let size = 1 << 20;
        let taken = (0..200).filter(|_| sender.send(push(PushKind::Message, size)).is_ok());
        assert_eq!(taken.count(), 66, "64 MiB, and twice the largest");
        assert!(sender.send(push(PushKind::Subscribe, size)).is_ok());
        assert!(sender.send(push(PushKind::Message, SMALL)).is_ok());
        drop(receiver.try_recv());
        assert!(sender.send(push(PushKind::Message, size)).is_ok());
        assert!(sender.send(push(PushKind::Message, size)).is_err());
    }
}
