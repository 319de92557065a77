//! The folder of a log with its files, and the fail points at which tests inject faults.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tracing::warn;

pub(crate) use base::platform::disk::{self, File, FileKind, Metadata, OpenOptions, Readers};

/// The folder of a log, locked so that no other process writes into it.
pub(crate) struct LogFolder {
    path: PathBuf,
    failpoints: Failpoints,
    is_remote: bool,
    /// The locked file `lock`, and the locked folder, since the file can be removed while it is
    /// locked; `None` where folders cannot be locked. The locks end with the handles.
    _locks: (File, Option<File>),
}

/// The points at which a test can inject a fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FailPoint {
    BeforeWrite,
    AfterPartialWrite,
    BeforeSync,
    AfterSync,
    BeforeRename,
    AfterRename,
}

/// Injects faults in tests.
pub(crate) trait FaultInjector: Send {
    /// Fails, or panics, at a point.
    fn at(&mut self, point: FailPoint) -> io::Result<()>;

    /// Returns how many of `length` bytes are written before [`FailPoint::AfterPartialWrite`].
    fn allowed_length(&mut self, length: usize) -> usize {
        length
    }
}

type Failpoints = Option<Arc<Mutex<dyn FaultInjector>>>;

/// A segment that is open for writing.
pub(crate) struct LogSegment {
    pub name: String,
    /// The length, in bytes.
    pub bytes: u64,
    file: File,
    failpoints: Failpoints,
}

/// A sync of a segment that can run on a different thread.
pub(crate) struct PendingSync {
    file: File,
    failpoints: Failpoints,
    copies: CheckpointCopies,
}

/// Lines of checkpoints to copy to [`COPIES_FILE`], which a log agent sends to another machine.
#[derive(Default)]
pub(crate) struct CheckpointCopies {
    /// The folder of the log.
    pub folder: PathBuf,
    pub lines: Vec<u8>,
}

const LOCK_FILE: &str = "lock";
const TEMPORARY_FILE: &str = "next.tmp";
const SEGMENT_SUFFIX: &str = ".jsonl";
const COMPRESSED_SUFFIX: &str = ".gz";
const SEGMENT_PREFIX: &str = "audit-";

/// The file of the copies of checkpoints, and its name once it has [`MAX_COPIES`] bytes.
const COPIES_FILE: &str = "checkpoints.jsonl";
const FULL_COPIES_FILE: &str = "checkpoints.jsonl.1";

/// Bytes after which the next file of copies begins: more than a week of an idle gateway.
const MAX_COPIES: u64 = 8 << 20;

