//! The state of a connection and the deadline that follows from it.
//!
//! An HTTP/1.1 connection is idle, or receives a request head, or is busy with a request. Idle time
//! and heads have deadlines here; a request body has its own deadline where it is read.
//!
//! On an HTTP/2 connection a client can stop reading one response while it reads others: it opens
//! no flow-control window for that stream. hyper does not poll the body of such a response, so a
//! body that is not polled counts as a client that does not read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::downstream::pool::PoolLease;
use base::platform::Locked;

/// The state of a connection, shared between its IO and the requests that it carries.
pub(crate) struct ConnState {
    /// The place of the connection among all connections. While the connection is idle, the pool
    /// may give the place to another connection.
    place: Option<Arc<PoolLease>>,
    idle: Duration,
    /// Limit for a request head. Absent on HTTP/2, where received bytes may be other frames than
    /// heads.
    head: Option<Duration>,
    /// How long a response body may have data that is not polled for. Absent on HTTP/1.1, where a
    /// slow reader shows in writes that stay pending.
    stall: Option<Duration>,
    /// Cancelled when the client sends too many control frames (HTTP/2).
    flooded: CancellationToken,
    /// The number of the next response.
    next_response: AtomicU64,
    inner: Mutex<ConnectionActivity>,
}

struct ConnectionActivity {
    phase: Phase,
    /// The requests of [`Phase::Busy`] that have yielded the place of the connection.
    yielded: usize,
    /// Response bodies that have data and are not polled, by the number of the response.
    stalled: BTreeMap<u64, StalledBody>,
    /// The task that reads an HTTP/2 connection, woken when the deadline has become earlier.
    reader: Option<Waker>,
}

/// A response body that has data and is not polled.
#[derive(Clone, Copy, Debug)]
struct StalledBody {
    since: Instant,
    /// When the client last read data of any response.
    last_read: Instant,
}

/// Bytes. A smaller write on HTTP/2 may be control frames only (acknowledgements of pings and
/// settings), so it does not prove that the client reads responses.
const MIN_DATA_WRITE: usize = 1024;

/// A body may wait this many times the stall limit while the client reads other responses: enough
/// for its turn among many large responses, and still an end for a client that never reads it.
const MAX_STALLS: u32 = 10;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// No request; the connection ends at the deadline.
    Idle(Instant),
    /// A request head has begun; it must be complete by the deadline.
    Head(Instant),
    /// This many requests are served.
    Busy(usize),
}

/// A request on a connection, from its head until its response is sent or dropped.
#[must_use]
pub struct RequestGuard {
    state: Arc<ConnState>,
    number: u64,
    has_yielded: AtomicBool,
}

impl ConnState {
    /// The state of an HTTP/1.1 connection, which carries one request at a time. A head has begun.
    pub(crate) fn sequential(
        place: Option<Arc<PoolLease>>,
        idle: Duration,
        head: Duration,
    ) -> Arc<Self> {
        Self::new(place, idle, Some(head), None, Phase::Head(Instant::now() + head))
    }

    /// The state of an HTTP/2 connection, which carries many requests at once.
    pub(crate) fn multiplexed(
        place: Option<Arc<PoolLease>>,
        idle: Duration,
        stall: Duration,
    ) -> Arc<Self> {
        Self::new(place, idle, None, Some(stall), Phase::Idle(Instant::now() + idle))
    }

    fn new(
        place: Option<Arc<PoolLease>>,
        idle: Duration,
        head: Option<Duration>,
        stall: Option<Duration>,
        phase: Phase,
    ) -> Arc<Self> {
        let inner =
            ConnectionActivity { phase, yielded: 0, stalled: BTreeMap::new(), reader: None };
        Arc::new(Self {
            place,
            idle,
            head,
            stall,
            flooded: CancellationToken::new(),
            next_response: AtomicU64::new(0),
            inner: Mutex::new(inner),
        })
    }

    /// Records that the client sends too many control frames.
    pub(crate) fn flood(&self) {
        self.flooded.cancel();
    }

    /// Waits until the client sends too many control frames. Cancel safe.
    pub(crate) async fn flooded(&self) {
        self.flooded.cancelled().await;
    }

    /// Records that a request has arrived.
    pub(crate) fn begin(self: &Arc<Self>) -> RequestGuard {
        self.update(|phase| {
            // Within the lock: another request may end at the same time.
            if let Some(place) = &self.place {
                place.busy();
            }
            match phase {
                Phase::Busy(requests) => Phase::Busy(requests + 1),
                Phase::Idle(_) | Phase::Head(_) => Phase::Busy(1),
            }
        });
        let number = self.next_response.fetch_add(1, Ordering::Relaxed);
        RequestGuard { state: self.clone(), number, has_yielded: AtomicBool::new(false) }
    }

