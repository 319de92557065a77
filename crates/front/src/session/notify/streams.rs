//! The open streams of legacy sessions, of which only the newest gets each notification (MCP
//! 2025-11-25, Streamable HTTP, multiple connections); and the conditions that end a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::session::token::Nonce;
use domain::calls::caller::Caller;
use domain::time::unix_time::UnixSeconds;
use policy::{CallerRevocation, Gate};

/// The newest stream of each session with open streams: at most as many entries as streams are
/// open.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewestStreams {
    newest: Arc<DashMap<Nonce, u64>>,
    next: Arc<AtomicU64>,
}

/// The registration of one open stream. Dropping it removes the registration.
#[derive(Debug)]
pub(crate) struct StreamRegistration {
    newest: Arc<DashMap<Nonce, u64>>,
    session: Nonce,
    number: u64,
}

/// The conditions that end a stream; the first to occur ends it.
#[derive(Default)]
pub(crate) struct StreamEnd {
    /// The deadline; `None` if there is none.
    pub at: Option<Instant>,
    /// The revocation of the caller's credential; `None` on a connection, whose end also ends the
    /// stream.
    pub revocation: Option<CallerRevocation>,
    /// The signal that another stream takes its place; `None` if the place is never taken.
    pub displaced: Option<CancellationToken>,
}

impl StreamEnd {
    /// The end of a stream of this caller: after `lifetime`, when the caller's credential expires,
    /// or when the credential is revoked by a new configuration.
    pub(crate) fn new(
        gate: &Gate,
        caller: &Caller,
        lifetime: Option<Duration>,
        now: UnixSeconds,
    ) -> Self {
        let valid = caller.expires().map(|at| at.saturating_since(now));
        let longest = lifetime.into_iter().chain(valid).min();
        let at = longest.and_then(|longest| Instant::now().checked_add(longest));
        Self { at, revocation: Some(gate.revocation(caller)), displaced: None }
    }

    /// Adds the signal that another stream takes its place.
    pub(crate) fn or_revoked(self, displaced: CancellationToken) -> Self {
        Self { displaced: Some(displaced), ..self }
    }

    /// Waits until the stream must end.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn reached(&mut self) {
        let expired = async {
            match self.at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let revoked = async {
            match &mut self.revocation {
                Some(revocation) => revocation.lost().await,
                None => std::future::pending().await,
            }
        };
        let displaced = async {
            match &self.displaced {
                Some(displaced) => displaced.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = expired => {}
            () = revoked => {}
            () = displaced => {}
        }
    }
}

impl NewestStreams {
    /// Registers a stream, which gets the notifications of its session from now on.
    pub(crate) fn open(&self, session: Nonce) -> StreamRegistration {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.newest.insert(session, number);
        StreamRegistration { newest: self.newest.clone(), session, number }
    }
}

impl StreamRegistration {
    /// Returns whether this stream gets the notifications of its session. When the newest stream
    /// has closed, the first older one that asks takes its place.
    pub(crate) fn is_newest(&self) -> bool {
        *self.newest.entry(self.session).or_insert(self.number) == self.number
    }
}

impl Drop for StreamRegistration {
    fn drop(&mut self) {
        self.newest.remove_if(&self.session, |_, newest| *newest == self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_stream_of_a_session_is_notified() {
        let streams = NewestStreams::default();
        let [one, two, other] = [1, 1, 2].map(|n| streams.open(Nonce::from_bytes([n; 16])));
        assert_eq!([one.is_newest(), two.is_newest(), other.is_newest()], [false, true, true]);
        drop(two);
        assert!(one.is_newest());
        drop((one, other));
        assert!(streams.newest.is_empty());
    }
}
