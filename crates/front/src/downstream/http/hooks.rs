//! Webhooks of prompt stores and git servers: signed hints that the upstream should be read again.
//! The content of a webhook is not read, except to verify its signature.

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
use domain::calls::fair_share::{Holder, network};
use domain::fault::TransportFault;
use policy::gcra::Quota;
use policy::limiter::Limiter;

/// The webhooks of all upstreams, each served at a path of the upstream.
pub(crate) struct Hooks {
    /// The common prefix of these paths, with a slash at its end.
    path: String,
    /// The keys by upstream id. While there are no keys, no path is served.
    keys: BTreeMap<String, HookKey>,
    /// Checks webhooks of other names, so that callers cannot tell which upstreams take webhooks.
    stand_in: HookKey,
    limits: Limits,
    failures: Arc<HookFailures>,
}

/// Limits the unsigned webhooks of each network.
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

    /// Takes a webhook for the upstream `name` from an address.
    ///
    /// # Errors
    /// `not_found` if the webhook is not signed by that upstream, whether the upstream exists or
    /// not; `rate_limited` after too many such failures, and before a plain secret is compared; the
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
        let headers = &head.headers;
        let holder = Holder::Network(network);
        let key = self.keys.get(name).unwrap_or(&self.stand_in);
        // Git servers share addresses, so failures of others never stop a signature from being
        // checked. A plain secret could be guessed.
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
