//! Rate limits (`[[limits]]`): the buckets of a request, and its refusal when a bucket is empty.

mod bucket;
mod buckets;
pub mod gcra;
mod leases;
pub mod limiter;
mod sharded;
mod shared;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use base::seal;
use base::seal::hex::hex;
use bucket::{Bucket, Exhausted};
use buckets::LocalBuckets;
use cluster::ClusterMember;
use config::{Per, default_limit_name};
use domain::calls::caller::Caller;
use domain::calls::fair_share::{self, Holder};
use domain::fault::TransportFault;
use domain::protocol::method::Countable;
use gcra::Quota;
use limiter::Limiter;
use shared::SharedBuckets;

use super::target::CallTarget;

/// The rate limits of one configuration. All configurations share the buckets.
pub(crate) struct RateLimits {
    limits: Vec<RateLimit>,
    buckets: Arc<Buckets>,
    /// Buckets of the limits by address, before authentication. Each process counts for itself: a
    /// flood of unauthenticated requests must not reach a shared store.
    addresses: Arc<LocalBuckets>,
    /// Cancellations that go to other replicas.
    cancellations: Arc<Limiter<Holder>>,
}

/// The buckets that requests are counted in after authentication.
enum Buckets {
    /// The buckets of this process alone.
    Local(LocalBuckets),
    /// The buckets that all replicas share.
    Shared(Box<SharedBuckets>),
}

/// Why a request is not counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BucketRefusal {
    Exhausted(Exhausted),
    /// The store of the cluster is not available, and `cluster.on_failure` is `refuse`.
    Unavailable,
}

impl Buckets {
    /// Takes one cell from each bucket in one step, or from no bucket.
    async fn take(&self, buckets: &[Bucket]) -> Result<(), BucketRefusal> {
        match self {
            Self::Local(local) => local.take(buckets).map_err(BucketRefusal::Exhausted),
            Self::Shared(shared) => shared.take(buckets).await,
        }
    }
}

/// One rate limit.
pub(super) struct RateLimit {
    config: config::Limit,
    quota: Quota,
    /// The first part of the keys of its buckets: a limit that was changed starts with full
    /// buckets.
    identity: String,
    /// Whether the limit counts by prompt or upstream.
    needs_target: bool,
}

/// The properties of a request by which limits count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted<'a> {
    pub caller: &'a Caller,
    pub address: Option<IpAddr>,
    pub request: Countable,
}

/// Name of the limit of cancellations.
const CANCELLATIONS: &str = "cancellations";

/// Cancellations of one caller that go to all other replicas: a hundred a second, and a burst of
/// ten seconds' worth. Each cancellation costs the store two messages for each replica.
const CANCELLATION_QUOTA: Quota =
    Quota { interval: Duration::from_millis(10), burst: NonZeroU32::new(1000).expect("not zero") };

/// Holders whose cancellations are counted: more than cancel within the ten seconds in which a
/// bucket fills. About 150 bytes each.
const CANCELLING_HOLDERS: usize = 1 << 16;

