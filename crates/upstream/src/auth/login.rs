//! Access tokens of a sign-in that is kept: renewed with its refresh token, which is replaced at
//! each renewal by most providers (OAuth 2.1, section 4.3.1), so that one process at a time renews
//! it.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Uri;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::error;

use super::token::AccessToken;
use base::platform::{Locked, wall_clock};
use cluster::SharedLogins;
use domain::fault::{TokenFault, excerpt};
use domain::time::unix_time::UnixSeconds;
use logins::store::{LoginBackend, LoginLock, LoginStoreError};
use logins::{LoginState, StoredLogin};
use net::egress::{CONNECT, Egress};
use oauth::client::{Refusal, address_policy};
use oauth::scope;

/// The sign-in of the operator, or of one caller, for one upstream.
pub(super) struct KeptLogin {
    /// The name under which the sign-in is kept: the id of the upstream for the operator's.
    upstream: String,
    /// URL of the upstream.
    url: Uri,
    pub(super) egress: Arc<Egress>,
    /// The store; `None` only for a configuration with mistakes.
    pub(super) store: Option<Arc<LoginBackend>>,
    state: Mutex<LoginTokens>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct LoginTokens {
    /// Id of the login behind the last token.
    used: Option<String>,
    /// The known scope of the login.
    scope: String,
    /// The last access token.
    token: String,
    /// The access token that the upstream has refused.
    refused: Option<String>,
    unwritten: Option<UnwrittenLogin>,
}

/// The valid login: the stored login, or its unwritten renewal.
struct Stored {
    login: StoredLogin,
    /// The access token in the store, which is older than the login's if the login could not be
    /// written.
    replaces: String,
}

/// A renewed login that could not be written: the stored login is out of date.
#[derive(Clone)]
struct UnwrittenLogin {
    login: StoredLogin,
    /// The access token of the stored login before the renewal.
    replaces: String,
}

impl UnwrittenLogin {
    /// Whether this login still succeeds the stored login: no other sign-in and no renewal by
    /// another process has replaced the stored login.
    fn replaces(&self, stored: &StoredLogin) -> bool {
        stored.id == self.login.id && stored.access_token == self.replaces
    }
}

/// A request for the token of a caller, and for the login that keeps it.
pub(super) type Issuing =
    Pin<Box<dyn Future<Output = Result<(AccessToken, StoredLogin), Refusal>> + Send>>;

/// A stored access token that expires sooner is renewed at once.
const LEAST_LIFETIME: Duration = Duration::from_secs(1);

/// The last part of a token's lifetime, in which the token is renewed. The token source requests a
/// token no earlier than at 70 % of the lifetime.
const RENEWED_WITHIN: f64 = 0.3;

impl KeptLogin {
    /// `upstream` is the name under which the sign-in is kept in `kept`, or in `shared` if there is
    /// a cluster.
    pub(super) fn new(
        upstream: &str,
        kept: Option<&config::Logins>,
        http: &config::Http,
        tasks: TaskTracker,
        shared: Option<Arc<SharedLogins>>,
    ) -> Result<Self, String> {
        let url = &http.url;
        let ca = http.ca.as_deref();
        let proxies = http.proxies.as_ref();
        let egress = Egress::new(CONNECT, ca, address_policy(false, url), proxies)?;
        let egress = Arc::new(egress);
        let store = kept.map(|kept| Arc::new(LoginBackend::new(kept, shared)));
        Ok(Self {
            upstream: upstream.to_owned(),
            url: url.clone(),
            egress,
            store,
            state: Mutex::default(),
            tasks,
        })
    }

    /// Returns the sign-in of one caller, kept under this name.
    pub(super) fn of_caller(&self, name: String) -> Self {
        Self {
            upstream: name,
            url: self.url.clone(),
            egress: self.egress.clone(),
            store: self.store.clone(),
            state: Mutex::default(),
            tasks: self.tasks.clone(),
        }
    }

    /// The name under which the sign-in is kept.
    pub(super) fn name(&self) -> &str {
        &self.upstream
    }

    /// The id of the sign-in behind the last token, and its known scope.
    pub(super) fn known(&self) -> (Option<String>, String) {
        let state = self.state.locked();
        (state.used.clone(), state.scope.clone())
    }

    /// Returns the stored access token, or a renewed one. The renewal goes on if the future is
    /// dropped: a caller that leaves must not lose the refresh token that the provider has just
    /// issued.
    pub(super) async fn request(self: &Arc<Self>) -> Result<AccessToken, Refusal> {
        let own = self.clone();
        self.begin(async move { own.obtain().await }).await.unwrap_or_else(unfinished)
    }

