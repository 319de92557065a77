//! Why a sign-in fails, in sentences for people. They hold no secret, and no text that came with a
//! request or from a provider.

use std::time::Duration;

use http::StatusCode;

use oauth::code::NoCode;

/// Why a sign-in fails.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum SignInError {
    #[error("This token is not the value of admin.token. Check it and try again.")]
    WrongToken,
    #[error(
        "There were too many failed attempts. Try again in {} s; nothing you send before is looked at.",
        seconds(*wait)
    )]
    TooMany { wait: Duration },
    #[error("Nobody can sign in with a token here, because admin.token is not set.")]
    NoToken,
    #[error("Nobody can sign in at a provider here, because admin.oidc is not set.")]
    NoProvider,
    #[error(
        "The OpenID provider cannot be used at present. Try again in a minute. The log of the gateway has the reason."
    )]
    ProviderUnavailable,
    #[error("Too many people sign in at this moment. Start again.")]
    Busy,
    #[error("This address is none that the OpenID provider sends people to. Start again.")]
    Malformed,
    /// Without the cookie of a sign-in that began here, a link of an attacker could sign a person
    /// in as the attacker (login CSRF).
    #[error(
        "This sign-in did not begin in this browser, or it began more than ten minutes ago, or after another one. \
         Start again."
    )]
    NotBegunHere,
    /// A mix-up of providers (RFC 9207).
    #[error("The answer is of another OpenID provider than admin.oidc.issuer. Start again.")]
    OtherIssuer,
    #[error("The OpenID provider did not let you sign in, or you have cancelled. Start again.")]
    Cancelled,
    #[error(
        "The OpenID provider refuses this sign-in. Start again; if that does not help, the log of the gateway has the reason."
    )]
    Refused,
    #[error(
        "The ID token of the OpenID provider is not accepted: {0}. Tell who runs this gateway."
    )]
    IdToken(&'static str),
    #[error(
        "The OpenID provider does not say which groups you are in. Tell who runs this gateway: the ID token lacks the \
         claim of admin.oidc.groups_claim."
    )]
    NoGroups,
    #[error(
        "You are in more groups than the OpenID provider or this gateway puts into an ID token. Tell who runs this \
         gateway: the provider should send only groups that are for this gateway."
    )]
    TooManyGroups,
    #[error(
        "You have signed in, but none of your groups may use this console. Ask who runs this gateway for a group of \
         admin.oidc.viewers, testers or approvers."
    )]
    NoRole,
}

impl From<NoCode> for SignInError {
    fn from(why: NoCode) -> Self {
        match why {
            NoCode::Malformed => Self::Malformed,
            NoCode::OtherRequest => Self::NotBegunHere,
            NoCode::OtherIssuer { .. } => Self::OtherIssuer,
            NoCode::Denied => Self::Cancelled,
            NoCode::Refused(_) => Self::Refused,
        }
    }
}

impl SignInError {
    /// Returns the status of the response.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::WrongToken => StatusCode::UNAUTHORIZED,
            Self::TooMany { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::NoToken | Self::NoProvider => StatusCode::NOT_FOUND,
            Self::ProviderUnavailable | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Malformed | Self::NotBegunHere | Self::OtherIssuer => StatusCode::BAD_REQUEST,
            Self::Cancelled
            | Self::Refused
            | Self::IdToken(_)
            | Self::NoGroups
            | Self::TooManyGroups
            | Self::NoRole => StatusCode::FORBIDDEN,
        }
    }

    /// Returns the value of the header `Retry-After`, in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::TooMany { wait } => Some(seconds(*wait)),
            _ => None,
        }
    }

    /// Returns the stable name of the reason in records; `None` for a failure that is not recorded,
    /// since anyone can cause it as often as they like.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::WrongToken => Some("wrong_token"),
            Self::ProviderUnavailable => Some("provider_unavailable"),
            Self::Cancelled => Some("cancelled"),
            Self::Refused => Some("refused"),
            Self::OtherIssuer => Some("other_issuer"),
            Self::IdToken(_) => Some("id_token"),
            Self::NoGroups => Some("no_groups"),
            Self::TooManyGroups => Some("too_many_groups"),
            Self::NoRole => Some("no_role"),
            Self::TooMany { .. }
            | Self::NoToken
            | Self::NoProvider
            | Self::Busy
            | Self::Malformed
            | Self::NotBegunHere => None,
        }
    }
}

/// Rounded up, so that an attempt after this time is not early.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        let error = SignInError::TooMany { wait: Duration::from_millis(29_001) };
        assert_eq!(error.retry_after(), Some(30));
        assert!(error.to_string().contains("in 30 s"), "{error}");
    }
}