/// Shortest `retry_after` of a refusal: a client that retries at once is refused again.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl RateLimits {
    /// Returns the limits of the first configuration, with full buckets.
    pub(crate) fn new(limits: &[config::Limit]) -> Self {
        let buckets = Arc::new(Buckets::Local(LocalBuckets::default()));
        let cancellations = Arc::new(Limiter::new(CANCELLATION_QUOTA, CANCELLING_HOLDERS));
        Self { limits: read(limits), buckets, addresses: Arc::default(), cancellations }
    }

    /// Returns the limits with the buckets of all replicas.
    pub(crate) fn in_cluster(self, cluster: Arc<ClusterMember>) -> Self {
        let config = cluster.config();
        let limits = config.limits;
        let on_failure = config.on_failure;
        let shared = SharedBuckets::new(cluster, limits, on_failure);
        Self { buckets: Arc::new(Buckets::Shared(Box::new(shared))), ..self }
    }

    /// Returns the limits of the next configuration, with the same buckets.
    pub(crate) fn renew(&self, limits: &[config::Limit]) -> Self {
        let buckets = self.buckets.clone();
        let addresses = self.addresses.clone();
        let cancellations = self.cancellations.clone();
        Self { limits: read(limits), buckets, addresses, cancellations }
    }

    /// Whether a limit counts each resource by itself.
    pub(crate) fn tell_resources_apart(&self) -> bool {
        let counts_resources = |limit: &RateLimit| {
            let is_passthrough = |request: &Countable| matches!(request, Countable::Passthrough(_));
            limit.config.per.contains(&Per::Prompt)
                && limit.config.methods.iter().any(is_passthrough)
        };
        self.limits.iter().any(counts_resources)
    }

    /// Counts a request before authentication, by its IP address.
    pub(crate) fn take_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        let limits = || self.limits.iter().filter(|limit| limit.config.before_authentication);
        let bucket = |limit: &RateLimit| limit.bucket(|key| add(key, &network(address)));
        let mut buckets: Vec<_> = limits().map(bucket).collect();
        if buckets.is_empty() {
            return Ok(());
        }
        if let Some(site) = site(address) {
            buckets.extend(limits().map(|limit| limit.of_site(|key| add(key, &site))));
        }
        let taken = self.addresses.take(&buckets);
        taken.map_err(|empty| refusal(limits().chain(limits()), empty))
    }

    /// Counts the cancellation of a call that is not on this replica, and so goes to all others. No
    /// configured limit counts notifications.
    pub(crate) fn take_cancellation(&self, holder: &Holder) -> Result<(), TransportFault> {
        let taken = self.cancellations.take(holder.clone());
        taken.map_err(|retry_after| TransportFault::RateLimited {
            limit: CANCELLATIONS.to_owned(),
            retry_after: retry_after.max(SHORTEST_WAIT),
        })
    }

    /// Counts a request in all of its buckets in one step: the buckets of its caller and, if the
    /// caller may use the `target`, the buckets of the target. `target` is `None` where the caller
    /// may not use it: a limit must not reveal whether a prompt is denied or unknown.
    ///
    /// # Errors
    /// [`TransportFault::RateLimited`] if a bucket is empty; then no bucket has counted the
    /// request. [`TransportFault::ClusterUnavailable`] if the replicas cannot count together, and
    /// must not count alone.
    pub(crate) async fn take(
        &self,
        counted: Counted<'_>,
        target: Option<CallTarget<'_>>,
    ) -> Result<(), TransportFault> {
        let limits = || self.limits.iter().filter(|limit| limit.applies(counted, target));
        let network = || counted.address.map(network).unwrap_or_default();
        let bucket =
            |limit: &RateLimit| limit.bucket(|key| limit.write_key(key, counted, target, network));
        let mut buckets: Vec<_> = limits().map(bucket).collect();
        if buckets.is_empty() {
            return Ok(());
        }
        let of_addresses = || limits().filter(|limit| limit.config.per.contains(&Per::Address));
        if let Some(site) = counted.address.and_then(site) {
            buckets.extend(of_addresses().map(|limit| {
                limit.of_site(|key| limit.write_key(key, counted, target, || site.clone()))
            }));
        }
        self.buckets.take(&buckets).await.map_err(|refused| match refused {
            BucketRefusal::Exhausted(empty) => refusal(limits().chain(of_addresses()), empty),
            BucketRefusal::Unavailable => TransportFault::ClusterUnavailable,
        })
    }
}

pub(super) fn read(limits: &[config::Limit]) -> Vec<RateLimit> {
    let mut alike: HashMap<String, usize> = HashMap::new();
    let limit = |(index, config): (usize, &config::Limit)| {
        // A limit without a name is called after its position, which a reload may change.
        let is_named = config.name != default_limit_name(index);
        let name = if is_named { config.name.as_str() } else { "" };
        let nth_alike = alike.entry(described(config, name)).or_default();
        let identity = identity(config, name, *nth_alike);
        *nth_alike += 1;
        let is_target = |per: &Per| matches!(per, Per::Prompt | Per::Upstream);
        RateLimit {
            quota: Quota { interval: config.interval, burst: config.burst },
            identity,
            needs_target: config.per.iter().any(is_target),
            config: config.clone(),
        }
    };
    limits.iter().enumerate().map(limit).collect()
}

