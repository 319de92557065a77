//! A connection whose client must not dawdle: time limits on what no library limits.
//!
//! On an HTTP/2 connection a client can take nothing of one answer while it reads on: it opens no window for it.
//! Such an answer is not asked for its next part, which is what is seen here.
//!
//! An HTTP/1.1 connection is idle, or receives a head, or is busy with a request. The first two
//! have deadlines here; a request's body has its own, where it is read.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// A stream that fails to read when its deadline passes.
pub struct Watched<S> {
    stream: S,
    /// Bytes that were read before the protocol was known.
    prefix: Bytes,
    phase: Arc<PhaseCell>,
    alarm: Pin<Box<Sleep>>,
    /// How long the client may take nothing of what is sent.
    patience: Duration,
    /// Set while it takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// What the connection is doing, shared between its reader and the requests it carries.
pub struct PhaseCell {
    idle: Duration,
    /// Absent where heads cannot be told from other things that come in.
    head: Option<Duration>,
    /// How long an answer may have something to give and not be asked for it; absent where that is seen
    /// by what is written.
    patience: Option<Duration>,
    /// How many there were.
    answers: AtomicU64,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Answers that have something to give and are not asked for it, by their number.
    unasked: BTreeMap<u64, Unasked>,
    /// The reader, to be woken when the phase gets a deadline.
    reader: Option<Waker>,
}

/// An answer that is not asked for what it has.
#[derive(Clone, Copy, Debug)]
struct Unasked {
    since: Instant,
    /// When the client last took anything of any answer.
    taken: Instant,
}

/// Bytes that are written at once of an answer, and hardly ever of acknowledgements.
const CONTROL: usize = 1024;

/// How many times its patience an answer may wait while the client takes others.
const TURNS: u32 = 10;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// No request; ends at the deadline.
    Idle(Instant),
    /// A head has begun; it must be whole by the deadline.
    Head(Instant),
    /// Requests are worked on.
    Busy(usize),
}

/// A request that is worked on, until its answer is sent.
pub struct Busy {
    phase: Arc<PhaseCell>,
    number: u64,
}

impl PhaseCell {
    /// A connection that carries one request at a time, on which a head has begun.
    pub fn sequential(idle: Duration, head: Duration) -> Arc<Self> {
        Self::new(idle, Some(head), None, Phase::Head(Instant::now() + head))
    }

    /// A connection that carries many requests at once. What comes in says little about heads:
    /// it may be a ping.
    pub fn multiplexed(idle: Duration, patience: Duration) -> Arc<Self> {
        Self::new(idle, None, Some(patience), Phase::Idle(Instant::now() + idle))
    }

    fn new(
        idle: Duration,
        head: Option<Duration>,
        patience: Option<Duration>,
        phase: Phase,
    ) -> Arc<Self> {
        let state = State { phase, unasked: BTreeMap::new(), reader: None };
        Arc::new(Self {
            idle,
            head,
            patience,
            answers: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    /// Notes that a request has arrived.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.update(|phase| match phase {
            Phase::Busy(requests) => Phase::Busy(requests + 1),
            Phase::Idle(_) | Phase::Head(_) => Phase::Busy(1),
        });
        Busy { phase: self.clone(), number: self.answers.fetch_add(1, Ordering::Relaxed) }
    }

    fn end(&self) {
        self.update(|phase| match phase {
            Phase::Busy(requests) if requests > 1 => Phase::Busy(requests - 1),
            _ => Phase::Idle(Instant::now() + self.idle),
        });
    }

    /// Bytes came in.
    fn received(&self) {
        self.update(|phase| match (phase, self.head) {
            (Phase::Idle(_), Some(head)) => Phase::Head(Instant::now() + head),
            (phase, _) => phase,
        });
    }

    /// Bytes went out: whoever reads a long answer slowly is not idle. Where they may be no more than the
    /// answer to a ping they say nothing.
    fn sent(&self, length: usize) {
        let mut state = self.lock();
        if self.patience.is_some() && length < CONTROL {
            return;
        }
        // Whoever takes what is written takes its turn with all answers.
        let now = Instant::now();
        state.unasked.values_mut().for_each(|unasked| unasked.taken = now);
        if matches!(state.phase, Phase::Idle(_)) {
            state.phase = Phase::Idle(Instant::now() + self.idle);
        }
    }

