//! Standard streams towards one client: one JSON message per line, nothing else on the output.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::admission::Admission;
use super::channel::ClientChannel;
use crate::config::Server;
use crate::domain::fault::TransportFault;
use crate::domain::line_decoder;
use crate::domain::line_decoder::Decoder;
use crate::session::Sessions;
use crate::session::connection::{Connection, ConnectionKind};

/// The gateway's standard streams, or what stands for them.
pub struct Streams<R, W> {
    pub input: R,
    pub output: W,
}

/// What is read at once: as much as a pipe holds.
const READ_BUFFER: usize = 64 << 10;

impl<R, W> Streams<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Serves until the input ends or `drain` is cancelled, and what is under way is answered; or
    /// until nobody reads the output any more.
    pub async fn serve(
        self,
        server: &Server,
        sessions: Arc<ArcSwap<Sessions>>,
        drain: &CancellationToken,
    ) {
        let caller = sessions.load().stdio_caller();
        let admission = Arc::new(Admission::new(&server.limits));
        let connection =
            Connection::new(sessions, caller, &server.path, None, ConnectionKind::Stdio);
        let (line, outgoing) =
            ClientChannel::new(connection, admission, server.limits.reader_patience());
        let (over, connection) = (line.over(), line.connection().clone());
        let (mut input, output) = (self.input, self.output);
        let reading = async move {
            let taking_in = take_in(&mut input, &line, server.limits.body_size);
            let is_draining = drain.run_until_cancelled(taking_in).await.is_none();
            line.finish(is_draining).await;
            // With the line its end of the output goes, so that writing ends once all is written.
        };
        let mut writing = pin!(write(output, outgoing));
        tokio::select! {
            () = writing.as_mut() => {}
            () = reading => {
                let _ = timeout(LAST_WRITES, writing).await;
                return;
            }
            () = over.cancelled() => {}
        }
        info!("nobody reads the output any more");
        connection.disconnect();
    }
}

/// How long the last answers may take to be read.
const LAST_WRITES: Duration = Duration::from_secs(2);

async fn take_in(input: &mut (impl AsyncRead + Unpin), line: &ClientChannel, limit: usize) {
    let mut decoder = Decoder::new(limit);
    let (mut piece, mut lines) = (vec![0; READ_BUFFER], Vec::new());
    while let Ok(length @ 1..) = input.read(&mut piece).await {
        decoder.feed(&piece[..length], &mut lines);
        for message in lines.drain(..) {
            let line_decoder::Line::Whole(bytes) = message else {
                line.refuse(TransportFault::BodyTooLarge { limit }, None).await;
                continue;
            };
            if let Some(budget) = line.budget_for(&bytes).await {
                line.take(&bytes, budget).await;
            }
        }
    }
    debug!("the input has ended");
}

async fn write(mut output: impl AsyncWrite + Unpin, mut outgoing: mpsc::Receiver<String>) {
    while let Some(mut message) = outgoing.recv().await {
        // Between tokens JSON may hold line feeds; here a line feed ends the message.
        message.retain(|c| c != '\n' && c != '\r');
        message.push('\n');
        let written = output.write_all(message.as_bytes()).await;
        if written.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}
