//! Standard streams towards one client: one JSON message per line, nothing else on the output.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::line::Line;
use super::load::Load;
use crate::config::Server;
use crate::domain::fault::TransportFault;
use crate::domain::lines::{self, Decoder};
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
    ///
    /// # Errors
    /// When the one client that there is may not call.
    pub async fn serve(
        self,
        server: &Server,
        sessions: Arc<Sessions>,
        drain: &CancellationToken,
    ) -> Result<(), TransportFault> {
        let caller = sessions.authenticate()?;
        let load = Arc::new(Load::new(&server.limits));
        let connection = Connection::new(sessions, caller, &server.path, ConnectionKind::Stdio);
        let (line, outgoing) = Line::new(connection, load);
        let (mut input, output) = (self.input, self.output);
        let reading = async move {
            let taking_in = take_in(&mut input, &line, server.limits.body_size);
            let is_draining = drain.run_until_cancelled(taking_in).await.is_none();
            line.finish(is_draining).await;
            // With the line its end of the output goes, so that writing ends once all is written.
        };
        let mut writing = std::pin::pin!(write(output, outgoing));
        tokio::select! {
            () = writing.as_mut() => info!("nobody reads the output any more"),
            () = reading => writing.await,
        }
        Ok(())
    }
}

async fn take_in(input: &mut (impl AsyncRead + Unpin), line: &Line, limit: usize) {
    let mut decoder = Decoder::new(limit);
    let (mut piece, mut lines) = (vec![0; READ_BUFFER], Vec::new());
    while let Ok(length @ 1..) = input.read(&mut piece).await {
        decoder.feed(&piece[..length], &mut lines);
        for message in lines.drain(..) {
            match message {
                lines::Line::Whole(bytes) => line.take(&bytes).await,
                lines::Line::TooLong => line.refuse(TransportFault::BodyTooLarge { limit }).await,
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
