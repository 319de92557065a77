//! The disk: files and folders as the gateway uses them. [`File`] and the functions here have the
//! names of those of `std::fs`, and behave like them.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::Notify;

use super::{System, platform};
use domain::text::text_file;

/// The disk of the machine.
pub trait Disk: Send + Sync {
    /// Opens a file, or a folder to lock or sync it; Windows opens no folders.
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a file below a folder to read it, and follows no link on the way. A pipe is not waited
    /// for.
    fn open_below(&self, folder: &Path, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let options = OpenOptions { read: true, refuses_links: true, ..OpenOptions::default() };
        self.open(&folder.join(path), &options)
    }

    /// Returns the metadata of a path.
    fn metadata(&self, path: &Path, links: Links) -> io::Result<Metadata>;

    /// Returns the names in a folder, in no order.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Creates a folder and those above it, where they do not exist, for `readers`.
    fn create_dir_all(&self, path: &Path, readers: Readers) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with its content. Links in it are removed, never followed.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }

    fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()>;

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf>;

    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;

    /// Whether the files of a folder are on another machine or served by another process, so that a
    /// write may wait for that machine or process. True where the system does not say it.
    fn is_remote(&self, folder: &Path) -> bool;

    /// Notifies `changed` after anything below a folder was created, edited, moved or removed, and
    /// after the folder or a link on the way to it was replaced, until the handle is dropped.
    /// Several edits may cause one notification. A folder that has taken the place is not watched.
    fn watch(&self, folder: &Path, changed: Arc<Notify>) -> io::Result<Watch>;
}

/// A watch on a folder, until dropped.
pub type Watch = Box<dyn Send + Sync>;

/// An open file. Each handle has a separate position.
pub trait OpenFile: Send + Sync {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    fn seek(&self, to: SeekFrom) -> io::Result<u64>;

    fn metadata(&self) -> io::Result<Metadata>;

    fn set_len(&self, length: u64) -> io::Result<()>;

    fn set_modified(&self, at: SystemTime) -> io::Result<()>;

    /// Sets the permission bits of Unix; does nothing on other systems.
    fn set_mode(&self, mode: u32) -> io::Result<()>;

    fn sync_data(&self) -> io::Result<()>;

    fn sync_all(&self) -> io::Result<()>;

    /// Locks the file for this handle and its clones, until the last of them is dropped.
    fn try_lock(&self) -> io::Result<()>;

    fn try_clone(&self) -> io::Result<Box<dyn OpenFile>>;
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Links {
    Follow,
    Keep,
}

/// The readers of files and folders that are created.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Readers {
    /// The user of the process (mode 0600, folders 0700).
    Owner,
    /// The usual permissions of new files.
    #[default]
    Usual,
}

/// The metadata of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Metadata {
    pub kind: FileKind,
    /// The length, in bytes.
    pub length: u64,
    /// `None` where the file system does not know.
    pub modified: Option<SystemTime>,
    /// The device and the number of the file on it; `None` where the system has no such numbers.
    pub inode: Option<(u64, u64)>,
    /// The user id of the owner; `None` where the system has no user ids.
    pub owner: Option<u32>,
    /// The permission bits of Unix; `None` on other systems.
    pub mode: Option<u32>,
}

/// The kind of file at a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FileKind {
    File,
    Folder,
    Link,
    Other,
}

/// How a file is opened; see `std::fs::OpenOptions`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenOptions {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    pub create: bool,
    pub create_new: bool,
    pub truncate: bool,
    /// The readers of a file that is created.
    pub readers: Readers,
    /// Whether a symbolic link at the end of the path is an error.
    pub refuses_links: bool,
}

