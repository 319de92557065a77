//! The stdio transport of one client: one JSON message per line, and nothing else on the output
//! (MCP 2025-11-25, transports).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::admission::Admission;
use super::channel::{ClientChannel, InputEnd, Outgoing, OutgoingMessage, Sender};
use crate::session::Sessions;
use crate::session::connection::{ClientConnection, ConnectionKind};
use config::Server;
use domain::fault::TransportFault;
use domain::text::line_decoder::{DecodedLine, LineDecoder};

/// The streams of the stdio transport: standard input and output, or in-memory streams in tests.
pub struct StdioStreams<R, W> {
    pub input: R,
    pub output: W,
}

/// Bytes of one read: the default capacity of a pipe on Linux.
const READ_BUFFER: usize = 64 << 10;

impl<R, W> StdioStreams<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Serves the client until its input ends or `drain` is cancelled, and the calls in flight are
    /// answered. Returns early when the client no longer reads the output.
    pub async fn serve(
        self,
        server: &Server,
        sessions: Arc<ArcSwap<Sessions>>,
        drain: &CancellationToken,
    ) {
        let caller = sessions.load().gate().stdio_caller();
        let admission = Arc::new(Admission::new(&server.limits));
        let connection =
            ClientConnection::new(sessions, caller, &server.path, ConnectionKind::Stdio);
        let (channel, outgoing) =
            ClientChannel::new(connection, admission, server.limits.reader_patience());
        let abandoned = channel.abandoned();
        let connection = channel.connection().clone();
        let Self { mut input, output } = self;
        let reading = async move {
            let messages = read_messages(&mut input, &channel, server.limits.body_size);
            let end = match drain.run_until_cancelled(messages).await {
                Some(()) => InputEnd::Closed,
                None => InputEnd::Drain,
            };
            channel.finish(end).await;
            // The channel is dropped, which closes its queue: writing ends when the queue is empty.
        };
        let mut writing = pin!(write_messages(output, outgoing));
        tokio::select! {
            () = writing.as_mut() => {}
            () = reading => {
                let _ = timeout(FLUSH_TIMEOUT, writing).await;
                return;
            }
            () = abandoned.cancelled() => {}
        }
        info!("client does not read standard output; ending its calls");
        connection.disconnect();
    }
}

/// Limit for the last responses to be read after the input has ended: short, since the client
/// usually exits at the same time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Processes messages of at most `limit` bytes until the input ends.
async fn read_messages(
    input: &mut (impl AsyncRead + Unpin),
    channel: &ClientChannel,
    limit: usize,
) {
    let mut decoder = LineDecoder::new(limit);
    let mut buffer = vec![0; READ_BUFFER];
    let mut lines = Vec::new();
    // Shells of Windows write a byte order mark before their first line.
    let mut mark = "\u{feff}".as_bytes();
    let mut length = READ_BUFFER;
    while length > 0 {
        length = input.read(&mut buffer).await.unwrap_or(0);
        match length {
            0 => decoder.end_line(&mut lines),
            _ => decoder.feed(&buffer[..length], &mut lines),
        }
        for line in lines.drain(..) {
            let DecodedLine::Whole(bytes) = line else {
                channel.refuse(TransportFault::BodyTooLarge { limit }, None).await;
                continue;
            };
            let message = bytes.strip_prefix(mark).unwrap_or(&bytes);
            mark = &[];
            if message.is_empty() {
                continue;
            }
            // A reload may have changed the caller.
            let caller = channel.connection().sessions().gate().stdio_caller();
            let sender = Sender::new(caller, None);
            if let Some(budget) = channel.budget_for(&sender, message).await {
                channel.receive(&sender, message, budget).await;
            }
        }
    }
    debug!("standard input has ended");
}

/// Writes messages until the queue or the output is closed.
async fn write_messages(mut output: impl AsyncWrite + Unpin, mut outgoing: Outgoing) {
    while let Some(OutgoingMessage { mut text, memory: _memory }) = outgoing.next().await {
        // JSON may have line feeds between its tokens; here a line feed ends the message.
        text.retain(|c| c != '\n' && c != '\r');
        text.push('\n');
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let Ok(written @ 1..) = output.write(left).await else { return };
            left = &left[written..];
            outgoing.progress().note();
        }
        if output.flush().await.is_err() {
            return;
        }
    }
}
