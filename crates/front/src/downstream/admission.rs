//! Admission control: limits on calls, bytes of messages and results, and streams, over all clients
//! and transports, with a fair share of each for every caller.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::pool::{Held, NoRoom, Pool, PoolLease, Revokes, RoomBounds};
use crate::session::CallPermit;
use base::platform::memory;
use config::Limits;
use domain::calls::fair_share::{FairShare, Holder};
use domain::fault::TransportFault;
use upstream::call::result_memory::MessageMemory;

/// The limits of one configuration and their current use. A request that exceeds a limit is refused
/// at once, with `Retry-After` over HTTP.
pub(crate) struct Admission {
    shared: Arc<AdmissionCounters>,
    limits: Limits,
}

/// The counters of admitted requests. They outlive a configuration.
struct AdmissionCounters {
    calls: Mutex<CallShares>,
    /// [`COPIES`] units for each KiB of a message.
    kibibytes: Pool,
    /// One unit for each notification stream.
    streams: Pool,
}

/// The calls of each holder.
struct CallShares {
    in_flight: FairShare<Holder>,
    /// The calls that wait for their users.
    suspended: FairShare<Holder>,
}

/// The permit of one call, among the calls in flight or among the suspended calls.
struct AdmittedCall {
    shared: Arc<AdmissionCounters>,
    holder: Holder,
    is_suspended: Mutex<bool>,
}

impl CallPermit for AdmittedCall {
    fn suspend(&self) -> bool {
        let mut is_suspended = self.is_suspended.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_suspended {
            return true;
        }
        let mut calls = self.shared.calls();
        *is_suspended = calls.suspended.take(&self.holder, 1).is_ok();
        if *is_suspended {
            calls.in_flight.put_back(&self.holder, 1);
        }
        *is_suspended
    }
}

impl Drop for AdmittedCall {
    fn drop(&mut self) {
        let is_suspended = *self.is_suspended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut calls = self.shared.calls();
        let shares = if is_suspended { &mut calls.suspended } else { &mut calls.in_flight };
        shares.put_back(&self.holder, 1);
    }
}

/// A reading of the counters.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionUsage {
    /// Calls in flight.
    pub calls: usize,
    /// Calls that wait for their users.
    pub suspended: usize,
    /// Bytes reserved for messages and results, in units of 1024.
    pub bytes: usize,
    /// The most that may be reserved: `in_flight_bytes`, or less where the machine has less.
    pub max_bytes: usize,
    /// Open notification streams.
    pub streams: usize,
}

/// The permit of one notification stream, released on drop. A stream that had no event for long may
/// be closed for a new stream.
#[derive(Debug)]
#[must_use]
pub(crate) struct StreamPermit(PoolLease);

impl StreamPermit {
    /// Records that an event was sent.
    pub(crate) fn sent(&self) {
        self.0.idle();
    }

    /// Returns the signal that the stream must end, because its place is given to another one.
    pub(crate) fn revocation(&self) -> CancellationToken {
        self.0.revocation()
    }
}

impl AdmissionCounters {
    fn calls(&self) -> MutexGuard<'_, CallShares> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admission {
    /// Creates the admission control of the first configuration.
    pub(crate) fn new(limits: &Limits) -> Self {
        let limits = within(limits, memory::limit());
        let calls = || FairShare::new(limits.in_flight, limits.share.of(limits.in_flight));
        let memory = Memory::new(&limits);
        let shared = AdmissionCounters {
            // As many suspended calls as calls in flight: they use memory, but no CPU time.
            calls: Mutex::new(CallShares { in_flight: calls(), suspended: calls() }),
            kibibytes: Pool::new(memory.total, memory.share, Revokes::Borrowed),
            streams: Pool::new(
                limits.streams,
                limits.share.of(limits.streams),
                Revokes::IdleOfLarger,
            ),
        };
        Self { shared: Arc::new(shared), limits }
    }

