//! Sign-ins to upstreams: the grants of providers to the operator, and how they are obtained, kept
//! and ended.

#![forbid(unsafe_code)]
// Untrusted input must not panic; tests may.
#![warn(clippy::panic, clippy::unwrap_used)]
#![warn(unreachable_pub)]

pub mod caller;
pub mod idle;
pub mod sign_in;
pub mod store;

use http::Uri;
use serde::{Deserialize, Serialize};

use base::seal::hex::hex;
use base::seal::random;
use caller::CallerName;
use config::Secret;
use domain::fault::TokenFault;
use domain::time::unix_time::UnixSeconds;
use net::egress::Egress;
use net::origin::is_same_uri;
use oauth::client::{ClientAuthentication, OAuthClient, Refusal, revocation};
use oauth::token::Issued;

/// One sign-in for an upstream. The type has no `Debug`, because it holds tokens.
#[derive(Clone, Deserialize, Serialize)]
pub struct StoredLogin {
    /// Random: another sign-in has another id.
    pub id: String,
    /// Id of the upstream.
    pub upstream: String,
    /// URL of the upstream. A token is sent nowhere else.
    pub url: String,
    pub issuer: String,
    #[serde(with = "uri")]
    pub token_endpoint: Uri,
    /// Absent where the provider advertises no such endpoint (RFC 7009).
    #[serde(with = "optional_uri", default)]
    pub revocation_endpoint: Option<Uri>,
    pub client_id: String,
    pub client_secret: Option<String>,
    /// Whether the secret is sent by `client_secret_post`.
    pub posts_secret: bool,
    /// Resource indicator of the tokens (RFC 8707).
    pub resource: String,
    /// The granted scope, if it is known.
    pub scope: Option<String>,
    /// Absent where the provider issues no refresh token: the sign-in ends with its access token.
    pub refresh_token: Option<String>,
    pub access_token: String,
    /// When the access token and the refresh token expire, in seconds since the Unix epoch, if it
    /// is known.
    pub expires_at: Option<u64>,
    pub refresh_expires_at: Option<u64>,
    pub signed_in_at: u64,
    /// Time of the last token response.
    pub renewed_at: u64,
    /// Why the sign-in has ended, if it has.
    pub ended: Option<String>,
    /// The caller who has signed in; `None` for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerName>,
    /// The subject of the caller's token; `None` for other credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// The state of a sign-in, as the operator sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LoginState {
    Valid,
    /// The provider has refused its refresh token.
    Ended,
    /// The tokens have expired, and no refresh token renews them.
    Expired,
    /// The sign-in is for another URL than the upstream has now.
    OtherUrl,
}

impl LoginState {
    /// Whether only another sign-in helps.
    pub fn needs_login(self) -> bool {
        self != Self::Valid
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Ended => "ended by the provider",
            Self::Expired => "expired",
            Self::OtherUrl => "for another URL",
        }
    }
}

impl StoredLogin {
    /// Returns the state as of `now` for an upstream with this URL.
    pub fn state(&self, url: &Uri, now: UnixSeconds) -> LoginState {
        let is_over = |at: Option<u64>| at.is_some_and(|at| at <= now.0);
        if !is_same_uri(&url.to_string(), &self.url) {
            LoginState::OtherUrl
        } else if self.ended.is_some() {
            LoginState::Ended
        } else if is_over(self.refresh_expires_at)
            || (self.refresh_token.is_none() && is_over(self.expires_at))
        {
            LoginState::Expired
        } else {
            LoginState::Valid
        }
    }

    /// The client that the login was issued to.
    pub fn client(&self) -> OAuthClient {
        let secret = self.client_secret.as_ref().map(Secret::new);
        OAuthClient {
            id: self.client_id.clone(),
            proof: ClientAuthentication::of_secret(secret, self.posts_secret),
        }
    }

    /// Requests another access token (RFC 6749, section 6; RFC 8707, section 2.2), and stores the
    /// issued tokens in the grant.
    ///
    /// # Errors
    /// The provider refuses, which is kept in `ended` if it is for good, or cannot be reached.
    pub async fn renew(&mut self, egress: &Egress, now: UnixSeconds) -> Result<(), Refusal> {
        let Some(token) = self.refresh_token.clone() else {
            return Err(Refusal::new(
                TokenFault::LoginExpired,
                "its access token is not accepted any longer, and there is no refresh token to renew it",
            ));
        };
        let form = vec![
            ("grant_type", "refresh_token".to_owned()),
            ("refresh_token", token),
            ("resource", self.resource.clone()),
        ];
        let response = self.client().request_json(egress, &self.token_endpoint, form).await;
        let response = response.inspect_err(|refusal| {
            if refusal.fault == TokenFault::LoginRefused {
                self.ended = Some(refusal.detail.clone());
            }
        })?;
        self.take_in(Issued::read(&response).map_err(Refusal::other)?, now);
        Ok(())
    }

    /// Returns the record that a sign-in has ended, without tokens. Its id is another one, which
    /// ends the links that were issued before.
    #[must_use]
    pub fn end(self, why: &str) -> Self {
        let id = hex(&random::<16>());
        let ended = Some(why.to_owned());
        Self { id, access_token: String::new(), refresh_token: None, ended, ..self }
    }

