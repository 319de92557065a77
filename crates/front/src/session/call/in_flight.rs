//! Requests in flight by session and id, for `notifications/cancelled` (MCP 2025-11-25,
//! cancellation).

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio_util::sync::CancellationToken;

use crate::session::token::Nonce;
use domain::json::jsonrpc::Id;

type Calls = DashMap<(Nonce, Id), CancellationToken>;

/// The requests in flight of all sessions and connections: calls, bounded by
/// `server.limits.in_flight`, and the subscriptions of connections, bounded by `streams`.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlightCalls(Arc<Calls>);

/// The registration of one request. Dropping it removes the registration.
#[derive(Debug)]
pub(crate) struct InFlightCall {
    calls: Arc<Calls>,
    key: (Nonce, Id),
    cancelled: CancellationToken,
}

impl InFlightCalls {
    /// Registers a request. Returns `None` if the session has a request with this id in flight: ids
    /// must be unique.
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

    /// Returns the number of requests in flight.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Cancels all requests of a session.
    pub(crate) fn cancel_all(&self, session: Nonce) {
        self.0.iter().filter(|call| call.key().0 == session).for_each(|call| call.cancel());
    }

    /// Cancels a request of the session. Returns whether there is one: the response may be on its
    /// way.
    pub(crate) fn cancel(&self, session: Nonce, id: Id) -> bool {
        let call = self.0.get(&(session, id));
        call.inspect(|call| call.cancel()).is_some()
    }
}

impl InFlightCall {
    /// Waits until the client cancels the request.
    ///
    /// # Cancel safety
    /// Cancel safe.
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
    fn w14_an_id_is_in_flight_once_in_a_session_and_free_afterwards() {
        let in_flight = InFlightCalls::default();
        let first = in_flight.start(Nonce::from_bytes([1; 16]), Id::number(1)).unwrap();
        assert!(in_flight.start(Nonce::from_bytes([1; 16]), Id::number(1)).is_none());
        assert!(in_flight.start(Nonce::from_bytes([2; 16]), Id::number(1)).is_some());
        in_flight.cancel(Nonce::from_bytes([2; 16]), Id::number(1));
        assert!(!first.cancelled.is_cancelled());
        in_flight.cancel(Nonce::from_bytes([1; 16]), Id::number(1));
        assert!(first.cancelled.is_cancelled());
        drop(first);
        assert!(in_flight.start(Nonce::from_bytes([1; 16]), Id::number(1)).is_some());
        assert!(in_flight.0.is_empty());
    }
}
