//! Access tokens of one caller for one upstream. At most one token request is in flight. A token is
//! dropped when it, or the subject token that it was exchanged for, expires.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::caller_token_provider::CallerTokenProvider;
use super::login::KeptLogin;
use super::sign_in::CallerSignIn;
use super::token::{AccessToken, LastTokens};
use super::wider_requests::WiderRequests;
use super::{REPLACE_PAUSE, RETRY_PAUSE};
use audit::record::AuditEvent;
use base::platform::Locked;
use domain::calls::caller::Caller;
use domain::calls::subject_token::SubjectToken;
use domain::fault::{TokenFault, UpstreamFaultKind as Kind};
use oauth::client::Refusal;
use oauth::resource::BearerChallenge;
use oauth::scope;

/// The access token of one caller.
pub struct CallerTokens {
    credential: Arc<CallerTokenProvider>,
    caller: Caller,
    tokens: LastTokens,
    /// Held during a request, which serves all waiting calls of the caller. Holds the last failure.
    failure: AsyncMutex<Option<(Instant, Kind)>>,
    refusals: Mutex<Refusals>,
    /// `None` where no login of the caller is kept.
    kept: Option<Arc<KeptLogin>>,
    /// `None` where callers do not sign in.
    sign_in: Option<CallerSignIn>,
}

/// Refusals of the caller's tokens by the upstream.
#[derive(Default)]
struct Refusals {
    /// When the upstream last refused a token.
    last: Option<Instant>,
    /// No token is requested before this time, because the upstream refuses all tokens.
    barred_until: Option<Instant>,
    /// The scopes to request, if the upstream needs more than the configured scopes.
    wider: Option<String>,
    wider_requests: WiderRequests,
    /// The scopes that were requested for the token in use.
    requested: Option<String>,
}

