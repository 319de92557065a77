//! The JSON Web Key Set of an issuer: fetched by one task, shared by all requests, and used for a
//! while when it cannot be refreshed.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use jsonwebtoken::{Algorithm, DecodingKey};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use config::Jwt;
use domain::address_policy::AddressPolicy;
use net::egress::{CONNECT, Egress};
use net::issuer::discover;
use net::jwks::KeySet;

/// The key set, as it was last fetched.
pub(super) struct IssuerKeys {
    state: watch::Sender<KeySetState>,
    /// Signalled when a token names an unknown key.
    wanted: Notify,
    jwt: Jwt,
}

#[derive(Clone, Default)]
struct KeySetState {
    known: Option<FetchedKeys>,
    /// The time of the last attempt.
    tried: Option<Instant>,
}

#[derive(Clone)]
struct FetchedKeys {
    keys: Arc<KeySet>,
    fetched: Instant,
}

/// Why no key was found for a token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NoKey {
    /// The issuer does not publish such a key.
    Unknown,
    /// The keys of the issuer are unknown at present.
    Unavailable,
}

/// How long a request waits for a fetch in progress.
const PATIENCE: Duration = Duration::from_secs(5);

/// Backoff after a failed fetch: the first wait, doubled each time up to `cooldown`.
const FIRST_RETRY: Duration = Duration::from_secs(1);

impl IssuerKeys {
    pub(super) fn new(jwt: &Jwt) -> Self {
        Self { state: watch::Sender::default(), wanted: Notify::new(), jwt: jwt.clone() }
    }

    /// Returns the key store of another configuration of the same issuer, with the known keys.
    pub(super) fn renew(&self, jwt: &Jwt) -> Self {
        let state = watch::Sender::new(self.state.borrow().clone());
        Self { state, ..Self::new(jwt) }
    }

    /// Fetches the keys now and whenever they expire or a token names an unknown key, until `stop`.
    pub(super) async fn keep(&self, stop: CancellationToken) {
        let egress = match Egress::new(
            CONNECT,
            None,
            AddressPolicy::NotLinkLocal,
            Some(&self.jwt.proxies),
        ) {
            Ok(egress) => egress,
            Err(error) => {
                return warn!(error, "no HTTP client for the issuer's keys; tokens are refused");
            }
        };
        stop.run_until_cancelled(self.fetch_for_ever(&egress)).await;
    }

    async fn fetch_for_ever(&self, egress: &Egress) {
        let mut retry = FIRST_RETRY.min(self.jwt.cooldown);
        loop {
            let fetched = fetch(egress, &self.jwt).await;
            let now = Instant::now();
            let next = match fetched {
                Ok(keys) => {
                    retry = FIRST_RETRY.min(self.jwt.cooldown);
                    self.take(keys, now);
                    now + self.jwt.refresh
                }
                Err(error) => {
                    warn!(
                        issuer = self.jwt.issuer,
                        error, "fetching the issuer's keys failed; retrying"
                    );
                    self.state.send_modify(|state| state.tried = Some(now));
                    let wait = retry;
                    retry = (retry * 2).min(self.jwt.cooldown);
                    now + wait
                }
            };
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.wanted_after(now + self.jwt.cooldown) => {}
            }
        }
    }

    /// Resolves when a fetch is requested, but not before `least`. Cancel safe.
    async fn wanted_after(&self, least: Instant) {
        self.wanted.notified().await;
        sleep_until(least).await;
    }

    fn take(&self, keys: KeySet, now: Instant) {
        info!(issuer = self.jwt.issuer, keys = keys.ids(), "fetched the issuer's keys");
        let keys = Arc::new(keys);
        self.state.send_modify(|state| {
            *state =
                KeySetState { known: Some(FetchedKeys { keys, fetched: now }), tried: Some(now) };
        });
    }

    /// The key for a token by its id and algorithm, and when it was fetched. Waits for a fetch if
    /// the id is unknown.
    pub(super) async fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(DecodingKey, Instant), NoKey> {
        let before = self.state.borrow().clone();
        let now = Instant::now();
        let found = self.look(&before, id, algorithm, now);
        let may_be_new = before.tried.is_none_or(|tried| now >= tried + self.jwt.cooldown);
        let is_missing = match found {
            Err(NoKey::Unknown) => may_be_new,
            Err(NoKey::Unavailable) => before.tried.is_none(),
            Ok(_) => false,
        };
        if !is_missing {
            return found;
        }
        // One task fetches for all requests that wait.
        self.wanted.notify_one();
        let mut state = self.state.subscribe();
        let tried = |state: &KeySetState| state.tried > before.tried;
        let _ = timeout(PATIENCE, state.wait_for(tried)).await;
        let state = self.state.borrow().clone();
        self.look(&state, id, algorithm, Instant::now())
    }

    /// The time of the fetch whose keys are in use.
    pub(super) fn generation(&self) -> Option<Instant> {
        self.usable(&self.state.borrow(), Instant::now()).map(|known| known.fetched)
    }

    fn usable<'a>(&self, state: &'a KeySetState, now: Instant) -> Option<&'a FetchedKeys> {
        let most = self.jwt.refresh + self.jwt.max_stale;
        state.known.as_ref().filter(|known| now < known.fetched + most)
    }

    fn look(
        &self,
        state: &KeySetState,
        id: Option<&str>,
        algorithm: Algorithm,
        now: Instant,
    ) -> Result<(DecodingKey, Instant), NoKey> {
        let known = self.usable(state, now).ok_or(NoKey::Unavailable)?;
        let key = known.keys.find(id, algorithm);
        key.map(|key| (key.clone(), known.fetched)).ok_or(NoKey::Unknown)
    }
}

async fn fetch(egress: &Egress, jwt: &Jwt) -> Result<KeySet, String> {
    let url: Uri = match &jwt.jwks_url {
        Some(url) => url.clone(),
        None => {
            let metadata = discover(egress, &jwt.issuer).await?;
            metadata
                .jwks_uri
                .ok_or("its metadata names no https jwks_uri: set auth.jwt.jwks_url")?
        }
    };
    KeySet::fetch(egress, &url).await
}
