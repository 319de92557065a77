//! Files that are replaced as a whole, by one process at a time.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use base::platform::disk::{self, File, Metadata, OpenOptions, Readers};
use base::platform::sleep;
use base::seal;
use base::seal::hex::hex;

/// The prefix of the names of incomplete files.
pub const UNFINISHED: &str = ".unfinished-";

/// Returns the name of the file that an unfinished file is to replace; `None` for another file.
pub fn target_of(unfinished: &str) -> Option<&str> {
    Some(unfinished.strip_prefix(UNFINISHED)?.split_once('-')?.1)
}

/// Replaces a file by renaming an unfinished file in the same folder, so that a reader, or a crash
/// at any moment, finds the old or the new content. On return the new content is on the disk, with
/// the mode of the old file, or `readers` if the file is new. The unfinished file has a random
/// name, because writing to a predictable name could follow a planted link.
///
/// # Errors
/// When the unfinished file cannot be written or take the place of the other.
pub fn replace(target: &Path, content: impl AsRef<[u8]>, readers: Readers) -> io::Result<()> {
    replace_all(folder_of(target), &[(target, content)], readers)
}

/// Replaces several files of one folder, each as [`replace`] does. All are written before the first
/// is synced, because a file system syncs many files in little more time than one file.
///
/// # Errors
/// As [`replace`]; files before the mistake may be replaced.
pub fn replace_all<P: AsRef<Path>, C: AsRef<[u8]>>(
    folder: &Path,
    files: &[(P, C)],
    readers: Readers,
) -> io::Result<()> {
    for files in files.chunks(MAX_UNFINISHED) {
        let write = |(target, content): &'_ (P, C)| {
            Unfinished::write(target.as_ref(), content.as_ref(), readers)
        };
        let written: Vec<Unfinished> = files.iter().map(write).collect::<io::Result<_>>()?;
        written.iter().try_for_each(|unfinished| unfinished.file.sync_all())?;
        written.into_iter().try_for_each(Unfinished::finish)?;
    }
    // A rename is durable once its folder is synced. Some file systems cannot sync folders.
    let _ = disk::sync_folder(folder);
    Ok(())
}

/// Most files that are open at once.
const MAX_UNFINISHED: usize = 64;

/// A written file that is not in its place yet; removed if it does not get there.
struct Unfinished {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Unfinished {
    fn write(target: &Path, content: &[u8], readers: Readers) -> io::Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let random = hex(&seal::random::<8>());
        let path = folder_of(target).join(format!("{UNFINISHED}{random}-{name}"));
        let options =
            OpenOptions { create_new: true, write: true, readers, ..OpenOptions::private() };
        let mut unfinished = Self { file: options.open(&path)?, path, target: target.to_owned() };
        unfinished.file.write_all(content)?;
        if let Ok(Metadata { mode: Some(mode), .. }) = disk::metadata(target) {
            unfinished.file.set_mode(mode)?;
        }
        Ok(unfinished)
    }

    fn finish(self) -> io::Result<()> {
        disk::rename(&self.path, &self.target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Does nothing for a file in its place.
        let _ = disk::remove_file(&self.path);
    }
}

fn folder_of(target: &Path) -> &Path {
    let folder = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// The time between two attempts to lock a file.
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Opens and locks a file, creating it if needed, to keep other processes out until it is closed. A
/// link in its place is an error. Blocks for at most `patience`.
///
/// # Errors
/// When the file cannot be opened, or as [`lock`].
pub fn hold(path: &Path, readers: Readers, patience: Duration) -> io::Result<File> {
    let options = OpenOptions { create: true, write: true, readers, ..OpenOptions::private() };
    let file = options.open(path)?;
    lock(&file, patience).map(|()| file)
}

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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_file_is_replaced_beside_any_link_with_the_name_of_an_unfinished_one() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("behind"), "of others").unwrap();
        symlink(file("behind"), file(".unfinished-labels.toml")).unwrap();
        fs::write(file("labels.toml"), "old").unwrap();
        fs::set_permissions(file("labels.toml"), fs::Permissions::from_mode(0o640)).unwrap();
        replace(&file("labels.toml"), "new", Readers::Usual).unwrap();
        assert_eq!(fs::read_to_string(file("behind")).unwrap(), "of others");
        assert_eq!(fs::read_to_string(file("labels.toml")).unwrap(), "new");
        let mode = fs::symlink_metadata(file("labels.toml")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        fs::create_dir_all(file("a folder/with")).unwrap();
        assert!(replace(&file("a folder"), "new", Readers::Usual).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing unfinished is left");
    }

    #[test]
    fn the_name_of_an_unfinished_file_says_for_which_it_was() {
        assert_eq!(target_of(".unfinished-0123456789abcdef-my-wiki.login"), Some("my-wiki.login"));
        assert_eq!(target_of("my-wiki.login"), None);
    }
}
