//! The folder of `[logins]`: one file for each upstream, with its sealed sign-in. All functions
//! block.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::warn;

use super::LoginStoreError;
use base::platform::disk::{self, File, OpenOptions, Readers};
use config::durable_file;

/// A folder of sealed sign-ins.
pub struct Folder(PathBuf);

/// The extension of a login's file; its stem is the id of the upstream.
const ENDING: &str = "login";

impl Folder {
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Reads the sealed text of an upstream's file; `None` if there is none.
    pub(super) fn read(&self, upstream: &str) -> Result<Option<String>, LoginStoreError> {
        let path = self.path(upstream);
        match disk::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim_end().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LoginStoreError::Io { path, error }),
        }
    }

    /// Replaces the sealed text of an upstream, and syncs it to the disk.
    pub(super) fn write(&self, upstream: &str, sealed: &str) -> Result<(), LoginStoreError> {
        self.create()?;
        let path = self.path(upstream);
        durable_file::replace(&path, format!("{sealed}\n"), Readers::Owner)
            .map_err(|error| LoginStoreError::Io { path, error })
    }

    /// Removes the file of an upstream.
    pub(super) fn remove(&self, upstream: &str) -> Result<(), LoginStoreError> {
        let path = self.path(upstream);
        match disk::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LoginStoreError::Io { path, error })
            }
            _ => Ok(()),
        }
    }

    /// Locks the file of an upstream for this process, until the returned file is dropped. Waits
    /// for another process for at most `patience`.
    pub(super) fn lock(&self, upstream: &str, patience: Duration) -> Result<File, LoginStoreError> {
        self.create()?;
        let path = self.0.join(format!("{upstream}.lock"));
        let held = durable_file::hold(&path, Readers::Owner, patience);
        held.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => LoginStoreError::Busy(path),
            _ => LoginStoreError::Io { path, error },
        })
    }

    /// Sets the time at which the file of an upstream was used, if there is one.
    pub(super) fn mark_used(&self, upstream: &str, now: SystemTime) -> Result<(), LoginStoreError> {
        let path = self.path(upstream);
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let marked = options.open(&path).and_then(|file| file.set_modified(now));
        match marked {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LoginStoreError::Io { path, error })
            }
            _ => Ok(()),
        }
    }

    /// Returns the names of the logins that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> Result<Vec<String>, LoginStoreError> {
        let logins = self.listed()?.into_iter().filter_map(|name| {
            let name = name.to_str()?.strip_suffix(".login")?;
            name.starts_with(prefix).then(|| name.to_owned())
        });
        Ok(logins.collect())
    }

    fn listed(&self) -> Result<Vec<std::ffi::OsString>, LoginStoreError> {
        match disk::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.map_err(|error| LoginStoreError::Io { path: self.0.clone(), error }),
        }
    }

    /// Removes the files that were not used for `idle`, except those of the upstreams `in_use`.
    /// Returns the upstreams of the removed files.
    pub(super) fn forget_idle(
        &self,
        in_use: &[String],
        now: SystemTime,
        idle: Duration,
    ) -> Result<Vec<String>, LoginStoreError> {
        let mut forgotten = Vec::new();
        for path in self.listed()?.into_iter().map(|name| self.0.join(name)) {
            let Some(upstream) = upstream_of(&path).filter(|id| !in_use.iter().any(|u| u == id))
            else {
                continue;
            };
            match self.forget(upstream, &path, |used| is_idle(now, used, idle)) {
                Ok(true) => forgotten.push(upstream.to_owned()),
                // A locked file is in use.
                Ok(false) | Err(LoginStoreError::Busy(_)) => {}
                Err(error) => warn!(upstream, %error, "an unused sign-in cannot be removed"),
            }
        }
        Ok(forgotten)
    }

    /// Removes the file of an upstream if it is idle. Returns whether it was idle.
    fn forget(
        &self,
        upstream: &str,
        path: &Path,
        is_idle: impl Fn(SystemTime) -> bool,
    ) -> Result<bool, LoginStoreError> {
        let used = || disk::metadata(path).ok().and_then(|metadata| metadata.modified);
        if !used().is_some_and(&is_idle) {
            return Ok(false);
        }
        // Checked again with the lock: another process may have used the file by now.
        let _lock = self.lock(upstream, Duration::ZERO)?;
        if !used().is_some_and(&is_idle) {
            return Ok(false);
        }
        disk::remove_file(path)
            .map(|()| true)
            .map_err(|error| LoginStoreError::Io { path: path.to_owned(), error })
    }

    /// Creates the folder, for its owner only. It must be there before it can be watched.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(&self) -> Result<&Path, LoginStoreError> {
        let path = &self.0;
        let created = disk::create_dir_all(path, Readers::Owner);
        created.map_err(|error| LoginStoreError::Io { path: path.clone(), error })?;
        Ok(path)
    }

    /// The file of an upstream.
    pub(super) fn path(&self, upstream: &str) -> PathBuf {
        self.0.join(format!("{upstream}.{ENDING}"))
    }
}

