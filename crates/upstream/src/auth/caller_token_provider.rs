//! The source of the access tokens of all callers of one upstream, and what is kept of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

use super::REVOCATION;
use super::exchange::TokenExchange;
use super::id_jag::IdentityAssertions;
use super::login::KeptLogin;
use super::sign_in::{ASKING, CallerSignIn, CallerSignIns, SIGN_IN};
use super::token::AccessToken;
use super::vault::VaultClient;
use crate::guard::concurrency::{ConcurrencyLimit, Permit};
use audit::Audit;
use audit::record::AuditEvent;
use cluster::SharedLogins;
use domain::calls::caller::Caller;
use domain::calls::fair_share::{Holder, Share};
use domain::calls::subject_token::SubjectToken;
use domain::fault::TokenFault;
use domain::time::unix_time::UnixSeconds;
use logins::StoredLogin;
use logins::caller::{CallerLoginKind, CallerName};
use logins::store::{LoginBackend, LoginStoreError};
use oauth::client::Refusal;

/// The source of the tokens of all callers of one upstream.
pub struct CallerTokenProvider {
    upstream: String,
    /// The key of the credential, as tables show it.
    pub(super) way: &'static str,
    source: CallerTokenSource,
    /// The login of no caller, from which those of callers are derived; `None` where no login of
    /// callers is kept.
    template: Option<KeptLogin>,
    /// Concurrent token requests, with a share for each caller: a thousand callers at once do not
    /// flood the authorization server, and a caller with many tokens does not delay other callers.
    turns: Arc<ConcurrencyLimit>,
    audit: Audit,
}

/// The part of the concurrent requests that one caller may hold while other callers wait.
const SHARE: Share = Share::QUARTER;

/// A login of a caller that is kept: a sign-in, or the token for an identity assertion.
pub struct KeptCallerLogin {
    pub caller: CallerName,
    /// The subject of the caller's token.
    pub subject: Option<String>,
    /// The key of the credential.
    pub way: &'static str,
    /// When the caller signed in; `None` for other ways.
    pub signed_in_at: Option<UnixSeconds>,
    /// Why it has ended, if it has.
    pub ended: Option<String>,
}

impl KeptCallerLogin {
    /// Whether it is a valid sign-in of a caller who had a token of this issuer with this subject.
    pub fn is_sign_in_of(&self, issuer: &str, subject: &str) -> bool {
        self.ended.is_none()
            && self.signed_in_at.is_some()
            && self.caller.issuer == issuer
            && self.subject.as_deref() == Some(subject)
    }
}

enum CallerTokenSource {
    Exchange(Box<TokenExchange>),
    IdJag(Arc<IdentityAssertions>),
    SignIn(Arc<CallerSignIns>),
    Vault(Box<VaultClient>),
}

impl CallerTokenProvider {
    /// `url` is the upstream's; `ca` holds certificates (PEM) that are trusted in addition to those
    /// of the system.
    pub(crate) fn new(
        upstream: &str,
        credential: &config::CallerCredential,
        http: &config::Http,
        audit: Audit,
        tasks: TaskTracker,
        shared: Option<Arc<SharedLogins>>,
    ) -> Result<Self, String> {
        base::seal::jws::install();
        let kept_in = |kept: Option<&config::Logins>| {
            KeptLogin::new(upstream, kept, http, tasks, shared.clone())
        };
        let mut template = None;
        let (way, source, requests) = match credential {
            config::CallerCredential::Exchange(exchange) => {
                let source = TokenExchange::new(exchange, http)?;
                ("exchange", CallerTokenSource::Exchange(Box::new(source)), exchange.requests)
            }
            config::CallerCredential::IdJag(id_jag) => {
                if shared.is_some() {
                    template = Some(kept_in(id_jag.kept.as_deref())?);
                }
                let source = Arc::new(IdentityAssertions::new(id_jag, http)?);
                ("id_jag", CallerTokenSource::IdJag(source), id_jag.provider.requests)
            }
            config::CallerCredential::SignIn(login) => {
                let kept = template.insert(kept_in(login.kept.as_deref())?);
                let source = CallerSignIns::new(login, http, kept.store.clone(), audit.clone())?;
                (SIGN_IN, CallerTokenSource::SignIn(Arc::new(source)), ASKING)
            }
            config::CallerCredential::Vault(vault) => {
                let source = CallerTokenSource::Vault(Box::new(VaultClient::new(vault, http)?));
                ("vault", source, vault.requests)
            }
        };
        // Requests that wait end with their calls, and are not counted.
        let turns = ConcurrencyLimit::new(requests, 0, Duration::ZERO);
        turns.set_share(SHARE);
        Ok(Self { upstream: upstream.to_owned(), way, source, template, turns, audit })
    }

    pub(super) async fn request(
        &self,
        caller: &Caller,
        subject: Option<&SubjectToken>,
        scope: Option<&str>,
        kept: Option<&Arc<KeptLogin>>,
        sign_in: Option<&CallerSignIn>,
    ) -> Result<AccessToken, Refusal> {
        let none = |why| Refusal::new(TokenFault::NoSubjectToken, why);
        let brought = subject.ok_or_else(|| {
            none("only callers that are authenticated by a JSON Web Token bring one")
        });
        match &self.source {
            CallerTokenSource::Exchange(exchange) => {
                let subject = brought?;
                let _turn = self.turn(caller).await;
                exchange.request(subject, scope.or(exchange.scope())).await
            }
            CallerTokenSource::IdJag(assertions) => {
                let subject = brought?;
                let _turn = self.turn(caller).await;
                let scope = scope.or(assertions.provider.scope());
                assertions.token(caller, subject, scope, kept).await
            }
            CallerTokenSource::SignIn(_) | CallerTokenSource::Vault(_) if caller.is_anonymous() => {
                Err(none("the caller is anonymous: sign-ins and secrets belong to ids"))
            }
            CallerTokenSource::SignIn(_) => {
                let own = sign_in.ok_or_else(|| Refusal::other("no sign-in"))?;
                let _turn = self.turn(caller).await;
                own.request(scope).await
            }
            CallerTokenSource::Vault(vault) => {
                let _turn = self.turn(caller).await;
                vault.request(caller.id()).await
            }
        }
    }

