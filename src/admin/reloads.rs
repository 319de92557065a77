//! What became of the configuration since the start.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::time::Instant;

/// When the gateway was started, and how often its configuration was taken over or rejected.
pub(crate) struct Reloads {
    pub started: Instant,
    pub started_at: SystemTime,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    applied: u64,
    rejected: u64,
    last: Option<SystemTime>,
    /// Why the last one cannot be used, if it cannot.
    mistakes: Option<String>,
    /// What is another one in the file than here.
    needs_restart: Vec<&'static str>,
}

impl Default for Reloads {
    fn default() -> Self {
        Self { started: Instant::now(), started_at: SystemTime::now(), state: Mutex::default() }
    }
}

impl Reloads {
    /// A configuration was taken over, but for these keys.
    pub(crate) fn took(&self, needs_restart: &[&'static str]) {
        let mut state = self.lock();
        state.applied += 1;
        (state.last, state.mistakes) = (Some(SystemTime::now()), None);
        state.needs_restart = needs_restart.to_vec();
    }

    /// A configuration cannot be used.
    pub(crate) fn rejected(&self, why: String) {
        let mut state = self.lock();
        state.rejected += 1;
        (state.last, state.mistakes) = (Some(SystemTime::now()), Some(why));
    }

    /// As the operator is shown it.
    pub(crate) fn describe(&self) -> Value {
        let state = self.lock();
        let mistakes = state.mistakes.as_ref().map(|why| why.lines().collect::<Vec<_>>());
        json!({
            "applied": state.applied,
            "rejected": state.rejected,
            "lastAt": state.last.map(|at| humantime::format_rfc3339_seconds(at).to_string()),
            "mistakes": mistakes.unwrap_or_default(),
            "needsRestart": state.needs_restart,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
