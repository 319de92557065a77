//! Access tokens of the operator's sign-in for an upstream: renewed with its refresh token, which is replaced at each
//! renewal by most providers (OAuth 2.1, section 4.3.1), so that one process at a time renews it.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::Uri;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::error;

use super::token::Token;
use crate::config;
use crate::domain::fault::{TokenFault, excerpt};
use crate::domain::unix_time::UnixSeconds;
use crate::grants::store::{GrantStore, StoreError};
use crate::grants::{Grant, GrantState};
use crate::net::egress::{CONNECT, Egress};
use crate::oauth::client::{Refusal, address_policy};
use crate::oauth::scope;

/// The operator's sign-in for one upstream.
pub(super) struct Login {
    upstream: String,
    /// URL of the upstream.
    url: Uri,
    egress: Egress,
    /// `None` only for a configuration with mistakes.
    store: Option<Arc<GrantStore>>,
    state: Mutex<State>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    /// Id of the grant that the last token is of.
    used: Option<String>,
    /// Its scope, as far as it is known.
    scope: String,
    /// Whether the upstream has refused the stored access token.
    is_refused: bool,
    /// A renewed grant that could not be written: what the file has is out of date.
    unwritten: Option<Grant>,
}

/// A stored access token that expires sooner is renewed at once.
const LEAST_LIFETIME: Duration = Duration::from_secs(1);

/// The last part of its lifetime, within which a token is renewed: the token source asks not before 70 % of it.
const RENEWED_WITHIN: f64 = 0.3;

impl Login {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those of the system.
    ///
    /// # Errors
    /// When `ca` holds no usable certificate.
    pub(super) fn new(
        login: &config::Login,
        url: &Uri,
        ca: Option<&str>,
        tasks: TaskTracker,
    ) -> Result<Self, String> {
        let store = login.kept.as_deref().map(GrantStore::new);
        Ok(Self {
            upstream: login.upstream.clone(),
            url: url.clone(),
            egress: Egress::new(CONNECT, ca, address_policy(false, url))?,
            store: store.map(Arc::new),
            state: Mutex::default(),
            tasks,
        })
    }

    /// Returns the stored access token, or a renewed one. What it does goes on if it is dropped: a caller that leaves must not
    /// lose the refresh token that the provider has just issued.
    ///
    /// # Errors
    /// There is no grant, it has ended, or the provider cannot be reached.
    pub(super) async fn request(self: &Arc<Self>) -> Result<Token, Refusal> {
        let own = self.clone();
        let obtaining = self.tasks.spawn(async move { own.obtain().await });
        obtaining.await.unwrap_or_else(|error| Err(Refusal::other(error.to_string())))
    }

    async fn obtain(&self) -> Result<Token, Refusal> {
        let sent_at = Instant::now();
        // Another process may have renewed the grant by the time that this one holds the lock.
        let (stored, _lock) = self.stored().await?;
        let mut grant = stored.ok_or_else(|| self.no_grant("there is no sign-in"))?;
        let is_refused = self.note(&grant);
        let now = UnixSeconds::from(SystemTime::now());
        self.check(&grant, now)?;
        let left = grant.expires_at.map(|at| UnixSeconds(at).saturating_since(now));
        if !is_refused && !needs_renewal(&grant, left) {
            // Times in seconds are rounded down.
            let left = left.map(|left| left.saturating_sub(LEAST_LIFETIME));
            return Token::new(&grant.access_token, left, sent_at, fastrand::f64());
        }
        let renewed = grant.renew(&self.egress, now).await;
        if renewed.is_ok() || grant.ended.is_some() {
            self.keep(grant.clone()).await;
        }
        if let Err(refusal) = renewed {
            let ends = refusal.fault.needs_login();
            return Err(if ends { self.ended(refusal.fault, &refusal.detail) } else { refusal });
        }
        let lifetime = grant.expires_at.map(|at| UnixSeconds(at).saturating_since(now));
        Token::new(&grant.access_token, lifetime, sent_at, fastrand::f64())
    }

    /// Returns the grant, and the lock that keeps other processes from renewing it.
    async fn stored(&self) -> Result<(Option<Grant>, File), Refusal> {
        let store =
            self.store.clone().ok_or_else(|| self.no_grant("server.seal_key is not set"))?;
        let upstream = self.upstream.clone();
        let reading = spawn_blocking(move || {
            let lock = store.hold(&upstream)?;
            Ok((store.read(&upstream)?, lock))
        });
        let read: Result<_, StoreError> =
            reading.await.map_err(|error| Refusal::other(error.to_string()))?;
        let (stored, lock) = read.map_err(|error| {
            let is_sealed = matches!(error, StoreError::Unreadable { .. });
            let fault = if is_sealed { TokenFault::NoGrant } else { TokenFault::Failed };
            Refusal::new(fault, error.to_string())
        })?;
        // A renewed grant that could not be written counts, unless there was another sign-in since.
        let unwritten = self.lock().unwritten.take();
        let own = unwritten.filter(|own| stored.as_ref().is_some_and(|s| s.id == own.id));
        if let Some(own) = &own {
            self.keep(own.clone()).await;
        }
        Ok((own.or(stored), lock))
    }