/// The identity of a limit in the keys of its buckets. It must be the same in all releases:
/// replicas of different versions share the buckets, and would count each request twice otherwise.
fn identity(limit: &config::Limit, name: &str, nth_alike: usize) -> String {
    let mut text = described(limit, name);
    add(&mut text, &nth_alike.to_string());
    hex(&seal::sha256(text.as_bytes())[..8])
}

/// All that decides what a limit counts, in a form that no other part of the code depends on.
fn described(limit: &config::Limit, name: &str) -> String {
    let config::Limit { name: _, per, methods, callers, interval, burst, before_authentication } =
        limit;
    let mut text = "limit v1".to_owned();
    add(&mut text, name);
    add(&mut text, &interval.as_nanos().to_string());
    add(&mut text, &burst.to_string());
    add(&mut text, if *before_authentication { "before" } else { "after" });
    add(&mut text, &per.len().to_string());
    per.iter().for_each(|per| add(&mut text, code(*per)));
    add(&mut text, &methods.len().to_string());
    methods.iter().for_each(|method| add(&mut text, method.as_str()));
    add(&mut text, &callers.len().to_string());
    callers.iter().for_each(|glob| add(&mut text, &glob.to_string()));
    text
}

/// The name of a part of a bucket key in [`described`].
fn code(per: Per) -> &'static str {
    match per {
        Per::Address => "address",
        Per::Caller => "caller",
        Per::Method => "method",
        Per::Prompt => "prompt",
        Per::Upstream => "upstream",
    }
}

/// Returns the refusal by an empty bucket; `limits` are in the order of the buckets.
fn refusal<'a>(
    mut limits: impl Iterator<Item = &'a RateLimit>,
    empty: Exhausted,
) -> TransportFault {
    let limit = limits.nth(empty.index).map(|limit| limit.config.name.clone());
    TransportFault::RateLimited {
        limit: limit.unwrap_or_default(),
        retry_after: empty.retry_after.max(SHORTEST_WAIT),
    }
}

impl RateLimit {
    fn applies(&self, counted: Counted<'_>, target: Option<CallTarget<'_>>) -> bool {
        let config = &self.config;
        // A list request of the gateway has no target.
        let has_target = match counted.request {
            Countable::Call(method) => !method.is_list(),
            request => matches!(request, Countable::Passthrough(_)),
        };
        !config.before_authentication
            && config.methods.contains(&counted.request)
            && config.callers.iter().any(|glob| glob.matches(counted.caller.id()))
            && (!self.needs_target || !has_target || target.is_some())
    }

    /// Writes the key of the bucket of a request from a network. Each part of the key starts with
    /// its length, so that no two combinations share a bucket.
    fn write_key(
        &self,
        key: &mut String,
        counted: Counted<'_>,
        target: Option<CallTarget<'_>>,
        network: impl Fn() -> String,
    ) {
        let upstream = target.map_or("", |target| target.upstream);
        for per in &self.config.per {
            match per {
                Per::Caller => add(key, counted.caller.id()),
                Per::Method => add(key, counted.request.as_str()),
                Per::Address => add(key, &network()),
                Per::Upstream => add(key, upstream),
                Per::Prompt => {
                    add(key, upstream);
                    add(key, target.map_or("", |target| target.raw_name));
                }
            }
        }
    }

    /// The bucket of an IPv6 site, by its key.
    fn of_site(&self, write_key: impl FnOnce(&mut String)) -> Bucket {
        Bucket { quota: self.quota.times(NETWORKS_OF_A_SITE), ..self.bucket(write_key) }
    }

    fn bucket(&self, write_key: impl FnOnce(&mut String)) -> Bucket {
        let mut key = String::with_capacity(64);
        key.push_str(&self.identity);
        write_key(&mut key);
        Bucket { key, quota: self.quota }
    }
}

fn add(key: &mut String, part: &str) {
    // Writing to a string cannot fail.
    let _ = write!(key, "{}:{part}", part.len());
}