    fn take_in(&mut self, issued: Issued, now: UnixSeconds) {
        let after = |lifetime: std::time::Duration| now.0.saturating_add(lifetime.as_secs());
        issued.access_token.expose().clone_into(&mut self.access_token);
        self.expires_at = issued.lifetime.map(after);
        if let Some(token) = issued.refresh_token {
            self.refresh_token = Some(token.expose().to_owned());
            self.refresh_expires_at = None;
        }
        if let Some(lifetime) = issued.refresh_lifetime {
            self.refresh_expires_at = Some(after(lifetime));
        }
        if issued.scope.is_some() {
            self.scope = issued.scope;
        }
        self.renewed_at = now.0;
    }

    /// Revokes the tokens at the provider (RFC 7009). Returns whether they were revoked: some
    /// providers advertise no endpoint for that.
    ///
    /// # Errors
    /// The provider refuses, or cannot be reached.
    pub async fn revoke(&self, egress: &Egress) -> Result<bool, Refusal> {
        let Some(endpoint) = &self.revocation_endpoint else { return Ok(false) };
        let tell = async |token: &str, hint: &str| {
            self.client().tell(egress, endpoint, revocation(token, hint)).await
        };
        let access = &self.access_token;
        match &self.refresh_token {
            Some(refresh) => {
                tell(refresh, "refresh_token").await?;
                // Most providers end the access token with the refresh token, and some revoke no
                // access tokens (section 2.1).
                let _ = tell(access, "access_token").await;
            }
            None => tell(access, "access_token").await?,
        }
        Ok(true)
    }
}

mod uri {
    use http::Uri;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(uri: &Uri, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(uri)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Uri, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

mod optional_uri {
    use http::Uri;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        uri: &Option<Uri>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        uri.as_ref().map(Uri::to_string).serialize(serializer)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        deserializer: D,
    ) -> Result<Option<Uri>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// A sign-in for tests.
#[cfg(any(test, feature = "test-util"))]
pub fn sample_login(upstream: &str) -> StoredLogin {
    StoredLogin {
        id: "one".to_owned(),
        upstream: upstream.to_owned(),
        url: "https://wiki.example/mcp".to_owned(),
        issuer: "https://id.example".to_owned(),
        token_endpoint: Uri::from_static("https://id.example/token"),
        revocation_endpoint: None,
        client_id: "gateway".to_owned(),
        client_secret: None,
        posts_secret: false,
        resource: "https://wiki.example/mcp".to_owned(),
        scope: Some("read".to_owned()),
        refresh_token: Some("refresh-canary".to_owned()),
        access_token: "access-canary".to_owned(),
        expires_at: Some(100),
        refresh_expires_at: None,
        signed_in_at: 0,
        renewed_at: 0,
        ended: None,
        caller: None,
        subject: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_login_is_valid_until_nothing_renews_it() {
        let url = Uri::from_static("https://wiki.example/mcp");
        let state = |login: &StoredLogin, now| login.state(&url, UnixSeconds(now));
        let renewed = sample_login("wiki");
        assert_eq!(state(&renewed, 1_000_000), LoginState::Valid);
        let bounded = StoredLogin { refresh_expires_at: Some(200), ..renewed.clone() };
        assert_eq!(state(&bounded, 199), LoginState::Valid);
        assert_eq!(state(&bounded, 200), LoginState::Expired);
        let short = StoredLogin { refresh_token: None, ..renewed.clone() };
        assert_eq!(state(&short, 99), LoginState::Valid);
        assert_eq!(state(&short, 100), LoginState::Expired);
        let endless = StoredLogin { refresh_token: None, expires_at: None, ..renewed.clone() };
        assert_eq!(state(&endless, u64::MAX), LoginState::Valid);
        let ended = StoredLogin { ended: Some("invalid_grant".to_owned()), ..renewed.clone() };
        assert_eq!(state(&ended, 0), LoginState::Ended);
        let elsewhere = Uri::from_static("https://evil.example/mcp");
        assert_eq!(renewed.state(&elsewhere, UnixSeconds(0)), LoginState::OtherUrl);
    }

    #[test]
    fn a_token_response_replaces_what_it_names() {
        let mut login = StoredLogin { refresh_expires_at: Some(500), ..sample_login("wiki") };
        let issued = |refresh: Option<&str>, refresh_lifetime| Issued {
            access_token: Secret::new("a2"),
            lifetime: Some(Duration::from_secs(60)),
            refresh_token: refresh.map(Secret::new),
            refresh_lifetime,
            scope: None,
        };
        login.take_in(issued(None, None), UnixSeconds(1_000));
        assert_eq!(login.refresh_token.as_deref(), Some("refresh-canary"), "it stays valid");
        assert_eq!((login.expires_at, login.refresh_expires_at), (Some(1_060), Some(500)));
        assert_eq!(login.scope.as_deref(), Some("read"));
        login.take_in(issued(Some("r2"), Some(Duration::from_secs(9))), UnixSeconds(2_000));
        assert_eq!(login.refresh_token.as_deref(), Some("r2"));
        assert_eq!((login.access_token.as_str(), login.refresh_expires_at), ("a2", Some(2_009)));
    }
}
