//! Files that are replaced as a whole, by one process at a time.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

pub use base::platform::disk::{self, File, Metadata, OpenOptions, Readers};
use base::platform::sleep;

/// The beginning of the name of a file that is not whole yet.
pub const UNFINISHED: &str = ".unfinished-";

/// Replaces a file by way of an unfinished one beside it, so that a reader, or a crash at any
/// moment, finds the old content or the new one. It is on the disk afterwards, with the permissions
/// that it had; `readers` are those of a file that was not there before.
///
/// # Errors
/// When the unfinished file cannot be written or take the place of the other.
pub fn replace(target: &Path, content: impl AsRef<[u8]>, readers: Readers) -> io::Result<()> {
    let folder = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = folder.join(format!("{UNFINISHED}{name}"));
    let options = OpenOptions {
        create: true,
        truncate: true,
        write: true,
        readers,
        ..OpenOptions::default()
    };
    let mut file = options.open(&unfinished)?;
    file.write_all(content.as_ref())?;
    if let Ok(Metadata { mode: Some(mode), .. }) = disk::metadata(target) {
        file.set_mode(mode)?;
    }
    file.sync_all()?;
    disk::rename(&unfinished, target)?;
    // A rename is on the disk with its folder. Some file systems cannot sync folders.
    let _ = disk::sync_folder(folder);
    Ok(())
}

/// The time between two attempts to lock a file.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Locks a file for this process, until the file is closed. Blocks for at most `patience`.
///
/// # Errors
/// When another process holds it for longer (`WouldBlock`), or the file system knows no locks.
pub fn lock(file: &File, patience: Duration) -> io::Result<()> {
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waited < patience => {
                sleep(LOCK_POLL);
                waited += LOCK_POLL;
            }
            ended => return ended,
        }
    }
}
