//! The access token of one upstream: kept until it expires, renewed ahead of that, requested by one
//! call for all.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::client_credentials::ClientCredentials;
use super::login::KeptLogin;
use super::token::{AccessToken, LastTokens};
use super::wider_requests::WiderRequests;
use super::workload::WorkloadIdentity;
use super::{REPLACE_PAUSE, RETRY_PAUSE};
use base::seal;
use cluster::SharedLogins;
use domain::fault::{TokenFault, UpstreamFaultKind as Kind};
use oauth::client::Refusal;
use oauth::resource::BearerChallenge;

/// Access tokens of one upstream.
pub struct TokenSource {
    credential: Credential,
    tokens: LastTokens,
    /// Held during a token request: one request serves all calls that wait.
    requests: Mutex<TokenRequestState>,
}

/// The credential with which tokens are requested.
enum Credential {
    ClientCredentials(Box<ClientCredentials>),
    Login(Arc<KeptLogin>),
    Workload(Box<WorkloadIdentity>),
}

/// Time and fault of a request.
type Failed = (Instant, Kind);

/// State that token requests hand on.
#[derive(Default)]
struct TokenRequestState {
    /// The last request, if it failed.
    failure: Option<Failed>,
    /// The last request for a wider scope, if it failed, with the scope that was needed.
    wider_failure: Option<(String, Failed)>,
    wider_requests: WiderRequests,
    /// Time of the last request that replaced a refused token.
    replaced: Option<Instant>,
}

impl TokenSource {
    /// Tokens for the upstream at this URL; `None` if it is called without tokens. Renewals of a
    /// sign-in run among `tasks`; `shared` holds the sign-in in a cluster.
    ///
    /// # Errors
    /// When a configured certificate cannot be used.
    pub fn new(
        http: &config::Http,
        tasks: TaskTracker,
        shared: Option<Arc<SharedLogins>>,
    ) -> Result<Option<Self>, String> {
        seal::jws::install();
        let credential = match &http.credentials.token {
            None => return Ok(None),
            Some(config::TokenCredential::OAuth(oauth)) => {
                Credential::ClientCredentials(Box::new(ClientCredentials::new(oauth, http)?))
            }
            Some(config::TokenCredential::Login(login)) => {
                let kept = login.kept.as_deref();
                let login = KeptLogin::new(&login.upstream, kept, http, tasks, shared)?;
                Credential::Login(Arc::new(login))
            }
            Some(config::TokenCredential::Workload(workload)) => {
                Credential::Workload(Box::new(WorkloadIdentity::new(workload, http)?))
            }
        };
        let tokens = LastTokens::default();
        let requests = Mutex::default();
        Ok(Some(Self { credential, tokens, requests }))
    }

    /// Returns the values of `Authorization` of the last requests, with the current and the
    /// previous token, if present.
    pub(crate) fn last_headers(&self) -> [Option<HeaderValue>; 2] {
        self.tokens.headers()
    }

