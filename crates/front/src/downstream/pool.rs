//! Pools of a shared, bounded resource that lasts (connections, streams, memory for uploads). When
//! a pool has no room for a newcomer, it revokes idle leases of the holders with the most units.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use base::platform::Locked;
use domain::calls::fair_share::{Denied, FairShare, Holder};

/// A pool. Clones are handles of the same pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<SharedPool>);

#[derive(Debug)]
struct SharedPool {
    revokes: Revokes,
    /// Wakes tasks that wait for room, when a lease is given back or becomes idle.
    changed: Notify,
    /// Time 0 of [`Activity::idle_since`].
    epoch: Instant,
    state: Mutex<PoolState>,
}

/// The leases that a pool revokes when there is no room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Revokes {
    /// The longest idle lease: of the newcomer if it is beyond its share, else of the largest
    /// holder.
    Idle,
    /// As [`Self::Idle`], but a newcomer within its share displaces only a holder with more than
    /// the newcomer then has, so that holders who reconnect do not displace each other for ever.
    IdleOfLarger,
    /// The longest idle leases of a holder beyond its share, for a newcomer within its share.
    Borrowed,
}

#[derive(Debug)]
struct PoolState {
    shares: FairShare<Holder>,
    /// By holder and number: a lease with a smaller number is older.
    leases: HashMap<Holder, BTreeMap<u64, Leased>>,
    next: u64,
}

#[derive(Debug)]
struct Leased {
    amount: usize,
    activity: Arc<Activity>,
}

#[derive(Debug)]
struct Activity {
    /// Nanoseconds since the epoch of the pool; [`BUSY`] while the lease must not be revoked,
    /// [`REVOKED`] once it is.
    idle_since: AtomicU64,
    revoked: CancellationToken,
}

const BUSY: u64 = u64::MAX;
const REVOKED: u64 = u64::MAX - 1;

/// The bounds of one request for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomBounds {
    /// Units in use at most afterwards, over all holders.
    pub ceiling: usize,
    /// The share of the holder.
    pub share: usize,
    /// Units of one holder at most, whatever is free.
    pub per_holder: usize,
}

/// Why a pool gives no room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NoRoom {
    /// The holder has reached [`RoomBounds::per_holder`].
    PerHolder,
    /// The holder is beyond its share.
    OverShare,
    /// The holder is within its share, but nothing can be revoked for it; or its lease was revoked.
    Full,
}

/// A part of the pool, given back on drop. A new lease is idle.
#[derive(Debug)]
#[must_use]
pub(crate) struct PoolLease {
    pool: Arc<SharedPool>,
    holder: Holder,
    number: u64,
    activity: Arc<Activity>,
}

/// A part of the pool that is in use from the beginning, and never revoked. Given back on drop.
#[derive(Debug)]
#[must_use]
pub(crate) struct Held {
    pool: Arc<SharedPool>,
    holder: Holder,
    /// Changed under the lock of the pool.
    amount: AtomicUsize,
}

impl Pool {
    /// Creates an unused pool of `total` units.
    pub(crate) fn new(total: usize, share: usize, revokes: Revokes) -> Self {
        let shares = FairShare::new(total, share);
        let state = PoolState { shares, leases: HashMap::new(), next: 0 };
        let shared = SharedPool {
            revokes,
            changed: Notify::new(),
            epoch: Instant::now(),
            state: Mutex::new(state),
        };
        Self(Arc::new(shared))
    }

    /// Returns a future that resolves when there may be room, also if that changes before it is
    /// polled.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }

    /// Changes the bounds. Leases stay, even beyond them.
    pub(crate) fn resize(&self, total: usize, share: usize) {
        self.0.state.locked().shares.resize(total, share);
    }

    /// Returns the units in use.
    pub(crate) fn used(&self) -> usize {
        self.0.state.locked().shares.used()
    }

    /// Leases `amount` units to a holder.
    pub(crate) fn lease(
        &self,
        holder: &Holder,
        amount: usize,
        bounds: RoomBounds,
    ) -> Result<PoolLease, NoRoom> {
        let mut state = self.0.state.locked();
        state.take(holder, amount, bounds, self.0.revokes)?;
        let number = state.next;
        state.next += 1;
        let idle_since = AtomicU64::new(self.0.now());
        let activity = Arc::new(Activity { idle_since, revoked: CancellationToken::new() });
        let leased = Leased { amount, activity: activity.clone() };
        state.leases.entry(holder.clone()).or_default().insert(number, leased);
        state.debug_assert_invariants(holder);
        drop(state);
        Ok(PoolLease { pool: self.0.clone(), holder: holder.clone(), number, activity })
    }