/// Returns the upstream of a login's file, whole or not; `None` for another file.
fn upstream_of(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let name = durable_file::target_of(name).unwrap_or(name);
    name.strip_suffix(ENDING)?.strip_suffix('.')
}

/// Whether a login that was used last at `used` is forgotten at `now`. A login that was used in the
/// future, by a clock that was set back since, is kept.
fn is_idle(now: SystemTime, used: SystemTime, idle: Duration) -> bool {
    now.duration_since(used).is_ok_and(|unused| unused >= idle)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    const IDLE: Duration = Duration::from_hours(1);

    #[test]
    fn a_login_is_forgotten_once_it_was_unused_for_idle() {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let after = |secs| is_idle(used + Duration::from_secs(secs), used, IDLE);
        assert!(!after(0) && !after(3_599));
        assert!(after(3_600) && after(3_601));
        assert!(!is_idle(used - Duration::from_secs(7_200), used, IDLE));
    }

    #[test]
    fn files_that_nobody_uses_are_removed_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logins");
        let logins = Folder::new(&path);
        assert!(logins.forget_idle(&[], SystemTime::now(), IDLE).unwrap().is_empty());
        assert!(!path.exists());
        let now = SystemTime::now();
        for name in ["gone", "used", "marked", "other"] {
            logins.write(name, "sealed").unwrap();
        }
        fs::rename(path.join("other.login"), path.join("other.txt")).unwrap();
        fs::write(path.join(".unfinished-0123456789abcdef-lost.login"), "sealed").unwrap();
        let before = |age| now - age;
        for name in [
            "gone.login",
            "used.login",
            "marked.login",
            "other.txt",
            ".unfinished-0123456789abcdef-lost.login",
        ] {
            let file = File::options().write(true).open(path.join(name)).unwrap();
            file.set_modified(before(IDLE)).unwrap();
        }
        logins.mark_used("marked", before(IDLE - Duration::from_secs(1))).unwrap();
        logins.mark_used("missing", now).unwrap();
        let held = logins.lock("gone", Duration::ZERO).unwrap();
        let forget = || {
            let mut forgotten = logins.forget_idle(&["used".to_owned()], now, IDLE).unwrap();
            forgotten.sort();
            forgotten
        };
        assert_eq!(forget(), ["lost"], "one that is locked is in use");
        drop(held);
        assert_eq!(forget(), ["gone"]);
        assert_eq!(forget(), [""; 0]);
        for name in ["used.login", "marked.login", "other.txt"] {
            assert!(path.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn one_process_at_a_time_renews_a_login() {
        let folder = tempfile::tempdir().unwrap();
        let logins = Folder::new(&folder.path().join("logins"));
        let held = logins.lock("wiki", Duration::ZERO).unwrap();
        assert!(logins.lock("other", Duration::ZERO).is_ok());
        // Within one process, locks of two open files exclude each other as well.
        assert!(matches!(logins.lock("wiki", Duration::ZERO), Err(LoginStoreError::Busy(_))));
        drop(held);
        assert!(logins.lock("wiki", Duration::ZERO).is_ok());
    }
}