impl CallerTokens {
    pub fn new(credential: Arc<CallerTokenProvider>, caller: Caller) -> Self {
        let kept = credential.login_of(&caller).map(Arc::new);
        let sign_in = credential.sign_ins().zip(kept.as_ref()).map(|(sign_ins, kept)| {
            CallerSignIn::new(sign_ins.clone(), caller.clone(), kept.clone())
        });
        Self {
            kept,
            sign_in,
            credential,
            caller,
            tokens: LastTokens::default(),
            failure: AsyncMutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Ensures that a token is present; obtains a token with the caller's subject token. Cancel
    /// safe.
    pub(crate) async fn obtain(&self, subject: Option<&SubjectToken>) -> Result<(), Kind> {
        let now = Instant::now();
        if let Some(token) = self.valid(now) {
            // One call renews the token; other calls use the current token meanwhile.
            if now >= token.renew_at
                && let Ok(mut failure) = self.failure.try_lock()
            {
                let _ = self.request(subject, &mut failure).await;
            }
            return Ok(());
        }
        if self.refusals.locked().barred_until.is_some_and(|until| now < until) {
            return Err(Kind::AuthFailed { status: 401 });
        }
        let mut failure = self.failure.lock().await;
        if self.valid(Instant::now()).is_some() {
            return Ok(());
        }
        self.request(subject, &mut failure).await
    }

    async fn request(
        &self,
        subject: Option<&SubjectToken>,
        failure: &mut Option<(Instant, Kind)>,
    ) -> Result<(), Kind> {
        if let Some((at, kind)) = failure
            && at.elapsed() < RETRY_PAUSE
            && !matches!(kind, Kind::SignInNeeded { .. })
        {
            return Err(kind.clone());
        }
        let wider = self.refusals.locked().wider.clone();
        let sign_in = self.sign_in.as_ref();
        let kept = self.kept.as_ref();
        let requesting =
            self.credential.request(&self.caller, subject, wider.as_deref(), kept, sign_in);
        match requesting.await {
            Err(Refusal { fault, .. })
                if fault.needs_login()
                    && let Some(sign_in) = sign_in =>
            {
                let before = failure.as_ref().map(|(_, before)| before);
                let kind = sign_in.ask(fault, wider, before);
                *failure = Some((Instant::now(), kind.clone()));
                Err(kind)
            }
            Ok(token) => {
                *failure = None;
                self.credential.record(self.caller.id(), AuditEvent::new("token_issued"));
                let mut refusals = self.refusals.locked();
                refusals.requested = wider.or(self.credential.scope().map(str::to_owned));
                self.tokens.replace(Some(Arc::new(token)));
                Ok(())
            }
            Err(Refusal { fault, detail, .. }) => {
                if fault == TokenFault::ScopeRefused {
                    // The next request asks for the configured scopes again.
                    self.refusals.locked().wider = None;
                }
                let is_known = matches!(failure, Some((_, Kind::NoToken { fault: last, .. })) if *last == fault);
                if !is_known {
                    let event = AuditEvent::new("token_refused").text("reason", fault.reason());
                    self.credential.record(self.caller.id(), event);
                }
                let kind = Kind::NoToken { fault, detail };
                *failure = Some((Instant::now(), kind.clone()));
                Err(kind)
            }
        }
    }

    /// Revokes the token at the authorization server. Returns whether it was revoked; a failure is
    /// logged.
    pub async fn revoke(&self) -> bool {
        // A kept login outlives its token, and is ended by its name.
        let own = self.valid(Instant::now()).filter(|_| self.used_login().is_none());
        let Some(token) = own else { return false };
        self.credential.revoke(&self.caller, &token).await
    }

    /// Whether there is no token: it has expired, or was refused.
    pub(crate) fn is_without_token(&self) -> bool {
        self.valid(Instant::now()).is_none()
    }

    /// Returns the value of `Authorization` for a request.
    ///
    /// # Errors
    /// [`Kind::NoToken`] when the token has expired: the next call of the caller gets another.
    pub fn header(&self) -> Result<HeaderValue, Kind> {
        let token = self.valid(Instant::now());
        token.map(|token| token.header.clone()).ok_or_else(|| Kind::NoToken {
            fault: TokenFault::Failed,
            detail: "the caller's access token has expired".to_owned(),
        })
    }

    /// Forgets the token in `sent`, which the upstream has refused with 401. Returns the fault of
    /// the request: only a call has the subject token to obtain another one.
    pub(super) fn refused(&self, sent: Option<&HeaderValue>) -> Kind {
        let now = Instant::now();
        if self.forget(sent) {
            if let Some(kept) = &self.kept {
                kept.give_up_token();
            }
            let mut refusals = self.refusals.locked();
            if refusals.last.is_some_and(|last| now.duration_since(last) < REPLACE_PAUSE) {
                refusals.barred_until = Some(now + REPLACE_PAUSE);
            }
            refusals.last = Some(now);
        }
        Kind::AuthFailed { status: 401 }
    }

    /// Forgets the token in `sent`, which the upstream has refused with 403, if `response` reports
    /// an insufficient scope (RFC 6750, section 3.1), and notes the required scope.
    pub(super) fn insufficient(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<(), Kind> {
        let Some(needed) = BearerChallenge::read(response).insufficient_scope() else {
            return Ok(());
        };
        let mut refusals = self.refusals.locked();
        let known = refusals.wider.as_deref().or(self.credential.scope());
        let is_requested = self.is_current(sent) && refusals.requested.as_deref() == known;
        let wider = scope::wider(known, &needed)
            .and_then(|wider| refusals.wider_requests.admit(Instant::now()).map(|()| wider));
        match wider {
            Ok(wider) => refusals.wider = Some(wider),
            // Another call needs the same scope, and has not received its token yet.
            Err(_) if !is_requested => {}
            Err(Refusal { fault, detail, .. }) => return Err(Kind::NoToken { fault, detail }),
        }
        drop(refusals);
        self.forget(sent);
        Err(Kind::AuthFailed { status: 403 })
    }

    /// Forgets a token unless a newer token exists.
    fn forget(&self, sent: Option<&HeaderValue>) -> bool {
        let is_current = self.is_current(sent);
        if is_current {
            self.tokens.replace(None);
        }
        is_current
    }

    fn is_current(&self, sent: Option<&HeaderValue>) -> bool {
        self.tokens.get().is_some_and(|token| Some(&token.header) == sent)
    }

    /// Returns the name under which the caller's login is kept.
    pub(crate) fn login_name(&self) -> Option<&str> {
        Some(self.kept.as_ref()?.name())
    }

    /// Returns the id of the login behind the last token, if there was one.
    pub(crate) fn used_login(&self) -> Option<String> {
        self.kept.as_ref()?.known().0
    }

    /// Returns the id of the request to sign in with which the last call has failed.
    pub(crate) async fn asked(&self) -> Option<Arc<str>> {
        match &*self.failure.lock().await {
            Some((_, Kind::SignInNeeded { id, .. })) => Some(id.clone()),
            _ => None,
        }
    }

    /// How the token is obtained: the key of the credential.
    pub(crate) fn way(&self) -> &'static str {
        self.credential.way
    }

    /// Returns the time until the token expires; `None` without a token.
    pub fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        self.valid(now).map(|token| token.expires_at.duration_since(now))
    }

    /// Returns the values of `Authorization` of the last requests, with the current and the
    /// previous token, if present.
    pub(crate) fn last_headers(&self) -> [Option<HeaderValue>; 2] {
        self.tokens.headers()
    }

    fn valid(&self, now: Instant) -> Option<Arc<AccessToken>> {
        self.tokens.get().filter(|token| now < token.expires_at)
    }
}
