//! Access tokens of callers who sign in themselves, in a browser, when it is first needed. Each
//! sign-in is kept for its caller alone: no other caller and no shared credential takes its place.

use std::sync::Arc;

use tokio::sync::Semaphore;

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
use logins::store::LoginBackend;
use oauth::client::Refusal;
use oauth::scope;

/// The sign-ins of all callers at one upstream.
pub struct CallerSignIns {
    pub http: config::Http,
    pub config: config::Login,
    /// The URL of the page at which callers sign in.
    page: String,
    sealer: Sealer,
    store: Arc<LoginBackend>,
    asking: Semaphore,
    audit: Audit,
}

/// Sign-ins and renewals at a time: each costs requests, and everyone with a link can cause one.
pub(super) const ASKING: usize = 16;

/// The key of the credential.
pub(crate) const SIGN_IN: &str = "sign_in";

impl CallerSignIns {
    pub(super) fn new(
        config: &config::Login,
        http: &config::Http,
        store: Option<Arc<LoginBackend>>,
        audit: Audit,
    ) -> Result<Self, String> {
        let kept = config.kept.as_deref().zip(store);
        let (logins, store) = kept.ok_or("server.seal_key is not set")?;
        let sealer = Sealer::new(&logins.keys);
        let page = config.page.clone().ok_or("server.public_url is not set")?;
        let asking = Semaphore::new(ASKING);
        let http = http.clone();
        Ok(Self { http, config: config.clone(), page, sealer, store, asking, audit })
    }

    /// # Errors
    /// The link was used, or the store cannot be read.
    pub async fn check(&self, link: &SignInLink) -> Result<(), String> {
        let kept = self.store.find(&link.caller.key(&link.upstream)).await.map_err(text)?;
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
    kept: Arc<KeptLogin>,
}

impl CallerSignIn {
    pub(super) fn new(all: Arc<CallerSignIns>, caller: Caller, kept: Arc<KeptLogin>) -> Self {
        Self { all, caller, kept }
    }

    /// Returns the caller's access token, if its scopes cover `scope`.
    pub(super) async fn request(&self, scope: Option<&str>) -> Result<AccessToken, Refusal> {
        let token = self.kept.request().await?;
        let (_, granted) = self.kept.known();
        if scope.is_some_and(|needed| !scope::covers(&granted, needed)) {
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
