//! One access token, and when it is renewed.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use tokio::time::Instant;

use base::platform::wall_clock;
use domain::calls::subject_token::SubjectToken;
use domain::time::unix_time::UnixSeconds;
use oauth::client::{Refusal, sensitive};

/// An access token.
pub(super) struct AccessToken {
    /// Value of `Authorization`.
    pub header: HeaderValue,
    /// From this time on, a call requests another token, while other calls still use this token.
    pub renew_at: Instant,
    pub expires_at: Instant,
}

/// The current and the previous token: requests with the previous token may be pending.
#[derive(Default)]
pub(super) struct LastTokens {
    now: ArcSwapOption<AccessToken>,
    before: ArcSwapOption<AccessToken>,
}

const SCHEME: &str = "Bearer ";

/// Lifetime of a token whose response has no `expires_in`: short, because the real one is unknown.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);

/// Longest lifetime that is used, whatever `expires_in` has: a token request per day costs nothing.
const MAX_LIFETIME: Duration = Duration::from_secs(86_400);

/// Part of its lifetime after which a token is renewed. The part is random, so that replicas that
/// started together do not ask together.
const RENEWED_AFTER: std::ops::Range<f64> = 0.7..0.85;

impl LastTokens {
    pub(super) fn get(&self) -> Option<Arc<AccessToken>> {
        self.now.load_full()
    }

    /// Replaces the current token; `None` removes it.
    pub(super) fn replace(&self, token: Option<Arc<AccessToken>>) {
        if let Some(before) = self.now.load_full() {
            self.before.store(Some(before));
        }
        self.now.store(token);
    }

    /// Returns the values of `Authorization` with both tokens, if present.
    pub(super) fn headers(&self) -> [Option<HeaderValue>; 2] {
        [&self.now, &self.before]
            .map(|token| token.load().as_ref().map(|token| token.header.clone()))
    }
}

impl AccessToken {
    /// `access_token` was requested at `sent_at`. `random` is from 0 to 1.
    pub(super) fn new(
        access_token: &str,
        lifetime: Option<Duration>,
        sent_at: Instant,
        random: f64,
    ) -> Result<Self, Refusal> {
        let header = sensitive(&[SCHEME, access_token].concat()).map_err(Refusal::other)?;
        let lifetime = lifetime.unwrap_or(DEFAULT_LIFETIME).min(MAX_LIFETIME);
        let part = RENEWED_AFTER.start + random * (RENEWED_AFTER.end - RENEWED_AFTER.start);
        let renew_at = sent_at + lifetime.mul_f64(part);
        Ok(Self { header, renew_at, expires_at: sent_at + lifetime })
    }

    pub(super) fn access_token(&self) -> &str {
        let header = self.header.to_str().unwrap_or_default();
        header.strip_prefix(SCHEME).unwrap_or_default()
    }

    /// Returns the same token, used no longer than the token of the caller lives.
    pub(super) fn within(self, subject: &SubjectToken) -> Self {
        let left = subject.expires.saturating_since(UnixSeconds::from(wall_clock()));
        Self { expires_at: self.expires_at.min(Instant::now() + left), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_renewed_before_it_expires_at_a_random_time() {
        let now = Instant::now();
        let lifetime = Some(Duration::from_secs(100));
        for (random, expected) in [(0.0, 70), (1.0, 85)] {
            let token = AccessToken::new("t", lifetime, now, random).unwrap();
            assert_eq!(token.header.to_str().unwrap(), "Bearer t");
            assert_eq!(token.access_token(), "t");
            assert!(token.header.is_sensitive());
            assert_eq!(token.renew_at.duration_since(now).as_secs(), expected);
            assert_eq!(token.expires_at.duration_since(now).as_secs(), 100);
        }
        let endless = AccessToken::new("t", Some(Duration::from_secs(1 << 40)), now, 0.0).unwrap();
        assert_eq!(endless.expires_at.duration_since(now), MAX_LIFETIME);
        let unknown = AccessToken::new("t", None, now, 0.0).unwrap();
        assert_eq!(unknown.expires_at.duration_since(now), DEFAULT_LIFETIME);
        assert!(AccessToken::new("a\nb", None, now, 0.0).is_err());
    }
}