    /// Returns the value of `Authorization` for a request; nothing until a challenge of the
    /// upstream has led to an authorization server. Cancel safe: a request that is dropped is
    /// repeated by the next call.
    ///
    /// # Errors
    /// [`Kind::NoToken`] when the token request fails or has failed within the last second.
    pub async fn header(&self) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let token = self.tokens.get().filter(|token| now < token.expires_at);
        if let Some(token) = &token {
            // One call renews the token before its expiry; other calls use the current token
            // meanwhile.
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

    /// Returns another token after the upstream has refused the one in `sent` with 401 and the
    /// headers `response`, which may name the authorization server.
    ///
    /// # Errors
    /// [`Kind::AuthFailed`] when a refused token was replaced less than ten seconds ago,
    /// [`Kind::NoToken`] when no token can be had.
    pub async fn refused(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<HeaderValue, Kind> {
        let mut state = self.requests.lock().await;
        let newer = self.tokens.get().filter(|token| Some(&token.header) != sent);
        if let Some(token) = newer.filter(|token| Instant::now() < token.expires_at) {
            return Ok(token.header.clone());
        }
        if state.replaced.is_some_and(|at| at.elapsed() < REPLACE_PAUSE) {
            return Err(Kind::AuthFailed { status: 401 });
        }
        if sent.is_some() {
            state.replaced = Some(Instant::now());
        }
        self.tokens.replace(None);
        match &self.credential {
            Credential::ClientCredentials(client) if !client.knows_endpoint() => {
                check_pause(state.failure.as_ref())?;
                let discovered = client.discover(response).await;
                discovered.map_err(|refusal| fail(&mut state, refusal))?;
            }
            Credential::ClientCredentials(_) | Credential::Workload(_) => {}
            Credential::Login(login) => login.give_up_token(),
        }
        let header = self.renew(state, None).await?;
        header.ok_or_else(|| no_token("no authorization server is known"))
    }

    /// Returns a token with a wider scope after the upstream has refused the token in `sent` with
    /// 403. `None` if `response` does not report an insufficient scope (RFC 6750, section 3.1).
    pub(crate) async fn insufficient(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Kind> {
        let Some(scope) = BearerChallenge::read(response).insufficient_scope() else {
            return Ok(None);
        };
        let mut state = self.requests.lock().await;
        let newer = self.tokens.get().filter(|token| Some(&token.header) != sent);
        if let Some(token) = newer.filter(|token| Instant::now() < token.expires_at) {
            return Ok(Some(token.header.clone()));
        }
        if let Some((refused, failed)) = &state.wider_failure
            && *refused == scope
        {
            check_pause(Some(failed))?;
        }
        // Other calls keep using the current token until the wider token arrives, or if it is
        // refused.
        let wider = self.credential.wider(&scope).and_then(|wider| {
            state.wider_requests.admit(Instant::now())?;
            Ok(wider)
        });
        let requested = match wider {
            Ok(wider) => match self.credential.request(wider.as_deref()).await {
                Some(Ok(token)) => {
                    self.credential.keep_scope(wider);
                    Ok(Some(token))
                }
                None => Ok(None),
                Some(Err(refusal)) => Err(refusal),
            },
            Err(refusal) => Err(refusal),
        };
        match requested {
            Ok(token) => Ok(token.map(|token| self.take(&mut state, token))),
            Err(refusal) => {
                let (kind, failed) = failure(refusal);
                state.wider_failure = Some((scope, failed));
                Err(kind)
            }
        }
    }

    /// Forgets the token and the last failure after a new or ended sign-in. Errors are still
    /// searched for the forgotten token.
    pub async fn forget(&self) {
        let mut state = self.requests.lock().await;
        *state = TokenRequestState::default();
        self.tokens.replace(None);
        if let Credential::Login(login) = &self.credential {
            login.forget();
        }
    }

    /// Whether the stored sign-in differs from the used sign-in.
    pub(crate) async fn has_other_login(&self) -> bool {
        match &self.credential {
            Credential::Login(login) => login.is_another().await,
            Credential::ClientCredentials(_) | Credential::Workload(_) => false,
        }
    }

    /// Requests a token, unless another call has stored a token newer than `old` meanwhile.
    async fn renew(
        &self,
        mut state: MutexGuard<'_, TokenRequestState>,
        old: Option<&Arc<AccessToken>>,
    ) -> Result<Option<HeaderValue>, Kind> {
        let now = Instant::now();
        let stored = self.tokens.get().filter(|token| now < token.renew_at);
        if let Some(token) = stored.filter(|token| old.is_none_or(|old| !Arc::ptr_eq(old, token))) {
            return Ok(Some(token.header.clone()));
        }
        check_pause(state.failure.as_ref())?;
        match self.credential.request(None).await {
            None => Ok(None),
            Some(Ok(token)) => Ok(Some(self.take(&mut state, token))),
            Some(Err(refusal)) => {
                if refusal.fault == TokenFault::ScopeRefused {
                    // A wider scope may have been withdrawn.
                    self.credential.keep_scope(None);
                }
                Err(fail(&mut state, refusal))
            }
        }
    }

    /// Takes over a token that was issued. Returns the value of `Authorization`.
    fn take(&self, state: &mut TokenRequestState, token: AccessToken) -> HeaderValue {
        (state.failure, state.wider_failure) = (None, None);
        let header = token.header.clone();
        self.tokens.replace(Some(Arc::new(token)));
        header
    }
}

impl Credential {
    /// Requests a token, with another scope if `scope` is given; `None` if no endpoint is known.
    async fn request(&self, scope: Option<&str>) -> Option<Result<AccessToken, Refusal>> {
        match self {
            Self::ClientCredentials(client) => client.request(scope).await.transpose(),
            Self::Login(login) => Some(login.request().await),
            Self::Workload(workload) => Some(workload.request(scope).await),
        }
    }

    /// Returns the requested scopes with the needed scopes; `None` if no endpoint is known.
    fn wider(&self, needed: &str) -> Result<Option<String>, Refusal> {
        match self {
            Self::ClientCredentials(client) => client.wider(needed).transpose(),
            Self::Workload(workload) => workload.wider(needed).map(Some),
            Self::Login(login) => Err(login.lacks(needed)),
        }
    }

    /// Sets the scopes of further requests; `None` for the configured scopes.
    fn keep_scope(&self, scope: Option<String>) {
        match self {
            Self::ClientCredentials(client) => client.keep_scope(scope),
            Self::Workload(workload) => workload.keep_scope(scope),
            Self::Login(_) => {}
        }
    }
}

/// Repeats the fault of a token request that has just failed.
fn check_pause(failure: Option<&Failed>) -> Result<(), Kind> {
    match failure {
        Some((at, kind)) if at.elapsed() < RETRY_PAUSE => Err(kind.clone()),
        _ => Ok(()),
    }
}

fn failure(Refusal { fault, detail, .. }: Refusal) -> (Kind, Failed) {
    let kind = Kind::NoToken { fault, detail };
    (kind.clone(), (Instant::now(), kind))
}

fn fail(state: &mut TokenRequestState, refusal: Refusal) -> Kind {
    let (kind, failed) = failure(refusal);
    state.failure = Some(failed);
    kind
}

fn no_token(detail: &str) -> Kind {
    Kind::NoToken { fault: TokenFault::Failed, detail: detail.to_owned() }
}