impl LogFolder {
    /// Opens and locks the folder; creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        disk::create_dir_all(path, Readers::Owner)?;
        check_owner(path, FileKind::Folder)?;
        let options = OpenOptions { create: true, write: true, ..OpenOptions::private() };
        let lock_file = options.open(&path.join(LOCK_FILE))?;
        lock(&lock_file)?;
        let folder = lock_folder(path)?;
        if let Err(error) = disk::remove_file(&path.join(TEMPORARY_FILE))
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        for name in segments(path)? {
            check_owner(&path.join(&name), FileKind::File)?;
        }
        let is_remote = disk::is_remote(path);
        let _locks = (lock_file, folder);
        Ok(Self { path: path.to_owned(), failpoints: None, is_remote, _locks })
    }

    #[cfg(test)]
    pub(crate) fn inject_faults(&mut self, failing: Arc<Mutex<dyn FaultInjector>>) {
        self.failpoints = Some(failing);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a write may take as long as another machine or process does.
    pub(crate) fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Returns the file names of the segments, oldest first.
    pub(crate) fn segments(&self) -> io::Result<Vec<String>> {
        segments(&self.path)
    }

    /// Returns the size of all segments, in bytes.
    pub(crate) fn total(&self) -> io::Result<u64> {
        let length = |name: String| match disk::metadata(&self.path.join(name)) {
            // It was compressed, or has left, meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            meta => meta.map(|meta| meta.length),
        };
        self.segments()?.into_iter().map(length).sum()
    }

    /// Creates a segment atomically: it is written and synced under a temporary name first.
    pub(crate) fn create(&self, name: &str, content: &[u8]) -> io::Result<LogSegment> {
        let temporary = self.path.join(TEMPORARY_FILE);
        let made = self.write_whole(&temporary, name, content);
        if made.is_err() {
            // Frees the space and the name for the next attempt.
            let _ = disk::remove_file(&temporary);
        }
        made
    }

    fn write_whole(&self, temporary: &Path, name: &str, content: &[u8]) -> io::Result<LogSegment> {
        let options = OpenOptions { create_new: true, append: true, ..OpenOptions::private() };
        let file = options.open(temporary)?;
        let failpoints = self.failpoints.clone();
        let mut segment = LogSegment { name: name.to_owned(), bytes: 0, file, failpoints };
        segment.append(content)?;
        segment.pending_sync()?.run()?;
        at(&self.failpoints, FailPoint::BeforeRename)?;
        disk::rename(temporary, &self.path.join(name))?;
        at(&self.failpoints, FailPoint::AfterRename)?;
        self.sync()?;
        Ok(segment)
    }

    /// Opens an existing segment to append to it.
    pub(crate) fn reopen(&self, name: &str) -> io::Result<LogSegment> {
        let options = OpenOptions { append: true, ..OpenOptions::private() };
        let file = options.open(&self.path.join(name))?;
        let bytes = file.metadata()?.length;
        let failpoints = self.failpoints.clone();
        Ok(LogSegment { name: name.to_owned(), bytes, file, failpoints })
    }

    /// Truncates a segment to `bytes`, with a new handle. A shorter file stays as it is.
    pub(crate) fn truncate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let file = options.open(&self.path.join(name))?;
        if file.metadata()?.length > bytes { file.set_len(bytes) } else { Ok(()) }
    }

    /// Removes a segment, plain and compressed.
    pub(crate) fn remove(&self, number: u64) -> io::Result<()> {
        for name in [segment_name(number), compressed_name(number)] {
            match disk::remove_file(&self.path.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        self.sync()
    }

    /// Appends the bytes of an incomplete record to a file of their own.
    pub(crate) fn save_torn(&self, name: &str, content: &[u8]) -> io::Result<()> {
        append_to_file(&self.path, name, content)
    }

    fn sync(&self) -> io::Result<()> {
        disk::sync_folder(&self.path)
    }

    /// Returns the damage that others have done to the open segment; `None` if it is unchanged.
    pub(crate) fn damage(&self, segment: &LogSegment) -> Option<&'static str> {
        let named = disk::symlink_metadata(&self.path.join(&segment.name));
        match named.and_then(|named| Ok((named, segment.file.metadata()?))) {
            Ok((named, open)) if is_same_file(&named, &open) => (open.length != segment.bytes)
                .then_some("its file was truncated, or written by others"),
            _ => Some("its file was removed or replaced"),
        }
    }

    /// Renames a file that has the name of a segment but is none, so that it does not count as one.
    /// Returns its new name.
    pub(crate) fn set_aside(&self, name: &str) -> io::Result<String> {
        let mut aside = format!("{name}.aside");
        for number in 2.. {
            if disk::metadata(&self.path.join(&aside)).is_err() {
                break;
            }
            aside = format!("{name}.{number}.aside");
        }
        disk::rename(&self.path.join(name), &self.path.join(&aside))?;
        self.sync()?;
        Ok(aside)
    }
}

impl LogSegment {
    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        at(&self.failpoints, FailPoint::BeforeWrite)?;
        let allowed = match &self.failpoints {
            Some(failing) => lock_injector(failing).allowed_length(bytes.len()),
            None => bytes.len(),
        };
        self.file.write_all(&bytes[..allowed])?;
        if allowed < bytes.len() {
            at(&self.failpoints, FailPoint::AfterPartialWrite)?;
            self.file.write_all(&bytes[allowed..])?;
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Returns a sync of this segment.
    pub(crate) fn pending_sync(&self) -> io::Result<PendingSync> {
        let file = self.file.try_clone()?;
        let copies = CheckpointCopies::default();
        Ok(PendingSync { file, failpoints: self.failpoints.clone(), copies })
    }
}

impl PendingSync {
    /// Adds copies of checkpoints, which are written after the sync: a checkpoint that is kept
    /// elsewhere must not be missing in the log.
    pub(crate) fn with_copies(self, copies: CheckpointCopies) -> Self {
        Self { copies, ..self }
    }