    /// Begins work that goes on to its end, also if the handle is dropped.
    fn begin<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn(work)
    }

    async fn obtain(&self) -> Result<AccessToken, Refusal> {
        let store =
            self.store.as_ref().ok_or_else(|| self.no_login("server.seal_key is not set"))?;
        let lock = match store.lock(&self.upstream).await {
            Ok(lock) => lock,
            Err(error) => {
                // Noted although it cannot be used: `is_another` would report it as a new sign-in
                // each time.
                if let Ok(Some(login)) = store.read(&self.upstream).await {
                    self.note(&login);
                }
                return Err(refused(error));
            }
        };
        let sent_at = Instant::now();
        // Another process may have renewed the login by the time that this one holds the lock.
        let token = match self.stored(store, &lock).await {
            Ok(login) => self.token_of(login, &lock, sent_at).await,
            Err(refusal) => Err(refusal),
        };
        lock.release().await;
        token
    }

    /// Returns the access token of a login, after a renewal if needed.
    async fn token_of(
        &self,
        Stored { mut login, replaces }: Stored,
        lock: &LoginLock<'_>,
        sent_at: Instant,
    ) -> Result<AccessToken, Refusal> {
        self.note(&login);
        let now = UnixSeconds::from(wall_clock());
        self.check(&login, now)?;
        if let Some(token) = self.reuse(&login, now, sent_at) {
            return token;
        }
        let renewed = login.renew(&self.egress, now).await;
        if renewed.is_ok() || login.ended.is_some() {
            self.keep(lock, UnwrittenLogin { login: login.clone(), replaces }).await;
        }
        if let Err(refusal) = renewed {
            let ends = refusal.fault.needs_login();
            return Err(if ends { self.ended(refusal.fault, &refusal.detail) } else { refusal });
        }
        let lifetime = login.expires_at.map(|at| UnixSeconds(at).saturating_since(now));
        self.hand_out(&login, lifetime, sent_at)
    }

    /// Returns the kept access token of a caller, or the token that `issue` obtains, which is kept
    /// for the other replicas until it expires. The request goes on if the future is dropped, so
    /// that the lock is released. Without the store, each replica has another token.
    pub(super) async fn share(
        self: &Arc<Self>,
        client_id: String,
        scope: Option<String>,
        issue: Issuing,
    ) -> Result<AccessToken, Refusal> {
        let own = self.clone();
        let sharing = self.begin(async move {
            let Some(store) = &own.store else { return Ok(issue.await?.0) };
            let lock = store.lock(&own.upstream).await.ok();
            let shared = own.shared(store, lock.as_ref(), &client_id, scope.as_deref(), issue);
            let token = shared.await;
            if let Some(lock) = lock {
                lock.release().await;
            }
            token
        });
        sharing.await.unwrap_or_else(unfinished)
    }

    async fn shared(
        &self,
        store: &LoginBackend,
        lock: Option<&LoginLock<'_>>,
        client_id: &str,
        scope: Option<&str>,
        issue: Issuing,
    ) -> Result<AccessToken, Refusal> {
        let kept = match lock {
            Some(_) => store.find(&self.upstream).await.unwrap_or_default(),
            None => None,
        };
        let sent_at = Instant::now();
        let now = UnixSeconds::from(wall_clock());
        if let Some(login) = &kept {
            self.note(login);
            let granted = login.scope.as_deref().unwrap_or_default();
            if login.client_id == client_id
                && login.state(&self.url, now) == LoginState::Valid
                && scope.is_none_or(|needed| scope::covers(granted, needed))
                && let Some(token) = self.reuse(login, now, sent_at)
            {
                return token;
            }
        }
        let (token, login) = issue.await?;
        // The id lasts until a revocation: other replicas see by it which tokens are revoked.
        let login = StoredLogin { id: kept.map_or_else(String::new, |kept| kept.id), ..login };
        self.note(&login);
        self.state.locked().token.clone_from(&login.access_token);
        let lifetime = token.expires_at.saturating_duration_since(Instant::now());
        let written = match lock {
            Some(lock) => lock.write_for(&login, lifetime).await.is_ok(),
            None => false,
        };
        if !written {
            self.state.locked().used = None;
        }
        Ok(token)
    }

