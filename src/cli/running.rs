//! The record of a running gateway, for commands on the same machine: the ports that it listens at
//! may not be those of its configuration file.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use base::seal;
use base::seal::hex::hex;

/// A gateway that serves over HTTP on this machine.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Running {
    pid: u32,
    /// URL of the main endpoint.
    pub endpoint: String,
    /// URL of the admin API; `None` if it is disabled.
    pub admin: Option<String>,
}

/// Removes the record when the gateway ends. The lock shows that the gateway runs: the system
/// releases it with the process, however that ends.
#[must_use]
pub(super) struct RunningRecord(Option<(PathBuf, File)>);

impl Drop for RunningRecord {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.0
            // Another gateway with the same file may have replaced the record.
            && Running::read(path).is_some_and(|running| running.pid == std::process::id())
        {
            let _ = fs::remove_file(path);
        }
    }
}

impl Running {
    /// Records this process as the gateway of a configuration file. Serving does not depend on it:
    /// where the record cannot be written, commands use the addresses of the file.
    pub(super) fn record(config: &Path, endpoint: String, admin: Option<String>) -> RunningRecord {
        let running = Self { pid: std::process::id(), endpoint, admin };
        RunningRecord(running.write(config).ok())
    }

    fn write(&self, config: &Path) -> io::Result<(PathBuf, File)> {
        let folder = folder();
        create_private(&folder)?;
        let path = folder.join(file_name(config)?);
        let temporary = path.with_extension(format!("{}.tmp", self.pid));
        let mut file = File::create(&temporary)?;
        file.lock()?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&temporary, &path)?;
        Ok((path, file))
    }

    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Returns the gateway that runs with a configuration file; `None` if none is recorded, or the
    /// recorded one has ended.
    pub(super) fn find(config: &Path) -> Option<Self> {
        let folder = folder();
        is_private(&folder).then_some(())?;
        let path = folder.join(file_name(config).ok()?);
        let is_running =
            matches!(File::open(&path).ok()?.try_lock_shared(), Err(TryLockError::WouldBlock));
        is_running.then(|| Self::read(&path)).flatten()
    }
}

/// Returns the folder of the records: that of the session, or else one of this user among the
/// temporary files.
fn folder() -> PathBuf {
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match session.filter(|folder| folder.is_absolute()) {
        Some(folder) => folder.join("promptgate"),
        None => std::env::temp_dir().join(format!("promptgate-{}", user())),
    }
}

/// Creates a folder that other users can neither read nor replace.
fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    if is_private(folder) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Whether a folder belongs to this user, and no other user can write to it: a record of another
/// user could name another gateway.
#[cfg(unix)]
fn is_private(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_private = |metadata: fs::Metadata| {
        metadata.is_dir() && metadata.uid() == user() && metadata.mode() & 0o022 == 0
    };
    fs::symlink_metadata(folder).is_ok_and(is_private)
}

#[cfg(not(unix))]
fn is_private(_: &Path) -> bool {
    true
}

#[cfg(unix)]
fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

#[cfg(not(unix))]
fn user() -> u32 {
    0
}

/// Returns the name of the record of a configuration file.
fn file_name(config: &Path) -> io::Result<String> {
    let path = config.canonicalize()?;
    let digest = seal::sha256(path.as_os_str().as_encoded_bytes());
    Ok(format!("{}.json", hex(&digest[..8])))
}
