//! The queue of messages for the standard input of a child process, and its writer.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tracing::info;

use domain::fault::UpstreamFaultKind as Kind;

/// The sending half. The queue of a child that reads its input is empty; for a child that does not,
/// the queue bounds memory, even by messages whose calls have ended.
#[derive(Clone)]
pub(super) struct ChildInput {
    messages: mpsc::Sender<QueuedMessage>,
    room: Arc<Semaphore>,
}

/// The messages that wait to be written.
pub(super) struct QueuedMessages(mpsc::Receiver<QueuedMessage>);

struct QueuedMessage {
    text: String,
    /// `None` for a message of a few bytes.
    _room: Option<OwnedSemaphorePermit>,
}

/// The child is closed, or has no room for the message.
#[derive(Debug)]
pub(super) struct NotQueued;

/// Most messages in the queue.
const MESSAGES: usize = 256;

/// Most bytes of requests in the queue; a single request may be larger.
const BYTES: usize = 8 << 20;

impl ChildInput {
    pub(super) fn channel() -> (Self, QueuedMessages) {
        let (messages, queued) = mpsc::channel(MESSAGES);
        (Self { messages, room: Arc::new(Semaphore::new(BYTES)) }, QueuedMessages(queued))
    }

    /// Queues a message; waits for room.
    ///
    /// # Cancel safety
    /// Cancel safe: a message is queued whole or not at all.
    pub(super) async fn send(&self, text: String) -> Result<(), NotQueued> {
        let room = self.room.clone().acquire_many_owned(size(&text)).await;
        let message = QueuedMessage { text, _room: Some(room.map_err(|_| NotQueued)?) };
        self.messages.send(message).await.map_err(|_| NotQueued)
    }

    /// Queues a message of a few bytes, such as a cancellation, if fewer than [`MESSAGES`] wait.
    pub(super) fn try_send(&self, text: String) -> Result<(), NotQueued> {
        self.messages.try_send(QueuedMessage { text, _room: None }).map_err(|_| NotQueued)
    }
}

/// The room that a message takes.
fn size(text: &str) -> u32 {
    u32::try_from(text.len().min(BYTES)).unwrap_or(u32::MAX)
}

impl QueuedMessages {
    /// Writes messages until the child closes its input, or does not accept a message within
    /// `write_timeout`. Returns the cause.
    pub(super) async fn write(
        &mut self,
        upstream: &str,
        mut stdin: impl AsyncWrite + Unpin,
        write_timeout: Duration,
    ) -> Kind {
        while let Some(QueuedMessage { mut text, _room }) = self.0.recv().await {
            // JSON allows line feeds between tokens; on this transport a line feed ends the
            // message.
            text.retain(|c| c != '\n' && c != '\r');
            text.push('\n');
            match timeout(write_timeout, stdin.write_all(text.as_bytes())).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Kind::ChildExited(Arc::default()),
                Err(_) => {
                    info!(upstream, "the child process does not read its input; ending it");
                    return Kind::Reset("the child process does not read its input".to_owned());
                }
            }
        }
        Kind::ChildExited(Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_that_does_not_read_bounds_its_queue_in_messages_and_in_bytes() {
        let (input, mut queued) = ChildInput::channel();
        let text = |size: usize| "x".repeat(size);
        // One message may be larger than all room.
        let queued_at_once =
            async |text: String| timeout(Duration::ZERO, input.send(text)).await.is_ok();
        assert!(queued_at_once(text(BYTES + 1)).await);
        assert!(!queued_at_once(text(1)).await);
        assert!(input.try_send(text(1)).is_ok(), "a cancellation needs no room");
        drop((queued.0.recv().await, queued.0.recv().await));
        assert!(queued_at_once(text(BYTES - 1)).await && queued_at_once(text(1)).await);
        assert!(!queued_at_once(text(1)).await);
        drop((queued.0.recv().await, queued.0.recv().await));
        let queue = || input.try_send(text(1)).is_ok();
        assert_eq!((0..MESSAGES + 1).filter(|_| queue()).count(), MESSAGES);
        drop(queued);
        assert!(input.send(text(1)).await.is_err(), "the child is closed");
    }
}