    fn update(&self, change: impl FnOnce(Phase) -> Phase) {
        let mut state = self.lock();
        state.phase = change(state.phase);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// The deadline of the phase, if it has one; `reader` is woken when that may have changed.
    fn deadline(&self, reader: &Waker) -> Option<Instant> {
        let mut state = self.lock();
        state.reader = Some(reader.clone());
        match state.phase {
            Phase::Idle(at) | Phase::Head(at) => Some(at),
            Phase::Busy(_) => {
                let patience = self.patience?;
                let due = |unasked: &Unasked| {
                    (unasked.taken + patience).min(unasked.since + patience * TURNS)
                };
                state.unasked.values().map(due).min()
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Busy {
    /// Whether the connection carries other answers at the same time.
    pub fn is_multiplexed(&self) -> bool {
        self.phase.patience.is_some()
    }

    /// Its answer has something to give, from now on.
    pub fn offers(&self) {
        if self.is_multiplexed() {
            let mut state = self.phase.lock();
            let now = Instant::now();
            state.unasked.insert(self.number, Unasked { since: now, taken: now });
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
    }

    /// Its answer is asked for what comes next.
    pub fn asked(&self) {
        if self.is_multiplexed() {
            self.phase.lock().unasked.remove(&self.number);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.asked();
        self.phase.end();
    }
}

impl<S> Watched<S> {
    /// `prefix` is read again before the rest of the stream. A client that takes nothing of what is
    /// sent for `patience` is left.
    pub fn new(stream: S, prefix: Bytes, phase: Arc<PhaseCell>, patience: Duration) -> Self {
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
                self.stalled = None;
                if let Ok(length) = &written {
                    self.phase.sent(*length);
                }
                Poll::Ready(written)
            }
            Poll::Pending => {
                let ends = Instant::now() + self.patience;
                let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(ends)));
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

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
        let phase = PhaseCell::sequential(75 * SECOND, 10 * SECOND);
        let mut watched = Watched::new(server, Bytes::from_static(b"G"), phase, PATIENCE);
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let mut bytes = Vec::new();
            let error = watched.read_to_end(&mut bytes).await.unwrap_err();
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
        let phase = PhaseCell::sequential(75 * SECOND, 10 * SECOND);
        let watched = Watched::new(server, Bytes::new(), phase.clone(), PATIENCE);
        drop(phase.begin());
        let start = Instant::now();
        let (mut reader, mut writer) = tokio::io::split(watched);
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
    async fn w12_pings_do_not_keep_an_unused_connection() {
        let (mut client, server) = duplex(64);
        let phase = PhaseCell::multiplexed(75 * SECOND, PATIENCE);
        let mut watched = Watched::new(server, Bytes::new(), phase, PATIENCE);
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let mut bytes = Vec::new();
            let error = watched.read_to_end(&mut bytes).await.unwrap_err();
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
        let phase = PhaseCell::multiplexed(75 * SECOND, PATIENCE);
        let mut watched = Watched::new(server, Bytes::new(), phase.clone(), PATIENCE);
        let (read, unread) = (phase.begin(), phase.begin());
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let error = watched.read_u8().await.unwrap_err();
            (error.kind(), start.elapsed().as_secs())
        });
        // One has nothing to give for long, and is asked at once when it has.
        advance(100 * SECOND).await;
        tokio::task::yield_now().await;
        read.offers();
        read.asked();
        unread.offers();
        assert_eq!(reading.await.unwrap(), (io::ErrorKind::TimedOut, 130));
    }

    #[tokio::test(start_paused = true)]
    async fn w12_idle_time_starts_when_the_answer_is_sent() {
        let (_client, server) = duplex(64);
        let phase = PhaseCell::sequential(75 * SECOND, 10 * SECOND);
        let mut watched = Watched::new(server, Bytes::new(), phase.clone(), PATIENCE);
        let (one, other) = (phase.begin(), phase.begin());
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let error = watched.read_u8().await.unwrap_err();
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
