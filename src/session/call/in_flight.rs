//! Calls of legacy sessions while they run, so that `notifications/cancelled` finds them.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio_util::sync::CancellationToken;

use crate::domain::jsonrpc::Id;
use crate::session::token::Nonce;

type Calls = DashMap<(Nonce, Id), CancellationToken>;

/// As many entries as calls are in flight, which `server.limits.in_flight` bounds.
#[derive(Clone, Debug, Default)]
pub struct Running(Arc<Calls>);

/// One call that runs; ends with this value.
#[derive(Debug)]
pub struct RunningCall {
    calls: Arc<Calls>,
    key: (Nonce, Id),
    cancelled: CancellationToken,
}

impl Running {
    /// Notes a call; nothing if the session has one of this id already.
    pub fn start(&self, session: Nonce, id: Id) -> Option<RunningCall> {
        let cancelled = CancellationToken::new();
        let key = (session, id);
        match self.0.entry(key.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(cancelled.clone());
                Some(RunningCall { calls: self.0.clone(), key, cancelled })
            }
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Cancels all calls of a session.
    pub fn cancel_all(&self, session: Nonce) {
        self.0.iter().filter(|call| call.key().0 == session).for_each(|call| call.cancel());
    }

    /// Cancels a call of the session; an unknown one is none of our business.
    pub fn cancel(&self, session: Nonce, id: Id) {
        if let Some(call) = self.0.get(&(session, id)) {
            call.cancel();
        }
    }
}

impl RunningCall {
    /// Waits until the client cancels.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.calls.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w14_an_id_runs_once_in_a_session_and_is_free_afterwards() {
        let running = Running::default();
        let first = running.start([1; 16], Id::number(1)).unwrap();
        assert!(running.start([1; 16], Id::number(1)).is_none());
        assert!(running.start([2; 16], Id::number(1)).is_some());
        running.cancel([2; 16], Id::number(1));
        assert!(!first.cancelled.is_cancelled());
        running.cancel([1; 16], Id::number(1));
        assert!(first.cancelled.is_cancelled());
        drop(first);
        assert!(running.start([1; 16], Id::number(1)).is_some());
        assert!(running.0.is_empty());
    }
}
