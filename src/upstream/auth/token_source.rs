//! The access token of one upstream: kept until it expires, renewed ahead of that, requested by one call for all.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderValue};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::client_credentials::ClientCredentials;
use super::login::Login;
use super::token::Token;
use super::workload::Workload;
use super::{REPLACE_PAUSE, RETRY_PAUSE};
use crate::cluster::SharedGrants;
use crate::config;
use crate::domain::fault::{TokenFault, UpstreamFaultKind as Kind};
use crate::oauth::client::Refusal;
use crate::oauth::resource::BearerChallenge;
use crate::seal;

/// Access tokens of one upstream.
pub(crate) struct TokenSource {
    credential: Credential,
    token: ArcSwapOption<Token>,
    /// Held during a token request: one request serves all calls that wait.
    requests: Mutex<RequestState>,
}

/// What tokens are requested with.
enum Credential {
    ClientCredentials(Box<ClientCredentials>),
    Login(Arc<Login>),
    Workload(Box<Workload>),
}

/// State that token requests hand on.
#[derive(Default)]
struct RequestState {
    /// Time and fault of the last request, if it failed.
    failure: Option<(Instant, Kind)>,
    /// Time of the last request that replaced a refused token.
    replaced: Option<Instant>,
}

impl TokenSource {
    /// Tokens for the upstream at this URL; `None` if it is not called with tokens. Renewals of a sign-in run among `tasks`;
    /// `shared` holds it, if there is a cluster.
    ///
    /// # Errors
    /// When a configured certificate cannot be used.
    pub(crate) fn new(
        http: &config::Http,
        tasks: TaskTracker,
        shared: Option<Arc<SharedGrants>>,
    ) -> Result<Option<Self>, String> {
        seal::jws::install();
        let credential =
            match &http.credentials.token {
                None => return Ok(None),
                Some(config::TokenCredential::OAuth(oauth)) => Credential::ClientCredentials(
                    Box::new(ClientCredentials::new(oauth, &http.url, http.ca.as_deref())?),
                ),
                Some(config::TokenCredential::Login(login)) => Credential::Login(Arc::new(
                    Login::new(login, &http.url, http.ca.as_deref(), tasks, shared)?,
                )),
                Some(config::TokenCredential::Workload(workload)) => Credential::Workload(
                    Box::new(Workload::new(workload, &http.url, http.ca.as_deref())?),
                ),
            };
        Ok(Some(Self { credential, token: ArcSwapOption::empty(), requests: Mutex::default() }))
    }

    /// Returns the value of `Authorization` of the last requests, if there is a token.
    pub(crate) fn last_header(&self) -> Option<HeaderValue> {
        self.token.load().as_ref().map(|token| token.header.clone())
    }

