//! The record of a running gateway, for commands on the same machine: the ports that it listens at
//! may not be those of its configuration file.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use base::seal;
use base::seal::hex::hex;
use config::removed_protections::Protections;

/// A gateway that serves over HTTP on this machine.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Running {
    pid: u32,
    /// URL of the main endpoint.
    pub endpoint: String,
    /// URL of the admin API; `None` if it is disabled.
    pub admin: Option<String>,
    /// Protections that a reload must not remove implicitly; empty in the record of an older
    /// version.
    #[serde(default)]
    pub protections: Protections,
}

/// Removes the record when the gateway ends. The held file shows that the gateway runs: the system
/// releases it with the process, however that ends.
#[must_use]
pub(crate) struct RunningRecord {
    running: Running,
    /// The configuration file.
    config: PathBuf,
    held: Option<(PathBuf, File)>,
}

impl RunningRecord {
    /// Records the protections of the configuration that has come into use.
    pub(crate) fn renew(&mut self, protections: Protections) {
        if self.running.protections != protections {
            self.running.protections = protections;
            self.held = self.running.write(&self.config).ok().or(self.held.take());
        }
    }
}

impl Drop for RunningRecord {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.held
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
    pub(crate) fn record(
        config: &Path,
        endpoint: String,
        admin: Option<String>,
        protections: Protections,
    ) -> RunningRecord {
        let running = Self { pid: std::process::id(), endpoint, admin, protections };
        let held = running.write(config).ok();
        RunningRecord { running, config: config.to_owned(), held }
    }

    fn write(&self, config: &Path) -> io::Result<(PathBuf, File)> {
        let folder = folder();
        create_private(&folder)?;
        let path = folder.join(file_name(config)?);
        let temporary = path.with_extension(format!("{}.tmp", self.pid));
        let mut file = hold(&temporary)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&temporary, &path)?;
        Ok((path, file))
    }

    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Returns the gateway that runs with a configuration file; `None` if no gateway is recorded,
    /// or the recorded gateway has ended.
    pub(crate) fn find(config: &Path) -> Option<Self> {
        let folder = folder();
        is_private(&folder).then_some(())?;
        let path = folder.join(file_name(config).ok()?);
        is_held(&path).then(|| Self::read(&path)).flatten()
    }
}

/// Returns the folder of the records: that of the session, or else a folder of this user among the
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

/// Creates a file and holds it until its handle is dropped.
#[cfg(not(windows))]
fn hold(path: &Path) -> io::Result<File> {
    let file = File::create(path)?;
    file.lock()?;
    Ok(file)
}

#[cfg(not(windows))]
fn is_held(path: &Path) -> bool {
    let tried = File::open(path).map(|file| file.try_lock_shared());
    matches!(tried, Ok(Err(fs::TryLockError::WouldBlock)))
}

/// A locked file of Windows cannot be read by others: this one cannot be written.
#[cfg(windows)]
fn hold(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    // FILE_SHARE_READ and FILE_SHARE_DELETE; the latter allows renaming.
    File::options().write(true).create(true).truncate(true).share_mode(0x1 | 0x4).open(path)
}

#[cfg(windows)]
fn is_held(path: &Path) -> bool {
    const ERROR_SHARING_VIOLATION: i32 = 32;
    let error = File::options().write(true).open(path).err();
    error.and_then(|error| error.raw_os_error()) == Some(ERROR_SHARING_VIOLATION)
}

/// Returns the name of the record of a configuration file.
fn file_name(config: &Path) -> io::Result<String> {
    let path = config.canonicalize()?;
    let digest = seal::sha256(path.as_os_str().as_encoded_bytes());
    Ok(format!("{}.json", hex(&digest[..8])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_record_can_be_read_and_renamed_and_ends_with_its_handle() {
        let folder = tempfile::tempdir().unwrap();
        let [first, record] = ["first", "record"].map(|name| folder.path().join(name));
        let mut file = hold(&first).unwrap();
        file.write_all(b"text").unwrap();
        fs::rename(&first, &record).unwrap();
        assert!(is_held(&record));
        assert_eq!(fs::read(&record).unwrap(), b"text");
        drop(file);
        assert!(!is_held(&record) && !is_held(&first));
        assert_eq!(fs::read(&record).unwrap(), b"text", "looking changes nothing");
    }
}
