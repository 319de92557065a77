//! The state of the disk, and the operations on paths.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::{self, Debug};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::platform::disk::{FileKind, Links, Metadata, OpenOptions, Readers};
use rustix::io::Errno;
use tokio::sync::Notify;

use super::durability::{Content, Journal, Operation};
use super::handle::Handle;
use super::tree::{Body, Change, Node, Place, Tree};
use super::{Faults, Observer, Setup};

/// The number of the device, which all nodes are on.
const DEVICE: u64 = 1;

/// Below it nobody sweeps the inode table.
const MIN_SWEEP: usize = 256;

pub(super) struct State {
    pub(super) setup: Setup,
    pub(super) tree: Tree,
    pub(super) journal: Journal,
    pub(super) handles: BTreeMap<u64, Handle>,
    pub(super) watchers: BTreeMap<u64, (PathBuf, Arc<Notify>)>,
    pub(super) faults: BTreeMap<PathBuf, Faults>,
    pub(super) off: BTreeSet<PathBuf>,
    pub(super) observer: Option<Observer>,
    /// The contents of files with the extension `jsonl` that were removed.
    pub(super) removed_lines: Vec<Vec<u8>>,
    /// Of handles and watchers.
    next_id: u64,
    /// How many nodes there are when the table is swept next.
    sweep_at: usize,
}

