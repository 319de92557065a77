//! Authorization of the requests of one connection.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};

use super::caller_tokens::CallerTokens;
use super::token_source::TokenSource;
use domain::fault::UpstreamFaultKind as Kind;

/// Access tokens: those that all callers share, or those of one.
pub enum Authorization {
    Service(Box<TokenSource>),
    Caller(Arc<CallerTokens>),
}

impl Authorization {
    /// Returns the value of `Authorization` for a request; nothing until a challenge of the
    /// upstream has led to an authorization server. Cancel safe.
    ///
    /// # Errors
    /// [`Kind::NoToken`] when there is none to be had.
    pub async fn header(&self) -> Result<Option<HeaderValue>, Kind> {
        match self {
            Self::Service(tokens) => tokens.header().await,
            Self::Caller(tokens) => tokens.header().map(Some),
        }
    }

    /// Returns another token after the upstream has refused the one in `sent` with 401 and the
    /// headers `response`.
    ///
    /// # Errors
    /// [`Kind::NoToken`] or [`Kind::AuthFailed`] when there is none; always for one caller, whose
    /// call gets another.
    pub async fn refused(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<HeaderValue, Kind> {
        match self {
            Self::Service(tokens) => tokens.refused(sent, response).await,
            Self::Caller(tokens) => Err(tokens.refused(sent)),
        }
    }

    /// Returns a token of a wider scope after the upstream has refused the one in `sent` with 403,
    /// if `response` says that its scope does not suffice. `None`: it says something else.
    pub(crate) async fn insufficient(
        &self,
        sent: Option<&HeaderValue>,
        response: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Kind> {
        match self {
            Self::Service(tokens) => tokens.insufficient(sent, response).await,
            Self::Caller(tokens) => tokens.insufficient(sent, response).map(|()| None),
        }
    }

    /// Returns the value of `Authorization` of the last requests, if there is a token.
    pub(crate) fn last_headers(&self) -> [Option<HeaderValue>; 2] {
        match self {
            Self::Service(tokens) => tokens.last_headers(),
            Self::Caller(tokens) => tokens.last_headers(),
        }
    }

    /// Returns the tokens that all callers share.
    pub fn service(&self) -> Option<&TokenSource> {
        match self {
            Self::Service(tokens) => Some(tokens),
            Self::Caller(_) => None,
        }
    }
}
