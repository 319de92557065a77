//! Where the logins of the upstreams are kept: in files, or in the store of the cluster. Both hold
//! sealed texts, and no readable token.

mod folder;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::StoredLogin;
use base::platform;
use base::platform::disk::File;
use base::seal::{Sealer, TokenKind};
use cluster::{self, SharedLoginError, SharedLogins};
pub use folder::Folder;

/// The logins of the upstreams, by their ids; those of callers by
/// [`CallerName::login_name`](crate::caller::CallerName::login_name).
pub struct LoginBackend {
    place: Place,
    sealer: Sealer,
    /// `logins.idle`.
    idle: Duration,
}

/// The place of the sealed logins.
enum Place {
    Folder(Arc<Folder>),
    Cluster(Arc<SharedLogins>),
}

/// The lock of one login, which keeps other processes from renewing it: a refresh token that is
/// sent twice ends the sign-in at many providers (OAuth 2.1, section 4.3.1). A login is changed
/// only with its lock.
pub struct LoginLock<'a> {
    store: &'a LoginBackend,
    upstream: String,
    held: HeldLock,
}

enum HeldLock {
    /// Locked until the file is dropped.
    File {
        folder: Arc<Folder>,
        _file: File,
    },
    Cluster(cluster::LoginLock),
}

/// Why a login cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum LoginStoreError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The text was altered, or its key is gone.
    #[error(
        "{place} was not sealed with a key of server.seal_key: add the key that was used, or sign in again with \
         `promptgate login {upstream}`"
    )]
    Unreadable { place: String, upstream: String },
    #[error("{} is locked by another process for too long", .0.display())]
    Busy(PathBuf),
    #[error(transparent)]
    Cluster(#[from] SharedLoginError),
    #[error("the sign-ins cannot be read: {0}")]
    Interrupted(String),
}

/// The longest time for which a process renews a login, and for which other processes wait: a token
/// request takes ten seconds at most.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);

impl LoginBackend {
    /// `shared` holds the logins, if there is a cluster.
    pub fn new(config: &config::Logins, shared: Option<Arc<SharedLogins>>) -> Self {
        let place = match shared {
            Some(shared) => Place::Cluster(shared),
            None => Place::Folder(Arc::new(Folder::new(&config.path))),
        };
        Self { place, sealer: Sealer::new(&config.keys), idle: config.idle }
    }

    /// Reads the login of an upstream; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read or opened.
    pub async fn read(&self, upstream: &str) -> Result<Option<StoredLogin>, LoginStoreError> {
        let sealed = match &self.place {
            Place::Folder(folder) => {
                let folder = folder.clone();
                let upstream = upstream.to_owned();
                blocking(move || folder.read(&upstream)).await?
            }
            Place::Cluster(shared) => shared.read(upstream).await?,
        };
        sealed.map(|sealed| self.open(upstream, &sealed)).transpose()
    }

    /// Reads a login as [`LoginBackend::read`]. `None` also for a login that cannot be opened any
    /// more: the next login replaces it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn find(&self, name: &str) -> Result<Option<StoredLogin>, LoginStoreError> {
        match self.read(name).await {
            Err(LoginStoreError::Unreadable { .. }) => Ok(None),
            found => found,
        }
    }

    /// Returns the logins whose names begin with `prefix`, except those that cannot be opened.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn all(&self, prefix: String) -> Result<Vec<StoredLogin>, LoginStoreError> {
        let names = match &self.place {
            Place::Folder(folder) => {
                let folder = folder.clone();
                blocking(move || folder.names(&prefix)).await?
            }
            Place::Cluster(shared) => shared.names(&prefix).await?,
        };
        let mut kept = Vec::new();
        for name in names {
            kept.extend(self.find(&name).await?);
        }
        Ok(kept)
    }

    /// Locks the login of an upstream. Waits for at most [`LOCK_TIMEOUT`].
    ///
    /// # Errors
    /// When another process takes too long, the file system knows no locks, or the store of the
    /// cluster is not available.
    pub async fn lock(&self, upstream: &str) -> Result<LoginLock<'_>, LoginStoreError> {
        let held = match &self.place {
            Place::Folder(folder) => {
                let own = folder.clone();
                let id = upstream.to_owned();
                let file = blocking(move || own.lock(&id, LOCK_TIMEOUT)).await?;
                HeldLock::File { folder: folder.clone(), _file: file }
            }
            Place::Cluster(shared) => HeldLock::Cluster(shared.lock(upstream, LOCK_TIMEOUT).await?),
        };
        Ok(LoginLock { store: self, upstream: upstream.to_owned(), held })
    }

    /// Keeps the login of an upstream for another `logins.idle`, if there is one.
    pub(crate) async fn mark_used(
        &self,
        upstream: &str,
        now: SystemTime,
    ) -> Result<(), LoginStoreError> {
        match &self.place {
            Place::Folder(folder) => {
                let folder = folder.clone();
                let upstream = upstream.to_owned();
                blocking(move || folder.mark_used(&upstream, now)).await
            }
            Place::Cluster(shared) => Ok(shared.mark_used(upstream, self.idle).await?),
        }
    }

    /// Forgets the logins that were not used for `logins.idle`, except those of the upstreams
    /// `in_use`, and returns their upstreams. The store of a cluster forgets logins by itself.
    pub(crate) async fn forget_idle(
        &self,
        in_use: &[String],
        now: SystemTime,
    ) -> Result<Vec<String>, LoginStoreError> {
        match &self.place {
            Place::Folder(folder) => {
                let folder = folder.clone();
                let in_use = in_use.to_vec();
                let idle = self.idle;
                blocking(move || folder.forget_idle(&in_use, now, idle)).await
            }
            Place::Cluster(_) => Ok(Vec::new()),
        }
    }

    fn open(&self, upstream: &str, sealed: &str) -> Result<StoredLogin, LoginStoreError> {
        let plain = self.sealer.open(TokenKind::Login, upstream, sealed);
        let login = plain.and_then(|plain| serde_json::from_slice(&plain).ok());
        let place = || match &self.place {
            Place::Folder(folder) => folder.path(upstream).display().to_string(),
            Place::Cluster(_) => "what the store of the cluster has".to_owned(),
        };
        login.ok_or_else(|| LoginStoreError::Unreadable {
            place: place(),
            upstream: upstream.to_owned(),
        })
    }

    fn seal(&self, login: &StoredLogin) -> String {
        // Texts and numbers are always written.
        let plain = serde_json::to_vec(login).unwrap_or_default();
        self.sealer.seal(TokenKind::Login, &login.upstream, &plain)
    }
}

