//! Terminated legacy sessions (MCP 2025-11-25, Streamable HTTP: `DELETE`), and the signal that ends
//! their streams.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use dashmap::{DashMap, DashSet};
use tokio_util::sync::CancellationToken;

use crate::session::token::Nonce;

/// The sessions that their clients terminated before they expired, at most
/// `server.limits.deleted_sessions`. The oldest one is forgotten when the set is full: a client that
/// terminated a session has no reason to use it again, and no other caller can use it.
#[derive(Debug, Default)]
pub(crate) struct TerminatedSessions {
    nonces: DashSet<Nonce>,
    /// The same sessions, the oldest first.
    order: Mutex<VecDeque<Nonce>>,
    /// The sessions with open streams: at most as many entries as streams are open.
    watched: DashMap<Nonce, Watched>,
}

/// The open streams of one session.
#[derive(Debug, Default)]
struct Watched {
    streams: usize,
    terminated: CancellationToken,
}

/// The registration of one stream for the termination of its session. Dropping it removes the
/// registration.
#[derive(Debug)]
pub(crate) struct SessionTermination {
    sessions: Arc<TerminatedSessions>,
    session: Nonce,
    terminated: CancellationToken,
}

impl TerminatedSessions {
    /// Adds a session, and wakes its streams and no others. Keeps at most `max` sessions.
    pub(crate) fn insert(&self, session: Nonce, max: usize) {
        if !self.nonces.insert(session) {
            return;
        }
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        order.push_back(session);
        while order.len() > max
            && let Some(oldest) = order.pop_front()
        {
            self.nonces.remove(&oldest);
        }
        drop(order);
        let terminated = self.watched.get(&session).map(|watched| watched.terminated.clone());
        if let Some(terminated) = terminated {
            terminated.cancel();
        }
    }

    /// Registers a stream for the termination of its session.
    pub(crate) fn watch(self: &Arc<Self>, session: Nonce) -> SessionTermination {
        let terminated = {
            let mut watched = self.watched.entry(session).or_default();
            watched.streams += 1;
            watched.terminated.clone()
        };
        // After the registration, so that no termination falls between the two.
        if self.contains(&session) {
            terminated.cancel();
        }
        SessionTermination { sessions: self.clone(), session, terminated }
    }

    /// Returns whether the session was terminated, as far as it is remembered.
    pub(crate) fn contains(&self, session: &Nonce) -> bool {
        self.nonces.contains(session)
    }
}

impl SessionTermination {
    /// Waits until the session is terminated.
    ///
    /// # Cancel safety
    /// Cancel safe: a termination is not lost.
    pub(crate) async fn wait(&self) {
        self.terminated.cancelled().await;
    }
}

impl Drop for SessionTermination {
    fn drop(&mut self) {
        self.sessions.watched.remove_if_mut(&self.session, |_, watched| {
            watched.streams -= 1;
            watched.streams == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_session_is_forgotten_when_the_set_is_full() {
        let terminated = TerminatedSessions::default();
        for n in [1, 2, 2, 3] {
            terminated.insert(Nonce::from_bytes([n; 16]), 2);
        }
        assert_eq!(
            [1, 2, 3].map(|n| terminated.contains(&Nonce::from_bytes([n; 16]))),
            [false, true, true]
        );
    }

    #[test]
    fn a_registration_ends_with_its_stream() {
        let terminated = Arc::new(TerminatedSessions::default());
        let streams = [1, 1, 2].map(|n| terminated.watch(Nonce::from_bytes([n; 16])));
        terminated.insert(Nonce::from_bytes([1; 16]), 1);
        let is_terminated = |stream: &SessionTermination| stream.terminated.is_cancelled();
        assert_eq!(streams.each_ref().map(is_terminated), [true, true, false]);
        assert_eq!(terminated.watched.len(), 2);
        drop(streams);
        assert!(terminated.watched.is_empty());
        assert!(
            is_terminated(&terminated.watch(Nonce::from_bytes([1; 16]))),
            "terminated before the stream opened"
        );
    }
}