    /// Creates the admission control of the next configuration. Admitted calls, streams and memory
    /// count against the new limits.
    pub(crate) fn renew(&self, limits: &Limits) -> Self {
        let limits = within(limits, memory::limit());
        let memory = Memory::new(&limits);
        let AdmissionCounters { kibibytes, streams, .. } = &*self.shared;
        kibibytes.resize(memory.total, memory.share);
        streams.resize(limits.streams, limits.share.of(limits.streams));
        let mut calls = self.shared.calls();
        let share = limits.share.of(limits.in_flight);
        calls.in_flight.resize(limits.in_flight, share);
        calls.suspended.resize(limits.in_flight, share);
        drop(calls);
        Self { shared: self.shared.clone(), limits }
    }

    /// Returns the current use.
    pub(crate) fn usage(&self) -> AdmissionUsage {
        let calls = self.shared.calls();
        AdmissionUsage {
            calls: calls.in_flight.used(),
            suspended: calls.suspended.used(),
            bytes: self.shared.kibibytes.used() * 1024,
            max_bytes: self.limits.in_flight_bytes,
            streams: self.shared.streams.used(),
        }
    }

    /// Admits a call.
    pub(crate) fn call(&self, holder: &Holder) -> Result<Arc<dyn CallPermit>, TransportFault> {
        let taken = self.shared.calls().in_flight.take(holder, 1);
        taken.map_err(|_| TransportFault::Overloaded)?;
        Ok(Arc::new(AdmittedCall {
            shared: self.shared.clone(),
            holder: holder.clone(),
            is_suspended: Mutex::new(false),
        }))
    }

    /// Reserves memory for a message of which nothing has been received.
    pub(crate) fn upload(&self, holder: &Holder) -> Result<Upload, TransportFault> {
        let memory = Memory::new(&self.limits);
        let lease = self.shared.kibibytes.lease(holder, 0, memory.bounds(0));
        let lease = lease.map_err(|_| TransportFault::Overloaded)?;
        Ok(Upload { lease, memory, reserved: 0 })
    }

    /// Reserves memory for a message of `size` bytes that was received whole.
    pub(crate) fn budget(
        &self,
        holder: &Holder,
        size: usize,
    ) -> Result<BodyBudget, TransportFault> {
        let needed = kibibytes(size);
        let memory = Memory::new(&self.limits);
        let room = if needed <= kibibytes(SMALL_BODY) { RESULT_ROOM } else { 0 };
        let held = self.shared.kibibytes.hold(holder, needed + room, memory.bounds(needed));
        let held = held.map_err(|_| TransportFault::Overloaded)?;
        Ok(BodyBudget::new(Reserved::Whole(held), memory, needed / COPIES + room))
    }

    /// Admits a notification stream. When there is no room, the stream that had no event for
    /// longest is closed: of the holder if it is beyond its share, else of the largest holder that
    /// has more. Unauthenticated callers have no limit but their share, as several may have one
    /// address.
    pub(crate) fn stream(&self, holder: &Holder) -> Result<StreamPermit, TransportFault> {
        let Limits { streams, streams_per_caller, share, .. } = self.limits;
        let per_holder = match holder {
            Holder::Caller(caller) if !caller.is_anonymous() => streams_per_caller,
            Holder::Caller(_) | Holder::Network(_) => usize::MAX,
        };
        let bounds = RoomBounds { ceiling: streams, share: share.of(streams), per_holder };
        let lease = self.shared.streams.lease(holder, 1, bounds);
        lease.map(StreamPermit).map_err(|refused| match refused {
            NoRoom::PerHolder => TransportFault::TooManyStreams,
            NoRoom::OverShare | NoRoom::Full => TransportFault::Overloaded,
        })
    }
}

/// The divisor for the part of process memory that messages may take. Requests to upstreams and the
/// allocator may need as much again.
const PART_OF_PROCESS: u64 = 4;

/// The limits where the process may have `most` bytes of memory. Two of the largest bodies fit.
fn within(limits: &Limits, most: Option<u64>) -> Limits {
    let part = most.and_then(|most| usize::try_from(most / PART_OF_PROCESS).ok());
    let part = part.unwrap_or(usize::MAX).max(COPIES * limits.body_size);
    let in_flight_bytes = limits.in_flight_bytes.min(part);
    if in_flight_bytes < limits.in_flight_bytes {
        info!(in_flight_bytes, "server.limits.in_flight_bytes is reduced to the memory limit");
    }
    Limits { in_flight_bytes, ..limits.clone() }
}

/// Copies of a message in memory at once: its bytes, and the request that is read from them.
const COPIES: usize = 2;