/// Returns the network by which an address is counted, as text.
pub(crate) fn network(address: IpAddr) -> String {
    fair_share::network(address).to_string()
}

/// How many times the rate of one network the networks of one IPv6 site have together.
const NETWORKS_OF_A_SITE: u32 = 16;

/// Returns the first 48 bits of an IPv6 address, the usual size of one site: they cover 65,536
/// networks of 64 bits.
fn site(address: IpAddr) -> Option<String> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => {
            let network = Ipv6Addr::from(u128::from(address) >> 80 << 80);
            Some(format!("{network}/48"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;
    use config::Config;
    use domain::approval::ApprovalState;
    use domain::protocol::method::Method;

    fn parse(toml: &str) -> Vec<config::Limit> {
        Config::parse("g", toml, Path::new(""), &[]).unwrap_or_else(|e| panic!("{e}")).limits
    }

    fn limits(toml: &str) -> RateLimits {
        RateLimits::new(&parse(toml))
    }

    /// Counts a `prompts/get` of `caller`.
    async fn get(
        limits: &RateLimits,
        caller: &str,
        target: Option<CallTarget<'_>>,
    ) -> Result<(), TransportFault> {
        count(limits, caller, Countable::Call(Method::Get), target).await
    }

    async fn count(
        limits: &RateLimits,
        caller: &str,
        request: Countable,
        target: Option<CallTarget<'_>>,
    ) -> Result<(), TransportFault> {
        let caller = &Caller::new(caller);
        let address = Some([127, 0, 0, 1].into());
        limits.take(Counted { caller, address, request }, target).await
    }

    fn target(raw_name: &str) -> Option<CallTarget<'_>> {
        Some(CallTarget {
            upstream: "up",
            raw_name,
            definition: "",
            state: ApprovalState::Unchecked,
            number: None,
            version: None,
        })
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
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                // A burst of 100, then ten requests per second.
                let limits =
                    limits("[[limits]]\nper = [\"caller\"]\nrate = \"600/m\"\nburst = 100\n");
                let mut passed = 0;
                let mut admitted = 0_u64;
                for (wait, calls) in steps {
                    advance(Duration::from_millis(wait)).await;
                    passed += wait;
                    let mut ok = 0;
                    for _ in 0..calls {
                        ok += u64::from(get(&limits, "a", None).await.is_ok());
                    }
                    admitted += ok;
                    prop_assert!(admitted <= 100 + passed / 100, "{admitted} after {passed} ms");
                    // A caller that has waited for one cell gets one.
                    prop_assert!(ok > 0 || wait < 100);
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn p4_one_more_than_the_burst_is_refused_and_other_callers_are_not() {
        let limits = limits("[[limits]]\nper = [\"caller\"]\nrate = \"600/m\"\nburst = 100\n");
        for _ in 0..100 {
            assert_eq!(get(&limits, "a", None).await, Ok(()));
        }
        assert_eq!(wait(get(&limits, "a", None).await), Some(Duration::from_millis(100)));
        assert_eq!(get(&limits, "b", None).await, Ok(()));
        advance(Duration::from_millis(99)).await;
        assert_eq!(wait(get(&limits, "a", None).await), Some(Duration::from_millis(1)));
        advance(Duration::from_millis(1)).await;
        assert_eq!(get(&limits, "a", None).await, Ok(()));
        assert!(get(&limits, "a", None).await.is_err());
        advance(Duration::from_secs(3600)).await;
        let mut allowed = 0;
        while get(&limits, "a", None).await.is_ok() {
            allowed += 1;
        }
        assert_eq!(allowed, 100);
    }

    #[tokio::test]
    async fn p4_limits_by_prompt_count_only_allowed_calls() {
        let limits = limits(
            "[[limits]]\nname = \"by prompt\"\nper = [\"caller\", \"prompt\"]\nrate = \"1/h\"\n\
             methods = [\"prompts/get\"]\ncallers = [\"ci*\"]\n",
        );
        for _ in 0..9 {
            assert_eq!(get(&limits, "ci", None).await, Ok(()), "denied or unknown");
        }
        assert_eq!(get(&limits, "ci", target("p")).await, Ok(()));
        assert!(get(&limits, "ci", target("p")).await.is_err());
        assert_eq!(get(&limits, "ci", target("q")).await, Ok(()));
        assert_eq!(get(&limits, "ci-2", target("p")).await, Ok(()));
        for _ in 0..9 {
            assert_eq!(get(&limits, "other", target("p")).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn p4_a_call_refused_by_its_target_costs_its_caller_nothing() {
        let limits = limits(
            "[[limits]]\nname = \"caller\"\nper = [\"caller\"]\nrate = \"2/h\"\n\
             [[limits]]\nname = \"prompt\"\nper = [\"prompt\"]\nrate = \"1/h\"\n",
        );
        assert_eq!(get(&limits, "a", target("p")).await, Ok(()));
        for _ in 0..9 {
            match get(&limits, "a", target("p")).await {
                Err(TransportFault::RateLimited { limit, .. }) => assert_eq!(limit, "prompt"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(get(&limits, "a", target("q")).await, Ok(()), "one call of two is left");
        assert!(get(&limits, "a", target("r")).await.is_err());
    }

    #[tokio::test]
    async fn p4_requests_about_sessions_are_counted_where_a_limit_names_them() {
        let limits = limits(
            "[[limits]]\nper = [\"caller\"]\nmethods = [\"initialize\", \"ping\"]\nrate = \"2/h\"\n",
        );
        assert_eq!(count(&limits, "a", Countable::Initialize, None).await, Ok(()));
        assert_eq!(count(&limits, "a", Countable::Ping, None).await, Ok(()));
        assert!(count(&limits, "a", Countable::Initialize, None).await.is_err());
        assert_eq!(count(&limits, "a", Countable::Listen, None).await, Ok(()));
        assert_eq!(get(&limits, "a", target("p")).await, Ok(()), "calls have limits of their own");
    }

    #[tokio::test]
    async fn k3_a_limit_that_a_reload_keeps_goes_on_counting() {
        let kept = "[[limits]]\nname = \"kept\"\nper = [\"caller\"]\nrate = \"1/h\"\n";
        let before = limits(kept);
        assert_eq!(get(&before, "a", None).await, Ok(()));
        let other = "[[limits]]\nname = \"new\"\nper = [\"caller\"]\nrate = \"2/h\"\n";
        let after = before.renew(&parse(&(other.to_owned() + kept)));
        assert!(get(&after, "a", None).await.is_err());
        let alone = before.renew(&parse(other));
        assert_eq!(get(&alone, "a", None).await, Ok(()));
    }

    #[tokio::test]
    async fn k3_a_limit_without_a_name_goes_on_counting_at_another_position() {
        let kept = "[[limits]]\nper = [\"caller\"]\nrate = \"1/h\"\n";
        let other = "[[limits]]\nper = [\"caller\"]\nrate = \"2/h\"\n";
        let before = limits(kept);
        assert_eq!(get(&before, "a", None).await, Ok(()));
        let after = before.renew(&parse(&(other.to_owned() + kept)));
        assert_eq!(get(&after, "a", None).await.unwrap_err().limit(), Some("limit 2"));
        let identity = |at: usize| &after.limits[at].identity;
        assert_ne!(identity(0), identity(1));
        // Limits that are alike count by themselves.
        let twice = limits(&(kept.to_owned() + kept));
        assert_ne!(twice.limits[0].identity, twice.limits[1].identity);
    }

    #[test]
    fn the_identity_of_a_limit_is_that_of_all_releases() {
        let toml = "[[limits]]\nname = \"busy\"\nper = [\"caller\", \"prompt\"]\nrate = \"30/m\"\nburst = 5\n\
                    methods = [\"prompts/get\"]\ncallers = [\"team-*\"]\n";
        let named = &parse(toml)[0];
        assert_eq!(
            described(named, "busy"),
            "limit v14:busy10:20000000001:55:after1:26:caller6:prompt1:111:prompts/get1:16:team-*"
        );
        // A replica of another release shares these buckets: do not change the digests.
        assert_eq!(identity(named, "busy", 0), "acfc90f73466275f");
        assert_eq!(identity(named, "busy", 1), "fbf3193e6c078ba4");
        let all = &parse("[[limits]]\nper = [\"address\"]\nrate = \"1/h\"\n")[0];
        assert_ne!(identity(all, "", 0), identity(named, "", 0));
    }

    #[test]
    fn p4_a_network_of_ipv6_is_one_address() {
        let limits = limits("[[limits]]\nper = [\"address\"]\nrate = \"1/h\"\n");
        let check = |address: &str| limits.take_address(address.parse().unwrap()).is_ok();
        assert!(check("2001:db8:0:1::1"));
        assert!(!check("2001:db8:0:1:ffff::2"));
        assert!(check("2001:db8:0:2::1"));
    }

    #[test]
    fn f23_the_networks_of_one_ipv6_site_have_sixteen_times_the_rate_of_one() {
        let limits = limits("[[limits]]\nname = \"a\"\nper = [\"address\"]\nrate = \"1/h\"\n");
        let check = |address: String| limits.take_address(address.parse().unwrap());
        for network in 0..16 {
            assert_eq!(check(format!("2001:db8:7:{network:x}::1")), Ok(()));
        }
        let refused = check("2001:db8:7:ffff::1".to_owned());
        assert_eq!(refused.unwrap_err().limit(), Some("a"));
        assert_eq!(check("2001:db8:8:ffff::1".to_owned()), Ok(()), "another site");
    }

    #[tokio::test(start_paused = true)]
    async fn a_site_has_a_bound_after_authentication_too() {
        let limits = limits(
            "[[limits]]\nper = [\"address\", \"method\"]\nmethods = [\"get\"]\nrate = \"1/h\"\nburst = 1\n",
        );
        let check = async |address: String| {
            let caller = Caller::new("ci");
            let address = Some(address.parse().unwrap());
            let request = Countable::Call(Method::Get);
            limits.take(Counted { caller: &caller, address, request }, None).await
        };
        for network in 0..16 {
            assert_eq!(check(format!("2001:db8:7:{network:x}::1")).await, Ok(()));
        }
        let again = check("2001:db8:7:1::2".to_owned()).await;
        let other = check("2001:db8:7:ffff::1".to_owned()).await;
        for refused in [again, other] {
            assert_eq!(refused.unwrap_err().limit(), Some("limit 1"));
        }
        assert_eq!(check("2001:db8:8:ffff::1".to_owned()).await, Ok(()), "another site");
        assert_eq!(check("192.0.2.1".to_owned()).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_cancels_a_thousand_calls_of_other_replicas_at_once_and_then_waits() {
        let limits = limits("");
        let holder = |id: &str| Holder::Caller(Caller::new(id));
        for _ in 0..1000 {
            assert_eq!(limits.take_cancellation(&holder("a")), Ok(()));
        }
        let refused = limits.take_cancellation(&holder("a")).unwrap_err();
        assert_eq!(refused.limit(), Some(CANCELLATIONS));
        assert_eq!(limits.take_cancellation(&holder("b")), Ok(()));
        advance(CANCELLATION_QUOTA.interval).await;
        assert_eq!(limits.take_cancellation(&holder("a")), Ok(()));
        assert!(limits.take_cancellation(&holder("a")).is_err());
    }

    #[test]
    fn no_two_combinations_share_a_bucket() {
        let limits = limits("[[limits]]\nper = [\"caller\", \"prompt\"]\nrate = \"1/h\"\n");
        let bucket = |caller: &str, upstream, raw_name| {
            let request = Countable::Call(Method::Get);
            let counted = Counted { caller: &Caller::new(caller), address: None, request };
            let target = Some(CallTarget {
                upstream,
                raw_name,
                definition: "",
                state: ApprovalState::Unchecked,
                number: None,
                version: None,
            });
            let mut key = String::new();
            limits.limits[0].write_key(&mut key, counted, target, String::new);
            key
        };
        let one = bucket("a", "b", "c");
        assert_ne!(one, bucket("a1", "b", "c"));
        assert_ne!(one, bucket("a", "bc", ""));
    }
}