    /// Notes which grant is used. Returns whether the upstream has refused its access token.
    fn note(&self, grant: &Grant) -> bool {
        let mut state = self.lock();
        state.used = Some(grant.id.clone());
        state.scope = grant.scope.clone().unwrap_or_default();
        std::mem::take(&mut state.is_refused)
    }

    /// # Errors
    /// The grant cannot be used for this upstream, or any longer.
    fn check(&self, grant: &Grant, now: UnixSeconds) -> Result<(), Refusal> {
        let Grant { url, ended, .. } = grant;
        match grant.state(&self.url, now) {
            GrantState::Valid => Ok(()),
            GrantState::OtherUrl => Err(self.no_grant(&format!(
                "the sign-in is for {url}, and the upstream is now {}",
                self.url
            ))),
            GrantState::Ended => {
                Err(self.ended(TokenFault::GrantRefused, ended.as_deref().unwrap_or_default()))
            }
            GrantState::Expired => {
                Err(self.ended(TokenFault::GrantExpired, "its tokens have expired"))
            }
        }
    }

    /// Writes a grant; keeps it in memory until it can be written.
    async fn keep(&self, grant: Grant) {
        let Some(store) = self.store.clone() else { return };
        let kept = grant.clone();
        let written = spawn_blocking(move || store.write(&kept)).await;
        let written = written.map_err(|error| error.to_string());
        if let Err(error) = written.and_then(|written| written.map_err(|error| error.to_string())) {
            error!(
                upstream = self.upstream,
                error,
                "the renewed sign-in cannot be written; a restart would lose it: make the folder of grants.path writable"
            );
            self.lock().unwritten = Some(grant);
        }
    }

    /// The upstream has refused the access token: the next one must be another.
    pub(super) fn give_up_token(&self) {
        self.lock().is_refused = true;
    }

    /// The upstream needs a scope that the operator has not granted.
    pub(super) fn lacks(&self, scope: &str) -> Refusal {
        let all = excerpt(&scope::union(&self.lock().scope, scope));
        let (upstream, scope) = (&self.upstream, excerpt(scope));
        Refusal::new(
            TokenFault::ScopeRefused,
            format!(
                "the upstream needs the scope {scope:?}; run `promptgate login {upstream} --scope \"{all}\"`"
            ),
        )
    }

    pub(super) fn forget(&self) {
        *self.lock() = State::default();
    }

    /// Whether another grant is stored than the one of the last token. Blocks on the file system.
    pub(super) fn is_another(&self) -> bool {
        let stored = self.store.as_ref().and_then(|store| store.read(&self.upstream).ok());
        stored.is_some_and(|stored| stored.map(|grant| grant.id) != self.lock().used)
    }

    fn no_grant(&self, why: &str) -> Refusal {
        self.ended(TokenFault::NoGrant, why)
    }

    /// A fault that a person repairs.
    fn ended(&self, fault: TokenFault, why: &str) -> Refusal {
        Refusal::new(fault, format!("{why}; run `promptgate login {}`", self.upstream))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the stored access token, with so much time left, is renewed: it expires soon, or is the one that the token
/// source wants to be renewed after most of its lifetime. Without a known end it is used until it is refused.
fn needs_renewal(grant: &Grant, left: Option<Duration>) -> bool {
    let (Some(left), Some(expires)) = (left, grant.expires_at) else { return false };
    let whole = UnixSeconds(expires).saturating_since(UnixSeconds(grant.renewed_at));
    left <= LEAST_LIFETIME || left <= whole.mul_f64(RENEWED_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::tests::grant;

    #[test]
    fn a_token_is_renewed_in_the_last_part_of_its_life() {
        let lasting = Grant { renewed_at: 1_000, expires_at: Some(1_100), ..grant("wiki") };
        let needs = |secs| needs_renewal(&lasting, Some(Duration::from_secs(secs)));
        assert!(!needs(100) && !needs(31));
        assert!(needs(30) && needs(0));
        let short = Grant { renewed_at: 1_000, expires_at: Some(1_002), ..grant("wiki") };
        assert!(needs_renewal(&short, Some(Duration::from_secs(1))));
        let endless = Grant { expires_at: None, ..grant("wiki") };
        assert!(!needs_renewal(&endless, None));
    }
}
