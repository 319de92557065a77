//! The watch on the folder of a library, which follows the folder when it is replaced.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tracing::warn;

use base::platform::disk::{self, Watch};

/// The watch on one folder. The system watches the folder behind a path: once a link or another
/// folder takes its place, as git-sync and deployments do, the watch is on the old one.
pub(super) struct LibraryWatch {
    /// Id of the upstream.
    upstream: Arc<str>,
    folder: PathBuf,
    /// Notified of each change.
    changed: Arc<Notify>,
    state: Mutex<WatchState>,
}

enum WatchState {
    NotYet,
    On {
        /// The folder behind the path.
        folder: FolderIdentity,
        _watch: Watch,
    },
    /// The folder cannot be watched, which was logged.
    Lost,
}

/// The path of a folder without links, and its number on the disk.
type FolderIdentity = (PathBuf, Option<(u64, u64)>);

impl LibraryWatch {
    /// Returns the watch on a folder, which begins at once. Blocks.
    pub(super) fn new(upstream: Arc<str>, folder: PathBuf, changed: Arc<Notify>) -> Arc<Self> {
        let state = Mutex::new(WatchState::NotYet);
        let watch = Self { upstream, folder, changed, state };
        watch.renew();
        Arc::new(watch)
    }

    /// Watches the folder that is behind the path now; to be called before each reading, so that no
    /// edit comes between. Blocks.
    pub(super) fn renew(&self) {
        let folder = self.identity();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(&*state, WatchState::On { folder: on, .. } if Some(on) == folder.as_ref()) {
            return;
        }
        *state = match (folder, disk::watch(&self.folder, self.changed.clone())) {
            (Some(folder), Ok(watch)) => WatchState::On { folder, _watch: watch },
            (_, watch) => {
                if !matches!(*state, WatchState::Lost) {
                    let error = watch.err().map(|error| error.to_string());
                    warn!(
                        upstream = &*self.upstream,
                        error, "the library cannot be watched; edits are found by polling only"
                    );
                }
                WatchState::Lost
            }
        };
    }

    fn identity(&self) -> Option<FolderIdentity> {
        let resolved = disk::canonicalize(&self.folder).ok()?;
        let inode = disk::metadata(&resolved).ok()?.inode;
        Some((resolved, inode))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    async fn is_notified(watch: &LibraryWatch) {
        let notified = timeout(Duration::from_secs(20), watch.changed.notified());
        notified.await.expect("the change is seen");
    }

    #[tokio::test]
    async fn a_folder_that_is_replaced_is_watched_from_then_on() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for name in ["rev1", "rev2", "rev3"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        symlink("rev1", root.join("current")).unwrap();
        symlink("current", root.join("prompts")).unwrap();
        let prompts = root.join("prompts");
        let watch = LibraryWatch::new("lib".into(), prompts.clone(), Arc::default());
        let swaps: [&dyn Fn(); 3] = [
            // A link on the way, and the last link.
            &|| {
                symlink("rev2", root.join("t")).unwrap();
                fs::rename(root.join("t"), root.join("current")).unwrap();
            },
            &|| {
                symlink("rev3", root.join("t")).unwrap();
                fs::rename(root.join("t"), &prompts).unwrap();
            },
            &|| {
                fs::remove_file(&prompts).unwrap();
                fs::rename(root.join("rev1"), &prompts).unwrap();
            },
        ];
        for swap in swaps {
            swap();
            is_notified(&watch).await;
            watch.renew();
            fs::write(prompts.join("a.md"), "edited").unwrap();
            is_notified(&watch).await;
            // The events of one edit may cause several notifications.
            watch.renew();
        }
        fs::remove_dir_all(&prompts).unwrap();
        watch.renew();
        assert!(matches!(*watch.state.lock().unwrap(), WatchState::Lost));
        fs::create_dir(&prompts).unwrap();
        watch.renew();
        assert!(matches!(*watch.state.lock().unwrap(), WatchState::On { .. }));
    }
}
