//! The folder of a log and the files in it, with the points at which tests make them fail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A folder that this process alone writes into.
pub(crate) struct Folder {
    path: PathBuf,
    failpoints: Failpoints,
    /// Held as long as the log is open.
    _lock: File,
}

/// The places where a write can go wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Point {
    BeforeWrite,
    AfterPartialWrite,
    BeforeSync,
    AfterSync,
    BeforeRename,
    AfterRename,
}

/// What tests let happen; nothing otherwise.
pub(crate) trait Failing: Send {
    fn at(&mut self, point: Point) -> io::Result<()>;

    /// How much of a write of this length gets through before [`Point::AfterPartialWrite`].
    fn writes(&mut self, length: usize) -> usize {
        length
    }
}

type Failpoints = Option<Arc<Mutex<dyn Failing>>>;

/// A segment that is written to.
pub(crate) struct Segment {
    pub name: String,
    /// How long it is.
    pub bytes: u64,
    file: File,
    failpoints: Failpoints,
}

/// A way to sync a segment from another thread.
pub(crate) struct Syncing {
    file: File,
    failpoints: Failpoints,
}

const LOCK: &str = "lock";
const TEMPORARY: &str = "next.tmp";
const SUFFIX: &str = ".jsonl";
const PREFIX: &str = "audit-";

impl Folder {
    /// Opens the folder, or makes it, for this process alone.
    ///
    /// # Errors
    /// When it is somebody else's, a link, or another process writes into it (`WouldBlock`).
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        make_private(path)?;
        check_own(path, fs::symlink_metadata(path)?.is_dir())?;
        let lock = own_file(OpenOptions::new().create(true).write(true), &path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::WouldBlock,
                "another running gateway writes into it; set another audit.path for this one",
            ),
            fs::TryLockError::Error(error) => error,
        })?;
        match fs::remove_file(path.join(TEMPORARY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for name in segments(path)? {
            let file = path.join(&name);
            check_own(&file, fs::symlink_metadata(&file)?.is_file())?;
        }
        Ok(Self { path: path.to_owned(), failpoints: None, _lock: lock })
    }

    #[cfg(test)]
    pub(super) fn fail(&mut self, failing: Arc<Mutex<dyn Failing>>) {
        self.failpoints = Some(failing);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its segments, oldest first.
    pub(crate) fn segments(&self) -> io::Result<Vec<String>> {
        segments(&self.path)
    }

    /// Bytes of all segments.
    pub(crate) fn total(&self) -> io::Result<u64> {
        let length = |name: String| fs::metadata(self.path.join(name)).map(|meta| meta.len());
        self.segments()?.into_iter().map(length).sum()
    }

    /// Makes a segment that is there whole or not at all: written and synced under another name first.
    pub(crate) fn create(&self, name: &str, content: &[u8]) -> io::Result<Segment> {
        let temporary = self.path.join(TEMPORARY);
        let made = self.write_whole(&temporary, name, content);
        if made.is_err() {
            // As if nothing had been tried: there is room for the next try, and no half of this one.
            let _ = fs::remove_file(&temporary);
        }
        made
    }

    fn write_whole(&self, temporary: &Path, name: &str, content: &[u8]) -> io::Result<Segment> {
        let file = own_file(OpenOptions::new().create_new(true).append(true), temporary)?;
        let failpoints = self.failpoints.clone();
        let mut segment = Segment { name: name.to_owned(), bytes: 0, file, failpoints };
        segment.append(content)?;
        segment.syncing()?.run()?;
        at(&self.failpoints, Point::BeforeRename)?;
        fs::rename(temporary, self.path.join(name))?;
        at(&self.failpoints, Point::AfterRename)?;
        self.sync()?;
        Ok(segment)
    }

    /// Opens a segment to write on where it ends.
    pub(crate) fn reopen(&self, name: &str) -> io::Result<Segment> {
        let file = own_file(OpenOptions::new().append(true), &self.path.join(name))?;
        let bytes = file.metadata()?.len();
        let failpoints = self.failpoints.clone();
        Ok(Segment { name: name.to_owned(), bytes, file, failpoints })
    }

    /// Cuts a segment, by another handle than the one that it is written with.
    pub(crate) fn truncate(&self, name: &str, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path.join(name))?;
        file.set_len(bytes)
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))?;
        self.sync()
    }

    /// Keeps bytes that belong to no record.
    pub(crate) fn keep(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut file =
            own_file(OpenOptions::new().create(true).append(true), &self.path.join(name))?;
        file.write_all(content)?;
        file.sync_all()?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Whether the segment is still the file of its name.
    pub(crate) fn holds(&self, segment: &Segment) -> bool {
        let there = fs::symlink_metadata(self.path.join(&segment.name));
        there.and_then(|there| Ok(is_same(&there, &segment.file.metadata()?))).unwrap_or(false)
    }
}

