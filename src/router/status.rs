//! How the upstreams are, for whoever looks after them.

use std::sync::Arc;

use tokio::time::Instant;

use super::Router;
use super::catalog::WalkInfo;
use crate::domain::fault::UpstreamFaultKind;
use crate::domain::name::UpstreamId;
use crate::domain::revision::Revision;
use crate::upstream::Upstream;
use crate::upstream::driver::Link;
use crate::upstream::transport::stderr_tail::StderrTail;

/// How one upstream is.
#[derive(Clone, Debug)]
pub struct UpstreamStatus {
    pub id: String,
    pub transport: &'static str,
    /// `connecting`, `up` or `down`.
    pub state: &'static str,
    /// What is spoken with it, once that is agreed.
    pub revision: Option<Revision>,
    /// Whether it says when its list changes.
    pub notifies: bool,
    /// How many of its prompts are listed.
    pub listed: usize,
    /// The last good walk of its list.
    pub walk: Option<WalkInfo>,
    /// When it is tried again, if it is being left alone after a row of failed calls.
    pub breaker_open_until: Option<Instant>,
    /// Calls that run, and calls that wait for one to end.
    pub load: (usize, usize),
    /// What its children said last on standard error, for whoever wants to read it.
    pub stderr_tail: Arc<StderrTail>,
    /// Why it cannot be called, or its list is old or missing.
    pub failure: Option<UpstreamFaultKind>,
}

impl Router {
    /// How many calls wait while their users visit a page.
    pub fn suspended(&self) -> usize {
        self.shared.suspended.count()
    }

    /// How each upstream is.
    pub fn status(&self) -> Vec<UpstreamStatus> {
        let catalog = self.catalog();
        let counts = catalog.content.counts();
        let status = |(id, upstream): (&UpstreamId, &Arc<Upstream>)| {
            let (config, link) = (upstream.config(), upstream.link());
            let missing = catalog.incomplete.iter().find(|part| part.upstream == *id);
            let failure = missing.map(|part| part.kind.clone());
            let (state, peer, down) = match link {
                Link::Connecting => ("connecting", None, None),
                Link::Up(peer) => ("up", Some(peer), None),
                Link::Down(kind) => ("down", None, Some(kind)),
            };
            UpstreamStatus {
                id: id.to_string(),
                transport: config.transport.name(),
                state,
                revision: peer.as_ref().and_then(|peer| peer.describe().0),
                notifies: peer.is_some_and(|peer| peer.notifies()),
                listed: counts.get(id).copied().unwrap_or_default(),
                walk: catalog.walks.get(id).copied(),
                breaker_open_until: upstream.breaker_open_until(),
                load: upstream.load(),
                stderr_tail: upstream.stderr_tail().clone(),
                failure: down.or(failure),
            }
        };
        self.upstreams.iter().map(status).collect()
    }
}
