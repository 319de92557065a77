//! The disk against a real file system: random operations have the same results on both, errors
//! included.

use std::ffi::OsString;
use std::fs;
use std::io::{self, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::platform::disk::{Disk, FileKind, Links, Metadata, OpenFile, OpenOptions, Readers};
use fastrand::Rng;
use tokio::sync::Notify;

use super::SimDisk;
use super::tests::setup;

const HISTORIES: u64 = 200;
const OPERATIONS: usize = 120;

/// More handles than this are not opened, so that most operations meet one that others used.
const MAX_HANDLES: usize = 6;

/// So few that operations meet; with files below files, and dots.
const PATHS: [&str; 12] =
    ["", "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/../a", "l", "l/a", "d/l"];

const TARGETS: [&str; 6] = ["a", "d", "../a", "e", "l", "missing/a"];

/// One operation. Handles are counted from the first that is open.
#[derive(Debug)]
enum Operation {
    Open(PathBuf, OpenOptions),
    Metadata(PathBuf, Links),
    IsSame(PathBuf, PathBuf),
    ReadDir(PathBuf),
    CreateDirAll(PathBuf, Readers),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    HardLink(PathBuf, PathBuf),
    Canonicalize(PathBuf),
    ReadLink(PathBuf),
    OnHandle(usize, OnHandle),
}

#[derive(Clone, Copy, Debug)]
enum OnHandle {
    Read(usize),
    Write(usize),
    Seek(SeekFrom),
    SetLength(u64),
    SetMode(u32),
    Metadata,
    Sync,
    Lock,
    Clone,
    Drop,
}

/// Checks that the disk and a real one cannot be told apart.
pub(super) fn equals_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    for seed in 0..HISTORIES {
        // One folder deeper than links lead up, so that no history meets the files of another.
        let root = folder.join(seed.to_string()).join("root");
        fs::create_dir_all(&root).unwrap();
        let simulated = SimDisk::new(setup(seed));
        simulated.create_folder(&root);
        compare(seed, &root, &simulated);
    }
}

fn compare(seed: u64, root: &Path, simulated: &SimDisk) {
    let mut rng = Rng::with_seed(seed);
    let (mut real_handles, mut handles) = (Vec::new(), Vec::new());
    for step in 0..OPERATIONS {
        if rng.u8(..16) == 0 {
            let (target, link) =
                (Path::new(rng.choice(TARGETS).unwrap()), any_path(&mut rng, root));
            if symlink(target, &link).is_ok() {
                simulated.symlink(target, &link);
            }
        }
        let operation = any_operation(&mut rng, root, handles.len());
        let expected = run(&Real, &mut real_handles, &operation);
        let result = run(simulated, &mut handles, &operation);
        let same = match (&expected, &result) {
            (Ok(expected), Ok(result)) => expected == result,
            (Err(expected), Err(result)) => {
                // Errors of std itself have no number.
                expected.kind() == result.kind()
                    && (expected.raw_os_error().is_none()
                        || expected.raw_os_error() == result.raw_os_error())
            }
            _ => false,
        };
        assert!(
            same,
            "seed {seed}, step {step}: {operation:?}\nreal: {expected:?}\nhere: {result:?}"
        );
    }
}

fn any_path(rng: &mut Rng, root: &Path) -> PathBuf {
    match *rng.choice(&PATHS).unwrap() {
        "" => root.to_owned(),
        path => root.join(path),
    }
}

fn any_operation(rng: &mut Rng, root: &Path, handles: usize) -> Operation {
    if handles > 0 && (handles >= MAX_HANDLES || rng.bool()) {
        return Operation::OnHandle(rng.usize(..handles), on_handle(rng));
    }
    let path = any_path(rng, root);
    match rng.u8(..13) {
        0 => Operation::Metadata(path, if rng.bool() { Links::Follow } else { Links::Keep }),
        1 => Operation::IsSame(path, any_path(rng, root)),
        2 => Operation::ReadDir(path),
        3 => {
            let readers = if rng.bool() { Readers::Owner } else { Readers::Usual };
            Operation::CreateDirAll(path, readers)
        }
        4 | 5 => Operation::Rename(path, any_path(rng, root)),
        6 => Operation::Remove(path),
        7 => Operation::HardLink(path, any_path(rng, root)),
        8 => Operation::Canonicalize(path),
        9 => Operation::ReadLink(path),
        _ => Operation::Open(path, any_options(rng)),
    }
}

fn any_options(rng: &mut Rng) -> OpenOptions {
    OpenOptions {
        read: rng.bool(),
        write: rng.bool(),
        append: rng.u8(..4) == 0,
        create: rng.bool(),
        create_new: rng.u8(..4) == 0,
        truncate: rng.u8(..4) == 0,
        readers: if rng.bool() { Readers::Owner } else { Readers::Usual },
        refuses_links: rng.u8(..4) == 0,
    }
}

