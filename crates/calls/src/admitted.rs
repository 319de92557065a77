//! Calls on their way through the router, before and behind the gate.

use std::sync::Arc;

use tokio::time::Instant;

use super::call_channel::CallChannel;
use domain::calls::call::Call;
use domain::time::unix_time::UnixSeconds;
use policy::{Authorized, CallRecord};
use upstream::Upstream;

/// JSON depth of documents that were checked on arrival, and of definitions of derived tools.
pub(super) const DEPTH: usize = 64;

/// A call, and what its answer needs besides its target.
#[derive(Clone, Copy)]
pub(super) struct CallContext<'a> {
    pub call: &'a Call,
    pub record: &'a CallRecord,
    pub channel: &'a CallChannel,
    pub began: Instant,
    pub deadline: Instant,
    /// The wall-clock time, for cursors and states.
    pub now: UnixSeconds,
}

/// A call behind the gate, and the upstream that it goes to. The target is a type of each path:
/// [`RoutedPrompt`](super::routed_prompt::RoutedPrompt), a file of a skill, or a passthrough
/// request.
pub(super) struct Admitted<'a> {
    pub call: &'a Call,
    pub authorized: Authorized<'a>,
    pub upstream: &'a Arc<Upstream>,
}
