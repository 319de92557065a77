//! A disk in memory, for a simulation: the same seed and the same operations give the same answers,
//! faults and losses. It behaves as a Linux file system for one user: nobody checks permissions,
//! and a slash at the end of a path means nothing.
//!
//! Bytes that were written and entries that were changed are lost by a crash unless they were
//! synced. A sync of a file keeps its bytes, a sync of a folder its entries. Without it a file
//! keeps the first of its unsynced edits, and the folders of the crashed machine keep the first of
//! their unsynced operations. Modes and times are not lost.
//!
//! Several machines share the disk, each with its own folder: crashes, power and faults are those
//! of a prefix.

mod durability;
mod handle;
mod model;
mod state;
pub mod tests;
mod tree;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use base::platform::disk::{Disk, Links, Metadata, OpenFile, OpenOptions, Readers};
use rustix::io::Errno;
use tokio::sync::Notify;

use self::durability::Content;
use self::handle::SimFile;
use self::state::State;
use self::tree::{Body, Place};

/// The disk. Clones are the same disk.
///
/// Its own methods are for the test: they see neither faults nor missing power, and what they
/// change is durable.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// The callback for the lines of [`SimDisk::set_observer`].
pub type Observer = Box<dyn Fn(&str) + Send>;

/// The parameters of a disk.
pub struct Setup {
    /// Decides what faults happen and what crashes leave.
    pub rng: fastrand::Rng,
    /// The time of changes. It must not use the disk.
    pub clock: Box<dyn Fn() -> SystemTime + Send>,
    /// The user id that owns everything.
    pub owner: u32,
    /// Whether a sync of a file or folder also keeps the entry that it was created with and the
    /// folders above it, as on most file systems; POSIX does not promise it.
    pub sync_keeps_entry: bool,
    /// Whether a crash may leave zeros or garbage at the end of the last unsynced sector.
    pub tears_sectors: bool,
    /// Whether the disk says that it is on another machine: threads that must not wait do not write
    /// then.
    pub is_remote: bool,
    /// Takes the time of a sync, before it. It may let others run, and must not use the disk.
    pub sync_time: Arc<dyn Fn() + Send + Sync>,
}

/// The faults below a prefix; none by default. The probabilities are between 0 and 1, of an I/O
/// error (EIO).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Of writes, `set_len`, and operations on entries.
    pub write: f64,
    /// Of syncs. The unsynced bytes are then lost in one half of the cases: they can be read until
    /// a crash, but no later sync keeps them.
    pub sync: f64,
    /// Of opening.
    pub open: f64,
    /// Of reading files and folders.
    pub read: f64,
    /// The probability that a write takes only some of its bytes.
    pub short_write: f64,
    /// The bytes that all files below the prefix may have; a write takes what fits, then fails.
    pub capacity: Option<u64>,
    /// Makes the next sync of a file fail and lose its unsynced bytes, then is reset.
    pub fail_next_sync_loses: bool,
}

impl SimDisk {
    /// A disk with nothing but the folder `/`.
    pub fn new(setup: Setup) -> Self {
        Self(Arc::new(Mutex::new(State::new(setup))))
    }

    /// Calls `observer` with a line for every operation that changes something, or tries to. It
    /// must not use the disk.
    pub fn set_observer(&self, observer: Observer) {
        self.state().observer = Some(observer);
    }

    /// Sets what fails below a prefix. A path has the faults of its longest prefix only.
    pub fn set_faults(&self, prefix: &Path, faults: Faults) {
        self.state().faults.insert(prefix.to_owned(), faults);
    }

    /// Crashes the machine whose folder is `prefix`: what was not synced is lost in part, its
    /// handles are dead, its locks and watches are gone, and the power is off.
    pub fn crash(&self, prefix: &Path) {
        let mut state = self.state();
        state.crash(prefix);
        let _ = state.tell(format_args!("crash {}", prefix.display()), Ok(()));
    }

    /// Makes every operation below a prefix fail until [`Self::power_on`].
    pub fn power_off(&self, prefix: &Path) {
        let mut state = self.state();
        state.off.insert(prefix.to_owned());
        let _ = state.tell(format_args!("power_off {}", prefix.display()), Ok(()));
    }

    /// Ends [`Self::power_off`] and the outage of [`Self::crash`] for the same prefix.
    pub fn power_on(&self, prefix: &Path) {
        let mut state = self.state();
        state.off.remove(prefix);
        let _ = state.tell(format_args!("power_on {}", prefix.display()), Ok(()));
    }

    /// Returns how many handles are open that were opened below a prefix, without those that a
    /// crash closed. Clones count as one.
    pub fn open_handles(&self, prefix: &Path) -> usize {
        self.state().handles_below(prefix).count()
    }

    /// Creates a file or replaces its content.
    ///
    /// # Panics
    /// When there is no such folder.
    pub fn write(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let place = state.place(path, Links::Follow);
        let node = place.node.unwrap_or_else(|| {
            let node = state.create(&place, Body::File(Content::default()), 0o644);
            state.journal.sync_folder(place.folder());
            node
        });
        state.set_length(node, 0).expect("a file is written, not a folder");
        let content = state.tree.content(node).expect("a file");
        content.write(0, bytes);
        content.sync();
        state.changed(&place.path);
        let _ = state.tell(format_args!("test: write {} {}", path.display(), bytes.len()), Ok(()));
    }

