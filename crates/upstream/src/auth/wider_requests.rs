//! The bound of token requests for wider scopes: an upstream that needs another scope at each call
//! must not cost the authorization server a request each time.

use std::time::Duration;

use tokio::time::Instant;

use domain::fault::TokenFault;
use oauth::client::Refusal;

/// Requests for wider scopes of one token. Pure: the clock is an argument.
#[derive(Debug, Default)]
pub(super) struct WiderRequests {
    began: Option<Instant>,
    count: u32,
}

/// Requests in one window. A call needs one scope more than the list, seldom two.
const MOST: u32 = 4;

const WINDOW: Duration = Duration::from_secs(60);

impl WiderRequests {
    /// Counts a request.
    pub(super) fn admit(&mut self, now: Instant) -> Result<(), Refusal> {
        if self.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            (self.began, self.count) = (Some(now), 0);
        }
        if self.count == MOST {
            let detail = "the upstream has needed another scope four times within a minute";
            return Err(Refusal::new(TokenFault::ScopeRefused, detail));
        }
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_fifth_wider_scope_within_a_minute_is_refused() {
        let mut requests = WiderRequests::default();
        let start = Instant::now();
        let mut admitted = |seconds| requests.admit(start + Duration::from_secs(seconds)).is_ok();
        assert_eq!(
            [0, 1, 2, 3, 4, 59, 60].map(&mut admitted),
            [true, true, true, true, false, false, true]
        );
    }
}
