//! Sign-in of people at an OpenID provider (OpenID Connect Core 1.0).

mod flow;
mod id_token;
mod provider;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::HeaderValue;
use tokio::sync::Semaphore;
use tracing::warn;

use super::error::SignInError;
use super::local_path::LocalPath;
use super::session::SessionOrigin;
use base::seal::Sealer;
use domain::time::unix_time::UnixSeconds;
pub(super) use flow::{Flow, LIFETIME};
use id_token::ExpectedClaims;
pub(super) use id_token::Person;
use logins::caller::{Checked, PersonCheck};
use logins::sign_in::registration::CALLBACK;
use provider::{NoToken, OidcProvider};

/// The sign-in at one provider.
pub(super) struct OidcSignIn {
    provider: OidcProvider,
    /// Codes that are exchanged at the same time.
    exchanges: Semaphore,
}

/// A failed sign-in, with the details that only operators read.
#[derive(Debug)]
pub(super) struct SignInFailure {
    pub error: SignInError,
    pub diagnosis: Option<String>,
    /// The person, where it is known.
    pub subject: Option<String>,
}

/// Codes that are exchanged at the same time: each takes a connection for up to ten seconds, and
/// everyone who begins a sign-in can cause one.
const EXCHANGES: usize = 16;

impl OidcSignIn {
    pub(super) fn new(oidc: &config::Oidc) -> Self {
        Self { provider: OidcProvider::new(oidc), exchanges: Semaphore::new(EXCHANGES) }
    }

    pub(super) fn config(&self) -> &config::Oidc {
        self.provider.oidc()
    }

    /// Returns the value of `Location` that sends a browser to the provider.
    pub(super) async fn location(&self, flow: &Flow) -> Result<HeaderValue, SignInError> {
        let known = self.provider.known().await.ok_or(SignInError::ProviderUnavailable)?;
        let config::Oidc { client_id, groups_claim, .. } = self.config();
        let url = flow.request(&known.authorization, client_id, groups_claim, &known.metadata);
        HeaderValue::try_from(url.as_str()).map_err(|_| SignInError::ProviderUnavailable)
    }

    /// Returns the person whom the provider has sent back to the callback with `query`.
    pub(super) async fn person(
        &self,
        flow: &Flow,
        query: &str,
        now: UnixSeconds,
    ) -> Result<Person, SignInFailure> {
        let known = self.provider.known().await.ok_or(SignInError::ProviderUnavailable)?;
        let oidc = self.config();
        let code = flow.code(query, &oidc.issuer, known.metadata.sends_issuer)?;
        let _permit = self.exchanges.try_acquire().map_err(|_| SignInError::Busy)?;
        let redirect_uri = flow.redirect_uri();
        let exchanged = self.provider.exchange(&known, &code, &flow.verifier, redirect_uri);
        let token = exchanged.await?;
        let header = id_token::header(&token)?;
        let key = self.provider.key(header.kid.as_deref(), header.alg).await;
        let key = key
            .ok_or(SignInError::IdToken("it is signed with a key that its issuer does not have"))?;
        let claims = id_token::verified(&token, &key, header.alg)?;
        Ok(id_token::person(&claims, ExpectedClaims { oidc, nonce: &flow.nonce, now })?)
    }
}

/// Names people in the browsers of callers by the provider of the console.
pub struct ConsolePeople {
    oidc: OidcSignIn,
    sealer: Arc<Sealer>,
    /// The URI to which the provider sends browsers back.
    callback: String,
}

impl ConsolePeople {
    /// `page` is the URL of the page at which callers sign in.
    pub fn new(oidc: &config::Oidc, sealer: Arc<Sealer>, page: &str) -> Self {
        Self { oidc: OidcSignIn::new(oidc), sealer, callback: format!("{page}{CALLBACK}") }
    }
}

impl PersonCheck for ConsolePeople {
    fn issuer(&self) -> &str {
        &self.oidc.config().issuer
    }

    fn begin(&self, now: UnixSeconds) -> Checked<'_, (String, String)> {
        Box::pin(async move {
            let flow = Flow::begin(self.callback.clone(), &LocalPath::or_root("/"), now);
            let location = self.oidc.location(&flow).await.map_err(|error| error.to_string())?;
            let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
            Ok((location, flow.seal(&self.sealer, &SessionOrigin::oidc(self.oidc.config()))))
        })
    }

    fn finish<'a>(
        &'a self,
        state: &'a str,
        query: &'a str,
        now: UnixSeconds,
    ) -> Checked<'a, String> {
        Box::pin(async move {
            let source = SessionOrigin::oidc(self.oidc.config());
            let flow = Flow::open(&self.sealer, &source, state, &self.callback, now);
            let flow = flow.ok_or_else(|| SignInError::NotBegunHere.to_string())?;
            let person = self.oidc.person(&flow, query, now).await;
            person.map(|person| person.subject).map_err(|failure| {
                let SignInFailure { error, diagnosis, .. } = failure;
                warn!(%error, why = diagnosis, "a caller cannot be named by the OpenID provider");
                error.to_string()
            })
        })
    }
}

impl From<SignInError> for SignInFailure {
    fn from(error: SignInError) -> Self {
        Self { error, diagnosis: None, subject: None }
    }
}

impl From<NoToken> for SignInFailure {
    fn from(why: NoToken) -> Self {
        let (error, diagnosis) = match why {
            NoToken::Refused(why) => (SignInError::Refused, why),
            NoToken::Unavailable(why) => (SignInError::ProviderUnavailable, why),
        };
        Self { error, diagnosis: Some(diagnosis), subject: None }
    }
}
