//! A connection whose client must not dawdle: time limits on what no library limits.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::state::ConnState;

/// A stream that fails to be read when its deadline passes, and to be written when nobody takes it.
pub(crate) struct TimeoutIo<S> {
    stream: S,
    /// Bytes that were read before the protocol was known.
    prefix: Bytes,
    phase: Arc<ConnState>,
    alarm: Pin<Box<Sleep>>,
    /// How long the client may take nothing of what is sent.
    patience: Duration,
    /// Set while it takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutIo<S> {
    /// `prefix` is read again before the rest of the stream. A client that takes nothing of what is
    /// sent for `patience` is left.
    pub(crate) fn new(stream: S, prefix: Bytes, phase: Arc<ConnState>, patience: Duration) -> Self {
        let alarm = Box::pin(sleep_until(Instant::now()));
        Self { stream, prefix, phase, alarm, patience, stalled: None }
    }

    fn watch_write(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(written) => {
                if self.stalled.take().is_some() {
                    self.phase.set_stalled(false);
                }
                if let Ok(length) = &written {
                    self.phase.sent(*length);
                }
                Poll::Ready(written)
            }
            Poll::Pending => {
                let ends = Instant::now() + self.patience;
                let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(ends)));
                self.phase.set_stalled(true);
                ready!(stalled.as_mut().poll(context));
                tracing::info!(
                    reason = "slow_consumer",
                    "a client does not read what it asked for"
                );
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prefix.is_empty() {
            let length = self.prefix.len().min(buffer.remaining());
            buffer.put_slice(&self.prefix[..length]);
            self.prefix.advance(length);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            if buffer.filled().len() > before {
                self.phase.received();
            }
            return Poll::Ready(read);
        }
        // The deadline may have moved while the alarm was set: it counts only once it has passed.
        while let Some(deadline) = self.phase.deadline(context.waker()) {
            if self.alarm.deadline() != deadline {
                self.alarm.as_mut().reset(deadline);
            }
            ready!(self.alarm.as_mut().poll(context));
            if self.phase.deadline(context.waker()) == Some(deadline) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn w12_a_head_that_trickles_ends_at_its_deadline() {
        let (mut client, server) = duplex(64);
        let phase = ConnState::sequential(75 * SECOND, 10 * SECOND);
        let mut io = TimeoutIo::new(server, Bytes::from_static(b"G"), phase, PATIENCE);
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let mut bytes = Vec::new();
            let error = io.read_to_end(&mut bytes).await.unwrap_err();
            (error.kind(), bytes, start.elapsed())
        });
        for _ in 0..9 {
            client.write_all(b"x").await.unwrap();
            advance(SECOND).await;
            tokio::task::yield_now().await;
        }
        let (kind, bytes, after) = reading.await.unwrap();
        assert_eq!((kind, bytes.len()), (io::ErrorKind::TimedOut, 10));
        assert_eq!(after.as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_of_a_long_answer_is_not_idle() {
        let (mut client, server) = duplex(1);
        let phase = ConnState::sequential(75 * SECOND, 10 * SECOND);
        let io = TimeoutIo::new(server, Bytes::new(), phase.clone(), PATIENCE);
        drop(phase.begin());
        let start = Instant::now();
        let (mut reader, mut writer) = tokio::io::split(io);
        let reading = tokio::spawn(async move {
            let error = reader.read_u8().await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        let writing = tokio::spawn(async move { writer.write_all(b"123").await });
        for _ in 0..3 {
            advance(50 * SECOND).await;
            client.read_u8().await.unwrap();
        }
        writing.await.unwrap().unwrap();
        let (kind, ended) = reading.await.unwrap();
        assert_eq!(kind, io::ErrorKind::TimedOut);
        assert!(ended >= 150, "{ended}");
    }

    #[tokio::test]
    async fn what_a_client_does_not_take_is_known_until_it_does() {
        let (mut client, server) = duplex(1);
        let phase = ConnState::sequential(75 * SECOND, 10 * SECOND);
        let mut io = TimeoutIo::new(server, Bytes::new(), phase.clone(), PATIENCE);
        let busy = phase.begin();
        let writing = tokio::spawn(async move { io.write_all(b"12").await });
        tokio::task::yield_now().await;
        assert!(busy.is_stalled());
        client.read_exact(&mut [0; 2]).await.unwrap();
        writing.await.unwrap().unwrap();
        assert!(!busy.is_stalled());
    }

    #[tokio::test(start_paused = true)]
    async fn w12_pings_do_not_keep_an_unused_connection() {
        let (mut client, server) = duplex(64);
        let phase = ConnState::multiplexed(75 * SECOND, PATIENCE);
        let mut io = TimeoutIo::new(server, Bytes::new(), phase, PATIENCE);
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let mut bytes = Vec::new();
            let error = io.read_to_end(&mut bytes).await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        for _ in 0..7 {
            client.write_all(b"ping").await.unwrap();
            advance(10 * SECOND).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(reading.await.unwrap(), (io::ErrorKind::TimedOut, 75));
    }

    #[tokio::test(start_paused = true)]
    async fn w16_an_answer_that_is_not_asked_for_what_it_has_ends_its_connection() {
        let (_client, server) = duplex(64);
        let phase = ConnState::multiplexed(75 * SECOND, PATIENCE);
        let mut io = TimeoutIo::new(server, Bytes::new(), phase.clone(), PATIENCE);
        let (read, unread) = (phase.begin(), phase.begin());
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let error = io.read_u8().await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        // One has nothing to give for long, and is asked at once when it has.
        advance(100 * SECOND).await;
        tokio::task::yield_now().await;
        read.offers();
        read.resumed();
        unread.offers();
        assert_eq!(reading.await.unwrap(), (io::ErrorKind::TimedOut, 130));
    }

    #[tokio::test(start_paused = true)]
    async fn w12_idle_time_starts_when_the_answer_is_sent() {
        let (_client, server) = duplex(64);
        let phase = ConnState::sequential(75 * SECOND, 10 * SECOND);
        let mut io = TimeoutIo::new(server, Bytes::new(), phase.clone(), PATIENCE);
        let (one, other) = (phase.begin(), phase.begin());
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let error = io.read_u8().await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        tokio::task::yield_now().await;
        advance(100 * SECOND).await;
        drop(one);
        advance(100 * SECOND).await;
        drop(other);
        assert_eq!(reading.await.unwrap(), (io::ErrorKind::TimedOut, 275));
    }
}