    /// Returns the content of a file, synced or not.
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let mut state = self.state();
        let node = state.tree.resolve(path, Links::Follow).ok()?.node?;
        Some(state.tree.content(node).ok()?.bytes().to_vec())
    }

    /// Whether a file with the extension `jsonl` that was removed has had a text.
    pub fn has_removed(&self, text: &[u8]) -> bool {
        let state = self.state();
        state.removed_lines.iter().any(|lines| memchr::memmem::find(lines, text).is_some())
    }

    /// Returns the content of a file that no crash can lose.
    pub fn durable(&self, path: &Path) -> Option<Vec<u8>> {
        let mut state = self.state();
        let node = state.tree.resolve(path, Links::Follow).ok()?.node?;
        Some(state.tree.content(node).ok()?.durable().to_vec())
    }

    /// Removes a file, a link, or a folder with all below it. Returns whether there was one.
    pub fn remove(&self, path: &Path) -> bool {
        let mut state = self.state();
        let Ok(place @ Place { node: Some(_), .. }) = state.tree.resolve(path, Links::Keep) else {
            return false;
        };
        state.alter(vec![place.leading_to(None)], None);
        state.journal.sync_folder(place.folder());
        state.changed(&place.path);
        let _ = state.tell(format_args!("test: remove {}", path.display()), Ok(()));
        true
    }

    /// Returns the names in a folder, sorted; none when there is no such folder.
    pub fn list(&self, folder: &Path) -> Vec<String> {
        let state = self.state();
        let Ok(Place { node: Some(node), .. }) = state.tree.resolve(folder, Links::Follow) else {
            return Vec::new();
        };
        let names = state.tree.entries(node).into_iter().flat_map(BTreeMap::keys);
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Creates a folder and those above it, where they do not exist.
    ///
    /// # Panics
    /// When one of them is a file.
    pub fn create_folder(&self, path: &Path) {
        let mut state = self.state();
        let above: Vec<_> = path.ancestors().filter(|p| !p.as_os_str().is_empty()).collect();
        for folder in above.into_iter().rev() {
            let place = state.place(folder, Links::Follow);
            if place.node.is_none() {
                state.create(&place, Body::Folder(BTreeMap::new()), 0o755);
                state.journal.sync_folder(place.folder());
            }
        }
        let _ = state.tell(format_args!("test: create_folder {}", path.display()), Ok(()));
    }

    /// Creates a symbolic link.
    ///
    /// # Panics
    /// When there is no such folder, or something has the name of the link.
    pub fn symlink(&self, target: &Path, link: &Path) {
        let mut state = self.state();
        let place = state.place(link, Links::Keep);
        assert!(place.node.is_none(), "{} exists", link.display());
        state.create(&place, Body::Link(target.to_owned()), 0o777);
        state.journal.sync_folder(place.folder());
        let what = format_args!("test: symlink {} -> {}", link.display(), target.display());
        let _ = state.tell(what, Ok(()));
    }

    /// Sets one byte of a file as a failing drive does: nobody is notified.
    ///
    /// # Panics
    /// When there is no such byte.
    pub fn damage(&self, path: &Path, at: usize, byte: u8) {
        let mut state = self.state();
        let node = state.place(path, Links::Follow).node.expect("a file to damage");
        let damaged = state.tree.content(node).is_ok_and(|content| content.damage(at, byte));
        assert!(damaged, "{} has no byte {at}", path.display());
        let _ = state.tell(format_args!("test: damage {} {at}", path.display()), Ok(()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Handles are dropped while a failed check unwinds; a second panic would hide the first.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Follows a path of the test.
    fn place(&self, path: &Path, links: Links) -> Place {
        match self.tree.resolve(path, links) {
            Ok(place) => place,
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, options: &OpenOptions) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.state();
        let opened = state.open(path, options);
        let id = if options.create || options.create_new || options.truncate {
            state.tell(format_args!("open {}", path.display()), opened)?
        } else {
            opened?
        };
        Ok(Box::new(SimFile { disk: self.clone(), id }))
    }

    fn metadata(&self, path: &Path, links: Links) -> io::Result<Metadata> {
        let state = self.state();
        Ok(state.metadata(state.reach(path, links)?.node.ok_or(Errno::NOENT)?))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        Ok(self.state().read_dir(path)?)
    }

    fn is_remote(&self, _folder: &Path) -> bool {
        self.state().setup.is_remote
    }

    fn create_dir_all(&self, path: &Path, readers: Readers) -> io::Result<()> {
        let mode = if readers == Readers::Owner { 0o700 } else { 0o755 };
        let mut state = self.state();
        let outcome = state.create_dir_all(path, mode);
        state.tell(format_args!("create_dir_all {}", path.display()), outcome)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let outcome = state.rename(from, to);
        state.tell(format_args!("rename {} -> {}", from.display(), to.display()), outcome)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let outcome = state.remove_file(path);
        state.tell(format_args!("remove_file {}", path.display()), outcome)
    }

    fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()> {
        let mut state = self.state();
        let outcome = state.hard_link(original, link);
        state.tell(format_args!("hard_link {} -> {}", original.display(), link.display()), outcome)
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        let place = self.state().reach(path, Links::Follow)?;
        place.node.ok_or(Errno::NOENT)?;
        Ok(place.path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(self.state().read_link(path)?)
    }

    fn watch(&self, folder: &Path, changed: Arc<Notify>) -> io::Result<Box<dyn Send + Sync>> {
        let mut state = self.state();
        let place = state.reach(folder, Links::Follow)?;
        place.node.ok_or(Errno::NOENT)?;
        let id = state.new_id();
        state.watchers.insert(id, (place.path, changed));
        Ok(Box::new(Watch { disk: self.clone(), id }))
    }
}

/// Watches a folder until it is dropped.
struct Watch {
    disk: SimDisk,
    id: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.disk.state().watchers.remove(&self.id);
    }
}
