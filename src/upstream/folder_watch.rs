//! Watches on folders whose files change an upstream: libraries, and the sign-ins of the operator.

use std::path::Path;
use std::sync::Arc;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// A watch on a folder, until dropped.
pub(crate) struct Watch {
    _watcher: RecommendedWatcher,
}

impl Watch {
    /// Calls `changed.notify_one()` after a file or folder below `folder` was created, edited, moved or
    /// removed. Several edits may cause one call.
    ///
    /// # Errors
    /// When the system cannot watch the folder; polling still finds edits then.
    pub(crate) fn new(folder: &Path, changed: Arc<Notify>) -> notify::Result<Self> {
        let on_event = move |event: notify::Result<notify::Event>| {
            // An error means that events may be lost, so the folder is read again.
            if event.is_err() || event.is_ok_and(|e| !matches!(e.kind, EventKind::Access(_))) {
                changed.notify_one();
            }
        };
        let mut watcher = notify::recommended_watcher(on_event)?;
        watcher.watch(folder, RecursiveMode::Recursive)?;
        Ok(Self { _watcher: watcher })
    }
}