    /// Syncs everything that is written by now to the disk.
    pub(crate) fn run(self) -> io::Result<()> {
        at(&self.failpoints, FailPoint::BeforeSync)?;
        self.file.sync_data()?;
        at(&self.failpoints, FailPoint::AfterSync)?;
        self.copies.write();
        Ok(())
    }
}

impl CheckpointCopies {
    /// Appends the lines to the file, and syncs it. A failure is logged and not repeated, because
    /// the next checkpoint signs the same records.
    fn write(&self) {
        if !self.lines.is_empty()
            && let Err(error) = self.try_write()
        {
            let path = self.folder.display();
            warn!(%path, %error, "a checkpoint of the audit log cannot be copied");
        }
    }

    fn try_write(&self) -> io::Result<()> {
        let path = self.folder.join(COPIES_FILE);
        if disk::metadata(&path).is_ok_and(|metadata| metadata.length >= MAX_COPIES) {
            disk::rename(&path, &self.folder.join(FULL_COPIES_FILE))?;
        }
        append_to_file(&self.folder, COPIES_FILE, &self.lines)
    }
}

/// Appends to a file in the folder of a log, and syncs the file, and the folder of a new file.
fn append_to_file(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = folder.join(name);
    let is_new = disk::metadata(&path).is_err();
    let options = OpenOptions { create: true, append: true, ..OpenOptions::private() };
    let mut file = options.open(&path)?;
    file.write_all(content)?;
    file.sync_all()?;
    if is_new { disk::sync_folder(folder) } else { Ok(()) }
}

/// Returns the file name of a segment that is compressed.
pub(crate) fn compressed_name(number: u64) -> String {
    segment_name(number) + COMPRESSED_SUFFIX
}

/// Returns the file name of a segment.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{SEGMENT_PREFIX}{number:08}{SEGMENT_SUFFIX}")
}

/// Returns the number in the file name of a segment; `None` for other files.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let name = name.strip_suffix(COMPRESSED_SUFFIX).unwrap_or(name);
    let digits = name.strip_prefix(SEGMENT_PREFIX)?.strip_suffix(SEGMENT_SUFFIX)?;
    digits.parse().ok().filter(|number| segment_name(*number) == name)
}

/// Returns the file names of the segments in a folder, oldest first; of one that is there plain and
/// compressed, the compressed one, which is complete. A gateway may write into the folder at the
/// same time.
pub(crate) fn segments(path: &Path) -> io::Result<Vec<String>> {
    Ok(numbered_segments(path)?.into_iter().map(|(_, name)| name).collect())
}

/// Returns the numbers of the segments in a folder, oldest first.
pub(crate) fn segment_numbers(path: &Path) -> io::Result<Vec<u64>> {
    Ok(numbered_segments(path)?.into_iter().map(|(number, _)| number).collect())
}

/// Opens the file of a segment, compressed if there is such a one, and returns its name.
pub(crate) fn open_stored(path: &Path, number: u64) -> io::Result<(String, File)> {
    // The plain file may be compressed meanwhile.
    let names = [compressed_name(number), segment_name(number), compressed_name(number)];
    let mut opened = Err(io::ErrorKind::NotFound.into());
    for name in names {
        opened = File::open(&path.join(&name)).map(|file| (name, file));
        if !matches!(&opened, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    opened
}

/// Returns the metadata of the file of a segment; `None` if there is none.
pub(crate) fn segment_metadata(path: &Path, number: u64) -> Option<Metadata> {
    let mut names = [compressed_name(number), segment_name(number)].into_iter();
    names.find_map(|name| disk::metadata(&path.join(name)).ok())
}

/// Returns when a segment was written last; `None` if there is none.
pub(crate) fn segment_modified(path: &Path, number: u64) -> Option<SystemTime> {
    segment_metadata(path, number)?.modified
}

fn numbered_segments(path: &Path) -> io::Result<Vec<(u64, String)>> {
    let mut numbered = Vec::new();
    for name in disk::read_dir(path)? {
        if let Ok(name) = name.into_string()
            && let Some(number) = segment_number(&name)
        {
            numbered.push((number, name));
        }
    }
    // The compressed name is the longer one.
    numbered.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1)));
    numbered.dedup_by_key(|(number, _)| *number);
    Ok(numbered)
}