    /// Gives `amount` units to a holder that uses them at once.
    pub(crate) fn hold(
        &self,
        holder: &Holder,
        amount: usize,
        bounds: RoomBounds,
    ) -> Result<Held, NoRoom> {
        let mut state = self.0.state.locked();
        state.take(holder, amount, bounds, self.0.revokes)?;
        state.debug_assert_invariants(holder);
        drop(state);
        let amount = AtomicUsize::new(amount);
        Ok(Held { pool: self.0.clone(), holder: holder.clone(), amount })
    }
}

impl PoolLease {
    /// Grows the lease by `amount` units.
    pub(crate) fn grow(&self, amount: usize, bounds: RoomBounds) -> Result<(), NoRoom> {
        let mut state = self.pool.state.locked();
        if self.activity.revoked.is_cancelled() {
            return Err(NoRoom::Full);
        }
        state.take(&self.holder, amount, bounds, self.pool.revokes)?;
        let grown = match state.leased(&self.holder, self.number) {
            Some(leased) => {
                leased.amount += amount;
                Ok(())
            }
            // Revoked to make room for itself.
            None => {
                state.shares.put_back(&self.holder, amount);
                Err(NoRoom::Full)
            }
        };
        state.debug_assert_invariants(&self.holder);
        grown
    }

    /// Marks the lease as in use: it is not revoked from now on, unless it [is](Self::is_revoked)
    /// already.
    pub(crate) fn busy(&self) {
        self.mark(BUSY);
    }

    /// Returns whether the lease was revoked.
    pub(crate) fn is_revoked(&self) -> bool {
        self.activity.idle_since.load(Ordering::Relaxed) == REVOKED
    }

    /// Marks the lease as idle from now on, unless it is revoked.
    pub(crate) fn idle(&self) {
        if self.mark(self.pool.now()) {
            self.pool.changed.notify_waiters();
        }
    }

    /// Returns whether the lease is not revoked.
    fn mark(&self, idle_since: u64) -> bool {
        let marked = |since| (since != REVOKED).then_some(idle_since);
        let activity = &self.activity.idle_since;
        activity.fetch_update(Ordering::Relaxed, Ordering::Relaxed, marked).is_ok()
    }

    /// Marks the lease as in use, unless it is revoked already.
    pub(crate) fn claim(&self) -> Result<(), NoRoom> {
        let mut state = self.pool.state.locked();
        state.leased(&self.holder, self.number).ok_or(NoRoom::Full)?;
        self.busy();
        Ok(())
    }

    /// Waits until the lease is revoked.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn revoked(&self) {
        self.activity.revoked.cancelled().await;
    }

    /// Returns the signal that the lease is revoked.
    pub(crate) fn revocation(&self) -> CancellationToken {
        self.activity.revoked.clone()
    }
}

impl Held {
    /// Gives `amount` units more. `bounds` are those for the units in use afterwards.
    pub(crate) fn grow(
        &self,
        amount: usize,
        bounds: impl FnOnce(usize) -> RoomBounds,
    ) -> Result<(), NoRoom> {
        let mut state = self.pool.state.locked();
        let held = self.amount.load(Ordering::Relaxed) + amount;
        state.take(&self.holder, amount, bounds(held), self.pool.revokes)?;
        self.amount.store(held, Ordering::Relaxed);
        state.debug_assert_invariants(&self.holder);
        Ok(())
    }
}

impl Drop for PoolLease {
    fn drop(&mut self) {
        self.pool.state.locked().release(&self.holder, self.number);
        self.pool.changed.notify_waiters();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.pool.state.locked();
        state.shares.put_back(&self.holder, *self.amount.get_mut());
        state.debug_assert_invariants(&self.holder);
        drop(state);
        self.pool.changed.notify_waiters();
    }
}

impl SharedPool {
    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(REVOKED - 1)
    }
}