    /// Hands out the access token of a valid login, unless the upstream has refused the token or it
    /// must be renewed.
    fn reuse(
        &self,
        login: &StoredLogin,
        now: UnixSeconds,
        sent_at: Instant,
    ) -> Option<Result<AccessToken, Refusal>> {
        let left = login.expires_at.map(|at| UnixSeconds(at).saturating_since(now));
        let is_refused = self.state.locked().refused.as_ref() == Some(&login.access_token);
        if is_refused || needs_renewal(login, left) {
            return None;
        }
        // Times in seconds are rounded down.
        let left = left.map(|left| left.saturating_sub(LEAST_LIFETIME));
        Some(self.hand_out(login, left, sent_at))
    }

    fn hand_out(
        &self,
        login: &StoredLogin,
        lifetime: Option<Duration>,
        sent_at: Instant,
    ) -> Result<AccessToken, Refusal> {
        let token = AccessToken::new(&login.access_token, lifetime, sent_at, fastrand::f64());
        self.state.locked().token.clone_from(&login.access_token);
        token
    }

    /// Returns the locked login. An unwritten login takes precedence, and is written now.
    async fn stored(&self, store: &LoginBackend, lock: &LoginLock<'_>) -> Result<Stored, Refusal> {
        let stored = store.read(&self.upstream).await.map_err(refused)?;
        let Some(stored) = stored else {
            self.state.locked().used = None;
            return Err(self.no_login("there is no sign-in"));
        };
        let unwritten = self.state.locked().unwritten.take();
        let Some(own) = unwritten.filter(|own| own.replaces(&stored)) else {
            return Ok(Stored { replaces: stored.access_token.clone(), login: stored });
        };
        let login = own.login.clone();
        let replaces = own.replaces.clone();
        let is_written = self.keep(lock, own).await;
        let replaces = if is_written { login.access_token.clone() } else { replaces };
        Ok(Stored { login, replaces })
    }

    /// Notes the used login.
    fn note(&self, login: &StoredLogin) {
        let mut state = self.state.locked();
        state.used = Some(login.id.clone());
        state.scope = login.scope.clone().unwrap_or_default();
    }

    fn check(&self, login: &StoredLogin, now: UnixSeconds) -> Result<(), Refusal> {
        let StoredLogin { url, ended, .. } = login;
        match login.state(&self.url, now) {
            LoginState::Valid => Ok(()),
            LoginState::OtherUrl => Err(self.no_login(&format!(
                "the sign-in is for {url}, and the upstream is now {}",
                self.url
            ))),
            LoginState::Ended => {
                Err(self.ended(TokenFault::LoginRefused, ended.as_deref().unwrap_or_default()))
            }
            LoginState::Expired => {
                Err(self.ended(TokenFault::LoginExpired, "its tokens have expired"))
            }
        }
    }

    /// Writes a renewed login; keeps the login in memory until it can be written. Returns whether
    /// the login was written.
    async fn keep(&self, lock: &LoginLock<'_>, renewed: UnwrittenLogin) -> bool {
        let written = lock.write(&renewed.login).await;
        if let Err(error) = &written {
            error!(
                upstream = self.upstream,
                %error,
                "the renewed sign-in cannot be written; a restart would lose it: make the folder of logins.path \
                 writable, or check cluster.store"
            );
            self.state.locked().unwritten = Some(renewed);
        }
        written.is_ok()
    }

    /// Writes the unwritten login. A failed write is retried with the next token.
    async fn write_unwritten(&self) {
        let Some(store) = &self.store else { return };
        if let Ok(lock) = store.lock(&self.upstream).await {
            let _ = self.stored(store, &lock).await;
            lock.release().await;
        }
    }

    /// Notes that the upstream has refused the access token: the next token must differ.
    pub(super) fn give_up_token(&self) {
        let mut state = self.state.locked();
        state.refused = Some(state.token.clone());
    }

    /// Returns the refusal for a scope that the operator has not granted.
    pub(super) fn lacks(&self, scope: &str) -> Refusal {
        let all = excerpt(&scope::union(&self.state.locked().scope, scope));
        let upstream = &self.upstream;
        let scope = excerpt(scope);
        Refusal::new(
            TokenFault::ScopeRefused,
            format!(
                "the upstream needs the scope {scope:?}; run `promptgate login {upstream} --scope \"{all}\"`"
            ),
        )
    }

    pub(super) fn forget(&self) {
        *self.state.locked() = LoginTokens::default();
    }

    /// Whether the stored login differs from the login of the last token.
    pub(super) async fn is_another(self: &Arc<Self>) -> bool {
        let has_unwritten = self.state.locked().unwritten.is_some();
        if has_unwritten {
            // The cluster's store may be reachable again.
            let own = self.clone();
            let _ = self.begin(async move { own.write_unwritten().await }).await;
        }
        let Some(store) = &self.store else { return false };
        let stored = store.read(&self.upstream).await;
        stored.is_ok_and(|stored| stored.map(|login| login.id) != self.state.locked().used)
    }

