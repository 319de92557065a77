//! Sessions that were ended before their time.

use std::collections::VecDeque;
use std::sync::Mutex;

use dashmap::DashSet;
use tokio::sync::Notify;

use crate::session::token::Nonce;

/// Remembers ended sessions, the oldest of which is forgotten when full: a client that ended a
/// session has no reason to use it again, so forgetting one opens no door to anybody else.
#[derive(Debug, Default)]
pub(crate) struct TerminatedSessions {
    nonces: DashSet<Nonce>,
    order: Mutex<VecDeque<Nonce>>,
    /// Wakes those who wait for the end of one.
    news: Notify,
}

impl TerminatedSessions {
    /// Remembers a session, and at most `most` in all.
    pub(crate) fn insert(&self, nonce: Nonce, most: usize) {
        if !self.nonces.insert(nonce) {
            return;
        }
        let mut order = self.order.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        order.push_back(nonce);
        while order.len() > most
            && let Some(oldest) = order.pop_front()
        {
            self.nonces.remove(&oldest);
        }
        drop(order);
        self.news.notify_waiters();
    }

    /// Waits until the session is ended.
    pub(crate) async fn wait_for(&self, nonce: &Nonce) {
        loop {
            let news = self.news.notified();
            if self.contains(nonce) {
                return;
            }
            news.await;
        }
    }

    pub(crate) fn contains(&self, nonce: &Nonce) -> bool {
        self.nonces.contains(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_when_full() {
        let terminated = TerminatedSessions::default();
        for n in [1, 2, 2, 3] {
            terminated.insert([n; 16], 2);
        }
        assert_eq!([1, 2, 3].map(|n| terminated.contains(&[n; 16])), [false, true, true]);
    }
}
