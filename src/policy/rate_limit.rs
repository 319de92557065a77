//! How often whom may ask what: a bucket for each combination that a limit counts by (the generic cell
//! rate algorithm), bounded in number, the least recently used forgotten first.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};
use lru::LruCache;

use crate::config::{self, Per};
use crate::domain::call::Call;
use crate::domain::fault::TransportFault;
use crate::domain::method::Method;

/// All limits of the configuration. The clock is handed in.
pub(crate) struct RateLimits<C: Clock = DefaultClock> {
    limits: Vec<Arc<Limit<C>>>,
    clock: C,
}

struct Limit<C: Clock> {
    config: config::Limit,
    /// Whether it counts by what a call is for.
    needs_target: bool,
    buckets: RateLimiter<String, Buckets, C, NoOpMiddleware<C::Instant>>,
}

/// Where a call goes, once that is known and allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// Id of the upstream.
    pub upstream: &'a str,
    pub raw_name: &'a str,
}

/// Buckets of one limit. A bucket that is forgotten is as good as full again, so there are more of
/// them than callers come by within the time in which one fills.
const BUCKETS: usize = 65_536;

/// Parts of the store, each with a lock of its own.
const SHARDS: usize = 16;

impl<C: Clock + Clone> RateLimits<C> {
    pub(crate) fn new(limits: &[config::Limit], clock: C) -> Self {
        let limit = |config: &config::Limit| {
            // An interval of zero is no rate that the configuration lets through.
            let quota = Quota::with_period(config.interval)?.allow_burst(config.burst);
            let buckets = RateLimiter::new(quota, Buckets::new(BUCKETS), clock.clone());
            let is_target = |per: &Per| matches!(per, Per::Prompt | Per::Upstream);
            let needs_target = config.per.iter().any(is_target);
            Some(Arc::new(Limit { config: config.clone(), needs_target, buckets }))
        };
        Self { limits: limits.iter().filter_map(limit).collect(), clock }
    }

    /// Those of another configuration: what was counted by a limit that stays still counts.
    pub(crate) fn renew(&self, limits: &[config::Limit]) -> Self {
        let mut renewed = Self::new(limits, self.clock.clone());
        for limit in &mut renewed.limits {
            if let Some(old) = self.limits.iter().find(|old| old.config == limit.config) {
                *limit = old.clone();
            }
        }
        renewed
    }

    /// Counts a request of which nothing is known but its address.
    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        let mut limits = self.limits.iter().filter(|limit| limit.config.before_authentication);
        limits.try_for_each(|limit| self.check(limit, &network(address)))
    }

    /// Counts a call before it is known whether it is allowed: only by what its caller knows anyway.
    pub(crate) fn check_call(&self, call: &Call) -> Result<(), TransportFault> {
        self.check_all(call, None)
    }

    /// Counts a call by what it is for, once that is allowed: a limit must not tell what is denied
    /// from what is unknown.
    pub(crate) fn check_target(
        &self,
        call: &Call,
        target: Target<'_>,
    ) -> Result<(), TransportFault> {
        self.check_all(call, Some(target))
    }

    fn check_all(&self, call: &Call, target: Option<Target<'_>>) -> Result<(), TransportFault> {
        let method = call.request.method();
        for limit in self.limits.iter().filter(|limit| !limit.config.before_authentication) {
            let config = &limit.config;
            let applies = config.methods.contains(&method)
                && config.callers.iter().any(|glob| glob.matches(call.caller.id()))
                // Lists are for no prompt of anybody in particular.
                && (limit.needs_target && method != Method::List) == target.is_some();
            if applies {
                self.check(limit, &key(&config.per, call, target))?;
            }
        }
        Ok(())
    }

    fn check(&self, limit: &Limit<C>, key: &String) -> Result<(), TransportFault> {
        limit.buckets.check_key(key).map_err(|refused| TransportFault::RateLimited {
            limit: limit.config.name.clone(),
            retry_after: refused.wait_time_from(self.clock.now()).max(Duration::from_millis(1)),
        })
    }
}