impl State {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            tree: Tree::new((setup.clock)()),
            journal: Journal::new(setup.sync_keeps_entry),
            setup,
            handles: BTreeMap::new(),
            watchers: BTreeMap::new(),
            faults: BTreeMap::new(),
            off: BTreeSet::new(),
            observer: None,
            removed_lines: Vec::new(),
            next_id: 0,
            sweep_at: MIN_SWEEP,
        }
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Tells the observer how an operation ended.
    pub(super) fn tell<T: Debug>(
        &self,
        what: fmt::Arguments<'_>,
        outcome: Result<T, Errno>,
    ) -> io::Result<T> {
        if let Some(observer) = &self.observer {
            match &outcome {
                Ok(value) => observer(&format!("{what}: {value:?}")),
                Err(error) => observer(&format!("{what}: {error}")),
            }
        }
        outcome.map_err(io::Error::from)
    }

    /// Wakes those who watch a path.
    pub(super) fn changed(&self, path: &Path) {
        for (folder, notify) in self.watchers.values() {
            if path.starts_with(folder) {
                notify.notify_one();
            }
        }
    }

    /// Follows a path on a disk that has power.
    pub(super) fn reach(&self, path: &Path, links: Links) -> Result<Place, Errno> {
        self.check_power(&Path::new("/").join(path))?;
        let place = self.tree.resolve(path, links)?;
        self.check_power(&place.path)?;
        Ok(place)
    }

    pub(super) fn check_power(&self, path: &Path) -> Result<(), Errno> {
        let off = self.off.iter().any(|prefix| path.starts_with(prefix));
        if off { Err(Errno::IO) } else { Ok(()) }
    }

    /// Fails with the probability that the faults of a path give.
    pub(super) fn may_fail(&mut self, path: &Path, fault: fn(&Faults) -> f64) -> Result<(), Errno> {
        let probability = self.faults_of(path).map_or(0.0, |(_, faults)| fault(faults));
        if self.happens(probability) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Draws nothing for what never happens: a disk without faults leaves the sequence of the seed
    /// as it is.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.setup.rng.f64() < probability
    }

    /// Returns the faults with the longest prefix of a path.
    pub(super) fn faults_of(&mut self, path: &Path) -> Option<(&Path, &mut Faults)> {
        self.faults
            .iter_mut()
            .filter(|(prefix, _)| path.starts_with(prefix))
            .max_by_key(|(prefix, _)| prefix.components().count())
            .map(|(prefix, faults)| (prefix.as_path(), faults))
    }

    /// Returns how many bytes fit below the prefix whose capacity limits a path.
    pub(super) fn room(&mut self, path: &Path) -> u64 {
        let Some((prefix, &mut Faults { capacity: Some(capacity), .. })) = self.faults_of(path)
        else {
            return u64::MAX;
        };
        let prefix = prefix.to_owned();
        let mut nodes = self.below(&prefix, |_| Vec::new());
        // A file that was removed takes its room until it is closed.
        nodes.extend(self.handles_below(&prefix).map(|handle| handle.node));
        let length = |number: &u64| match &self.tree.node(*number).body {
            Body::File(content) => content.bytes().len() as u64,
            _ => 0,
        };
        capacity.saturating_sub(nodes.iter().map(length).sum())
    }

    /// Returns the nodes below a prefix, with those that `more` adds to a folder.
    fn below(&self, prefix: &Path, more: impl Fn(u64) -> Vec<u64>) -> BTreeSet<u64> {
        match self.tree.resolve(prefix, Links::Follow) {
            Ok(Place { node: Some(node), .. }) => self.tree.below(node, more),
            _ => BTreeSet::new(),
        }
    }

    /// Returns the handles that were opened below a folder and that no crash has closed.
    pub(super) fn handles_below(&self, prefix: &Path) -> impl Iterator<Item = &Handle> {
        self.handles.values().filter(move |handle| !handle.dead && handle.path.starts_with(prefix))
    }

    /// Does one operation on folders, all of it or nothing after a crash.
    pub(super) fn alter(&mut self, changes: Vec<Change>, created: Option<u64>) {
        let now = (self.setup.clock)();
        let mut undo = Vec::with_capacity(changes.len());
        for change in changes {
            self.tree.node_mut(change.folder).modified = now;
            undo.push(self.tree.change(change));
        }
        self.journal.push(Operation { undo, created });
    }

    pub(super) fn create(&mut self, place: &Place, body: Body, mode: u32) -> u64 {
        if self.tree.len() >= self.sweep_at {
            let open = self.handles.values().map(|handle| handle.node);
            self.tree.sweep(open.chain(self.journal.nodes()));
            self.sweep_at = MIN_SWEEP.max(2 * self.tree.len());
        }
        let node = self.tree.add(Node { body, mode, modified: (self.setup.clock)() });
        self.alter(vec![place.leading_to(Some(node))], Some(node));
        self.changed(&place.path);
        node
    }

    pub(super) fn open(&mut self, path: &Path, options: &OpenOptions) -> Result<u64, Errno> {
        check(options)?;
        let keeps_link = options.create_new || options.refuses_links;
        let place = self.reach(path, if keeps_link { Links::Keep } else { Links::Follow })?;
        self.may_fail(&place.path, |faults| faults.open)?;
        let node = match place.node {
            Some(_) if options.create_new => return Err(Errno::EXIST),
            Some(node) => {
                self.open_node(node, &place.path, options)?;
                node
            }
            None if options.create || options.create_new => {
                let mode = if options.readers == Readers::Owner { 0o600 } else { 0o644 };
                self.create(&place, Body::File(Content::default()), mode)
            }
            None => return Err(Errno::NOENT),
        };
        let id = self.new_id();
        self.handles.insert(id, Handle::new(node, place.path, options));
        Ok(id)
    }

    /// Opens what exists; a folder can only be read.
    fn open_node(&mut self, node: u64, path: &Path, options: &OpenOptions) -> Result<(), Errno> {
        match self.tree.content(node) {
            Ok(content) if options.truncate && !content.bytes().is_empty() => {
                self.set_length(node, 0)?;
                self.changed(path);
                Ok(())
            }
            Err(Errno::ISDIR) if !options.write && !options.append => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }

    pub(super) fn set_length(&mut self, file: u64, length: usize) -> Result<(), Errno> {
        self.tree.content(file)?.set_length(length);
        self.tree.node_mut(file).modified = (self.setup.clock)();
        Ok(())
    }

    pub(super) fn metadata(&self, number: u64) -> Metadata {
        let node = self.tree.node(number);
        let (kind, length) = match &node.body {
            Body::File(content) => (FileKind::File, content.bytes().len()),
            Body::Folder(_) => (FileKind::Folder, 4096),
            Body::Link(target) => (FileKind::Link, target.as_os_str().len()),
        };
        Metadata {
            kind,
            length: length as u64,
            modified: Some(node.modified),
            inode: Some((DEVICE, number)),
            owner: Some(self.setup.owner),
            mode: Some(node.mode),
        }
    }

    pub(super) fn read_dir(&mut self, path: &Path) -> Result<Vec<OsString>, Errno> {
        let place = self.reach(path, Links::Follow)?;
        self.may_fail(&place.path, |faults| faults.read)?;
        let mut names: Vec<_> =
            self.tree.entries(place.node.ok_or(Errno::NOENT)?)?.keys().cloned().collect();
        // The trait promises no order, so nobody may depend on one.
        self.setup.rng.shuffle(&mut names);
        Ok(names)
    }

    /// Creates a folder and, as `std` does, those above it only after it had no place.
    pub(super) fn create_dir_all(&mut self, path: &Path, mode: u32) -> Result<(), Errno> {
        match (self.create_dir(path, mode), path.parent()) {
            (Err(Errno::NOENT), Some(parent)) if !path.as_os_str().is_empty() => {
                self.create_dir_all(parent, mode)?;
                self.create_dir(path, mode)
            }
            (Err(Errno::NOENT), _) if path.as_os_str().is_empty() => Ok(()),
            (outcome, _) => outcome,
        }
    }

    fn create_dir(&mut self, path: &Path, mode: u32) -> Result<(), Errno> {
        let place = self.reach(path, Links::Keep)?;
        if place.node.is_some() {
            let node = self.reach(path, Links::Follow).ok().and_then(|place| place.node);
            let is_folder = node.is_some_and(|node| self.tree.entries(node).is_ok());
            return if is_folder { Ok(()) } else { Err(Errno::EXIST) };
        }
        self.may_fail(&place.path, |faults| faults.write)?;
        self.create(&place, Body::Folder(BTreeMap::new()), mode);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), Errno> {
        let (from, to) = (self.reach(from, Links::Keep)?, self.reach(to, Links::Keep)?);
        let node = from.node.ok_or(Errno::NOENT)?;
        self.may_fail(&to.path, |faults| faults.write)?;
        if to.node == Some(node) {
            return Ok(());
        }
        if to.path.starts_with(&from.path) {
            return Err(Errno::INVAL);
        }
        if from.path.starts_with(&to.path) {
            return Err(Errno::NOTEMPTY);
        }
        if let Some(replaced) = to.node {
            match (self.tree.entries(node).is_ok(), self.tree.entries(replaced)) {
                (true, Err(error)) => return Err(error),
                (false, Ok(_)) => return Err(Errno::ISDIR),
                (true, Ok(entries)) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.alter(vec![from.leading_to(None), to.leading_to(Some(node))], None);
        self.changed(&from.path);
        self.changed(&to.path);
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> Result<(), Errno> {
        let place = self.reach(path, Links::Keep)?;
        let node = place.node.ok_or(Errno::NOENT)?;
        self.may_fail(&place.path, |faults| faults.write)?;
        if self.tree.entries(node).is_ok() {
            return Err(Errno::ISDIR);
        }
        if path.extension().is_some_and(|extension| extension == "jsonl")
            && let Ok(content) = self.tree.content(node)
        {
            self.removed_lines.push(content.bytes().to_vec());
        }
        self.alter(vec![place.leading_to(None)], None);
        self.changed(&place.path);
        Ok(())
    }

    pub(super) fn hard_link(&mut self, original: &Path, link: &Path) -> Result<(), Errno> {
        let node = self.reach(original, Links::Keep)?.node.ok_or(Errno::NOENT)?;
        let place = self.reach(link, Links::Keep)?;
        self.may_fail(&place.path, |faults| faults.write)?;
        if place.node.is_some() {
            return Err(Errno::EXIST);
        }
        if self.tree.entries(node).is_ok() {
            return Err(Errno::PERM);
        }
        self.alter(vec![place.leading_to(Some(node))], None);
        self.changed(&place.path);
        Ok(())
    }

    pub(super) fn read_link(&self, path: &Path) -> Result<PathBuf, Errno> {
        match &self.tree.node(self.reach(path, Links::Keep)?.node.ok_or(Errno::NOENT)?).body {
            Body::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn crash(&mut self, prefix: &Path) {
        let inside = self.below(prefix, |folder| self.journal.displaced(folder).collect());
        for operation in self.journal.crash(&inside, &mut self.setup.rng) {
            for change in operation.undo {
                self.tree.change(change);
            }
        }
        for number in inside {
            if let Ok(content) = self.tree.content(number) {
                content.crash(&mut self.setup.rng, self.setup.tears_sectors);
            }
        }
        for handle in self.handles.values_mut().filter(|h| h.path.starts_with(prefix)) {
            (handle.dead, handle.locked) = (true, false);
        }
        self.watchers.retain(|_, (folder, _)| !folder.starts_with(prefix));
        self.off.insert(prefix.to_owned());
    }
}

/// Refuses what `std::fs::OpenOptions` refuses.
fn check(options: &OpenOptions) -> Result<(), Errno> {
    let OpenOptions { read, write, append, create, create_new, truncate, .. } = *options;
    let creates = create || create_new || truncate;
    let refused = match (write, append) {
        (true, false) => false,
        (false, false) => !read || creates,
        (_, true) => truncate && !create_new,
    };
    if refused { Err(Errno::INVAL) } else { Ok(()) }
}
