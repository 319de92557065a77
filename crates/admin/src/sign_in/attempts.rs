//! How often a wrong `admin.token` may be tried at the console.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

use domain::fair_share::network;
use gateway::policy::gcra::{Nanos, Quota, nanos, take};

/// Counts failures by network and in total. Successes do not count. Pure but for its lock: the
/// clock is an argument.
pub(super) struct Attempts {
    start: Instant,
    state: Mutex<State>,
}

pub(crate) struct State {
    /// The theoretical arrival time of each network.
    networks: LruCache<IpAddr, Nanos>,
    total: Option<Nanos>,
}

/// Of one network of addresses: five failures, then one every 30 seconds.
const PER_NETWORK: Quota = Quota { interval: Duration::from_secs(30), burst: nonzero(5) };

/// Of all together, against guesses from many networks: fifty failures, then one every two seconds.
const IN_TOTAL: Quota = Quota { interval: Duration::from_secs(2), burst: nonzero(50) };

/// Networks that are remembered. In the 150 s after which a network is as good as new, no more than
/// 50 + 75 can fail, so none that is limited is forgotten for others.
const NETWORKS: usize = 256;

impl Attempts {
    /// `start` is a time that no attempt precedes.
    pub(super) fn new(start: Instant) -> Self {
        let networks = LruCache::new(NonZeroUsize::new(NETWORKS).unwrap_or(NonZeroUsize::MIN));
        Self { start, state: Mutex::new(State { networks, total: None }) }
    }

    /// Counts an attempt, if it fails.
    ///
    /// # Errors
    /// The time until the next attempt, if there were too many failures. Callers must not reveal
    /// `is_right` then: it would confirm a guess.
    pub(super) fn check(
        &self,
        address: IpAddr,
        is_right: bool,
        now: Instant,
    ) -> Result<(), Failed> {
        let network = network(address);
        let now = nanos(now.duration_since(self.start));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let own = take(PER_NETWORK, state.networks.get(&network).copied(), now);
        let (own, total) = match (own, take(IN_TOTAL, state.total, now)) {
            (Ok(own), Ok(total)) => (own, total),
            (own, total) => {
                let waits = [own.err(), total.err()];
                return Err(Failed::TooMany(waits.into_iter().flatten().max().unwrap_or_default()));
            }
        };
        if is_right {
            return Ok(());
        }
        state.networks.put(network, own);
        state.total = Some(total);
        Err(Failed::Wrong)
    }
}

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Failed {
    Wrong,
    /// It was not checked. The next one may be made after this time.
    TooMany(Duration),
}

const fn nonzero(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_network_has_five_failures_and_then_one_every_thirty_seconds() {
        let start = Instant::now();
        let attempts = Attempts::new(start);
        let check = |address, is_right, after| attempts.check(address, is_right, start + after);
        for _ in 0..5 {
            assert_eq!(check(v4(1), true, Duration::ZERO), Ok(()), "successes do not count");
            assert_eq!(check(v4(1), false, Duration::ZERO), Err(Failed::Wrong));
        }
        let too_many = |secs: u64| Err(Failed::TooMany(Duration::from_secs(secs)));
        assert_eq!(check(v4(1), false, Duration::ZERO), too_many(30));
        assert_eq!(check(v4(1), true, Duration::ZERO), too_many(30), "a right guess is not told");
        assert_eq!(check(v4(2), true, Duration::ZERO), Ok(()), "others are not limited");
        let last = 30 * SECOND - Duration::from_nanos(1);
        assert_eq!(check(v4(1), true, last), Err(Failed::TooMany(Duration::from_nanos(1))));
        assert_eq!(check(v4(1), true, 30 * SECOND), Ok(()));
        assert_eq!(check(v4(1), false, 30 * SECOND), Err(Failed::Wrong));
        assert_eq!(check(v4(1), false, 30 * SECOND), too_many(30));
    }

    #[test]
    fn an_ipv6_network_counts_as_one() {
        let start = Instant::now();
        let attempts = Attempts::new(start);
        for host in 0..5 {
            let address = format!("2001:db8::{host}").parse().unwrap();
            assert_eq!(attempts.check(address, false, start), Err(Failed::Wrong));
        }
        let neighbour = "2001:db8::ffff".parse().unwrap();
        assert!(matches!(attempts.check(neighbour, true, start), Err(Failed::TooMany(_))));
        assert_eq!(attempts.check("2001:db8:0:1::1".parse().unwrap(), true, start), Ok(()));
    }

    #[test]
    fn many_networks_are_bounded_in_guesses_and_memory_and_none_is_forgotten() {
        let start = Instant::now();
        let attempts = Attempts::new(start);
        for _ in 0..5 {
            assert_eq!(attempts.check(v4(0), false, start), Err(Failed::Wrong));
        }
        let mut wrong = 0;
        for second in 0..29 {
            for other in 1..=100 {
                let now = start + second * SECOND;
                let failed = attempts.check(v4(second * 100 + other), false, now);
                wrong += usize::from(failed == Err(Failed::Wrong));
            }
        }
        assert_eq!(wrong, 45 + 14);
        assert!(attempts.state.lock().unwrap().networks.len() <= NETWORKS);
        let own = attempts.check(v4(0), true, start + 29 * SECOND);
        assert_eq!(own, Err(Failed::TooMany(SECOND)), "still limited after the others");
    }
}
