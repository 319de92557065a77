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
pub(crate) struct InFlightCalls(Arc<Calls>);

/// One call that runs; ends with this value.
#[derive(Debug)]
pub(crate) struct InFlightCall {
    calls: Arc<Calls>,
    key: (Nonce, Id),
    cancelled: CancellationToken,
}

impl InFlightCalls {
    /// Notes a call; nothing if the session has one of this id already.
    pub(crate) fn start(&self, session: Nonce, id: Id) -> Option<InFlightCall> {
        let cancelled = CancellationToken::new();
        let key = (session, id);
        match self.0.entry(key.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(vacant) => {
                vacant.insert(cancelled.clone());
                Some(InFlightCall { calls: self.0.clone(), key, cancelled })
            }
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Cancels all calls of a session.
    pub(crate) fn cancel_all(&self, session: Nonce) {
        self.0.iter().filter(|call| call.key().0 == session).for_each(|call| call.cancel());
    }

    /// Cancels a call of the session; an unknown one is none of our business.
    pub(crate) fn cancel(&self, session: Nonce, id: Id) {
        if let Some(call) = self.0.get(&(session, id)) {
            call.cancel();
        }
    }
}

impl InFlightCall {
    /// Waits until the client cancels.
    pub(crate) async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.calls.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w14_an_id_runs_once_in_a_session_and_is_free_afterwards() {
        let in_flight = InFlightCalls::default();
        let first = in_flight.start([1; 16], Id::number(1)).unwrap();
        assert!(in_flight.start([1; 16], Id::number(1)).is_none());
        assert!(in_flight.start([2; 16], Id::number(1)).is_some());
        in_flight.cancel([2; 16], Id::number(1));
        assert!(!first.cancelled.is_cancelled());
        in_flight.cancel([1; 16], Id::number(1));
        assert!(first.cancelled.is_cancelled());
        drop(first);
        assert!(in_flight.start([1; 16], Id::number(1)).is_some());
        assert!(in_flight.0.is_empty());
    }
}