/// The bucket of a call: what it is counted by, each part led by its length so that no two
/// combinations share one.
fn key(per: &[Per], call: &Call, target: Option<Target<'_>>) -> String {
    let mut key = String::new();
    let mut add = |part: &str| {
        // Writing to a string cannot fail.
        let _ = write!(key, "{}:{part}", part.len());
    };
    let upstream = target.map_or("", |target| target.upstream);
    for per in per {
        match per {
            Per::Caller => add(call.caller.id()),
            Per::Method => add(call.request.method().as_str()),
            Per::Address => add(&call.address.map(network).unwrap_or_default()),
            Per::Upstream => add(upstream),
            Per::Prompt => {
                add(upstream);
                add(target.map_or("", |target| target.raw_name));
            }
        }
    }
    key
}

/// What an address is counted as: of IPv6 the first 64 bits, since whoever has one address has the
/// rest.
pub(crate) fn network(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).to_string(),
    }
}

/// States of buckets: a hard bound on their number, and exact for those that are used.
struct Buckets {
    shards: Vec<Mutex<LruCache<String, Nanos>>>,
    hasher: RandomState,
}

impl Buckets {
    fn new(most: usize) -> Self {
        let each = NonZeroUsize::new(most / SHARDS).unwrap_or(NonZeroUsize::MIN);
        let shard = |_| Mutex::new(LruCache::new(each));
        Self { shards: (0..SHARDS).map(shard).collect(), hasher: RandomState::new() }
    }
}

impl StateStore for Buckets {
    type Key = String;

