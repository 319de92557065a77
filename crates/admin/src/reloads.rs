//! The reloads of the configuration since the start.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use base::platform::wall_clock;
use config::lock::decisions;
use config::{Config, SettingChange};

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

/// Requests for a reload. Dropped when it is done, which those who wait notice.
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
    /// The changes as sentences for people; at most [`MAX_CHANGES`].
    pub words: Vec<String>,
    /// Changes since the configuration before, without secrets; at most [`MAX_CHANGES`].
    pub changes: Vec<SettingChange>,
    pub mistakes: Vec<String>,
}

/// The changes by an applied configuration.
#[derive(Clone, Debug, Default)]
pub struct AppliedChanges {
    words: Vec<String>,
    settings: Vec<SettingChange>,
}

/// Keys that are named in a sentence.
const NAMED_KEYS: usize = 4;

impl AppliedChanges {
    /// Compares two configurations.
    pub fn between(before: &Config, after: &Config) -> Self {
        let settings = config::changes(&before.settings, &after.settings);
        let decided = decisions(&before.approvals.lock, &after.approvals.lock);
        let mut words: Vec<_> = decided.iter().map(ToString::to_string).collect();
        words.extend(changed_keys(&settings));
        let lock = after.approvals.store.path();
        let is_named = |path: &Path| decided.is_empty() || path != lock;
        let files = after.files.iter().filter(|file| !before.files.contains(file));
        let files = files.filter(|file| is_named(&file.path));
        words.extend(files.map(|file| format!("The file {} changed", file.path.display())));
        if words.is_empty() {
            words.push(match before.digest == after.digest {
                true => "Nothing that is shown changed".to_owned(),
                false => "A secret or a comment in the file changed".to_owned(),
            });
        }
        Self { words, settings }
    }
}

fn changed_keys(settings: &[SettingChange]) -> Option<String> {
    let keys: Vec<_> = settings.iter().map(|change| change.key.as_str()).collect();
    let named = keys[..keys.len().min(NAMED_KEYS)].join(", ");
    match keys.len() {
        0 => None,
        1 => Some(format!("1 key changed: {named}")),
        count @ ..=NAMED_KEYS => Some(format!("{count} keys changed: {named}")),
        count => Some(format!("{count} keys changed: {named} and {} more", count - NAMED_KEYS)),
    }
}

/// Reloads that are kept.
const KEPT: usize = 20;

/// Changes and mistakes of one reload that are kept.
const MAX_CHANGES: usize = 200;

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
    pub fn applied(
        &self,
        needs_restart: &[&'static str],
        removed: Vec<&'static str>,
        changes: AppliedChanges,
    ) {
        let mut state = self.lock();
        state.keep("applied", changes, Vec::new());
        state.applied += 1;
        state.last = Some(wall_clock());
        (state.mistakes, state.held) = (None, None);
        state.needs_restart = needs_restart.to_vec();
        state.removed = removed;
    }

    /// Counts a rejected configuration. `why` has one mistake on each line; `held` is the digest of
    /// a file that an operator may accept.
    pub fn rejected(&self, why: String, held: Option<String>) {
        let mut state = self.lock();
        state.rejected += 1;
        state.keep("rejected", AppliedChanges::default(), why.lines().map(str::to_owned).collect());
        state.last = Some(wall_clock());
        (state.mistakes, state.held) = (Some(why), held);
    }

    /// Notes that the file is again the one of the configuration in use, after it was rejected.
    pub fn restored(&self) {
        let mut state = self.lock();
        state.keep("restored", AppliedChanges::default(), Vec::new());
        state.last = Some(wall_clock());
        (state.mistakes, state.held) = (None, None);
    }

    /// Requests a reload, and accepts the file of this digest. Resolves when it is done.
    pub(super) fn request(&self, accept: Option<String>) -> impl Future<Output = ()> + use<> {
        let (waiting, done) = oneshot::channel();
        let mut state = self.lock();
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
        std::mem::take(&mut self.lock().request)
    }

    /// Returns the last reloads, the newest first.
    pub(super) fn history(&self) -> Vec<Reload> {
        self.lock().history.iter().rev().cloned().collect()
    }

    /// Returns the mistakes of the newest configuration, if it was rejected.
    pub(super) fn mistakes(&self) -> Vec<String> {
        let state = self.lock();
        state.mistakes.iter().flat_map(|why| why.lines()).map(str::to_owned).collect()
    }

    /// Returns the keys whose values in the file need a restart.
    pub(super) fn needs_restart(&self) -> Vec<&'static str> {
        self.lock().needs_restart.clone()
    }

    /// Returns the member `reloads` of `/api/v1/status`.
    pub(crate) fn to_json(&self) -> Value {
        let mistakes = self.mistakes();
        let state = self.lock();
        json!({
            "applied": state.applied,
            "rejected": state.rejected,
            "lastAt": state.last.map(|at| humantime::format_rfc3339_seconds(at).to_string()),
            "mistakes": mistakes,
            "held": state.held,
            "needsRestart": state.needs_restart,
            "removed": state.removed,
        })
    }

    fn lock(&self) -> MutexGuard<'_, ReloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReloadState {
    fn keep(&mut self, outcome: &'static str, changes: AppliedChanges, mut mistakes: Vec<String>) {
        let AppliedChanges { mut words, settings: mut changes } = changes;
        words.truncate(MAX_CHANGES);
        changes.truncate(MAX_CHANGES);
        mistakes.truncate(MAX_CHANGES);
        self.history.push_back(Reload { at: wall_clock(), outcome, words, changes, mistakes });
        if self.history.len() > KEPT {
            self.history.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_counted_and_the_first_ones_named() {
        let change = |key: &str| SettingChange { key: key.to_owned(), before: None, after: None };
        let words =
            |keys: &[&str]| changed_keys(&keys.iter().map(|key| change(key)).collect::<Vec<_>>());
        assert_eq!(words(&[]), None);
        assert_eq!(words(&["a"]).as_deref(), Some("1 key changed: a"));
        assert_eq!(words(&["a", "b"]).as_deref(), Some("2 keys changed: a, b"));
        let many = words(&["a", "b", "c", "d", "e", "f"]);
        assert_eq!(many.as_deref(), Some("6 keys changed: a, b, c, d and 2 more"));
    }
}