fn at(failpoints: &Failpoints, point: FailPoint) -> io::Result<()> {
    match failpoints {
        Some(failing) => lock_injector(failing).at(point),
        None => Ok(()),
    }
}

fn lock_injector<'a>(
    failing: &'a Arc<Mutex<dyn FaultInjector>>,
) -> std::sync::MutexGuard<'a, dyn FaultInjector + 'static> {
    failing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a file or folder until its handle is dropped.
fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::WouldBlock,
            "another running gateway writes into this folder; set another audit.path",
        ),
        _ => error,
    })
}

/// Locks the folder itself, where the file system can: network file systems may refuse it.
fn lock_folder(path: &Path) -> io::Result<Option<File>> {
    let Ok(folder) = File::open(path) else {
        return Ok(None);
    };
    match lock(&folder) {
        Ok(()) => Ok(Some(folder)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(_) => Ok(None),
    }
}

/// Checks that the path has the expected type and the right owner: another user who can write there
/// could forge the end of the log.
fn check_owner(path: &Path, expected: FileKind) -> io::Result<()> {
    let metadata = disk::symlink_metadata(path)?;
    let denied = |what: &str| {
        let message = format!("{} {what}", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    };
    if metadata.kind != expected {
        return denied("is a symbolic link or has the wrong file type");
    }
    #[cfg(unix)]
    if metadata.owner.is_some_and(|owner| owner != rustix::process::geteuid().as_raw()) {
        return denied("belongs to another user");
    }
    Ok(())
}

fn is_same_file(a: &Metadata, b: &Metadata) -> bool {
    match a.inode {
        Some(_) => a.inode == b.inode,
        None => a.length == b.length,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn f23_a_folder_has_one_writer_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/audit");
        let one = LogFolder::open(&path).unwrap();
        let two = LogFolder::open(&path).err().unwrap();
        assert_eq!(two.kind(), io::ErrorKind::WouldBlock);
        one.create(&segment_name(1), b"x\n").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(&path.join(segment_name(1)))), (0o700, 0o600));
        }
        fs::remove_file(path.join(LOCK_FILE)).unwrap();
        let three = LogFolder::open(&path).err().unwrap();
        assert_eq!(three.kind(), io::ErrorKind::WouldBlock, "the folder itself is locked");
        drop(one);
        LogFolder::open(&path).unwrap();
    }

    #[test]
    fn f14_a_segment_of_another_length_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let folder = LogFolder::open(directory.path()).unwrap();
        let mut segment = folder.create(&segment_name(1), b"one\n").unwrap();
        let path = directory.path().join(segment_name(1));
        segment.append(b"two\n").unwrap();
        assert_eq!(folder.damage(&segment), None);
        fs::write(&path, "").unwrap();
        assert!(folder.damage(&segment).unwrap().contains("truncated"));
        fs::write(&path, "one\ntwo\nmore\n").unwrap();
        assert!(folder.damage(&segment).unwrap().contains("written by others"));
        fs::remove_file(&path).unwrap();
        assert!(folder.damage(&segment).unwrap().contains("removed"));
    }

    #[cfg(unix)]
    #[test]
    fn symbolic_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().join("real");
        let link = folder.path().join("link");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(LogFolder::open(&link).is_err());
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, real.join(segment_name(1))).unwrap();
        assert!(LogFolder::open(&real).is_err());
    }

    #[test]
    fn segments_are_recognized_by_name_and_ordered_by_number() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = ["audit-00000010.jsonl", "audit-00000002.jsonl.gz", "audit-00000001.jsonl"];
        let others = ["audit-00000002.jsonl", "audit-2.jsonl", "audit-00000003.gz", "x", "lock"];
        for name in numbers.iter().chain(&others) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let names = segments(folder.path()).unwrap();
        assert!(names.iter().eq(numbers.iter().rev()), "{names:?}");
        assert_eq!(segment_number(&segment_name(123_456_789)), Some(123_456_789));
    }
}
