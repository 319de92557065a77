//! Fair shares of a bounded resource. Each holder has room for its share, whatever others hold;
//! beyond the share it borrows, but only while half of the resource is free, so that a busy holder
//! never takes the room of newcomers.
//!
//! Shares are not reservations: four holders may have all of a resource with shares of a quarter.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::calls::caller::Caller;

/// The holder of a part of a shared resource.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Holder {
    /// An authenticated caller.
    Caller(Caller),
    /// The [`network`] of a client that is not authenticated, or not yet.
    Network(IpAddr),
}

impl Holder {
    /// Returns the holder for the resources of a caller: the caller, or its network if it is
    /// anonymous.
    pub fn of(caller: &Caller, address: Option<IpAddr>) -> Self {
        match address {
            Some(address) if caller.is_anonymous() => Self::Network(network(address)),
            _ => Self::Caller(caller.clone()),
        }
    }
}

/// Returns the network that an address counts for: of an IPv6 address the first 64 bits, since a
/// client with one address of such a network has all of them.
pub fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

/// The part of a resource that one holder may have while others want room, in thousandths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Share(u32);

impl Share {
    /// The whole resource: no holder is limited.
    pub const WHOLE: Self = Self(1000);

    /// A quarter: four holders may have the whole resource.
    pub const QUARTER: Self = Self(250);

    /// No share, which no valid configuration has.
    pub const NONE: Self = Self(0);

    /// Returns the share for a fraction from 0 to 1, rounded up to thousandths.
    pub fn new(fraction: f64) -> Self {
        Self((fraction * 1000.0).ceil().clamp(0.0, 1000.0) as u32)
    }

    /// Returns the share of `total`, at least 1.
    pub fn of(self, total: usize) -> usize {
        let share = (total as u128 * u128::from(self.0) / 1000) as usize;
        share.max(1)
    }
}

/// Use of a bounded resource, by holder. Pure: the caller serialises access.
#[derive(Debug)]
pub struct FairShare<H> {
    total: usize,
    share: usize,
    used: usize,
    /// Holders without units have no entry.
    held: HashMap<H, usize>,
}

/// The number of holders up to which debug builds check all of them after each change.
const MAX_CHECKED: usize = 256;

/// Why an amount is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Denied {
    /// The holder would have more than its share, and less than half of the resource is free.
    OverShare,
    /// The amount is within the share, but others have the room.
    Full,
}

impl<H: Clone + Eq + Hash> FairShare<H> {
    /// Returns an unused resource of `total` units, of which each holder has `share`.
    pub fn new(total: usize, share: usize) -> Self {
        Self { total, share, used: 0, held: HashMap::new() }
    }

    /// Changes the bounds. Units in use stay taken, even beyond the new bounds.
    pub fn resize(&mut self, total: usize, share: usize) {
        self.total = total;
        self.share = share;
    }

    /// Takes an amount for a holder.
    ///
    /// # Errors
    /// [`Denied`]; then no unit is taken.
    pub fn take(&mut self, holder: &H, amount: usize) -> Result<(), Denied> {
        self.take_below(holder, amount, self.total, self.share)
    }

    /// Takes an amount like [`FairShare::take`], with the share `share` for this holder, and only
    /// if at most `ceiling` units are in use afterwards, over all holders.
    pub fn take_below(
        &mut self,
        holder: &H,
        amount: usize,
        ceiling: usize,
        share: usize,
    ) -> Result<(), Denied> {
        let ceiling = ceiling.min(self.total);
        let fits = self.used.saturating_add(amount) <= ceiling;
        let may_borrow = self.total.saturating_sub(self.used) >= self.total.div_ceil(2);
        let held = self.held.get_mut(holder);
        let had = held.as_deref().copied().unwrap_or_default();
        let is_within_share = had.saturating_add(amount) <= share;
        match (fits, is_within_share || may_borrow) {
            (true, true) => {}
            (false, _) if is_within_share => return Err(Denied::Full),
            _ => return Err(Denied::OverShare),
        }
        self.used += amount;
        match held {
            Some(held) => *held += amount,
            None if amount > 0 => drop(self.held.insert(holder.clone(), amount)),
            None => {}
        }
        debug_assert!(self.used <= ceiling, "{} in use of {ceiling}", self.used);
        self.debug_assert_invariants();
        Ok(())
    }

    /// Takes an amount for a holder, whether or not there is room.
    pub fn force(&mut self, holder: &H, amount: usize) {
        self.used += amount;
        match self.held.get_mut(holder) {
            Some(held) => *held += amount,
            None if amount > 0 => drop(self.held.insert(holder.clone(), amount)),
            None => {}
        }
        self.debug_assert_invariants();
    }

    /// Returns an amount that the holder has taken.
    pub fn put_back(&mut self, holder: &H, amount: usize) {
        // A clone of a holder costs less than to hash it once more for the removal.
        let Entry::Occupied(mut held) = self.held.entry(holder.clone()) else {
            return;
        };
        let amount = amount.min(*held.get());
        *held.get_mut() -= amount;
        self.used -= amount;
        if *held.get() == 0 {
            held.remove();
        }
        self.debug_assert_invariants();
    }

    /// Returns everything that all holders have taken.
    pub fn clear(&mut self) {
        self.used = 0;
        self.held.clear();
    }

