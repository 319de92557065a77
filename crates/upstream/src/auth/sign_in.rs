//! Access tokens of callers who sign in themselves, in a browser, when it is first needed. Each
//! sign-in is kept for its caller alone: no other caller and no shared credential takes its place.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::error;

use super::login::KeptLogin;
use super::token::AccessToken;
use audit::Audit;
use audit::record::AuditEvent;
use base::platform::wall_clock;
use base::seal::Sealer;
use domain::calls::caller::Caller;
use domain::fault::{TokenFault, UpstreamFaultKind as Kind};
use domain::time::unix_time::UnixSeconds;
use logins::StoredLogin;
use logins::caller::{CallerName, SignInLink};
use logins::sign_in::Provider;
use logins::sign_in::flow::{BegunFlow, CodeFlow};
use logins::sign_in::registration::CALLBACK;
use logins::store::{LoginBackend, LoginStoreError};
use oauth::client::Refusal;
use oauth::scope;

/// The sign-ins of all callers at one upstream.
pub struct CallerSignIns {
    pub http: config::Http,
    pub config: config::Login,
    /// The URL of the page at which callers sign in.
    page: String,
    sealer: Sealer,
    /// The sign-in of no caller, from which those of callers are derived.
    template: KeptLogin,
    store: Arc<LoginBackend>,
    asking: Semaphore,
    audit: Audit,
}

/// A sign-in that is kept.
pub struct KeptSignIn {
    pub caller: CallerName,
    /// The subject of the caller's token.
    pub subject: Option<String>,
    pub signed_in_at: UnixSeconds,
}

impl KeptSignIn {
    /// Whether its caller had a token of this issuer with this subject.
    pub fn is_of(&self, issuer: &str, subject: &str) -> bool {
        self.caller.issuer == issuer && self.subject.as_deref() == Some(subject)
    }
}

/// Sign-ins and renewals at a time: each costs requests, and everyone with a link can cause one.
pub(super) const ASKING: usize = 16;

/// Time for an authorization server to revoke tokens.
const REVOCATION: Duration = Duration::from_secs(10);

/// The key of the credential.
pub(crate) const SIGN_IN: &str = "sign_in";

impl CallerSignIns {
    pub(super) fn new(
        config: &config::Login,
        http: &config::Http,
        template: KeptLogin,
        audit: Audit,
    ) -> Result<Self, String> {
        let kept = config.kept.as_deref().zip(template.store.clone());
        let (logins, store) = kept.ok_or("server.seal_key is not set")?;
        let sealer = Sealer::new(&logins.keys);
        let page = config.page.clone().ok_or("server.public_url is not set")?;
        let asking = Semaphore::new(ASKING);
        let http = http.clone();
        Ok(Self { http, config: config.clone(), page, sealer, template, store, asking, audit })
    }

    /// # Errors
    /// The link was used, or the store cannot be read.
    pub async fn check(&self, link: &SignInLink) -> Result<(), String> {
        let kept = self.kept_as(&link.caller.key(&link.upstream)).await.map_err(text)?;
        if link.is_used(kept.as_ref().map(|kept| &*kept.id)) {
            return Err("this link was used, or is older than the last sign-in".to_owned());
        }
        Ok(())
    }

    /// Begins a sign-in. Returns the URL of the authorization server, and the values that end it.
    ///
    /// # Errors
    /// The link was used, or there is no usable authorization server.
    pub async fn begin(&self, link: &SignInLink) -> Result<(String, BegunFlow), String> {
        self.check(link).await?;
        let _asking = self.asking.acquire().await.map_err(text)?;
        let provider = self.provider().await?;
        let document = self.config.document.as_deref();
        let client = provider.client(&self.config, document, Some(&self.redirect_uri())).await;
        let scope = link.scope.as_deref().or(self.config.scope.as_deref());
        let key = link.caller.key(&link.upstream);
        let flow = CodeFlow::begin(provider, &key, client?, scope, self.redirect_uri())?;
        let url = flow.url().ok_or("the address of the authorization server is malformed")?;
        Ok((url.into(), flow.begun()))
    }

    /// Ends a sign-in with the query of the redirect back, and keeps it for its caller.
    ///
    /// # Errors
    /// Nothing is kept: the link was used, or the authorization server has refused.
    pub async fn finish(
        &self,
        link: &SignInLink,
        begun: BegunFlow,
        query: &str,
    ) -> Result<(), String> {
        let _asking = self.asking.acquire().await.map_err(text)?;
        let key = link.caller.key(&link.upstream);
        let flow = CodeFlow::resume(self.provider().await?, &key, begun, self.redirect_uri())?;
        let code = flow.code(query).map_err(text)?;
        // Of two browsers with one link, the lock lets one keep its sign-in.
        let lock = self.store.lock(&key).await.map_err(text)?;
        let keeping = async {
            self.check(link).await?;
            let login = flow.finish(code).await?;
            // A scope that was not granted is not asked for again.
            let scope = link.scope.clone().or(login.scope);
            let caller = Some(link.caller.clone());
            let subject = link.subject.clone();
            lock.write(&StoredLogin { scope, caller, subject, ..login }).await.map_err(text)
        };
        let kept = keeping.await;
        lock.release().await;
        kept?;
        self.record(&link.caller, AuditEvent::new("sign_in_done"));
        Ok(())
    }