impl Disk for System {
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<Box<dyn OpenFile>> {
        let OpenOptions { read, write, append, create, create_new, truncate, .. } = *options;
        let mut opening = fs::OpenOptions::new();
        opening.read(read).write(write).append(append);
        opening.create(create).create_new(create_new).truncate(truncate);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            if options.readers == Readers::Owner {
                opening.mode(0o600);
            }
            if options.refuses_links {
                opening.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
            }
        }
        Ok(Box::new(opening.open(path)?))
    }

    #[cfg(unix)]
    fn open_below(&self, folder: &Path, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut opened = rustix::fs::open(folder, flags | OFlags::DIRECTORY, Mode::empty())?;
        for part in path.components() {
            let Component::Normal(part) = part else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            opened = rustix::fs::openat(&opened, part, flags, Mode::empty())?;
        }
        Ok(Box::new(fs::File::from(opened)))
    }

    #[cfg(not(unix))]
    fn open_below(&self, folder: &Path, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let mut whole = folder.to_owned();
        for part in path.components() {
            whole.push(part);
            let is_below = matches!(part, Component::Normal(_));
            if !is_below || fs::symlink_metadata(&whole)?.is_symlink() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        }
        Ok(Box::new(fs::File::open(whole)?))
    }

    fn metadata(&self, path: &Path, links: Links) -> io::Result<Metadata> {
        Ok(Metadata::from(&match links {
            Links::Follow => fs::metadata(path)?,
            Links::Keep => fs::symlink_metadata(path)?,
        }))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    #[cfg_attr(not(unix), expect(unused_variables, reason = "Windows has no modes"))]
    fn create_dir_all(&self, path: &Path, readers: Readers) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        if readers == Readers::Owner {
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        }
        builder.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()> {
        fs::hard_link(original, link)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    #[cfg(target_os = "linux")]
    fn is_remote(&self, folder: &Path) -> bool {
        rustix::fs::statfs(folder).map_or(true, |system| REMOTE.contains(&(system.f_type as u32)))
    }

    #[cfg(not(target_os = "linux"))]
    fn is_remote(&self, _folder: &Path) -> bool {
        true
    }

    fn watch(&self, folder: &Path, changed: Arc<Notify>) -> io::Result<Watch> {
        use notify::{EventKind, RecursiveMode, Watcher};
        let folder = std::path::absolute(folder)?;
        let way = entries_on_the_way(&folder);
        let below = [folder.clone(), folder.canonicalize()?];
        let replaced = way.clone();
        let is_meant = move |path: &PathBuf| {
            below.iter().any(|folder| path.starts_with(folder))
                || replaced.iter().any(|entry| path.file_name() == entry.file_name())
        };
        let on_event = move |event: notify::Result<notify::Event>| {
            // An error means that events may be lost, so the folder is read again.
            let may_change = event.map_or(true, |event| {
                let is_meant = event.paths.is_empty() || event.paths.iter().any(&is_meant);
                is_meant && !matches!(event.kind, EventKind::Access(_))
            });
            if may_change {
                changed.notify_one();
            }
        };
        let mut watcher = notify::recommended_watcher(on_event).map_err(io::Error::other)?;
        for parent in way.iter().filter_map(|entry| entry.parent()) {
            // A folder above may be unreadable: then only the edits below are seen.
            let _ = watcher.watch(parent, RecursiveMode::NonRecursive);
        }
        watcher.watch(&folder, RecursiveMode::Recursive).map_err(io::Error::other)?;
        Ok(Box::new(watcher))
    }
}

/// Most links on the way to a folder (MAXSYMLINKS of Linux).
const MAX_LINKS: usize = 40;

/// Returns the entries whose replacement replaces the folder at an absolute path: each link on the
/// way, and the folder.
fn entries_on_the_way(folder: &Path) -> Vec<PathBuf> {
    let mut entries = Vec::new();
    let mut folder = folder.to_owned();
    while entries.len() < MAX_LINKS {
        let mut above: Vec<_> = folder.ancestors().collect();
        above.reverse();
        let link = above.into_iter().find_map(|entry| Some((entry, fs::read_link(entry).ok()?)));
        let Some((link, target)) = link else { break };
        let rest = folder.strip_prefix(link).unwrap_or(Path::new(""));
        let next = link.parent().unwrap_or(Path::new("/")).join(target).join(rest);
        entries.push(link.to_owned());
        folder = next;
    }
    entries.push(folder);
    entries
}

/// The file systems of other machines and processes: 9P, AFS, Ceph, CIFS, Coda, FUSE, GPFS, Lustre,
/// NFS, OCFS2, SMB and SMB2 (statfs(2), linux/magic.h).
#[cfg(target_os = "linux")]
const REMOTE: [u32; 12] = [
    0x0102_1997,
    0x5346_414f,
    0x00c3_6400,
    0xff53_4d42,
    0x7375_7245,
    0x6573_5546,
    0x4750_4653,
    0x0bd0_0bd0,
    0x6969,
    0x7461_636f,
    0x517b,
    0xfe53_4d42,
];

impl OpenFile for fs::File {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buffer)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        Seek::seek(&mut &*self, to)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata::from(&fs::File::metadata(self)?))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        fs::File::set_len(self, length)
    }

    fn set_modified(&self, at: SystemTime) -> io::Result<()> {
        fs::File::set_modified(self, at)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            self.set_permissions(mode)
        }
        #[cfg(not(unix))]
        {
            let _ = mode;
            Ok(())
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        fs::File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        fs::File::sync_all(self)
    }

    fn try_lock(&self) -> io::Result<()> {
        fs::File::try_lock(self).map_err(io::Error::from)
    }

    fn try_clone(&self) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(fs::File::try_clone(self)?))
    }
}

impl From<&fs::Metadata> for Metadata {
    fn from(metadata: &fs::Metadata) -> Self {
        let kind = match metadata.file_type() {
            kind if kind.is_file() => FileKind::File,
            kind if kind.is_dir() => FileKind::Folder,
            kind if kind.is_symlink() => FileKind::Link,
            _ => FileKind::Other,
        };
        #[cfg(unix)]
        let (inode, owner, mode) = {
            use std::os::unix::fs::MetadataExt;
            let inode = (metadata.dev(), metadata.ino());
            (Some(inode), Some(metadata.uid()), Some(metadata.mode() & 0o7777))
        };
        #[cfg(not(unix))]
        let (inode, owner, mode) = (None, None, None);
        let modified = metadata.modified().ok();
        Self { kind, length: metadata.len(), modified, inode, owner, mode }
    }
}