impl PoolState {
    fn take(
        &mut self,
        holder: &Holder,
        amount: usize,
        bounds: RoomBounds,
        revokes: Revokes,
    ) -> Result<(), NoRoom> {
        if self.shares.held(holder).saturating_add(amount) > bounds.per_holder {
            return Err(NoRoom::PerHolder);
        }
        loop {
            let RoomBounds { ceiling, share, .. } = bounds;
            let Err(denied) = self.shares.take_below(holder, amount, ceiling, share) else {
                return Ok(());
            };
            let victim = match (revokes, denied) {
                (Revokes::Idle | Revokes::IdleOfLarger, Denied::OverShare) => {
                    // One lease replaces another: units that the holder has borrowed stay borrowed.
                    if self.revoke_longest_idle(holder) {
                        self.shares.force(holder, amount);
                        return Ok(());
                    }
                    None
                }
                (Revokes::Idle, Denied::Full) => self.largest_with_idle(0),
                (Revokes::IdleOfLarger, Denied::Full) => {
                    self.largest_with_idle(self.shares.held(holder) + amount)
                }
                (Revokes::Borrowed, Denied::Full) => self.largest_with_idle(self.shares.share()),
                (Revokes::Borrowed, Denied::OverShare) => None,
            };
            let revoked = victim.is_some_and(|victim| self.revoke_longest_idle(&victim));
            if !revoked {
                return Err(match denied {
                    Denied::OverShare => NoRoom::OverShare,
                    Denied::Full => NoRoom::Full,
                });
            }
        }
    }

    /// Returns the largest holder among those with more than `least` units and an idle lease.
    fn largest_with_idle(&self, least: usize) -> Option<Holder> {
        let mut largest: Option<(&Holder, usize)> = None;
        for (holder, held) in self.shares.holders().filter(|(_, held)| *held > least) {
            if largest.is_none_or(|(_, most)| held > most) && self.longest_idle(holder).is_some() {
                largest = Some((holder, held));
            }
        }
        largest.map(|(holder, _)| holder.clone())
    }

    /// The number of the longest idle lease of a holder, and since when it is idle.
    fn longest_idle(&self, holder: &Holder) -> Option<(u64, u64)> {
        let idle_since = |leased: &Leased| leased.activity.idle_since.load(Ordering::Relaxed);
        let leases = self.leases.get(holder)?.iter();
        let idle = leases.filter(|(_, leased)| leased.amount > 0);
        let idle = idle.map(|(number, leased)| (*number, idle_since(leased)));
        idle.filter(|(_, since)| *since < REVOKED).min_by_key(|(_, since)| *since)
    }

    fn revoke_longest_idle(&mut self, holder: &Holder) -> bool {
        while let Some((number, since)) = self.longest_idle(holder) {
            let Some(leased) = self.leased(holder, number) else { return false };
            // The lease may have become busy meanwhile.
            let idle_since = &leased.activity.idle_since;
            let order = Ordering::Relaxed;
            if idle_since.compare_exchange(since, REVOKED, order, order).is_ok() {
                if let Some(leased) = self.release(holder, number) {
                    leased.activity.revoked.cancel();
                }
                return true;
            }
        }
        false
    }

    fn leased(&mut self, holder: &Holder, number: u64) -> Option<&mut Leased> {
        self.leases.get_mut(holder)?.get_mut(&number)
    }

    fn release(&mut self, holder: &Holder, number: u64) -> Option<Leased> {
        let leases = self.leases.get_mut(holder)?;
        let leased = leases.remove(&number)?;
        if leases.is_empty() {
            self.leases.remove(holder);
        }
        self.shares.put_back(holder, leased.amount);
        self.debug_assert_invariants(holder);
        Some(leased)
    }

