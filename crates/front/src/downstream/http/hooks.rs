//! Webhooks of prompt stores and git servers: signed hints that something has changed, after which
//! the upstream is read again. Nothing that a webhook says is believed, or even read.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::request::Parts;
use hyper::body::Incoming;
use tracing::debug;

use super::body;
use super::hook_signature::HookKey;
use crate::downstream::admission::Admission;
use crate::downstream::clock;
use config::{Config, Limits};
use domain::fair_share::{Holder, network};
use domain::fault::TransportFault;
use policy::gcra::Quota;
use policy::limiter::Limiter;

/// The webhooks of all upstreams, which are served at one path each.
pub(crate) struct Hooks {
    /// The path of all, with a slash at its end.
    path: String,
    /// By the ids of the upstreams. While it is empty, the path is none.
    keys: BTreeMap<String, HookKey>,
    /// In the place of an upstream that takes no webhooks: nothing shows which ones do.
    stand_in: HookKey,
    limits: Limits,
    failures: Arc<HookFailures>,
}

/// The webhooks of each network that were not signed.
pub(crate) struct HookFailures(Limiter<IpAddr>);

/// Failures of one network: ten, then one every 30 seconds. A secret in `X-Gitlab-Token` might be
/// guessed.
const FAILURES: Quota =
    Quota { interval: Duration::from_secs(30), burst: NonZeroU32::new(10).expect("not zero") };

/// Networks whose failures are counted, about 150 bytes each.
const NETWORKS: usize = 1 << 12;

/// Largest body of a webhook, in bytes. A push of many commits is larger, and is found by polling.
const BODY_SIZE: usize = 1 << 20;

/// Name of the limit of failures.
const LIMIT: &str = "webhooks";

impl Default for HookFailures {
    fn default() -> Self {
        Self(Limiter::new(FAILURES, NETWORKS))
    }
}

impl Hooks {
    pub(crate) fn new(config: &Config, failures: Arc<HookFailures>) -> Self {
        let keys = config.upstreams.iter().filter_map(|upstream| {
            let key = HookKey::new(&upstream.transport, upstream.webhook_secret()?)?;
            Some((upstream.id.as_str().to_owned(), key))
        });
        let limits = &config.server.limits;
        Self {
            path: config.server.hooks_path(),
            keys: keys.collect(),
            stand_in: HookKey::random(),
            limits: Limits { body_size: limits.body_size.min(BODY_SIZE), ..limits.clone() },
            failures,
        }
    }

    /// Returns the name of the upstream whose webhooks are served at a path, whether there is such
    /// an upstream or not; `None` for another path.
    pub(crate) fn named<'a>(&self, path: &'a str) -> Option<&'a str> {
        let name = path.strip_prefix(&self.path).filter(|_| !self.keys.is_empty());
        name.map(|name| name.trim_end_matches('/'))
    }

    /// Takes a webhook of an upstream from an address.
    ///
    /// # Errors
    /// `not_found` if it is not signed by that upstream, whether there is one or not;
    /// `rate_limited` for those after too many, and for secrets that are sent themselves; the
    /// faults of a body that cannot be read.
    pub(crate) async fn take(
        &self,
        head: &Parts,
        body: Incoming,
        name: &str,
        address: IpAddr,
        admission: &Admission,
    ) -> Result<(), TransportFault> {
        if head.method != Method::POST {
            return Err(TransportFault::MethodNotAllowed { allow: "POST" });
        }
        let network = network(address);
        let limited =
            |retry_after| TransportFault::RateLimited { limit: LIMIT.into(), retry_after };
        let (headers, holder) = (&head.headers, Holder::Network(network));
        let key = self.keys.get(name).unwrap_or(&self.stand_in);
        // A signature is looked at whatever others of the network have sent: git servers share
        // addresses. A secret that is sent itself could be guessed.
        if key.is_sent_itself(headers) {
            self.failures.0.look(network).map_err(limited)?;
        }
        let (bytes, _memory) = body::read(body, headers, &self.limits, admission, &holder).await?;
        if key.has_signed(headers, &bytes, clock::now()) {
            return Ok(());
        }
        debug!(upstream = name, %address, "a webhook is refused: its signature is not of webhook_secret");
        self.failures.0.take(network).map_err(limited)?;
        Err(TransportFault::not_found())
    }
}