    /// Panics in debug builds if the units of all holders do not add up to the units in use. A scan
    /// is linear in the holders, so there is no scan beyond [`MAX_CHECKED`].
    fn debug_assert_invariants(&self) {
        // A lease that is returned while a test fails must not end the process.
        let is_checked = cfg!(debug_assertions) && !std::thread::panicking();
        if !is_checked || self.held.len() > MAX_CHECKED {
            return;
        }
        let held: usize = self.held.values().sum();
        assert_eq!(held, self.used, "what is held is in use");
        assert!(self.held.values().all(|held| *held > 0), "holders of nothing have no entry");
    }

    /// Units in use, over all holders.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Units of one holder.
    pub fn held(&self, holder: &H) -> usize {
        self.held.get(holder).copied().unwrap_or_default()
    }

    /// The share of one holder.
    pub fn share(&self) -> usize {
        self.share
    }

    /// Returns the holders, each with its units.
    pub fn holders(&self) -> impl Iterator<Item = (&H, usize)> {
        self.held.iter().map(|(holder, held)| (holder, *held))
    }
}

/// Places of one bounded resource that are returned on drop. Clones share the places.
#[derive(Clone, Debug)]
pub struct Places {
    shares: Arc<Mutex<FairShare<Holder>>>,
    total: usize,
}

/// One place of a holder. Dropping it gives the place back.
#[derive(Debug)]
pub struct SharePlace {
    places: Places,
    holder: Holder,
}

impl Places {
    pub fn new(total: usize) -> Self {
        Self { shares: Arc::new(Mutex::new(FairShare::new(total, 0))), total }
    }

    /// Takes a place, if the share of the holder has room for another place.
    pub fn take(&self, holder: Holder, share: Share) -> Option<SharePlace> {
        let share = share.of(self.total);
        self.lock().take_below(&holder, 1, self.total, share).ok()?;
        Some(SharePlace { places: self.clone(), holder })
    }

    fn lock(&self) -> MutexGuard<'_, FairShare<Holder>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharePlace {
    fn drop(&mut self) {
        self.places.lock().put_back(&self.holder, 1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn f23_a_holder_that_keeps_its_places_leaves_some_for_others() {
        let places = Places::new(256);
        let take = |id: &str| places.take(Holder::Caller(Caller::new(id)), Share::new(0.25));
        let held: Vec<_> = std::iter::from_fn(|| take("flood")).collect();
        assert_eq!(held.len(), 129);
        let others: Vec<_> = std::iter::from_fn(|| take("other")).collect();
        assert_eq!(others.len(), 64);
        drop(held);
        assert!(take("flood").is_some());
    }

    #[test]
    fn a_holder_borrows_beyond_its_share_only_while_half_is_free() {
        let mut shares = FairShare::new(8, 2);
        for _ in 0..5 {
            // At 0 to 4 in use, half is free before.
            assert_eq!(shares.take(&"busy", 1), Ok(()));
        }
        assert_eq!(shares.take(&"busy", 1), Err(Denied::OverShare));
        assert_eq!(shares.take(&"b", 2), Ok(()), "within its share");
        assert_eq!(shares.take(&"b", 1), Err(Denied::OverShare));
        assert_eq!(shares.take(&"c", 1), Ok(()));
        assert_eq!(shares.take(&"d", 1), Err(Denied::Full));
        shares.put_back(&"busy", 1);
        assert_eq!(shares.take(&"busy", 1), Err(Denied::OverShare), "freed room is for others");
        assert_eq!(shares.take(&"d", 1), Ok(()));
        assert_eq!((shares.used(), shares.held(&"busy")), (8, 4));
    }

    #[test]
    fn a_share_of_the_whole_limits_nobody_and_the_least_share_is_one() {
        let mut shares = FairShare::new(5, Share::WHOLE.of(5));
        assert_eq!(shares.take(&"a", 5), Ok(()));
        assert_eq!(shares.take(&"b", 1), Err(Denied::Full));
        assert_eq!([Share::new(0.25).of(16_384), Share::new(0.25).of(3)], [4_096, 1]);
        assert_eq!([Share::new(0.0001).of(10), Share::new(1.0).of(usize::MAX)], [1, usize::MAX]);
    }

    #[test]
    fn networks_are_addresses_of_ipv4_and_sixty_four_bits_of_ipv6() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("1.2.3.4"), "1.2.3.4");
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        let ip = Some([1, 2, 3, 4].into());
        assert_eq!(Holder::of(&Caller::anonymous(), ip), Holder::Network([1, 2, 3, 4].into()));
        assert_eq!(Holder::of(&Caller::new("ci"), ip), Holder::Caller(Caller::new("ci")));
    }

    proptest! {
        #[test]
        fn what_is_used_is_what_is_held_and_whoever_is_within_its_share_is_served_first(
            total in 1..40_usize,
            share in 1..40_usize,
            steps in prop::collection::vec((0..5_u8, 1..6_usize, any::<bool>()), 1..200),
        ) {
            let mut shares = FairShare::new(total, share);
            for (holder, amount, takes) in steps {
                let used = shares.used();
                let held = shares.held(&holder);
                if takes {
                    let taken = shares.take(&holder, amount);
                    let fits = used + amount <= total;
                    let is_within = held + amount <= share;
                    let half_is_free = 2 * (total - used) >= total;
                    prop_assert_eq!(taken.is_ok(), fits && (is_within || half_is_free));
                    prop_assert_eq!(taken == Err(Denied::Full), !fits && is_within);
                } else {
                    shares.put_back(&holder, amount);
                    prop_assert_eq!(shares.held(&holder), held.saturating_sub(amount));
                }
                prop_assert!(shares.used() <= total);
                prop_assert_eq!(shares.holders().map(|(_, held)| held).sum::<usize>(), shares.used());
                prop_assert!(shares.holders().all(|(_, held)| held > 0));
            }
        }
    }
}
