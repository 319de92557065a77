//! Access tokens of the operator's sign-in for an upstream: renewed with its refresh token, which is replaced at each
//! renewal by most providers (OAuth 2.1, section 4.3.1), so that one process at a time renews it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::Uri;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
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

impl Login {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those of the system.
    ///
    /// # Errors
    /// When `ca` holds no usable certificate.
    pub(super) fn new(login: &config::Login, url: &Uri, ca: Option<&str>) -> Result<Self, String> {
        let store = login.kept.as_deref().map(GrantStore::new);
        Ok(Self {
            upstream: login.upstream.clone(),
            url: url.clone(),
            egress: Egress::new(CONNECT, ca, address_policy(false, url))?,
            store: store.map(Arc::new),
            state: Mutex::default(),
        })
    }

    /// Returns the stored access token, or a renewed one.
    ///
    /// # Errors
    /// Nobody has signed in, the sign-in has ended, or the provider cannot be reached.
    pub(super) async fn request(&self) -> Result<Token, Refusal> {
        let sent_at = Instant::now();
        // Another process may have renewed it by the time that this one holds the lock.
        let store = self
            .store
            .clone()
            .ok_or_else(|| self.needs_login(TokenFault::NoGrant, "nobody has signed in"))?;
        let upstream = self.upstream.clone();
        let held = spawn_blocking(move || {
            let lock = store.hold(&upstream)?;
            Ok::<_, StoreError>((store.read(&upstream)?, lock))
        });
        let held = held.await.map_err(|error| Refusal::other(error.to_string()))?;
        let (stored, _lock) = held.map_err(|error| self.unreadable(&error))?;
        let is_refused = std::mem::take(&mut self.lock().is_refused);
        let unwritten = self.lock().unwritten.take();
        let grant = unwritten.filter(|own| stored.as_ref().is_some_and(|s| s.id == own.id));
        let grant = grant.or(stored);
        let mut grant =
            grant.ok_or_else(|| self.needs_login(TokenFault::NoGrant, "nobody has signed in"))?;
        {
            let mut state = self.lock();
            state.used = Some(grant.id.clone());
            state.scope = grant.scope.clone().unwrap_or_default();
        }
        let now = UnixSeconds::from(SystemTime::now());
        match grant.state(&self.url, now) {
            GrantState::Valid => {}
            GrantState::OtherUrl => {
                return Err(self.needs_login(
                    TokenFault::NoGrant,
                    &format!(
                        "the sign-in is for {}, and the upstream is now {}",
                        grant.url, self.url
                    ),
                ));
            }
            GrantState::Ended => {
                let why = grant.ended.unwrap_or_default();
                return Err(self.needs_login(TokenFault::GrantRefused, &why));
            }
            GrantState::Expired => {
                return Err(self.needs_login(TokenFault::GrantExpired, "its tokens have expired"));
            }
        }
        let left = grant.expires_at.map(|at| UnixSeconds(at).saturating_since(now));
        // A token that has lived most of its time, and may be the one to be renewed, is renewed.
        let is_young = match (left, grant.expires_at) {
            (Some(left), Some(at)) => {
                let whole = UnixSeconds(at).saturating_since(UnixSeconds(grant.renewed_at));
                left > LEAST_LIFETIME && left > whole.mul_f64(0.3)
            }
            _ => true,
        };
        if is_young && !is_refused {
            // Times in seconds are rounded down.
            let left = left.map(|left| left.saturating_sub(LEAST_LIFETIME));
            return Token::new(&grant.access_token, left, sent_at, fastrand::f64());
        }
        let renewed = grant.renew(&self.egress, now).await;
        let has_ended = grant.ended.is_some();
        if renewed.is_ok() || has_ended {
            self.keep(grant.clone()).await;
        }
        if let Err(refusal) = renewed {
            return Err(if refusal.fault.needs_login() {
                self.needs_login(refusal.fault, &refusal.detail)
            } else {
                refusal
            });
        }
        let lifetime = grant.expires_at.map(|at| UnixSeconds(at).saturating_since(now));
        Token::new(&grant.access_token, lifetime, sent_at, fastrand::f64())
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

    fn needs_login(&self, fault: TokenFault, why: &str) -> Refusal {
        Refusal::new(fault, format!("{why}; run `promptgate login {}`", self.upstream))
    }

    fn unreadable(&self, error: &StoreError) -> Refusal {
        let fault = match error {
            StoreError::Unreadable { .. } => TokenFault::NoGrant,
            StoreError::Io { .. } | StoreError::Busy(_) => TokenFault::Failed,
        };
        Refusal::new(fault, error.to_string())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