    /// The sign-ins of callers, if callers sign in.
    pub fn sign_ins(&self) -> Option<&Arc<CallerSignIns>> {
        match &self.source {
            CallerTokenSource::SignIn(sign_ins) => Some(sign_ins),
            _ => None,
        }
    }

    /// Returns the login of a caller; `None` where no login of callers is kept.
    pub(super) fn login_of(&self, caller: &Caller) -> Option<KeptLogin> {
        Some(self.template.as_ref()?.of_caller(self.login_name(&CallerName::of(caller))))
    }

    /// Returns the name under which the login of a caller is kept.
    pub fn login_name(&self, caller: &CallerName) -> String {
        caller.login_name(self.login_kind(), &self.upstream)
    }

    fn login_kind(&self) -> CallerLoginKind {
        match &self.source {
            CallerTokenSource::IdJag(_) => CallerLoginKind::SharedToken,
            _ => CallerLoginKind::SignIn,
        }
    }

    fn store(&self) -> Option<&LoginBackend> {
        self.template.as_ref()?.store.as_deref()
    }

    /// Returns the login that is kept under a name, also after its end. `None` if nothing is known
    /// of it: a token that is gone may have expired.
    pub(crate) async fn find_login(&self, name: &str) -> Option<Option<StoredLogin>> {
        let kept = self.store()?.find(name).await.ok()?;
        (kept.is_some() || self.sign_ins().is_some()).then_some(kept)
    }

    /// Returns the logins of callers that are kept, with sign-ins that have ended. The log has a
    /// failure.
    pub async fn logins(&self) -> Vec<KeptCallerLogin> {
        let Some(store) = self.store() else { return Vec::new() };
        let kept =
            store.all(self.login_kind().prefix(&self.upstream)).await.unwrap_or_else(|error| {
                let upstream = &self.upstream;
                error!(upstream, %error, "the sign-ins of callers cannot be read");
                Vec::new()
            });
        let of_caller = |StoredLogin { caller, subject, signed_in_at, ended, .. }| {
            let caller = caller?;
            let signed_in_at = self.sign_ins().map(|_| UnixSeconds(signed_in_at));
            if ended.is_some() && signed_in_at.is_none() {
                return None;
            }
            Some(KeptCallerLogin { caller, subject, way: self.way, signed_in_at, ended })
        };
        kept.into_iter().filter_map(of_caller).collect()
    }

    /// Ends the login of a caller here and on all replicas, and at the authorization server.
    /// Returns whether the server has revoked its tokens. A failure is logged.
    pub async fn end_login(&self, caller: &CallerName) -> bool {
        let Some((template, store)) = self.template.as_ref().zip(self.store()) else {
            return false;
        };
        let name = self.login_name(caller);
        let ending = async {
            let lock = store.lock(&name).await?;
            let login = store.find(&name).await?;
            if let Some(login) = &login {
                lock.write(&login.clone().end("revoked")).await?;
            }
            lock.release().await;
            Ok::<_, LoginStoreError>(login)
        };
        let login = ending.await.unwrap_or_else(|error| {
            let upstream = &self.upstream;
            error!(upstream, caller = caller.id, %error, "the sign-in of a caller cannot be ended");
            None
        });
        let Some(login) = login else { return false };
        let revoking = async {
            match &self.source {
                CallerTokenSource::IdJag(assertions) => {
                    assertions.revoke(&login.access_token).await
                }
                _ => login.revoke(&template.egress).await,
            }
        };
        if self.sign_ins().is_some() {
            self.record(&caller.id, AuditEvent::new("sign_in_ended"));
        }
        matches!(timeout(REVOCATION, revoking).await, Ok(Ok(true)))
    }

    /// Revokes the token of a caller at the authorization server. Returns whether it was revoked; a
    /// failure is logged.
    pub(super) async fn revoke(&self, caller: &Caller, token: &AccessToken) -> bool {
        let _turn = self.turn(caller).await;
        let told = match &self.source {
            CallerTokenSource::Exchange(exchange) => exchange.revoke(token.access_token()).await,
            CallerTokenSource::IdJag(assertions) => assertions.revoke(token.access_token()).await,
            CallerTokenSource::SignIn(_) | CallerTokenSource::Vault(_) => Ok(false),
        };
        told.unwrap_or_else(|Refusal { detail, .. }| {
            warn!(
                upstream = self.upstream,
                caller = caller.id(),
                detail,
                "the token of a caller cannot be revoked: it is valid until it expires"
            );
            false
        })
    }

    /// Waits until the caller may send a request.
    async fn turn(&self, caller: &Caller) -> Option<Permit> {
        self.turns.turn(&Holder::Caller(caller.clone())).await
    }

    pub(super) fn scope(&self) -> Option<&str> {
        match &self.source {
            CallerTokenSource::Exchange(exchange) => exchange.scope(),
            CallerTokenSource::IdJag(assertions) => assertions.provider.scope(),
            CallerTokenSource::SignIn(_) | CallerTokenSource::Vault(_) => None,
        }
    }

    /// Records an event of the caller with this id.
    pub(super) fn record(&self, caller: &str, event: AuditEvent) {
        self.audit.note(event.text("upstream", &self.upstream).text("caller", caller));
    }
}
