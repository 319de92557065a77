//! Terminated legacy sessions (MCP 2025-11-25, Streamable HTTP: `DELETE`), and the signal that ends
//! their streams.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use dashmap::{DashMap, DashSet};
use tokio_util::sync::CancellationToken;

use crate::session::token::Nonce;
use base::platform::Locked;
use domain::calls::fair_share::{Denied, FairShare, Holder, Share};

/// The sessions that their clients terminated before they expired, at most
/// `Limits::deleted_sessions`. When the set is full, the oldest session of the adding holder is
/// forgotten if the holder is beyond its share, else that of the largest holder. So no holder can
/// make the sessions of others valid again.
#[derive(Debug)]
pub(crate) struct TerminatedSessions {
    nonces: DashSet<Nonce>,
    order: Mutex<TerminationOrder>,
    /// The sessions with open streams: at most as many entries as streams are open.
    watched: DashMap<Nonce, SessionStreams>,
}

/// The terminated sessions by holder, the oldest first.
#[derive(Debug)]
struct TerminationOrder {
    shares: FairShare<Holder>,
    sessions: HashMap<Holder, VecDeque<Nonce>>,
}

/// The open streams of one session.
#[derive(Debug, Default)]
struct SessionStreams {
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
    /// Creates an empty set of at most `max` sessions.
    pub(crate) fn new(max: usize, share: Share) -> Self {
        let shares = FairShare::new(max, share.of(max));
        let order = Mutex::new(TerminationOrder { shares, sessions: HashMap::new() });
        Self { nonces: DashSet::new(), order, watched: DashMap::new() }
    }

    /// Changes the bound, to which the set shrinks as sessions are added.
    pub(crate) fn resize(&self, max: usize, share: Share) {
        self.order.locked().shares.resize(max, share.of(max));
    }

    /// Adds a session of a holder, and wakes its streams and no others.
    pub(crate) fn insert(&self, holder: &Holder, session: Nonce) {
        if !self.nonces.insert(session) {
            return;
        }
        let mut order = self.order.locked();
        while let Err(denied) = order.shares.take(holder, 1) {
            if let Some(oldest) = order.forget_oldest(holder, denied) {
                self.nonces.remove(&oldest);
            }
            // One session replaces another: units that the holder has borrowed stay borrowed.
            if denied == Denied::OverShare || order.sessions.is_empty() {
                order.shares.force(holder, 1);
                break;
            }
        }
        order.sessions.entry(holder.clone()).or_default().push_back(session);
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

impl TerminationOrder {
    /// Removes the oldest session of the holder itself if it is beyond its share, else of the
    /// holder with most.
    fn forget_oldest(&mut self, holder: &Holder, denied: Denied) -> Option<Nonce> {
        let from = match denied {
            Denied::OverShare => holder.clone(),
            Denied::Full => self.shares.holders().max_by_key(|(_, held)| *held)?.0.clone(),
        };
        let sessions = self.sessions.get_mut(&from)?;
        let oldest = sessions.pop_front()?;
        if sessions.is_empty() {
            self.sessions.remove(&from);
        }
        self.shares.put_back(&from, 1);
        Some(oldest)
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
    use domain::calls::caller::Caller;

    fn holder(id: &str) -> Holder {
        Holder::Caller(Caller::new(id))
    }

    fn nonce(n: u8) -> Nonce {
        Nonce::from_bytes([n; 16])
    }

    #[test]
    fn f18_a_caller_forgets_its_own_terminated_sessions_and_not_those_of_others() {
        let terminated = TerminatedSessions::new(8, Share::new(0.25));
        let a = holder("a");
        terminated.insert(&a, nonce(0));
        for n in 100..200 {
            terminated.insert(&holder("flood"), nonce(n));
        }
        assert!(terminated.contains(&nonce(0)));
        let kept = (100..200).filter(|n| terminated.contains(&nonce(*n)));
        assert_eq!(kept.collect::<Vec<_>>(), [196, 197, 198, 199], "the newest");
        // Others come: the caller with most gives up its oldest.
        for n in 1..6 {
            terminated.insert(&holder(&n.to_string()), nonce(n));
        }
        let kept = (0..200).filter(|n| terminated.contains(&nonce(*n)));
        assert_eq!(kept.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 198, 199]);
        terminated.insert(&a, nonce(0));
        assert_eq!(terminated.nonces.len(), 8, "terminated twice, remembered once");
    }

    #[test]
    fn a_registration_ends_with_its_stream() {
        let terminated = Arc::new(TerminatedSessions::new(1, Share::WHOLE));
        let streams = [1, 1, 2].map(|n| terminated.watch(nonce(n)));
        terminated.insert(&holder("a"), nonce(1));
        let is_terminated = |stream: &SessionTermination| stream.terminated.is_cancelled();
        assert_eq!(streams.each_ref().map(is_terminated), [true, true, false]);
        assert_eq!(terminated.watched.len(), 2);
        drop(streams);
        assert!(terminated.watched.is_empty());
        assert!(is_terminated(&terminated.watch(nonce(1))), "terminated before the stream opened");
    }
}
