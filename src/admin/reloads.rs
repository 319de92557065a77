//! The reloads of the configuration since the start.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::time::Instant;

/// The start time of the gateway, and the outcomes of its reloads.
pub(crate) struct Reloads {
    /// The start on the monotonic clock, for the uptime.
    pub started: Instant,
    /// The start on the wall clock.
    pub started_at: SystemTime,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    applied: u64,
    rejected: u64,
    last: Option<SystemTime>,
    /// The mistakes of the newest configuration, one on each line, if it was rejected.
    mistakes: Option<String>,
    /// The keys whose values in the file need a restart.
    needs_restart: Vec<&'static str>,
    /// The protections that the last applied configuration has removed, by their keys.
    removed: Vec<&'static str>,
}

impl Default for Reloads {
    fn default() -> Self {
        Self { started: Instant::now(), started_at: SystemTime::now(), state: Mutex::default() }
    }
}

impl Reloads {
    /// Counts an applied configuration. The keys in `needs_restart` were not applied; the protections in `removed`
    /// are no longer there.
    pub(crate) fn applied(&self, needs_restart: &[&'static str], removed: Vec<&'static str>) {
        let mut state = self.lock();
        state.applied += 1;
        state.last = Some(SystemTime::now());
        state.mistakes = None;
        state.needs_restart = needs_restart.to_vec();
        state.removed = removed;
    }

    /// Counts a rejected configuration. `why` has one mistake on each line.
    pub(crate) fn rejected(&self, why: String) {
        let mut state = self.lock();
        state.rejected += 1;
        state.last = Some(SystemTime::now());
        state.mistakes = Some(why);
    }

    /// Notes that the file is again the one of the configuration in use, after it was rejected.
    pub(crate) fn restored(&self) {
        let mut state = self.lock();
        state.last = Some(SystemTime::now());
        state.mistakes = None;
    }

    /// Returns the member `reloads` of `/api/v1/status`.
    pub(crate) fn to_json(&self) -> Value {
        let state = self.lock();
        let mistakes = state.mistakes.as_ref().map(|why| why.lines().collect::<Vec<_>>());
        json!({
            "applied": state.applied,
            "rejected": state.rejected,
            "lastAt": state.last.map(|at| humantime::format_rfc3339_seconds(at).to_string()),
            "mistakes": mistakes.unwrap_or_default(),
            "needsRestart": state.needs_restart,
            "removed": state.removed,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