impl LoginLock<'_> {
    /// Replaces the login of the locked upstream.
    ///
    /// # Errors
    /// When it cannot be written, or the lock has expired meanwhile.
    pub async fn write(&self, login: &StoredLogin) -> Result<(), LoginStoreError> {
        self.write_for(login, self.store.idle).await
    }

    /// Replaces the login of the locked upstream. The store of a cluster forgets it after
    /// `lifetime`.
    ///
    /// # Errors
    /// As [`LoginLock::write`].
    pub async fn write_for(
        &self,
        login: &StoredLogin,
        lifetime: Duration,
    ) -> Result<(), LoginStoreError> {
        let sealed = self.store.seal(login);
        match &self.held {
            HeldLock::File { folder, .. } => {
                let folder = folder.clone();
                let upstream = self.upstream.clone();
                blocking(move || folder.write(&upstream, &sealed)).await
            }
            HeldLock::Cluster(lock) => Ok(lock.write(&sealed, lifetime).await?),
        }
    }

    /// Removes the login of the locked upstream.
    ///
    /// # Errors
    /// When it cannot be removed, or the lock has expired meanwhile.
    pub async fn remove(&self) -> Result<(), LoginStoreError> {
        match &self.held {
            HeldLock::File { folder, .. } => {
                let folder = folder.clone();
                let upstream = self.upstream.clone();
                blocking(move || folder.remove(&upstream)).await
            }
            HeldLock::Cluster(lock) => Ok(lock.remove().await?),
        }
    }

    /// Lets other processes change the login. A lock that is dropped instead is released when it
    /// expires.
    pub async fn release(self) {
        if let HeldLock::Cluster(lock) = self.held {
            lock.release().await;
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoginStoreError> + Send + 'static,
) -> Result<T, LoginStoreError> {
    let done = platform::blocking(work).await;
    done.unwrap_or_else(|error| Err(LoginStoreError::Interrupted(error.to_string())))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::sample_login;
    use base::seal::SealKeys;

    fn store(folder: &Path, keys: &[u8]) -> LoginBackend {
        let keys = SealKeys::new(keys.iter().map(|key| [*key; 32]).collect()).unwrap();
        let idle = Duration::from_secs(3600);
        LoginBackend::new(&config::Logins { path: folder.join("logins"), keys, idle }, None)
    }

    async fn write(store: &LoginBackend, login: &StoredLogin) {
        store.lock(&login.upstream).await.unwrap().write(login).await.unwrap();
    }

    #[tokio::test]
    async fn a_login_is_read_back_and_its_file_holds_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let kept = store(folder.path(), &[1]);
        assert!(kept.read("wiki").await.unwrap().is_none());
        write(&kept, &sample_login("wiki")).await;
        let read = kept.read("wiki").await.unwrap().unwrap();
        assert_eq!((read.access_token.as_str(), read.id.as_str()), ("access-canary", "one"));
        let logins = folder.path().join("logins");
        let file = logins.join("wiki.login");
        let text = fs::read_to_string(&file).unwrap();
        for secret in ["canary", "id.example", "gateway"] {
            assert!(!text.contains(secret));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&file), mode(&logins)), (0o600, 0o700));
        }
        let lock = kept.lock("wiki").await.unwrap();
        lock.remove().await.unwrap();
        lock.remove().await.unwrap();
        assert!(kept.read("wiki").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn keys_are_rotated_and_a_lost_key_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        write(&store(folder.path(), &[1]), &sample_login("wiki")).await;
        let rotated = store(folder.path(), &[2, 1]);
        let read = rotated.read("wiki").await.unwrap().unwrap();
        write(&rotated, &read).await;
        assert!(store(folder.path(), &[2]).read("wiki").await.unwrap().is_some(), "sealed anew");
        let lost = store(folder.path(), &[1]).read("wiki").await.err().unwrap().to_string();
        assert!(lost.contains("promptgate login wiki"), "{lost}");
    }

    #[tokio::test]
    async fn the_file_of_one_upstream_is_none_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let kept = store(folder.path(), &[1]);
        write(&kept, &sample_login("wiki")).await;
        let logins = folder.path().join("logins");
        fs::copy(logins.join("wiki.login"), logins.join("other.login")).unwrap();
        assert!(matches!(kept.read("other").await, Err(LoginStoreError::Unreadable { .. })));
    }

    #[test]
    fn logins_of_earlier_releases_open() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path(), &[7]);
        let sealed = include_str!("../../../../tests/formats/login-1");
        let opened = store.open("wiki", sealed).expect("it opens");
        assert!(
            serde_json::to_value(opened).unwrap()
                == serde_json::to_value(sample_login("wiki")).unwrap()
        );
    }
}
