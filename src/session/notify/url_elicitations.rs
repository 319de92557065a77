//! Which session was sent to which page, so that it alone hears that the page is done.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use crate::domain::json::Json;
use crate::session::token::Nonce;
use crate::upstream::call::correlator::UrlElicitationComplete;

/// The newest visits. The oldest is forgotten when full: its user knows when it is done.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingUrlElicitations(Arc<Mutex<VecDeque<(UrlElicitationComplete, Nonce)>>>);

/// Visits that are remembered, over all sessions: users take minutes, and few at once are sent
/// anywhere.
const MOST: usize = 1024;

impl PendingUrlElicitations {
    /// Notes that a session was sent to a page.
    pub(crate) fn note(&self, page: UrlElicitationComplete, session: Nonce) {
        let mut url_elicitations = self.lock();
        if url_elicitations.len() >= MOST {
            url_elicitations.pop_front();
        }
        url_elicitations.push_back((page, session));
    }

    /// Notes all pages that an error sends a session's user to.
    pub(crate) fn note_all(&self, fault: &Fault, session: Nonce, max_depth: usize) {
        let Fault::Upstream(UpstreamFault { upstream, kind: Kind::PagesFirst { data, .. } }) =
            fault
        else {
            return;
        };
        let Ok((data, _)) = Json::parse_text(data, max_depth) else {
            return;
        };
        for page in data.get("elicitations").iter().flat_map(|pages| pages.elements()) {
            if let Some(id) = page.get("elicitationId").and_then(Json::as_str) {
                let (upstream, id) = (upstream.as_str().into(), id.into_owned());
                self.note(UrlElicitationComplete { upstream, id }, session);
            }
        }
    }

    /// Whether this session was sent to the page; it hears of its end once.
    pub(crate) fn take(&self, page: &UrlElicitationComplete, session: Nonce) -> bool {
        let mut url_elicitations = self.lock();
        let at = url_elicitations.iter().position(|(sent, to)| sent == page && *to == session);
        at.and_then(|at| url_elicitations.remove(at)).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(UrlElicitationComplete, Nonce)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_session_that_was_sent_hears_of_it_and_once() {
        let url_elicitations = PendingUrlElicitations::default();
        let page = |id: usize| UrlElicitationComplete { upstream: "up".into(), id: id.to_string() };
        url_elicitations.note(page(1), [1; 16]);
        assert!(!url_elicitations.take(&page(1), [2; 16]));
        assert!(!url_elicitations.take(&page(2), [1; 16]));
        assert!(url_elicitations.take(&page(1), [1; 16]));
        assert!(!url_elicitations.take(&page(1), [1; 16]));
        for id in 0..=MOST {
            url_elicitations.note(page(id), [1; 16]);
        }
        assert!(
            !url_elicitations.take(&page(0), [1; 16]) && url_elicitations.take(&page(1), [1; 16])
        );
    }
}
