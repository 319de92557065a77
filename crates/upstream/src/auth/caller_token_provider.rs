//! The source of the access tokens of all callers of one upstream.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tracing::warn;

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
use oauth::client::Refusal;

/// The source of the tokens of all callers of one upstream.
pub struct CallerTokenProvider {
    upstream: String,
    /// The key of the credential, as tables show it.
    pub(super) way: &'static str,
    source: CallerTokenSource,
    /// Concurrent token requests, with a share for each caller: a thousand callers at once do not
    /// flood the authorization server, and a caller with many tokens does not delay other callers.
    turns: Arc<ConcurrencyLimit>,
    audit: Audit,
}

/// The part of the concurrent requests that one caller may hold while other callers wait.
const SHARE: Share = Share::QUARTER;

enum CallerTokenSource {
    Exchange(Box<TokenExchange>),
    IdJag(Box<IdentityAssertions>),
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
        let (way, source, requests) = match credential {
            config::CallerCredential::Exchange(exchange) => {
                let source = TokenExchange::new(exchange, http)?;
                ("exchange", CallerTokenSource::Exchange(Box::new(source)), exchange.requests)
            }
            config::CallerCredential::IdJag(id_jag) => {
                let source = Box::new(IdentityAssertions::new(id_jag, http)?);
                ("id_jag", CallerTokenSource::IdJag(source), id_jag.provider.requests)
            }
            config::CallerCredential::SignIn(login) => {
                let template = KeptLogin::new(login, http, tasks, shared)?;
                let source = CallerSignIns::new(login, http, template, audit.clone())?;
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
        Ok(Self { upstream: upstream.to_owned(), way, source, turns, audit })
    }

    pub(super) async fn request(
        &self,
        caller: &Caller,
        subject: Option<&SubjectToken>,
        scope: Option<&str>,
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
                assertions.request(subject, scope.or(assertions.provider.scope())).await
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
    pub(crate) fn sign_ins(&self) -> Option<&Arc<CallerSignIns>> {
        match &self.source {
            CallerTokenSource::SignIn(sign_ins) => Some(sign_ins),
            _ => None,
        }
    }

    /// Revokes the token of a caller at the authorization server. Returns whether it was revoked; a
    /// failure is logged.
    pub(super) async fn revoke(&self, caller: &Caller, token: &AccessToken) -> bool {
        let _turn = self.turn(caller).await;
        let told = match &self.source {
            CallerTokenSource::Exchange(exchange) => exchange.revoke(token.access_token()).await,
            CallerTokenSource::IdJag(assertions) => assertions.revoke(token.access_token()).await,
            // A sign-in outlives its token, and is ended by its name.
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

    pub(super) fn record(&self, caller: &Caller, event: AuditEvent) {
        self.audit.note(event.text("upstream", &self.upstream).text("caller", caller.id()));
    }
}
