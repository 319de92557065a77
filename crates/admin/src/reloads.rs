//! The reloads of the configuration since the start.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::SystemTime;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::documents::ReloadCounts;
use base::platform::{Locked, wall_clock};

/// The start time of the gateway, and the outcomes of its reloads.
pub struct Reloads {
    /// The start on the monotonic clock, for the uptime.
    pub started: Instant,
    /// The start on the wall clock.
    pub started_at: SystemTime,
    state: Mutex<ReloadState>,
    /// Signalled when a reload is requested over the admin API.
    requested: Notify,
}

/// Pending requests for a reload. Dropping them tells the waiting clients that the reload is done.
#[derive(Default)]
pub struct RequestedReload {
    /// Digest of the file that is accepted though it looks as if it had lost its end.
    pub accepted: Option<String>,
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Default)]
pub(crate) struct ReloadState {
    applied: u64,
    rejected: u64,
    last: Option<SystemTime>,
    /// The mistakes of the newest configuration, one on each line, if it was rejected.
    mistakes: Option<String>,
    /// The digest of the file, if it is held back until an operator accepts it.
    held: Option<String>,
    request: RequestedReload,
    /// The keys whose values in the file need a restart.
    needs_restart: Vec<&'static str>,
    /// The protections that the last applied configuration has removed, by their keys.
    removed: Vec<&'static str>,
    /// The newest last; at most [`KEPT`].
    history: VecDeque<Reload>,
}

/// One reload.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    pub at: SystemTime,
    /// `applied`, `rejected`, or `restored` where the file is again the one in use.
    pub outcome: &'static str,
    /// At most [`MAX_MISTAKES`].
    pub mistakes: Vec<String>,
}

/// Reloads that are kept.
const KEPT: usize = 20;

/// Mistakes of one reload that are kept.
const MAX_MISTAKES: usize = 200;

impl Default for Reloads {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            started_at: wall_clock(),
            state: Mutex::default(),
            requested: Notify::default(),
        }
    }
}

impl Reloads {
    /// Counts an applied configuration. The keys in `needs_restart` were not applied; the
    /// protections in `removed` are no longer there.
    pub fn applied(&self, needs_restart: &[&'static str], removed: Vec<&'static str>) {
        let mut state = self.state.locked();
        state.keep("applied", Vec::new());
        state.applied += 1;
        state.last = Some(wall_clock());
        (state.mistakes, state.held) = (None, None);
        state.needs_restart = needs_restart.to_vec();
        state.removed = removed;
    }

    /// Counts a rejected configuration. `why` has one mistake on each line; `held` is the digest of
    /// a file that an operator may accept.
    pub fn rejected(&self, why: String, held: Option<String>) {
        let mut state = self.state.locked();
        state.rejected += 1;
        state.keep("rejected", why.lines().map(str::to_owned).collect());
        state.last = Some(wall_clock());
        (state.mistakes, state.held) = (Some(why), held);
    }

    /// Notes that the file is again the one of the configuration in use, after it was rejected.
    pub fn restored(&self) {
        let mut state = self.state.locked();
        state.keep("restored", Vec::new());
        state.last = Some(wall_clock());
        (state.mistakes, state.held) = (None, None);
    }

    /// Requests a reload, and accepts the file of this digest. Resolves when it is done.
    pub(super) fn request(&self, accept: Option<String>) -> impl Future<Output = ()> + use<> {
        let (waiting, done) = oneshot::channel();
        let mut state = self.state.locked();
        state.request.accepted = accept.or(state.request.accepted.take());
        state.request.waiting.push(waiting);
        drop(state);
        self.requested.notify_one();
        async {
            // Nothing is sent.
            let _ = done.await;
        }
    }

    /// Resolves when a reload is requested. Cancel safe.
    pub async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Takes the requests for a reload.
    pub fn take_requested(&self) -> RequestedReload {
        std::mem::take(&mut self.state.locked().request)
    }

    /// Returns the last reloads, the newest first.
    pub(super) fn history(&self) -> Vec<Reload> {
        self.state.locked().history.iter().rev().cloned().collect()
    }

    /// Returns the mistakes of the newest configuration, if it was rejected.
    pub(super) fn mistakes(&self) -> Vec<String> {
        let state = self.state.locked();
        state.mistakes.iter().flat_map(|why| why.lines()).map(str::to_owned).collect()
    }

    /// Returns the keys whose values in the file need a restart.
    pub(super) fn needs_restart(&self) -> Vec<&'static str> {
        self.state.locked().needs_restart.clone()
    }

    /// Returns the member `reloads` of `/api/v1/status`.
    pub(crate) fn counts(&self) -> ReloadCounts {
        let mistakes = self.mistakes();
        let state = self.state.locked();
        ReloadCounts {
            applied: state.applied,
            rejected: state.rejected,
            last_at: state.last.map(|at| humantime::format_rfc3339_seconds(at).to_string()),
            mistakes,
            held: state.held.clone(),
            needs_restart: state.needs_restart.clone(),
            removed: state.removed.clone(),
        }
    }
}

impl ReloadState {
    fn keep(&mut self, outcome: &'static str, mut mistakes: Vec<String>) {
        mistakes.truncate(MAX_MISTAKES);
        self.history.push_back(Reload { at: wall_clock(), outcome, mistakes });
        if self.history.len() > KEPT {
            self.history.pop_front();
        }
    }
}