    fn measure_and_replace<T, F, E>(&self, key: &String, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let shard = self.hasher.hash_one(key) as usize % self.shards.len();
        let mut buckets = self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever is refused stays known, too.
        if let Some(bucket) = buckets.get_mut(key) {
            let (outcome, next) = f(Some(*bucket))?;
            *bucket = next;
            return Ok(outcome);
        }
        let (outcome, next) = f(None)?;
        buckets.put(key.clone(), next);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use governor::clock::FakeRelativeClock;
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::domain::call::{Client, ForwardedMeta, Request};
    use crate::domain::caller::Caller;

    fn limits(toml: &str) -> (RateLimits<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let config = Config::parse("g", toml, Path::new(""), &[]).unwrap_or_else(|e| panic!("{e}"));
        (RateLimits::new(&config.limits, clock.clone()), clock)
    }

    fn get(caller: &str) -> Call {
        Call {
            caller: Caller::new(caller),
            endpoint: "/mcp".into(),
            address: Some([127, 0, 0, 1].into()),
            client: Client::default(),
            forwarded: ForwardedMeta::default(),
            request: Request::Get { name: "up__p".into(), arguments: None, retry: None },
        }
    }

    fn wait(result: Result<(), TransportFault>) -> Option<Duration> {
        match result {
            Err(TransportFault::RateLimited { retry_after, .. }) => Some(retry_after),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn no_schedule_gets_more_than_the_burst_and_the_rate_or_starves(
            steps in prop::collection::vec((0..4_000_u64, 1..40_usize), 1..60),
        ) {
            // A hundred at once, ten a second.
            let (limits, clock) =
                limits("[[limits]]\nper = [\"caller\"]\nrate = \"600/m\"\nburst = 100\n");
            let (mut passed, mut admitted) = (0, 0_u64);
            for (wait, calls) in steps {
                clock.advance(Duration::from_millis(wait));
                passed += wait;
                let ok = (0..calls).filter(|_| limits.check_call(&get("a")).is_ok()).count();
                admitted += ok as u64;
                prop_assert!(admitted <= 100 + passed / 100, "{admitted} after {passed} ms");
                // Whoever has waited for one gets one.
                prop_assert!(ok > 0 || wait < 100);
            }
        }
    }

    #[test]
    fn p4_one_more_than_the_burst_is_refused_and_others_are_not() {
        let (limits, clock) =
            limits("[[limits]]\nper = [\"caller\"]\nrate = \"600/m\"\nburst = 100\n");
        for _ in 0..100 {
            assert_eq!(limits.check_call(&get("a")), Ok(()));
        }
        assert_eq!(wait(limits.check_call(&get("a"))), Some(Duration::from_millis(100)));
        assert_eq!(limits.check_call(&get("b")), Ok(()));
        clock.advance(Duration::from_millis(99));
        assert_eq!(wait(limits.check_call(&get("a"))), Some(Duration::from_millis(1)));
        clock.advance(Duration::from_millis(1));
        assert_eq!(limits.check_call(&get("a")), Ok(()));
        assert!(limits.check_call(&get("a")).is_err());
        clock.advance(Duration::from_secs(3600));
        let allowed = (0..1000).filter(|_| limits.check_call(&get("a")).is_ok()).count();
        assert_eq!(allowed, 100);
    }

    #[test]
    fn p4_limits_by_prompt_count_only_what_is_allowed() {
        let (limits, _) = limits(
            "[[limits]]\nname = \"by prompt\"\nper = [\"caller\", \"prompt\"]\nrate = \"1/h\"\n\
             methods = [\"prompts/get\"]\ncallers = [\"ci*\"]\n",
        );
        let target = |raw_name| Target { upstream: "up", raw_name };
        for _ in 0..9 {
            assert_eq!(limits.check_call(&get("ci")), Ok(()), "nothing is known of it yet");
        }
        assert_eq!(limits.check_target(&get("ci"), target("p")), Ok(()));
        assert!(limits.check_target(&get("ci"), target("p")).is_err());
        assert_eq!(limits.check_target(&get("ci"), target("q")), Ok(()));
        assert_eq!(limits.check_target(&get("ci-2"), target("p")), Ok(()));
        for _ in 0..9 {
            assert_eq!(limits.check_target(&get("other"), target("p")), Ok(()));
        }
    }

    #[test]
    fn k3_what_was_counted_still_counts_after_a_reload_that_keeps_the_limit() {
        let kept = "[[limits]]\nname = \"kept\"\nper = [\"caller\"]\nrate = \"1/h\"\n";
        let (before, _) = limits(kept);
        assert_eq!(before.check_call(&get("a")), Ok(()));
        let other = "[[limits]]\nname = \"new\"\nper = [\"caller\"]\nrate = \"2/h\"\n";
        let config = |toml: &str| Config::parse("g", toml, Path::new(""), &[]).unwrap().limits;
        let after = before.renew(&config(&(other.to_owned() + kept)));
        assert!(after.check_call(&get("a")).is_err());
        let alone = before.renew(&config(other));
        assert_eq!(alone.check_call(&get("a")), Ok(()));
    }

    #[test]
    fn p5_buckets_are_bounded_and_the_one_that_is_used_stays() {
        let (with, _) = limits("[[limits]]\nper = [\"address\"]\nrate = \"1/h\"\n");
        let hot: IpAddr = [10, 0, 0, 1].into();
        assert_eq!(with.check_address(hot), Ok(()));
        for n in 0..200_000_u32 {
            let _ = with.check_address(n.to_be_bytes().into());
            if n % 1000 == 0 {
                assert!(with.check_address(hot).is_err(), "the hot one is not forgotten");
            }
        }
    }

    #[test]
    fn p4_a_network_of_ipv6_is_one_address() {
        let (limits, _) = limits("[[limits]]\nper = [\"address\"]\nrate = \"1/h\"\n");
        let check = |address: &str| limits.check_address(address.parse().unwrap()).is_ok();
        assert!(check("2001:db8:0:1::1"));
        assert!(!check("2001:db8:0:1:ffff::2"));
        assert!(check("2001:db8:0:2::1"));
    }

    #[test]
    fn no_two_combinations_share_a_bucket() {
        let per = [Per::Caller, Per::Prompt];
        let target = |upstream, raw_name| Some(Target { upstream, raw_name });
        let one = key(&per, &get("a"), target("b", "c"));
        assert_ne!(one, key(&per, &get("a1"), target("b", "c")));
        assert_ne!(one, key(&per, &get("a"), target("bc", "")));
    }
}