    fn no_login(&self, why: &str) -> Refusal {
        self.ended(TokenFault::NoLogin, why)
    }

    /// A fault that needs a person to repair it.
    fn ended(&self, fault: TokenFault, why: &str) -> Refusal {
        Refusal::new(fault, format!("{why}; run `promptgate login {}`", self.upstream))
    }
}

/// The refusal after a task that has panicked or was cancelled.
fn unfinished<T>(error: JoinError) -> Result<T, Refusal> {
    Err(Refusal::other(error.to_string()))
}

/// The refusal of a login that cannot be read or locked.
fn refused(error: LoginStoreError) -> Refusal {
    let is_sealed = matches!(error, LoginStoreError::Unreadable { .. });
    let fault = if is_sealed { TokenFault::NoLogin } else { TokenFault::Failed };
    Refusal::new(fault, error.to_string())
}

/// Whether the stored access token, which is valid for `left`, must be renewed: it expires soon, or
/// the token source requests a renewal late in its lifetime. A token without a known expiry is used
/// until it is refused.
fn needs_renewal(login: &StoredLogin, left: Option<Duration>) -> bool {
    let (Some(left), Some(expires)) = (left, login.expires_at) else { return false };
    let whole = UnixSeconds(expires).saturating_since(UnixSeconds(login.renewed_at));
    left <= LEAST_LIFETIME || left <= whole.mul_f64(RENEWED_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::seal::SealKeys;
    use logins::sample_login;

    #[test]
    fn a_token_is_renewed_in_the_last_part_of_its_life() {
        let lasting =
            StoredLogin { renewed_at: 1_000, expires_at: Some(1_100), ..sample_login("wiki") };
        let needs = |secs| needs_renewal(&lasting, Some(Duration::from_secs(secs)));
        assert!(!needs(100) && !needs(31));
        assert!(needs(30) && needs(0));
        let short =
            StoredLogin { renewed_at: 1_000, expires_at: Some(1_002), ..sample_login("wiki") };
        assert!(needs_renewal(&short, Some(Duration::from_secs(1))));
        let endless = StoredLogin { expires_at: None, ..sample_login("wiki") };
        assert!(!needs_renewal(&endless, None));
    }

    #[test]
    fn an_unwritten_login_gives_way_to_what_others_have_written() {
        let stored = sample_login("wiki");
        let renewed = StoredLogin { access_token: "renewed".to_owned(), ..stored.clone() };
        let replaces = stored.access_token.clone();
        let own = UnwrittenLogin { login: renewed.clone(), replaces };
        assert!(own.replaces(&stored));
        let refused = StoredLogin { ended: Some("invalid_grant".to_owned()), ..stored.clone() };
        assert!(
            own.replaces(&refused),
            "another process has sent the token that this one has used"
        );
        assert!(!own.replaces(&renewed), "it was written after all");
        let elsewhere = StoredLogin { access_token: "other".to_owned(), ..stored.clone() };
        assert!(!own.replaces(&elsewhere), "another process has renewed it");
        let signed_in_again = StoredLogin { id: "two".to_owned(), ..stored };
        assert!(!own.replaces(&signed_in_again));
    }

    #[tokio::test]
    async fn a_sign_in_that_cannot_be_locked_is_no_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let kept = config::Logins {
            path: folder.path().join("logins"),
            keys: SealKeys::new(vec![[1; 32]]).unwrap(),
            idle: Duration::from_secs(3600),
        };
        let store = LoginBackend::new(&kept, None);
        let write = async |login: StoredLogin| {
            store.lock("wiki").await.unwrap().write(&login).await.unwrap();
        };
        write(sample_login("wiki")).await;
        let toml = "[upstreams.wiki]\ntransport = \"http\"\nurl = \"https://wiki.example/mcp\"\n";
        let config = config::Config::parse("g", toml, std::path::Path::new(""), &[]).unwrap();
        let http = config.upstreams[0].http().unwrap();
        let login = KeptLogin::new("wiki", Some(&kept), http, TaskTracker::new(), None).unwrap();
        let login = Arc::new(login);
        let lock = kept.path.join("wiki.lock");
        std::fs::remove_file(&lock).unwrap();
        std::fs::create_dir(&lock).unwrap();
        assert!(login.request().await.is_err());
        assert!(!login.is_another().await);
        std::fs::remove_dir(&lock).unwrap();
        write(StoredLogin { id: "two".to_owned(), ..sample_login("wiki") }).await;
        assert!(login.is_another().await);
    }
}