    /// Records that a sign-in at the page was refused.
    pub fn refused(&self, link: &SignInLink, reason: &str, error: Option<&str>) {
        let event = AuditEvent::new("sign_in_refused").text("reason", reason);
        self.record(&link.caller, event.optional_text("error", error));
    }

    /// Returns the sign-in that is kept under a name, also after its end. `None` also for a sign-in
    /// that cannot be opened any more: the next sign-in replaces it.
    pub(crate) async fn kept_as(&self, name: &str) -> Result<Option<StoredLogin>, LoginStoreError> {
        match self.store.read(name).await {
            Err(LoginStoreError::Unreadable { .. }) => Ok(None),
            kept => kept,
        }
    }

    /// Returns the sign-ins that are kept and valid. The log has a failure.
    pub async fn kept(&self) -> Vec<KeptSignIn> {
        let kept = self.store.of_callers(&self.config.upstream).await;
        let kept = kept.unwrap_or_else(|error| {
            let upstream = &self.config.upstream;
            error!(upstream, %error, "the sign-ins of callers cannot be read");
            Vec::new()
        });
        let valid = kept.into_iter().filter(|login| login.ended.is_none());
        let kept = valid.filter_map(|StoredLogin { caller, subject, signed_in_at, .. }| {
            Some(KeptSignIn { caller: caller?, subject, signed_in_at: UnixSeconds(signed_in_at) })
        });
        kept.collect()
    }

    /// Ends the sign-in of a caller here, and at the authorization server. Returns whether the
    /// server has revoked its tokens. A failure is logged.
    pub async fn end(&self, caller: &CallerName) -> bool {
        let key = caller.key(&self.config.upstream);
        let ending = async {
            let lock = self.store.lock(&key).await?;
            let login = self.store.read(&key).await?;
            if let Some(login) = &login {
                lock.write(&login.clone().end("revoked")).await?;
            }
            lock.release().await;
            Ok::<_, LoginStoreError>(login)
        };
        let login = ending.await.unwrap_or_else(|error| {
            let upstream = &self.config.upstream;
            error!(upstream, caller = caller.id, %error, "the sign-in of a caller cannot be ended");
            None
        });
        let Some(login) = login else { return false };
        self.record(caller, AuditEvent::new("sign_in_ended"));
        let revoking = login.revoke(&self.template.egress);
        matches!(timeout(REVOCATION, revoking).await, Ok(Ok(true)))
    }

    async fn provider(&self) -> Result<Provider, String> {
        let provider = Provider::discover(&self.http).await?;
        Ok(provider.asked_for(self.config.resource.as_deref()))
    }

    fn redirect_uri(&self) -> String {
        format!("{}{CALLBACK}", self.page)
    }

    fn record(&self, caller: &CallerName, event: AuditEvent) {
        self.audit.note(event.text("upstream", &self.config.upstream).text("caller", &caller.id));
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// The sign-in of one caller.
pub(super) struct CallerSignIn {
    all: Arc<CallerSignIns>,
    caller: Caller,
    /// The name under which the sign-in is kept.
    pub name: String,
    pub kept: Arc<KeptLogin>,
}

impl CallerSignIn {
    pub(super) fn new(all: Arc<CallerSignIns>, caller: Caller) -> Self {
        let name = CallerName::of(&caller).key(&all.config.upstream);
        Self { kept: Arc::new(all.template.of_caller(name.clone())), all, caller, name }
    }

    /// Returns the caller's access token, if its scopes cover `scope`.
    pub(super) async fn request(&self, scope: Option<&str>) -> Result<AccessToken, Refusal> {
        let token = self.kept.request().await?;
        let (_, granted) = self.kept.known();
        if scope.is_some_and(|scope| scope::union(&granted, scope) != granted) {
            let why = "the sign-in of the caller lacks a scope";
            return Err(Refusal::new(TokenFault::NoLogin, why));
        }
        Ok(token)
    }

    /// Returns the fault that asks the caller to sign in, for `scope`. The caller has one open
    /// link for the upstream. It is recorded unless it is that of the fault `before`.
    pub(super) fn ask(
        &self,
        fault: TokenFault,
        scope: Option<String>,
        before: Option<&Kind>,
    ) -> Kind {
        let all = &self.all;
        let (after, _) = self.kept.known();
        let now = UnixSeconds::from(wall_clock());
        let upstream = &all.config.upstream;
        let link = SignInLink::new(upstream, &self.caller, scope, after, now);
        let id = link.id(&all.sealer);
        if !matches!(before, Some(Kind::SignInNeeded { id: known, .. }) if **known == *id) {
            let asked = AuditEvent::new("sign_in_asked").text("reason", fault.reason());
            all.record(&link.caller, asked);
        }
        let url = link.url(&all.page, &all.sealer);
        let code = link.code(&all.sealer);
        Kind::SignInNeeded { url: url.into(), code: code.into(), id: id.into() }
    }
}
