//! The folder of `[grants]`: one file for each upstream, with its sealed sign-in. All functions block.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::StoreError;
use crate::config::durable_file::{self, Readers};

/// A folder of sealed sign-ins.
pub(crate) struct Folder(PathBuf);

/// The ending of a grant's file; before it stands the id of the upstream.
const ENDING: &str = "grant";

impl Folder {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Reads the sealed text of an upstream's file; `None` if there is none.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn read(&self, upstream: &str) -> Result<Option<String>, StoreError> {
        let path = self.path(upstream);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim_end().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::Io { path, error }),
        }
    }

    /// Keeps a sealed text in place of the one before. It is on the disk afterwards.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(&self, upstream: &str, sealed: &str) -> Result<(), StoreError> {
        self.create()?;
        let path = self.path(upstream);
        durable_file::replace(&path, &format!("{sealed}\n"), Readers::Owner)
            .map_err(|error| StoreError::Io { path, error })
    }

    /// Removes the file of an upstream.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub(super) fn remove(&self, upstream: &str) -> Result<(), StoreError> {
        let path = self.path(upstream);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::Io { path, error })
            }
            _ => Ok(()),
        }
    }

    /// Locks the file of an upstream for this process, until the returned file is dropped. Waits for another process for
    /// at most `patience`.
    ///
    /// # Errors
    /// When another process takes too long, or the file system knows no locks.
    pub(super) fn lock(&self, upstream: &str, patience: Duration) -> Result<File, StoreError> {
        self.create()?;
        let path = self.0.join(format!("{upstream}.lock"));
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        let file = opened.map_err(|error| StoreError::Io { path: path.clone(), error })?;
        durable_file::lock(&file, patience).map_err(|why| match why {
            TryLockError::WouldBlock => StoreError::Busy(path),
            TryLockError::Error(error) => StoreError::Io { path, error },
        })?;
        Ok(file)
    }

    /// Creates the folder, for its owner only. It must be there before it can be watched.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(crate) fn create(&self) -> Result<&Path, StoreError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::DirBuilderExt;
            builder.mode(0o700);
        }
        let path = &self.0;
        let created = builder.create(path);
        created.map_err(|error| StoreError::Io { path: path.clone(), error })?;
        Ok(path)
    }

    /// The file of an upstream.
    pub(super) fn path(&self, upstream: &str) -> PathBuf {
        self.0.join(format!("{upstream}.{ENDING}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_renews_a_grant() {
        let folder = tempfile::tempdir().unwrap();
        let grants = Folder::new(&folder.path().join("grants"));
        let held = grants.lock("wiki", Duration::ZERO).unwrap();
        assert!(grants.lock("other", Duration::ZERO).is_ok());
        // Within one process, locks of two open files exclude each other as well.
        assert!(matches!(grants.lock("wiki", Duration::ZERO), Err(StoreError::Busy(_))));
        drop(held);
        assert!(grants.lock("wiki", Duration::ZERO).is_ok());
    }
}