    fn end(&self, has_yielded: bool) {
        let mut inner = self.inner.locked();
        inner.yielded -= usize::from(has_yielded);
        inner.phase = match inner.phase {
            Phase::Busy(requests) if requests > 1 => Phase::Busy(requests - 1),
            _ => Phase::Idle(Instant::now() + self.idle),
        };
        self.give_way(&inner);
    }

    /// Marks the place as idle where no request needs it.
    fn give_way(&self, inner: &ConnectionActivity) {
        let needed = match inner.phase {
            Phase::Busy(requests) => requests - inner.yielded,
            Phase::Idle(_) | Phase::Head(_) => 0,
        };
        if let Some(place) = self.place.as_ref().filter(|_| needed == 0) {
            place.idle();
        }
    }

    /// Records that bytes were received.
    pub(crate) fn received(&self) {
        self.update(|phase| match (phase, self.head) {
            (Phase::Idle(_), Some(head)) => Phase::Head(Instant::now() + head),
            (phase, _) => phase,
        });
    }

    /// Records that bytes were sent: a client that reads a long response slowly is not idle.
    pub(crate) fn sent(&self, bytes: usize) {
        let mut inner = self.inner.locked();
        if self.stall.is_some() && bytes < MIN_DATA_WRITE {
            return;
        }
        // Responses share the connection and take turns: data of one is progress for all.
        let now = Instant::now();
        inner.stalled.values_mut().for_each(|body| body.last_read = now);
        if matches!(inner.phase, Phase::Idle(_)) {
            inner.phase = Phase::Idle(now + self.idle);
            // The rest of a long response is still being sent.
            if let Some(place) = &self.place {
                place.idle();
            }
        }
    }

    fn update(&self, change: impl FnOnce(Phase) -> Phase) {
        let mut inner = self.inner.locked();
        inner.phase = change(inner.phase);
    }

    /// Returns the deadline of the current state, if it has one. `reader` is woken when it becomes
    /// earlier.
    ///
    /// It is not woken when a busy connection becomes idle, which would take a poll for each
    /// request: without a deadline, ask again within [`idle`](Self::idle).
    pub(crate) fn deadline(&self, reader: &Waker) -> Option<Instant> {
        let mut inner = self.inner.locked();
        if self.stall.is_some() {
            inner.reader = Some(reader.clone());
        }
        match inner.phase {
            Phase::Idle(at) | Phase::Head(at) => Some(at),
            Phase::Busy(_) => {
                let stall = self.stall?;
                let deadline = |body: &StalledBody| {
                    (body.last_read + stall).min(body.since + stall * MAX_STALLS)
                };
                inner.stalled.values().map(deadline).min()
            }
        }
    }

    /// How long the connection may be idle.
    pub(crate) fn idle(&self) -> Duration {
        self.idle
    }
}

impl RequestGuard {
    /// Whether the connection carries other responses at the same time.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.state.stall.is_some()
    }

    /// Returns at once, unless the pool has revoked the place of the connection: then never. A
    /// request that began would be cancelled with the connection, whose task is about to end.
    pub(crate) async fn unless_revoked(&self) {
        if self.state.place.as_ref().is_some_and(|place| place.is_revoked()) {
            std::future::pending::<()>().await;
        }
    }

    /// Allows the pool to revoke the place of the connection although the request is not answered,
    /// since it has shown no credential. The place stays busy while the connection carries other
    /// requests that have not yielded it.
    pub fn yield_place(&self) {
        if !self.has_yielded.swap(true, Ordering::Relaxed) {
            let mut inner = self.state.inner.locked();
            inner.yielded += 1;
            self.state.give_way(&inner);
        }
    }

    /// Keeps the place busy until the request is answered. Never returns if it was revoked
    /// meanwhile; see [`unless_revoked`](Self::unless_revoked).
    pub async fn keep_place(&self) {
        {
            let mut inner = self.state.inner.locked();
            if self.has_yielded.swap(false, Ordering::Relaxed) {
                inner.yielded -= 1;
            }
            if let Some(place) = &self.state.place {
                place.busy();
            }
        }
        self.unless_revoked().await;
    }

    /// Records that the response body has data, from now until [`polled`](Self::polled).
    pub(crate) fn has_data(&self) {
        if self.is_multiplexed() {
            let mut inner = self.state.inner.locked();
            let now = Instant::now();
            inner.stalled.insert(self.number, StalledBody { since: now, last_read: now });
            if let Some(reader) = inner.reader.take() {
                reader.wake();
            }
        }
    }

    /// Records that the response body is polled.
    pub(crate) fn polled(&self) {
        if self.is_multiplexed() {
            self.state.inner.locked().stalled.remove(&self.number);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.polled();
        self.state.end(self.has_yielded.load(Ordering::Relaxed));
    }
}
