//! What a connection is doing, and until when it may do that.
//!
//! An HTTP/1.1 connection is idle, or receives a head, or is busy with a request. The first two
//! have deadlines here; a request's body has its own, where it is read.
//!
//! On an HTTP/2 connection a client can take nothing of one answer while it reads on: it opens no window for it.
//! Such an answer is not asked for its next part, which is what is seen here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

/// What the connection is doing, shared between its reader and the requests it carries.
pub(crate) struct ConnState {
    idle: Duration,
    /// Absent where heads cannot be told from other things that come in.
    head: Option<Duration>,
    /// How long an answer may have something to give and not be asked for it; absent where that is seen
    /// by what is written.
    patience: Option<Duration>,
    /// How many there were.
    answers: AtomicU64,
    /// Whether the client takes nothing of what is to be sent.
    stalled: AtomicBool,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Answers that have something to give and are not asked for it, by their number.
    stalled: BTreeMap<u64, StalledBody>,
    /// The reader, to be woken when the phase gets a deadline.
    reader: Option<Waker>,
}

/// An answer that is not asked for what it has.
#[derive(Clone, Copy, Debug)]
struct StalledBody {
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
    RequestGuard(usize),
}

/// A request that is worked on, until its answer is sent.
pub(crate) struct RequestGuard {
    phase: Arc<ConnState>,
    number: u64,
}

impl ConnState {
    /// A connection that carries one request at a time, on which a head has begun.
    pub(crate) fn sequential(idle: Duration, head: Duration) -> Arc<Self> {
        Self::new(idle, Some(head), None, Phase::Head(Instant::now() + head))
    }

    /// A connection that carries many requests at once. What comes in says little about heads:
    /// it may be a ping.
    pub(crate) fn multiplexed(idle: Duration, patience: Duration) -> Arc<Self> {
        Self::new(idle, None, Some(patience), Phase::Idle(Instant::now() + idle))
    }

    fn new(
        idle: Duration,
        head: Option<Duration>,
        patience: Option<Duration>,
        phase: Phase,
    ) -> Arc<Self> {
        let state = State { phase, stalled: BTreeMap::new(), reader: None };
        Arc::new(Self {
            idle,
            head,
            patience,
            answers: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    /// Notes that a request has arrived.
    pub(crate) fn begin(self: &Arc<Self>) -> RequestGuard {
        self.update(|phase| match phase {
            Phase::RequestGuard(requests) => Phase::RequestGuard(requests + 1),
            Phase::Idle(_) | Phase::Head(_) => Phase::RequestGuard(1),
        });
        RequestGuard { phase: self.clone(), number: self.answers.fetch_add(1, Ordering::Relaxed) }
    }

    fn end(&self) {
        self.update(|phase| match phase {
            Phase::RequestGuard(requests) if requests > 1 => Phase::RequestGuard(requests - 1),
            _ => Phase::Idle(Instant::now() + self.idle),
        });
    }

    /// Bytes came in.
    pub(crate) fn received(&self) {
        self.update(|phase| match (phase, self.head) {
            (Phase::Idle(_), Some(head)) => Phase::Head(Instant::now() + head),
            (phase, _) => phase,
        });
    }

    /// Bytes went out: whoever reads a long answer slowly is not idle. Where they may be no more than the
    /// answer to a ping they say nothing.
    pub(crate) fn sent(&self, length: usize) {
        let mut state = self.lock();
        if self.patience.is_some() && length < CONTROL {
            return;
        }
        // Whoever takes what is written takes its turn with all answers.
        let now = Instant::now();
        state.stalled.values_mut().for_each(|stalled| stalled.taken = now);
        if matches!(state.phase, Phase::Idle(_)) {
            state.phase = Phase::Idle(Instant::now() + self.idle);
        }
    }

    /// Notes whether the client takes nothing of what is to be sent.
    pub(crate) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    fn update(&self, change: impl FnOnce(Phase) -> Phase) {
        let mut state = self.lock();
        state.phase = change(state.phase);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// The deadline of the phase, if it has one; `reader` is woken when that may have changed.
    pub(crate) fn deadline(&self, reader: &Waker) -> Option<Instant> {
        let mut state = self.lock();
        state.reader = Some(reader.clone());
        match state.phase {
            Phase::Idle(at) | Phase::Head(at) => Some(at),
            Phase::RequestGuard(_) => {
                let patience = self.patience?;
                let due = |stalled: &StalledBody| {
                    (stalled.taken + patience).min(stalled.since + patience * TURNS)
                };
                state.stalled.values().map(due).min()
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl RequestGuard {
    /// Whether the connection carries other answers at the same time.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.phase.patience.is_some()
    }

    /// Whether something waits to be sent that the client does not take.
    pub(crate) fn is_stalled(&self) -> bool {
        self.phase.stalled.load(Ordering::Relaxed)
    }

    /// Its answer has something to give, from now on.
    pub(crate) fn offers(&self) {
        if self.is_multiplexed() {
            let mut state = self.phase.lock();
            let now = Instant::now();
            state.stalled.insert(self.number, StalledBody { since: now, taken: now });
            if let Some(reader) = state.reader.take() {
                reader.wake();
            }
        }
    }

    /// Its answer is asked for what comes next.
    pub(crate) fn resumed(&self) {
        if self.is_multiplexed() {
            self.phase.lock().stalled.remove(&self.number);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.resumed();
        self.phase.end();
    }
}