    /// Panics in debug builds if units of the holder are not counted, or counted twice. The other
    /// holders have not changed.
    fn debug_assert_invariants(&self, holder: &Holder) {
        // A lease that is dropped while a test fails must not end the process.
        if !cfg!(debug_assertions) || std::thread::panicking() {
            return;
        }
        let Some(leases) = self.leases.get(holder) else {
            return;
        };
        assert!(!leases.is_empty(), "a holder of no lease has no entry");
        let leased: usize = leases.values().map(|leased| leased.amount).sum();
        assert!(leased <= self.shares.held(holder), "what is leased is in use");
        assert!(leases.keys().all(|number| *number < self.next), "no two leases have one number");
        let is_revoked =
            |leased: &Leased| leased.activity.idle_since.load(Ordering::Relaxed) == REVOKED;
        assert!(!leases.values().any(is_revoked), "the room of a revoked lease is free");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;
    use domain::calls::caller::Caller;

    fn holder(id: &str) -> Holder {
        Holder::Caller(Caller::new(id))
    }

    fn bounds(total: usize, share: usize) -> RoomBounds {
        RoomBounds { ceiling: total, share, per_holder: usize::MAX }
    }

    fn is_revoked(lease: &PoolLease) -> bool {
        lease.activity.revoked.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn f5_the_longest_idle_lease_of_the_largest_holder_makes_room_for_a_newcomer() {
        let pool = Pool::new(6, 2, Revokes::Idle);
        let lease = |id: &str| pool.lease(&holder(id), 1, bounds(6, 2));
        let mut large = Vec::new();
        for _ in 0..4 {
            large.push(lease("large").unwrap());
            advance(Duration::from_secs(1)).await;
        }
        large[0].busy();
        let small = [lease("a").unwrap(), lease("b").unwrap()];
        large[1].idle();
        let newcomer = lease("c").unwrap();
        assert_eq!(large.iter().map(is_revoked).collect::<Vec<_>>(), [false, false, true, false]);
        assert!(!small.iter().any(is_revoked) && !is_revoked(&newcomer));
        assert_eq!(pool.used(), 6, "the room of a revoked lease is given at once");
        large.clear();
        assert_eq!(pool.used(), 3, "and is not given back twice");
    }

    #[tokio::test(start_paused = true)]
    async fn f5_a_holder_beyond_its_share_displaces_itself_and_nobody_else() {
        let pool = Pool::new(8, 2, Revokes::Idle);
        let lease = |id: &str| pool.lease(&holder(id), 1, bounds(8, 2));
        let other = lease("other").unwrap();
        let mut flood = Vec::new();
        for _ in 0..100 {
            flood.push(lease("flood").unwrap());
        }
        assert!(!is_revoked(&other));
        assert_eq!(flood.iter().filter(|lease| !is_revoked(lease)).count(), 4);
        assert_eq!(pool.used(), 5, "half was free before the last that was borrowed");
        flood.iter().for_each(PoolLease::busy);
        assert_eq!(lease("flood").err(), Some(NoRoom::OverShare));
        assert!(lease("other").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn f5_a_busy_newcomer_within_its_share_finds_room_while_anything_is_idle() {
        // Behind a trusted proxy: its share is all.
        let pool = Pool::new(4, 1, Revokes::Idle);
        let proxy = || pool.lease(&holder("proxy"), 1, bounds(4, 4));
        let busy = [proxy().unwrap(), proxy().unwrap(), proxy().unwrap()];
        busy.iter().for_each(PoolLease::busy);
        let idle = pool.lease(&holder("a"), 1, bounds(4, 1)).unwrap();
        let newcomer = proxy().unwrap();
        assert!(is_revoked(&idle) && !busy.iter().any(is_revoked));
        newcomer.busy();
        let stranger = pool.lease(&holder("b"), 1, bounds(4, 1));
        assert_eq!(stranger.err(), Some(NoRoom::Full), "nothing is idle");
    }

    #[tokio::test(start_paused = true)]
    async fn f3_borrowed_memory_is_given_up_for_others_and_memory_within_a_share_is_not() {
        let pool = Pool::new(100, 25, Revokes::Borrowed);
        let lease = |id: &str, amount| pool.lease(&holder(id), amount, bounds(100, 25));
        let borrowed = [lease("large", 25).unwrap(), lease("large", 25).unwrap()];
        let within = [lease("a", 25).unwrap(), lease("b", 25).unwrap()];
        assert_eq!(lease("large", 1).err(), Some(NoRoom::OverShare), "its own are not displaced");
        let newcomer = lease("c", 20).unwrap();
        assert_eq!(borrowed.each_ref().map(is_revoked), [true, false]);
        assert!(!within.iter().any(is_revoked));
        assert_eq!(borrowed[0].grow(1, bounds(100, 25)), Err(NoRoom::Full), "revoked");
        // No holder is beyond its share now.
        assert_eq!(lease("d", 25).err(), Some(NoRoom::Full));
        drop(newcomer);
        assert!(lease("d", 25).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_has_borrowed_much_gives_up_one_lease_for_one() {
        let pool = Pool::new(100, 10, Revokes::Idle);
        let lease = |id: &str| pool.lease(&holder(id), 1, bounds(100, 10)).unwrap();
        let mut borrowed: Vec<_> = (0..51).map(|_| lease("large")).collect();
        let _others: Vec<_> = (0..40).map(|n| lease(&format!("{}", n / 8))).collect();
        borrowed.push(lease("large"));
        assert_eq!(borrowed.iter().filter(|lease| is_revoked(lease)).count(), 1);
        assert_eq!(pool.used(), 91);
    }

    #[tokio::test(start_paused = true)]
    async fn holders_of_one_lease_each_do_not_push_each_other_out() {
        let pool = Pool::new(2, 1, Revokes::IdleOfLarger);
        let lease = |id: &str| pool.lease(&holder(id), 1, bounds(2, 1));
        let first = lease("a").unwrap();
        let second = lease("b").unwrap();
        assert_eq!(lease("c").err(), Some(NoRoom::Full));
        assert!(!is_revoked(&first) && !is_revoked(&second));
        drop(second);
        let second = lease("a").unwrap();
        assert!(lease("c").is_ok(), "of one that has two");
        assert!(is_revoked(&first) && !is_revoked(&second));
    }

    #[tokio::test]
    async fn a_revoked_lease_cannot_be_claimed() {
        let pool = Pool::new(2, 1, Revokes::Borrowed);
        let large = pool.lease(&holder("large"), 2, bounds(2, 2)).unwrap();
        let small = pool.lease(&holder("small"), 1, bounds(2, 1)).unwrap();
        assert_eq!((large.claim(), small.claim()), (Err(NoRoom::Full), Ok(())));
        large.idle();
        large.busy();
        small.busy();
        let revoked = (large.is_revoked(), small.is_revoked());
        assert_eq!(revoked, (true, false), "a request must not begin on it");
    }

    proptest! {
        /// The pool itself checks after each step that what is leased is what is in use.
        #[test]
        fn whatever_is_leased_and_revoked_in_any_order_all_room_is_free_in_the_end(
            revokes in prop::sample::select(
                vec![Revokes::Idle, Revokes::IdleOfLarger, Revokes::Borrowed],
            ),
            steps in prop::collection::vec((0..7_u8, 0..4_u8, 0..6_usize, 0..20_usize), 1..100),
        ) {
            let pool = Pool::new(12, 3, revokes);
            let (mut leases, mut held) = (Vec::new(), Vec::new());
            for (step, id, amount, at) in steps {
                let holder = holder(&id.to_string());
                let bounds = RoomBounds { per_holder: 9, ..bounds(12, 3) };
                // Where a holder displaces itself, one for one, all amounts are 1.
                let amount = if revokes == Revokes::Borrowed { amount } else { 1 };
                match (step, leases.get(at % leases.len().max(1))) {
                    (0, _) => leases.extend(pool.lease(&holder, amount, bounds).ok()),
                    (1, _) => held.extend(pool.hold(&holder, amount, bounds).ok()),
                    (2, Some(lease)) => _ = lease.grow(amount, bounds),
                    (3, Some(lease)) => lease.busy(),
                    (4, Some(lease)) => lease.idle(),
                    (5, Some(_)) => drop(leases.swap_remove(at % leases.len())),
                    (6, _) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                    _ => {}
                }
                prop_assert!(pool.used() <= 12);
                let is_revoked = leases.iter().filter(|lease| is_revoked(lease)).count();
                let counted: usize =
                    pool.0.state.locked().leases.values().map(BTreeMap::len).sum();
                prop_assert_eq!(counted, leases.len() - is_revoked);
            }
            drop((leases, held));
            prop_assert_eq!(pool.used(), 0);
            prop_assert!(pool.0.state.locked().leases.is_empty());
        }
    }

    #[test]
    fn a_bound_per_holder_wins_over_what_is_free() {
        let pool = Pool::new(10, 5, Revokes::Idle);
        let bounds = RoomBounds { per_holder: 1, ..bounds(10, 5) };
        let first = pool.lease(&holder("a"), 1, bounds).unwrap();
        assert_eq!(pool.lease(&holder("a"), 1, bounds).err(), Some(NoRoom::PerHolder));
        assert!(!is_revoked(&first));
    }
}