impl Metadata {
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    pub fn is_folder(&self) -> bool {
        self.kind == FileKind::Folder
    }
}

/// An open file.
pub struct File(Box<dyn OpenFile>);

impl File {
    /// Opens a file to read it, or a folder to lock or sync it.
    ///
    /// # Errors
    /// As `std::fs::File::open`.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions { read: true, ..OpenOptions::default() }.open(path)
    }

    /// See [`Disk::open_below`].
    ///
    /// # Errors
    /// As there.
    pub fn open_below(folder: &Path, path: &Path) -> io::Result<Self> {
        platform().disk.open_below(folder, path).map(Self)
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Returns how many bytes there are to read, as far as the file system says.
    fn length_hint(&self) -> usize {
        self.metadata().map_or(0, |metadata| usize::try_from(metadata.length).unwrap_or_default())
    }

    pub fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    pub fn set_modified(&self, at: SystemTime) -> io::Result<()> {
        self.0.set_modified(at)
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.0.set_mode(mode)
    }

    pub fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    pub fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    /// # Errors
    /// See [`OpenFile::try_lock`].
    pub fn try_lock(&self) -> io::Result<()> {
        self.0.try_lock()
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

impl OpenOptions {
    /// For a file with access for its owner only; does not follow a symbolic link.
    pub fn private() -> Self {
        Self { readers: Readers::Owner, refuses_links: true, ..Self::default() }
    }

    /// Opens a file in this way.
    ///
    /// # Errors
    /// As `std::fs::OpenOptions::open`.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        platform().disk.open(path, self).map(File)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").finish_non_exhaustive()
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Reads a whole file.
///
/// # Errors
/// As `std::fs::read`.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::with_capacity(file.length_hint());
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file that people or other programs write, as [`text_file::decode`] does.
///
/// # Errors
/// As [`read`]; or the file is no text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let text = text_file::decode(read(path)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a whole file as text.
///
/// # Errors
/// As `std::fs::read_to_string`.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut text = String::with_capacity(file.length_hint());
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Returns the metadata of a path. Follows a symbolic link at its end.
///
/// # Errors
/// As `std::fs::metadata`.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    platform().disk.metadata(path, Links::Follow)
}

/// Returns the metadata of a path, or of a symbolic link at its end.
///
/// # Errors
/// As `std::fs::symlink_metadata`.
pub fn symlink_metadata(path: &Path) -> io::Result<Metadata> {
    platform().disk.metadata(path, Links::Keep)
}

/// Whether a path leads to a folder.
pub fn is_folder(path: &Path) -> bool {
    metadata(path).is_ok_and(|metadata| metadata.is_folder())
}

/// # Errors
/// See [`Disk::read_dir`].
pub fn read_dir(path: &Path) -> io::Result<Vec<OsString>> {
    platform().disk.read_dir(path)
}

/// See [`Disk::is_remote`].
pub fn is_remote(folder: &Path) -> bool {
    platform().disk.is_remote(folder)
}

/// Creates a folder and those above it, where they do not exist, and syncs the changed folders:
/// files that are synced in a new folder are lost with it if the system crashes before the folder's
/// own entry is on the disk.
///
/// # Errors
/// See [`Disk::create_dir_all`]; or the folder above a new one cannot be synced.
pub fn create_dir_all(path: &Path, readers: Readers) -> io::Result<()> {
    let is_new = |folder: &&Path| {
        !folder.as_os_str().is_empty()
            && metadata(folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let created: Vec<_> = path.ancestors().take_while(is_new).collect();
    platform().disk.create_dir_all(path, readers)?;
    for parent in created.into_iter().rev().filter_map(Path::parent) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match sync_folder(parent) {
            // A folder that cannot be read cannot be synced either: only new entries are at risk.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// Waits until the disk has the entries of a folder. Windows cannot be asked: its file systems keep
/// a journal of them.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) { Ok(()) } else { File::open(folder)?.sync_all() }
}

/// # Errors
/// See [`Disk::rename`].
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    platform().disk.rename(from, to)
}

/// # Errors
/// See [`Disk::remove_file`].
pub fn remove_file(path: &Path) -> io::Result<()> {
    platform().disk.remove_file(path)
}

/// # Errors
/// See [`Disk::remove_dir_all`].
pub fn remove_dir_all(path: &Path) -> io::Result<()> {
    platform().disk.remove_dir_all(path)
}

/// # Errors
/// See [`Disk::watch`].
pub fn watch(folder: &Path, changed: Arc<Notify>) -> io::Result<Watch> {
    platform().disk.watch(folder, changed)
}

/// # Errors
/// See [`Disk::canonicalize`].
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    platform().disk.canonicalize(path)
}
