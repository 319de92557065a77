//! Limits the rate of failed tries of `admin.token` at the console.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::calls::fair_share::network;
use policy::gcra::Quota;
use policy::limiter::Limiter;

/// Counts failures by network and in total. Successes do not count.
pub(super) struct Attempts {
    networks: Limiter<IpAddr>,
    total: Limiter<()>,
    /// Held from the look to the take: guesses at the same time must not pass on the same cell.
    check: Mutex<()>,
}

/// Quota of one network of addresses: five failures, then one every 30 seconds.
const PER_NETWORK: Quota = Quota { interval: Duration::from_secs(30), burst: nonzero(5) };

/// Quota of all networks together: fifty failures, then one every two seconds.
const IN_TOTAL: Quota = Quota { interval: Duration::from_secs(2), burst: nonzero(50) };

/// Networks that are remembered. A network is as good as new after 150 s, in which at most 50 + 75
/// attempts can fail, so no limited network is evicted by others.
const NETWORKS: usize = 256;

impl Attempts {
    pub(super) fn new() -> Self {
        Self {
            networks: Limiter::new(PER_NETWORK, NETWORKS),
            total: Limiter::new(IN_TOTAL, 1),
            check: Mutex::default(),
        }
    }

    /// Counts an attempt, if it fails.
    ///
    /// # Errors
    /// The time until the next attempt, if there were too many failures. Callers must not reveal
    /// `is_right` then: it would confirm a guess.
    pub(super) fn check(&self, address: IpAddr, is_right: bool) -> Result<(), Failed> {
        let _check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        let network = network(address);
        let waits = [self.networks.look(network), self.total.look(())];
        if let Some(longest) = waits.into_iter().filter_map(Result::err).max() {
            return Err(Failed::TooMany(longest));
        }
        if is_right {
            return Ok(());
        }
        let taken = self.networks.take(network).and_then(|()| self.total.take(()));
        Err(taken.map_or_else(Failed::TooMany, |()| Failed::Wrong))
    }
}

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Failed {
    Wrong,
    /// The attempt was not checked. The next attempt may be made after this time.
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
    use tokio::time::advance;

    use super::*;

    fn v4(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_network_has_five_failures_and_then_one_every_thirty_seconds() {
        let attempts = Attempts::new();
        let check = |address, is_right| attempts.check(address, is_right);
        for _ in 0..5 {
            assert_eq!(check(v4(1), true), Ok(()), "successes do not count");
            assert_eq!(check(v4(1), false), Err(Failed::Wrong));
        }
        let too_many = |secs: u64| Err(Failed::TooMany(Duration::from_secs(secs)));
        assert_eq!(check(v4(1), false), too_many(30));
        assert_eq!(check(v4(1), true), too_many(30), "a right guess is not told");
        assert_eq!(check(v4(2), true), Ok(()), "others are not limited");
        advance(30 * SECOND - Duration::from_millis(1)).await;
        assert_eq!(check(v4(1), true), Err(Failed::TooMany(Duration::from_millis(1))));
        advance(Duration::from_millis(1)).await;
        assert_eq!(check(v4(1), true), Ok(()));
        assert_eq!(check(v4(1), false), Err(Failed::Wrong));
        assert_eq!(check(v4(1), false), too_many(30));
    }

    #[tokio::test(start_paused = true)]
    async fn an_ipv6_network_counts_as_one() {
        let attempts = Attempts::new();
        for host in 0..5 {
            let address = format!("2001:db8::{host}").parse().unwrap();
            assert_eq!(attempts.check(address, false), Err(Failed::Wrong));
        }
        let neighbour = "2001:db8::ffff".parse().unwrap();
        assert!(matches!(attempts.check(neighbour, true), Err(Failed::TooMany(_))));
        assert_eq!(attempts.check("2001:db8:0:1::1".parse().unwrap(), true), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_networks_are_bounded_in_guesses_and_none_is_forgotten() {
        let attempts = Attempts::new();
        for _ in 0..5 {
            assert_eq!(attempts.check(v4(0), false), Err(Failed::Wrong));
        }
        let mut wrong = 0;
        for second in 0..29 {
            for other in 1..=100 {
                let failed = attempts.check(v4(second * 100 + other), false);
                wrong += usize::from(failed == Err(Failed::Wrong));
            }
            advance(SECOND).await;
        }
        assert_eq!(wrong, 45 + 14);
        let own = attempts.check(v4(0), true);
        assert_eq!(own, Err(Failed::TooMany(SECOND)), "still limited after the others");
    }
}
