//! Which of a legacy session's streams is told: each message goes to one stream only (2025-11-25,
//! Streamable HTTP, multiple connections); and when a stream ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use tokio::time::{Instant, sleep_until};

use crate::policy::CallerRevocation;
use crate::session::token::Nonce;

/// The newest stream of each session that has one: as many entries as streams are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    newest: Arc<DashMap<Nonce, u64>>,
    next: Arc<AtomicU64>,
}

/// One open stream.
#[derive(Debug)]
pub(crate) struct StreamRegistration {
    newest: Arc<DashMap<Nonce, u64>>,
    session: Nonce,
    number: u64,
}

/// When a stream must end.
#[derive(Default)]
pub struct StreamEnd {
    pub at: Option<Instant>,
    /// Of its caller; absent where that does not change.
    pub revocation: Option<CallerRevocation>,
}

impl StreamEnd {
    /// Waits until it must.
    pub async fn reached(&mut self) {
        let late = async {
            match self.at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let lost = async {
            match &mut self.revocation {
                Some(revocation) => revocation.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = late => {}
            () = lost => {}
        }
    }
}

impl Streams {
    /// Notes a stream; from now on it is the one that is told.
    pub(crate) fn open(&self, session: Nonce) -> StreamRegistration {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.newest.insert(session, number);
        StreamRegistration { newest: self.newest.clone(), session, number }
    }
}

impl StreamRegistration {
    /// Whether this stream is the one to tell. An older one steps in when the newest has closed.
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
    fn one_stream_of_a_session_is_told() {
        let streams = Streams::default();
        let (one, two, other) =
            (streams.open([1; 16]), streams.open([1; 16]), streams.open([2; 16]));
        assert_eq!([one.is_newest(), two.is_newest(), other.is_newest()], [false, true, true]);
        drop(two);
        assert!(one.is_newest());
        drop((one, other));
        assert!(streams.newest.is_empty());
    }
}
