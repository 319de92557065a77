//! The files of `[grants]`: one for each upstream, sealed, so that who reads the disk reads no token.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Grant;
use crate::config;
use crate::config::durable_file::{self, Readers};
use crate::seal::{Kind, Sealer};

/// The grants of the upstreams.
pub(crate) struct GrantStore {
    folder: PathBuf,
    sealer: Sealer,
}

/// Why a grant cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// It was altered, or the key that it was sealed with is gone.
    #[error(
        "{} was not sealed with a key of server.seal_key: add the key that was used, or sign in again with \
         `promptgate login {upstream}`",
        path.display()
    )]
    Unreadable { path: PathBuf, upstream: String },
    #[error("{} is locked by another process for too long", .0.display())]
    Busy(PathBuf),
}

/// The ending of a grant's file; before it stands the id of the upstream.
const ENDING: &str = "grant";

/// The longest wait for another process that renews the same grant: a token request takes ten seconds at most.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);

impl GrantStore {
    pub(crate) fn new(config: &config::Grants) -> Self {
        Self { folder: config.path.clone(), sealer: Sealer::new(&config.keys) }
    }

    /// Reads the grant of an upstream; `None` if there is none.
    ///
    /// # Errors
    /// When its file cannot be read or opened.
    pub(crate) fn read(&self, upstream: &str) -> Result<Option<Grant>, StoreError> {
        let path = self.path(upstream);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::Io { path, error }),
        };
        let plain = self.sealer.open(Kind::Grant, upstream, text.trim_end());
        let grant = plain.and_then(|plain| serde_json::from_slice(&plain).ok());
        let unreadable = || StoreError::Unreadable { path, upstream: upstream.to_owned() };
        grant.ok_or_else(unreadable).map(Some)
    }

    /// Keeps a grant in place of the one before. It is on the disk afterwards.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub(crate) fn write(&self, grant: &Grant) -> Result<(), StoreError> {
        self.make_folder()?;
        // Texts and numbers are always written.
        let plain = serde_json::to_vec(grant).unwrap_or_default();
        let sealed = self.sealer.seal(Kind::Grant, &grant.upstream, &plain) + "\n";
        let path = self.path(&grant.upstream);
        durable_file::replace(&path, &sealed, Readers::Owner)
            .map_err(|error| StoreError::Io { path, error })
    }

    /// Removes the grant of an upstream.
    ///
    /// # Errors
    /// When its file cannot be removed.
    pub(crate) fn remove(&self, upstream: &str) -> Result<(), StoreError> {
        let path = self.path(upstream);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::Io { path, error })
            }
            _ => Ok(()),
        }
    }

    /// Keeps other processes from renewing the grant of an upstream, until the file is dropped: a refresh token that
    /// is sent twice ends the sign-in at many providers (OAuth 2.1, section 4.3.1). Blocks.
    ///
    /// # Errors
    /// When another process takes too long, or the file system knows no locks.
    pub(crate) fn hold(&self, upstream: &str) -> Result<File, StoreError> {
        self.make_folder()?;
        let path = self.folder.join(format!("{upstream}.lock"));
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        let file = opened.map_err(|error| StoreError::Io { path: path.clone(), error })?;
        durable_file::lock(&file, LOCK_TIMEOUT).map_err(|why| match why {
            TryLockError::WouldBlock => StoreError::Busy(path),
            TryLockError::Error(error) => StoreError::Io { path, error },
        })?;
        Ok(file)
    }

    /// Creates the folder, for its owner only. It must be there before it can be watched.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(crate) fn make_folder(&self) -> Result<&Path, StoreError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::DirBuilderExt;
            builder.mode(0o700);
        }
        let path = &self.folder;
        let created = builder.create(path);
        created.map_err(|error| StoreError::Io { path: path.clone(), error })?;
        Ok(path)
    }

    fn path(&self, upstream: &str) -> PathBuf {
        self.folder.join(format!("{upstream}.{ENDING}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::tests::grant;
    use crate::seal::SealKeys;

    fn store(folder: &Path, keys: &[u8]) -> GrantStore {
        let keys = SealKeys::new(keys.iter().map(|key| [*key; 32]).collect()).unwrap();
        GrantStore::new(&config::Grants { path: folder.join("grants"), keys })
    }

    #[test]
    fn a_grant_is_read_back_and_its_file_holds_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let kept = store(folder.path(), &[1]);
        assert!(kept.read("wiki").unwrap().is_none());
        kept.write(&grant("wiki")).unwrap();
        let read = kept.read("wiki").unwrap().unwrap();
        assert_eq!((read.access_token.as_str(), read.id.as_str()), ("access-canary", "one"));
        let text = fs::read_to_string(kept.path("wiki")).unwrap();
        for secret in ["canary", "id.example", "gateway"] {
            assert!(!text.contains(secret));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&kept.path("wiki")), mode(&kept.folder)), (0o600, 0o700));
        }
        kept.remove("wiki").unwrap();
        kept.remove("wiki").unwrap();
        assert!(kept.read("wiki").unwrap().is_none());
    }

    #[test]
    fn keys_are_rotated_and_a_lost_key_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        store(folder.path(), &[1]).write(&grant("wiki")).unwrap();
        let rotated = store(folder.path(), &[2, 1]);
        let read = rotated.read("wiki").unwrap().unwrap();
        rotated.write(&read).unwrap();
        assert!(store(folder.path(), &[2]).read("wiki").unwrap().is_some(), "sealed anew");
        let lost = store(folder.path(), &[1]).read("wiki").err().unwrap().to_string();
        assert!(lost.contains("promptgate login wiki"), "{lost}");
    }

    #[test]
    fn the_file_of_one_upstream_is_none_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let kept = store(folder.path(), &[1]);
        kept.write(&grant("wiki")).unwrap();
        fs::copy(kept.path("wiki"), kept.path("other")).unwrap();
        assert!(matches!(kept.read("other"), Err(StoreError::Unreadable { .. })));
    }

    #[test]
    fn one_process_at_a_time_renews_a_grant() {
        let folder = tempfile::tempdir().unwrap();
        let kept = store(folder.path(), &[1]);
        let held = kept.hold("wiki").unwrap();
        assert!(kept.hold("other").is_ok());
        let path = kept.folder.join("wiki.lock");
        let second = File::options().write(true).open(path).unwrap();
        assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        assert!(kept.hold("wiki").is_ok());
    }
}
