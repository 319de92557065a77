//! Pending URL elicitations (MCP 2025-11-25, elicitation): which session was sent to which URL, so
//! that only this session gets `notifications/elicitation/complete`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::session::token::Nonce;
use base::platform::Locked;
use domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::Json;
use upstream::call::correlator::UrlElicitationComplete;

/// The newest URL elicitations of all sessions. When the queue is full, the oldest is removed: its
/// user sees on the page that it is complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingUrlElicitations(Arc<Mutex<VecDeque<(UrlElicitationComplete, Nonce)>>>);

/// Most pending URL elicitations of all sessions together: a visit takes minutes, and only few
/// users visit a page at the same time.
const MAX_PENDING: usize = 1024;

impl PendingUrlElicitations {
    /// Adds a URL elicitation of a session.
    pub(crate) fn add(&self, elicitation: UrlElicitationComplete, session: Nonce) {
        let added = (elicitation, session);
        let mut pending = self.0.locked();
        // A client may ask again before the user has finished.
        pending.retain(|known| *known != added);
        if pending.len() >= MAX_PENDING {
            pending.pop_front();
        }
        pending.push_back(added);
    }

    /// Adds all URL elicitations that a `URLElicitationRequiredError` names. `max_depth` bounds the
    /// nesting of its data.
    pub(crate) fn note_all(&self, fault: &Fault, session: Nonce, max_depth: usize) {
        let Fault::Upstream(UpstreamFault {
            upstream,
            kind: Kind::UrlElicitationRequired { data, .. },
            ..
        }) = fault
        else {
            return;
        };
        let Ok(data) = Json::parse_text(data, max_depth) else {
            return;
        };
        for elicitation in data.get("elicitations").iter().flat_map(|list| list.elements()) {
            if let Some(id) = elicitation.get("elicitationId").and_then(Json::as_str) {
                let upstream = upstream.as_str().into();
                let id = id.into_owned();
                self.add(UrlElicitationComplete { upstream, id }, session);
            }
        }
    }

    /// Removes a URL elicitation of the session. Returns whether it was pending, so that its
    /// completion is sent only once.
    pub(crate) fn take(&self, elicitation: &UrlElicitationComplete, session: Nonce) -> bool {
        let mut pending = self.0.locked();
        let at = pending.iter().position(|(sent, to)| sent == elicitation && *to == session);
        at.and_then(|at| pending.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_goes_to_the_session_of_its_elicitation_once() {
        let pending = PendingUrlElicitations::default();
        let elicitation =
            |id: usize| UrlElicitationComplete { upstream: "up".into(), id: id.to_string() };
        pending.add(elicitation(1), Nonce::from_bytes([1; 16]));
        pending.add(elicitation(1), Nonce::from_bytes([1; 16]));
        assert!(!pending.take(&elicitation(1), Nonce::from_bytes([2; 16])));
        assert!(!pending.take(&elicitation(2), Nonce::from_bytes([1; 16])));
        assert!(pending.take(&elicitation(1), Nonce::from_bytes([1; 16])));
        assert!(!pending.take(&elicitation(1), Nonce::from_bytes([1; 16])));
        for id in 0..=MAX_PENDING {
            pending.add(elicitation(id), Nonce::from_bytes([1; 16]));
        }
        assert!(
            !pending.take(&elicitation(0), Nonce::from_bytes([1; 16]))
                && pending.take(&elicitation(1), Nonce::from_bytes([1; 16]))
        );
    }
}
