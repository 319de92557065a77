//! Authorization of the requests of one connection.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::caller_tokens::CallerTokens;
use super::file_credential::FileCredential;
use super::token_source::TokenSource;
use domain::fault::UpstreamFaultKind as Kind;

/// Access tokens or a secret in a file that all callers share, or the tokens of one caller.
pub enum Authorization {
    Service(Box<TokenSource>),
    File(FileCredential),
    Caller(Arc<CallerTokens>),
}

impl Authorization {
    /// Returns the name of the header with the credential.
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::File(secret) => secret.name(),
            Self::Service(_) | Self::Caller(_) => &AUTHORIZATION,
        }
    }

    /// Returns the value of the header for a request; nothing until a challenge of the
    /// upstream has led to an authorization server. Cancel safe.
    ///
    /// # Errors
    /// [`Kind::NoToken`] when no token can be obtained.
    pub async fn header(&self) -> Result<Option<HeaderValue>, Kind> {
        match self {
            Self::Service(tokens) => tokens.header().await,
            Self::File(secret) => Ok(Some(secret.header())),
            Self::Caller(tokens) => tokens.header().map(Some),
        }
    }

    /// Returns another token after the upstream has refused the one in `sent` with 401 and the
    /// headers `response`; `None` while the file of a secret has no other one.
    ///
    /// # Errors
    /// [`Kind::NoToken`] or [`Kind::AuthFailed`] without another token; always for the tokens of
    /// one caller, whose next call obtains another token.
    pub async fn refused(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Kind> {
        match self {
            Self::Service(tokens) => tokens.refused(sent, response).await.map(Some),
            Self::File(secret) => Ok(secret.refused(sent).await),
            Self::Caller(tokens) => Err(tokens.refused(sent)),
        }
    }

    /// Returns a token with a wider scope after the upstream has refused the token in `sent` with
    /// 403. `None` if `response` does not report an insufficient scope.
    pub(crate) async fn insufficient(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Kind> {
        match self {
            Self::Service(tokens) => tokens.insufficient(sent, response).await,
            Self::File(_) => Ok(None),
            Self::Caller(tokens) => tokens.insufficient(sent, response).map(|()| None),
        }
    }

    /// Returns the values of the header of the last requests that are not configured.
    pub(crate) fn last_headers(&self) -> [Option<HeaderValue>; 2] {
        match self {
            Self::Service(tokens) => tokens.last_headers(),
            Self::File(secret) => [secret.newer(), None],
            Self::Caller(tokens) => tokens.last_headers(),
        }
    }

    /// Returns the tokens that all callers share.
    pub fn service(&self) -> Option<&TokenSource> {
        match self {
            Self::Service(tokens) => Some(tokens),
            Self::File(_) | Self::Caller(_) => None,
        }
    }
}