/// Only small bodies can take the last 1/`RESERVE` of `in_flight_bytes`.
const RESERVE: usize = 8;

/// Bytes of the largest small body: calls with few arguments, and all messages about sessions.
const SMALL_BODY: usize = 64 << 10;

/// KiB that a small message, received in one piece, reserves for the results of its calls. Most
/// results fit, and need no second reservation.
const RESULT_ROOM: usize = 4;

/// The bounds on memory for messages, in KiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    total: usize,
    /// The reserve that only small bodies can take.
    reserve: usize,
    /// At least one message of the largest size.
    share: usize,
}

impl Memory {
    fn new(limits: &Limits) -> Self {
        let total = limits.in_flight_bytes / 1024;
        let largest = kibibytes(limits.body_size);
        Self {
            total,
            reserve: (total / RESERVE).min(total.saturating_sub(largest)),
            share: limits.share.of(total).max(largest),
        }
    }

    /// Returns the bounds for a message that takes `size` KiB.
    fn bounds(&self, size: usize) -> RoomBounds {
        let reserve = if size <= kibibytes(SMALL_BODY) { 0 } else { self.reserve };
        RoomBounds { ceiling: self.total - reserve, share: self.share, per_holder: usize::MAX }
    }
}

/// Returns the memory for a message of `size` bytes, in KiB.
fn kibibytes(size: usize) -> usize {
    size.div_ceil(1024) * COPIES
}

/// Memory that is reserved for one complete message and for the results of its calls, released on
/// drop.
#[derive(Debug)]
#[must_use]
pub(crate) struct BodyBudget {
    reserved: Reserved,
    memory: Memory,
    /// KiB of the budget that results may take. A message is read before its calls begin, so the
    /// received copy leaves its room to the results.
    spare: AtomicUsize,
}

#[derive(Debug)]
enum Reserved {
    Whole(Held),
    Uploaded(PoolLease),
}

impl BodyBudget {
    fn new(reserved: Reserved, memory: Memory, spare: usize) -> Self {
        Self { reserved, memory, spare: spare.into() }
    }
}

impl MessageMemory for BodyBudget {
    /// A result counts once: its bytes are shared on the way to the client.
    fn grow(&self, bytes: usize) -> bool {
        let amount = bytes.div_ceil(1024);
        let memory = self.memory;
        let take = |spare: usize| Some(spare.saturating_sub(amount));
        let spare = self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let taken = spare.unwrap_or_default().min(amount);
        let missing = amount - taken;
        let grown = match &self.reserved {
            _ if missing == 0 => return true,
            Reserved::Whole(held) => held.grow(missing, |held| memory.bounds(held)),
            Reserved::Uploaded(lease) => lease.grow(missing, memory.bounds(usize::MAX)),
        };
        if grown.is_err() {
            self.spare.fetch_add(taken, Ordering::Relaxed);
        }
        grown.is_ok()
    }
}

/// Memory that is reserved for a message while it is received, released on drop. It grows with the
/// bytes received, so an announced length alone reserves nothing. Until [`Upload::received`] it may
/// be revoked for a caller that is within its share.
#[derive(Debug)]
#[must_use]
pub(crate) struct Upload {
    lease: PoolLease,
    memory: Memory,
    /// In KiB.
    reserved: usize,
}

impl Upload {
    /// Grows the reservation to a message of `size` bytes.
    pub(crate) fn grow_to(&mut self, size: usize) -> Result<(), TransportFault> {
        let needed = kibibytes(size);
        let missing = needed.saturating_sub(self.reserved);
        if missing > 0 {
            let grown = self.lease.grow(missing, self.memory.bounds(needed));
            grown.map_err(|_| TransportFault::Overloaded)?;
            self.reserved = needed;
        }
        self.lease.idle();
        Ok(())
    }

    /// Records that the message is complete: its memory is no longer revoked.
    pub(crate) fn received(self) -> Result<BodyBudget, TransportFault> {
        self.lease.claim().map_err(|_| TransportFault::Overloaded)?;
        let spare = self.reserved / COPIES;
        Ok(BodyBudget::new(Reserved::Uploaded(self.lease), self.memory, spare))
    }