impl Segment {
    /// Writes behind what is there. After an error nobody knows how much of it is.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        at(&self.failpoints, Point::BeforeWrite)?;
        let allowed = match &self.failpoints {
            Some(failing) => lock(failing).writes(bytes.len()),
            None => bytes.len(),
        };
        self.file.write_all(&bytes[..allowed])?;
        if allowed < bytes.len() {
            at(&self.failpoints, Point::AfterPartialWrite)?;
            self.file.write_all(&bytes[allowed..])?;
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn syncing(&self) -> io::Result<Syncing> {
        Ok(Syncing { file: self.file.try_clone()?, failpoints: self.failpoints.clone() })
    }
}

impl Syncing {
    /// Brings to the disk what was written by now.
    pub(crate) fn run(self) -> io::Result<()> {
        at(&self.failpoints, Point::BeforeSync)?;
        self.file.sync_data()?;
        at(&self.failpoints, Point::AfterSync)
    }
}

/// Name of the segment of that number.
pub(crate) fn segment_name(number: u64) -> String {
    format!("{PREFIX}{number:08}{SUFFIX}")
}

/// The number in a segment's name.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    digits.parse().ok().filter(|number| segment_name(*number) == name)
}

/// The segments of a folder that somebody else may be writing into, oldest first.
pub(crate) fn segments(path: &Path) -> io::Result<Vec<String>> {
    let mut numbered = Vec::new();
    for entry in fs::read_dir(path)? {
        if let Ok(name) = entry?.file_name().into_string()
            && let Some(number) = segment_number(&name)
        {
            numbered.push((number, name));
        }
    }
    numbered.sort_unstable();
    Ok(numbered.into_iter().map(|(_, name)| name).collect())
}

fn at(failpoints: &Failpoints, point: Point) -> io::Result<()> {
    match failpoints {
        Some(failing) => lock(failing).at(point),
        None => Ok(()),
    }
}

fn lock<'a>(
    failing: &'a Arc<Mutex<dyn Failing>>,
) -> std::sync::MutexGuard<'a, dyn Failing + 'static> {
    failing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a file that only its owner may read, and no link.
fn own_file(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    }
    options.open(path)
}

fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Whoever else could write there could write records.
fn check_own(path: &Path, is_of_kind: bool) -> io::Result<()> {
    let denied = |what: &str| {
        let message = format!("{} {what}", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    };
    if !is_of_kind {
        return denied("is a link, or not what it should be");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if fs::symlink_metadata(path)?.uid() != rustix::process::geteuid().as_raw() {
            return denied("belongs to another user");
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    a.len() == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_writer_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/audit");
        let one = Folder::open(&path).unwrap();
        let two = Folder::open(&path).err().unwrap();
        assert_eq!(two.kind(), io::ErrorKind::WouldBlock);
        one.create(&segment_name(1), b"x\n").unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(&path.join(segment_name(1)))), (0o700, 0o600));
        }
        drop(one);
        Folder::open(&path).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(Folder::open(&link).is_err());
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, real.join(segment_name(1))).unwrap();
        assert!(Folder::open(&real).is_err());
    }

    #[test]
    fn segments_are_told_by_their_names_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["audit-00000010.jsonl", "audit-00000002.jsonl", "audit-2.jsonl", "x", "lock"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let names = segments(folder.path()).unwrap();
        assert_eq!(names, ["audit-00000002.jsonl", "audit-00000010.jsonl"]);
        assert_eq!(segment_number(&segment_name(123_456_789)), Some(123_456_789));
    }
}