fn on_handle(rng: &mut Rng) -> OnHandle {
    match rng.u8(..12) {
        0 | 1 => OnHandle::Read(rng.usize(..2000)),
        2 | 3 => OnHandle::Write(rng.usize(..2000)),
        4 => OnHandle::Seek(match rng.u8(..3) {
            0 => SeekFrom::Start(rng.u64(..3000)),
            1 => SeekFrom::Current(rng.i64(-1000..1000)),
            _ => SeekFrom::End(rng.i64(-1000..1000)),
        }),
        5 => OnHandle::SetLength(rng.u64(..3000)),
        6 => OnHandle::SetMode(0o600 | rng.u32(..=0o777)),
        7 => OnHandle::Metadata,
        8 => OnHandle::Sync,
        9 => OnHandle::Lock,
        10 => OnHandle::Clone,
        _ => OnHandle::Drop,
    }
}

/// Runs an operation. Returns what can be seen of its result.
fn run(
    disk: &dyn Disk,
    handles: &mut Vec<Box<dyn OpenFile>>,
    operation: &Operation,
) -> io::Result<String> {
    match operation {
        Operation::Open(path, options) => {
            handles.push(disk.open(path, options)?);
            Ok(String::new())
        }
        Operation::Metadata(path, links) => Ok(text(disk.metadata(path, *links)?)),
        Operation::IsSame(one, other) => {
            let inode = |path| disk.metadata(path, Links::Keep).map(|metadata| metadata.inode);
            Ok((inode(one)? == inode(other)?).to_string())
        }
        Operation::ReadDir(path) => {
            let mut names = disk.read_dir(path)?;
            names.sort();
            Ok(format!("{names:?}"))
        }
        Operation::CreateDirAll(path, readers) => debug(disk.create_dir_all(path, *readers)),
        Operation::Rename(from, to) => debug(disk.rename(from, to)),
        Operation::Remove(path) => debug(disk.remove_file(path)),
        Operation::HardLink(original, link) => debug(disk.hard_link(original, link)),
        Operation::Canonicalize(path) => debug(disk.canonicalize(path)),
        Operation::ReadLink(path) => debug(disk.read_link(path)),
        Operation::OnHandle(handle, act) => run_on_handle(handles, *handle, *act),
    }
}

fn run_on_handle(
    handles: &mut Vec<Box<dyn OpenFile>>,
    number: usize,
    act: OnHandle,
) -> io::Result<String> {
    let handle = &handles[number];
    match act {
        OnHandle::Read(size) => {
            let mut bytes = vec![0; size];
            let count = handle.read(&mut bytes)?;
            Ok(format!("{:?}", &bytes[..count]))
        }
        OnHandle::Write(size) => {
            let bytes: Vec<_> = (0..size).map(|i| (i + size) as u8).collect();
            debug(handle.write(&bytes))
        }
        // Where a folder is read from is a matter of its file system.
        OnHandle::Seek(_) if handle.metadata()?.kind == FileKind::Folder => Ok(String::new()),
        OnHandle::Seek(to) => debug(handle.seek(to)),
        OnHandle::SetLength(length) => debug(handle.set_len(length)),
        OnHandle::SetMode(_) if handle.metadata()?.kind == FileKind::Folder => Ok(String::new()),
        OnHandle::SetMode(mode) => debug(handle.set_mode(mode)),
        OnHandle::Metadata => Ok(text(handle.metadata()?)),
        OnHandle::Sync => debug(handle.sync_all()),
        OnHandle::Lock => debug(handle.try_lock()),
        OnHandle::Clone => {
            let clone = handle.try_clone()?;
            handles.push(clone);
            Ok(String::new())
        }
        OnHandle::Drop => {
            handles.swap_remove(number);
            Ok(String::new())
        }
    }
}

fn debug(result: io::Result<impl std::fmt::Debug>) -> io::Result<String> {
    result.map(|value| format!("{value:?}"))
}

/// The metadata that two file systems have in common: without times, numbers, the length of
/// folders, and the bits of the umask.
fn text(metadata: Metadata) -> String {
    let Metadata { kind, length, owner, mode, .. } = metadata;
    let length = (kind != FileKind::Folder).then_some(length);
    let mode = mode.map(|mode| mode & 0o700);
    format!("{kind:?} {length:?} {owner:?} {mode:?}")
}

/// The disk of the machine.
struct Real;

impl Disk for Real {
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<Box<dyn OpenFile>> {
        let OpenOptions { read, write, append, create, create_new, truncate, .. } = *options;
        let mut opening = fs::OpenOptions::new();
        opening.read(read).write(write).append(append);
        opening.create(create).create_new(create_new).truncate(truncate);
        opening.mode(if options.readers == Readers::Owner { 0o600 } else { 0o666 });
        if options.refuses_links {
            opening.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        }
        Ok(Box::new(opening.open(path)?))
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

    fn create_dir_all(&self, path: &Path, readers: Readers) -> io::Result<()> {
        let mode = if readers == Readers::Owner { 0o700 } else { 0o777 };
        fs::DirBuilder::new().recursive(true).mode(mode).create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
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

    fn is_remote(&self, _: &Path) -> bool {
        false
    }

    fn watch(&self, _: &Path, _: Arc<Notify>) -> io::Result<Box<dyn Send + Sync>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