    /// Returns the value of `Authorization` for a request; nothing until a challenge of the upstream
    /// has led to an authorization server. Cancel safe: a request that is dropped is repeated by the
    /// next call.
    ///
    /// # Errors
    /// [`Kind::NoToken`] when the token request fails or has failed within the last second.
    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let token = self.token.load_full().filter(|token| now < token.expires_at);
        if let Some(token) = &token {
            // One call renews the token before it expires; all others use the current one meanwhile.
            let state = if now < token.renew_at { None } else { self.requests.try_lock().ok() };
            let header = match state {
                Some(state) => self.renew(state, Some(token)).await.unwrap_or(None),
                None => None,
            };
            return Ok(header.or_else(|| Some(token.header.clone())));
        }
        let state = self.requests.lock().await;
        self.renew(state, None).await
    }

    /// Returns another token after the upstream has refused the one in `sent` with 401 and the headers
    /// `response`, which may name the authorization server.
    ///
    /// # Errors
    /// [`Kind::AuthFailed`] when a refused token was replaced less than ten seconds ago, [`Kind::NoToken`] when no
    /// token can be had.
    pub(crate) async fn refused(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<HeaderValue, Kind> {
        let mut state = self.requests.lock().await;
        let newer = self.token.load_full().filter(|token| Some(&token.header) != sent);
        if let Some(token) = newer.filter(|token| Instant::now() < token.expires_at) {
            return Ok(token.header.clone());
        }
        if state.replaced.is_some_and(|at| at.elapsed() < REPLACE_PAUSE) {
            return Err(Kind::AuthFailed { status: 401 });
        }
        if sent.is_some() {
            state.replaced = Some(Instant::now());
        }
        self.token.store(None);
        match &self.credential {
            Credential::ClientCredentials(client) if !client.knows_endpoint() => {
                check_pause(&state)?;
                let discovered = client.discover(response).await;
                discovered.map_err(|refusal| fail(&mut state, refusal))?;
            }
            Credential::ClientCredentials(_) | Credential::Workload(_) => {}
            Credential::Login(login) => login.give_up_token(),
        }
        let header = self.renew(state, None).await?;
        header.ok_or_else(|| no_token("no authorization server is known"))
    }

    /// Returns a token of a wider scope after the upstream has refused the one in `sent` with 403, if `response` says
    /// that its scope does not suffice (RFC 6750, section 3.1). `None`: it says something else.
    ///
    /// # Errors
    /// [`Kind::NoToken`] when no such token can be had.
    pub(crate) async fn insufficient(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Kind> {
        let Some(scope) = BearerChallenge::read(response).insufficient_scope() else {
            return Ok(None);
        };
        let mut state = self.requests.lock().await;
        let newer = self.token.load_full().filter(|token| Some(&token.header) != sent);
        if let Some(token) = newer.filter(|token| Instant::now() < token.expires_at) {
            return Ok(Some(token.header.clone()));
        }
        let widened = match &self.credential {
            Credential::ClientCredentials(client) => client.widen(&scope),
            Credential::Workload(workload) => workload.widen(&scope),
            Credential::Login(login) => Err(login.lacks(&scope)),
        };
        widened.map_err(|refusal| fail(&mut state, refusal))?;
        self.token.store(None);
        self.renew(state, None).await
    }

    /// Forgets the token and the last failure, for a sign-in that is new or has ended.
    pub(crate) async fn forget(&self) {
        let mut state = self.requests.lock().await;
        *state = RequestState::default();
        self.token.store(None);
        if let Credential::Login(login) = &self.credential {
            login.forget();
        }
    }

    /// Whether another sign-in is stored than the one that is used.
    pub(crate) async fn has_other_login(&self) -> bool {
        match &self.credential {
            Credential::Login(login) => login.is_another().await,
            Credential::ClientCredentials(_) | Credential::Workload(_) => false,
        }
    }

    /// Requests a token, unless another call has stored one that is newer than `old` meanwhile.
    async fn renew(
        &self,
        mut state: MutexGuard<'_, RequestState>,
        old: Option<&Arc<Token>>,
    ) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let stored = self.token.load_full().filter(|token| now < token.renew_at);
        if let Some(token) = stored.filter(|token| old.is_none_or(|old| !Arc::ptr_eq(old, token))) {
            return Ok(Some(token.header.clone()));
        }
        check_pause(&state)?;
        let requested = match &self.credential {
            Credential::ClientCredentials(client) => client.request().await.transpose(),
            Credential::Login(login) => Some(login.request().await),
            Credential::Workload(workload) => Some(workload.request().await),
        };
        match requested {
            None => Ok(None),
            Some(Ok(token)) => {
                state.failure = None;
                let header = token.header.clone();
                self.token.store(Some(Arc::new(token)));
                Ok(Some(header))
            }
            Some(Err(refusal)) => Err(fail(&mut state, refusal)),
        }
    }
}

/// Repeats the fault of a token request that has just failed.
fn check_pause(state: &RequestState) -> Result<(), Kind> {
    match &state.failure {
        Some((at, kind)) if at.elapsed() < RETRY_PAUSE => Err(kind.clone()),
        _ => Ok(()),
    }
}

fn fail(state: &mut RequestState, Refusal { fault, detail, .. }: Refusal) -> Kind {
    let kind = Kind::NoToken { fault, detail };
    state.failure = Some((Instant::now(), kind.clone()));
    kind
}

fn no_token(detail: &str) -> Kind {
    Kind::NoToken { fault: TokenFault::Failed, detail: detail.to_owned() }
}