    /// Waits until the memory is revoked.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn revoked(&self) {
        self.lease.revoked().await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use config::Config;
    use domain::calls::caller::Caller;

    fn limits(toml: &str) -> Limits {
        let toml = format!("[server.limits]\n{toml}");
        Config::parse("g", &toml, Path::new(""), &[]).unwrap().server.limits
    }

    fn holder(id: &str) -> Holder {
        Holder::Caller(Caller::new(id))
    }

    /// An upload of which this many bytes have arrived.
    fn uploaded(
        admission: &Admission,
        holder: &Holder,
        size: usize,
    ) -> Result<Upload, TransportFault> {
        let mut upload = admission.upload(holder)?;
        upload.grow_to(size)?;
        Ok(upload)
    }

    fn network(last: u8) -> Holder {
        Holder::of(&Caller::anonymous(), Some([10, 0, 0, last].into()))
    }

    #[tokio::test]
    async fn p6_streams_are_limited_per_caller() {
        let admission = Admission::new(&limits("streams = 8\nstreams_per_caller = 2\n"));
        let ci = holder("ci");
        let first = admission.stream(&ci).unwrap();
        let _second = admission.stream(&ci).unwrap();
        assert_eq!(admission.stream(&ci).err(), Some(TransportFault::TooManyStreams));
        let _network: Vec<_> = (0..3).map(|_| admission.stream(&network(1)).unwrap()).collect();
        drop(first);
        let _again = admission.stream(&ci).unwrap();
        assert_eq!(admission.usage().streams, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn w12_a_full_gateway_closes_the_quietest_stream_of_the_largest_holder_for_a_new_one() {
        let admission = Admission::new(&limits("streams = 4\nshare = 0.25\n"));
        let large: Vec<_> = (0..3).map(|_| admission.stream(&network(1)).unwrap()).collect();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        large[0].sent();
        let _other = admission.stream(&network(2)).unwrap();
        let _newcomer = admission.stream(&network(3)).unwrap();
        let closed: Vec<_> = large.iter().map(|p| p.revocation().is_cancelled()).collect();
        assert_eq!(closed, [false, true, false]);
    }

    #[tokio::test]
    async fn f3_a_caller_leaves_calls_for_others_and_is_not_limited_on_an_idle_gateway() {
        let admission = Admission::new(&limits("in_flight = 8\n"));
        let busy: Vec<_> = (0..5).map(|_| admission.call(&holder("busy")).unwrap()).collect();
        assert!(admission.call(&holder("busy")).is_err(), "less than half is free");
        let _others: Vec<_> =
            ["a", "a", "b"].map(|id| admission.call(&holder(id)).unwrap()).into_iter().collect();
        assert!(admission.call(&holder("c")).is_err(), "full");
        assert!(busy[0].suspend(), "a call that waits for its user gives its place up");
        assert!(admission.call(&holder("busy")).is_err());
        assert!(admission.call(&holder("c")).is_ok());
        drop(busy);
        assert_eq!((admission.usage().calls, admission.usage().suspended), (3, 0));
    }

    #[tokio::test]
    async fn k3_what_is_in_use_counts_after_a_reload() {
        let before = Admission::new(&limits("in_flight = 1\nstreams = 1\n"));
        let call = before.call(&holder("ci")).unwrap();
        let stream = before.stream(&holder("ci")).unwrap();
        let after = before.renew(&limits("in_flight = 1\nstreams = 2\nstreams_per_caller = 1\n"));
        assert!(after.call(&holder("ci")).is_err());
        assert!(after.stream(&holder("ci")).is_err(), "the caller has one already");
        assert!(after.stream(&holder("other")).is_ok());
        drop(call);
        drop(stream);
        assert!(after.call(&holder("ci")).is_ok());
    }

    #[tokio::test]
    async fn m3_memory_is_reserved_by_received_bytes_and_released_on_drop() {
        let admission =
            Admission::new(&limits("in_flight_bytes = \"2MiB\"\nbody_size = \"1MiB\"\n"));
        let ci = holder("ci");
        let mut first = admission.upload(&ci).unwrap();
        let mut second = uploaded(&admission, &ci, 1).unwrap();
        first.grow_to(1023 << 10).unwrap();
        assert_eq!(second.grow_to(1025), Err(TransportFault::Overloaded));
        second.grow_to(1024).unwrap();
        drop(first);
        second.grow_to(1 << 20).unwrap();
        assert!(admission.budget(&ci, 1).is_err());
    }

    #[tokio::test]
    async fn f3_large_uploads_leave_a_reserve_to_small_bodies_and_a_share_to_others() {
        let admission =
            Admission::new(&limits("in_flight_bytes = \"16MiB\"\nbody_size = \"1MiB\"\n"));
        let large = |id: &str| uploaded(&admission, &holder(id), 1 << 20);
        // Each takes 2 MiB: a share of 4, half of 16 and the step that crosses it, then 14 beside
        // the reserve.
        let stalled: Vec<_> = std::iter::from_fn(|| large("stalled").ok()).collect();
        assert_eq!(stalled.len(), 5);
        let others: Vec<_> = ["a", "b"].map(|id| large(id).unwrap()).into_iter().collect();
        assert!(admission.budget(&holder("c"), 64 << 10).is_ok(), "from the reserve");
        let newcomer = large("c").unwrap();
        let mut stalled = stalled;
        let revoked = stalled.iter_mut().filter_map(|budget| budget.grow_to(2 << 20).err());
        assert_eq!(revoked.count(), 5, "one was revoked, and none may grow");
        assert_eq!(admission.usage().bytes, 14 << 20);
        drop((others, newcomer));
    }

    #[tokio::test]
    async fn results_count_with_their_message_until_both_are_dropped_and_leave_others_their_share()
    {
        const MIB: usize = 1 << 20;
        let admission =
            Admission::new(&limits("in_flight_bytes = \"16MiB\"\nbody_size = \"1MiB\"\n"));
        let (slow, other) = (holder("slow"), holder("other"));
        let message = |holder: &Holder| admission.budget(holder, 1);
        let results: Vec<_> = (0..4).map(|_| message(&slow).unwrap()).collect();
        let has_room: Vec<_> = results.iter().map(|result| result.grow(3 * MIB)).collect();
        assert_eq!(has_room, [true, true, true, false], "beyond half there is no more to borrow");
        const MESSAGE: usize = (COPIES + RESULT_ROOM) << 10;
        const SPARE: usize = MESSAGE - 1024;
        assert_eq!(admission.usage().bytes, 3 * (3 * MIB - SPARE) + 4 * MESSAGE);
        assert!(results[3].grow(SPARE) && !results[3].grow(1), "what is reserved is left");
        assert!(message(&slow).is_err(), "new calls are refused");
        let uploaded = uploaded(&admission, &other, 1 << 20).unwrap().received().unwrap();
        assert!(uploaded.grow(MIB), "the copy that arrived leaves its room");
        assert!(uploaded.grow(2 * MIB) && !uploaded.grow(MIB), "its share is a quarter");
        drop(results);
        assert_eq!(admission.usage().bytes, 4 * MIB);
        assert!(message(&slow).unwrap().grow(3 * MIB));
        drop(uploaded);
        assert_eq!(admission.usage().bytes, 0);
    }

    #[test]
    fn the_memory_of_messages_is_at_most_a_quarter_of_that_of_the_process() {
        let limits = limits("in_flight_bytes = \"256MiB\"\nbody_size = \"1MiB\"\n");
        let of = |most| within(&limits, most).in_flight_bytes >> 20;
        assert_eq!([of(None), of(Some(2 << 30)), of(Some(512 << 20))], [256, 256, 128]);
        assert_eq!(of(Some(1 << 20)), 2, "the largest body always has room");
    }

    #[tokio::test]
    async fn f3_a_complete_message_keeps_its_memory() {
        let admission =
            Admission::new(&limits("in_flight_bytes = \"8MiB\"\nbody_size = \"1MiB\"\n"));
        let complete: Vec<_> =
            std::iter::from_fn(|| uploaded(&admission, &holder("a"), 1 << 20).ok())
                .map(|upload| upload.received().unwrap())
                .collect();
        assert!(admission.budget(&holder("b"), 1 << 20).is_err());
        assert!(admission.budget(&holder("b"), 1 << 10).is_ok());
        drop(complete);
        assert!(admission.budget(&holder("b"), 1 << 20).is_ok());
    }
}
