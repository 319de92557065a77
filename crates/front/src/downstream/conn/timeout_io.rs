//! Deadlines on the IO of a connection that hyper does not keep: request heads and idle time apart
//! from each other, and clients that read nothing.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::info;

use super::control_frames::ControlFrames;
use super::state::ConnState;

/// An IO whose reads fail with `TimedOut` at the deadline of the connection's state, and whose
/// writes fail with `TimedOut` when the client reads nothing for too long.
pub(crate) struct TimeoutIo<S> {
    io: S,
    /// Bytes that were read before the HTTP version was known; they are read again first.
    prefix: Bytes,
    state: Arc<ConnState>,
    /// Fires at the deadline of the state or before it.
    read_deadline: Pin<Box<Sleep>>,
    /// How long a write may stay pending.
    stall: Duration,
    /// Set while a write is pending.
    write_deadline: Option<Pin<Box<Sleep>>>,
    /// Counts control frames; `None` on HTTP/1.1.
    control_frames: Option<ControlFrames>,
    /// Whether the client has sent too many control frames: nothing more is read.
    is_flooded: bool,
}

/// Logs that a client is disconnected because it reads too slowly, and returns the error that
/// disconnects it.
pub(super) fn slow_consumer() -> io::Error {
    info!(reason = "slow_consumer", "client does not read its responses; disconnecting");
    io::ErrorKind::TimedOut.into()
}

impl<S> TimeoutIo<S> {
    pub(crate) fn new(io: S, prefix: Bytes, state: Arc<ConnState>, stall: Duration) -> Self {
        let read_deadline = Box::pin(sleep_until(Instant::now()));
        Self {
            io,
            prefix,
            state,
            read_deadline,
            stall,
            write_deadline: None,
            control_frames: None,
            is_flooded: false,
        }
    }

    /// Counts control frames, so that a flood of them ends the connection.
    pub(crate) fn counting(mut self, control_frames: ControlFrames) -> Self {
        self.control_frames = Some(control_frames);
        self
    }

    /// Counts the control frames in the bytes that were received.
    fn count_frames(&mut self, bytes: &[u8]) {
        if let Some(frames) = &mut self.control_frames
            && frames.is_flood(bytes, Instant::now())
        {
            self.is_flooded = true;
            self.state.flood();
        }
    }

    /// Applies the deadline to the outcome of a write.
    fn limit_write(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            self.write_deadline = None;
            if let Ok(bytes) = &written {
                self.state.sent(*bytes);
                if let Some(frames) = &mut self.control_frames {
                    frames.sent(*bytes);
                }
            }
            return Poll::Ready(written);
        }
        let at = Instant::now() + self.stall;
        let deadline = self.write_deadline.get_or_insert_with(|| Box::pin(sleep_until(at)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(slow_consumer()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_flooded {
            // The task is woken by the flood, and ends the connection.
            return Poll::Pending;
        }
        if !self.prefix.is_empty() {
            let length = self.prefix.len().min(buffer.remaining());
            let piece = self.prefix.split_to(length);
            buffer.put_slice(&piece);
            self.count_frames(&piece);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.io).poll_read(context, buffer) {
            if buffer.filled().len() > before {
                self.state.received();
                self.count_frames(&buffer.filled()[before..]);
            }
            return Poll::Ready(read);
        }
        // The timer may fire before the deadline, never after it: the deadline at that moment
        // counts.
        loop {
            let deadline = self.state.deadline(context.waker());
            let timer = &self.read_deadline;
            if timer.is_elapsed() || deadline.is_some_and(|at| at < timer.deadline()) {
                let at = deadline.unwrap_or_else(|| Instant::now() + self.state.idle());
                self.read_deadline.as_mut().reset(at);
            }
            ready!(self.read_deadline.as_mut().poll(context));
            let deadline = self.state.deadline(context.waker());
            if deadline.is_some_and(|at| at <= Instant::now()) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.limit_write(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.limit_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::advance;

    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn w12_a_slow_request_head_fails_at_its_deadline() {
        let (mut client, server) = duplex(64);
        let state = ConnState::sequential(None, 75 * SECOND, 10 * SECOND);
        let mut io = TimeoutIo::new(server, Bytes::from_static(b"G"), state, STALL);
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
    async fn a_client_that_reads_a_long_response_slowly_is_not_idle() {
        let (mut client, server) = duplex(1);
        let state = ConnState::sequential(None, 75 * SECOND, 10 * SECOND);
        let io = TimeoutIo::new(server, Bytes::new(), state.clone(), STALL);
        drop(state.begin());
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

    #[tokio::test(start_paused = true)]
    async fn w12_the_idle_time_begins_with_the_end_of_a_request_whenever_its_reader_is_polled() {
        let (_client, server) = duplex(64);
        let state = ConnState::sequential(None, 75 * SECOND, 10 * SECOND);
        let mut io = TimeoutIo::new(server, Bytes::new(), state.clone(), STALL);
        let request = state.begin();
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let error = io.read_u8().await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        // The request takes longer than a connection may be idle, and nothing wakes the reader at
        // its end.
        for _ in 0..20 {
            advance(5 * SECOND).await;
            tokio::task::yield_now().await;
        }
        drop(request);
        assert_eq!(reading.await.unwrap(), (io::ErrorKind::TimedOut, 175));
    }

    #[tokio::test(start_paused = true)]
    async fn w12_pings_do_not_extend_the_idle_time_of_a_connection() {
        let (mut client, server) = duplex(64);
        let state = ConnState::multiplexed(None, 75 * SECOND, STALL);
        let mut io = TimeoutIo::new(server, Bytes::new(), state, STALL);
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
    async fn w16_a_response_body_that_is_not_polled_for_its_data_ends_the_connection() {
        let (_client, server) = duplex(64);
        let state = ConnState::multiplexed(None, 75 * SECOND, STALL);
        let mut io = TimeoutIo::new(server, Bytes::new(), state.clone(), STALL);
        let read = state.begin();
        let unread = state.begin();
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let error = io.read_u8().await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        // The first body has no data for long, and is polled as soon as it has.
        advance(100 * SECOND).await;
        tokio::task::yield_now().await;
        read.has_data();
        read.polled();
        unread.has_data();
        assert_eq!(reading.await.unwrap(), (io::ErrorKind::TimedOut, 130));
    }

    #[tokio::test(start_paused = true)]
    async fn w12_idle_time_starts_when_the_last_response_is_sent() {
        let (_client, server) = duplex(64);
        let state = ConnState::sequential(None, 75 * SECOND, 10 * SECOND);
        let mut io = TimeoutIo::new(server, Bytes::new(), state.clone(), STALL);
        let first = state.begin();
        let second = state.begin();
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let error = io.read_u8().await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        tokio::task::yield_now().await;
        advance(100 * SECOND).await;
        drop(first);
        advance(100 * SECOND).await;
        drop(second);
        assert_eq!(reading.await.unwrap(), (io::ErrorKind::TimedOut, 275));
    }
}
