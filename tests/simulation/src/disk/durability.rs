//! The state after a crash: the bytes of files and the entries of folders that were synced, and
//! some of the others.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

use fastrand::Rng;

use super::tree::Change;

/// The unit that a drive writes atomically, in bytes.
const SECTOR: usize = 512;

/// Edits of one file, and operations on folders, that wait for a sync. Above it the oldest becomes
/// durable: systems write back after some seconds, and a file that nobody syncs must not fill the
/// memory of a long run.
const MAX_UNSYNCED: usize = 4096;

/// The bytes of a file: as they are read, and as they are on the platter.
#[derive(Default)]
pub(super) struct Content {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    unsynced: VecDeque<Edit>,
}

enum Edit {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Content {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn durable(&self) -> &[u8] {
        &self.durable
    }

    /// Writes at an offset; what lies between the end and the offset becomes zeros.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.edit(Edit::Write { at, bytes: bytes.to_vec() });
    }

    pub(super) fn set_length(&mut self, length: usize) {
        self.edit(Edit::Length(length));
    }

    /// Makes everything durable that no failed sync has lost.
    pub(super) fn sync(&mut self) {
        for edit in self.unsynced.drain(..) {
            edit.apply(usize::MAX, &mut self.durable);
        }
    }

    /// Takes the unsynced edits for synced, as Linux does after a sync that failed: they can be
    /// read until a crash, and no later sync writes them.
    pub(super) fn lose_unsynced(&mut self) {
        self.unsynced.clear();
    }

    /// Sets a byte where the drive keeps it. Returns whether the file is that long.
    pub(super) fn damage(&mut self, at: usize, byte: u8) -> bool {
        if let Some(durable) = self.durable.get_mut(at) {
            *durable = byte;
        }
        self.bytes.get_mut(at).map(|read| *read = byte).is_some()
    }

    /// Leaves what was synced and the first of the unsynced edits, of which the last may be cut
    /// anywhere.
    pub(super) fn crash(&mut self, rng: &mut Rng, tears: bool) {
        if !self.unsynced.is_empty() {
            let mut left = survivors(rng, self.unsynced.iter().map(Edit::size).sum());
            let mut synced = self.durable.len();
            for edit in mem::take(&mut self.unsynced) {
                if let Edit::Length(length) = edit
                    && left > 0
                {
                    synced = synced.min(length);
                }
                edit.apply(left, &mut self.durable);
                left = left.saturating_sub(edit.size());
            }
            if tears && rng.bool() {
                tear(rng, synced, &mut self.durable);
            }
        }
        self.bytes.clone_from(&self.durable);
    }

    fn edit(&mut self, edit: Edit) {
        edit.apply(usize::MAX, &mut self.bytes);
        match (self.unsynced.back_mut(), edit) {
            (Some(Edit::Write { at, bytes }), Edit::Write { at: next, bytes: more })
                if *at + bytes.len() == next =>
            {
                bytes.extend(more);
            }
            (_, edit) => self.unsynced.push_back(edit),
        }
        if self.unsynced.len() > MAX_UNSYNCED
            && let Some(oldest) = self.unsynced.pop_front()
        {
            oldest.apply(usize::MAX, &mut self.durable);
        }
    }
}

impl Edit {
    /// The number of states between before and after it.
    fn size(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Length(_) => 1,
        }
    }

    /// Does at most `size` of it.
    fn apply(&self, size: usize, to: &mut Vec<u8>) {
        match self {
            _ if size == 0 => {}
            Self::Write { at, bytes } => {
                let bytes = &bytes[..size.min(bytes.len())];
                let end = at + bytes.len();
                if to.len() < end {
                    to.resize(end, 0);
                }
                to[*at..end].copy_from_slice(bytes);
            }
            Self::Length(length) => to.resize(*length, 0),
        }
    }
}

/// How many of `all` survive. Nothing and everything are the cases that show most mistakes, hence
/// so frequent.
fn survivors(rng: &mut Rng, all: usize) -> usize {
    match rng.u8(..4) {
        0 => 0,
        1 => all,
        _ => rng.usize(..=all),
    }
}

/// Makes the end of the last sector zeros or garbage, but none of the first `synced` bytes.
fn tear(rng: &mut Rng, synced: usize, bytes: &mut [u8]) {
    let sector = bytes.len().saturating_sub(1) / SECTOR * SECTOR;
    let first = sector.max(synced);
    if first >= bytes.len() {
        return;
    }
    let start = rng.usize(first..bytes.len());
    let torn = &mut bytes[start..];
    torn.fill(0);
    if rng.bool() {
        rng.fill(torn);
    }
}

/// The operations on folders that no sync has made durable, oldest first.
pub(super) struct Journal {
    operations: VecDeque<Operation>,
    sync_keeps_entry: bool,
}

/// One change of entries, which happens in all its folders or in none.
pub(super) struct Operation {
    /// The changes that take it back.
    pub(super) undo: Vec<Change>,
    /// The node that the operation made.
    pub(super) created: Option<u64>,
}

impl Journal {
    /// An empty journal. See [`super::Setup::sync_keeps_entry`].
    pub(super) fn new(sync_keeps_entry: bool) -> Self {
        Self { operations: VecDeque::new(), sync_keeps_entry }
    }

    pub(super) fn push(&mut self, operation: Operation) {
        self.operations.push_back(operation);
        if self.operations.len() > MAX_UNSYNCED {
            // Nothing is before the oldest, so it becomes durable alone.
            self.operations.pop_front();
        }
    }

    /// Makes the operations in a folder durable.
    pub(super) fn sync_folder(&mut self, folder: u64) {
        let keeps_entry = self.sync_keeps_entry;
        self.commit(BTreeSet::from([folder]), |operation, folders| {
            keeps_entry && operation.created.is_some_and(|node| folders.contains(&node))
        });
    }

    /// Makes the entry durable that a file was created with, and the folders above it, if syncs do
    /// that here.
    pub(super) fn sync_file(&mut self, file: u64) {
        if self.sync_keeps_entry {
            self.commit(BTreeSet::new(), |operation, folders| {
                operation.created.is_some_and(|node| node == file || folders.contains(&node))
            });
        }
    }

    /// Takes the operations of a crash out of the journal: those in the nodes `inside`. Returns the
    /// ones to take back, latest first; the others are durable.
    pub(super) fn crash(&mut self, inside: &BTreeSet<u64>, rng: &mut Rng) -> Vec<Operation> {
        let is_inside = |folder: u64| inside.contains(&folder);
        // Files that the machine moved to another, which does not crash, stay there.
        self.commit(BTreeSet::new(), |operation, _| {
            operation.folders().any(is_inside) && !operation.folders().all(is_inside)
        });
        let (mut lost, others): (Vec<_>, Vec<_>) = mem::take(&mut self.operations)
            .into_iter()
            .partition(|operation| operation.folders().any(is_inside));
        self.operations = others.into();
        lost.drain(..survivors(rng, lost.len()));
        lost.reverse();
        lost
    }

    /// Returns the nodes that were in a folder before unsynced operations, and may be there again.
    pub(super) fn displaced(&self, folder: u64) -> impl Iterator<Item = u64> {
        self.changes().filter(move |change| change.folder == folder).filter_map(|c| c.node)
    }

    /// Returns the nodes that the journal may bring back, and their folders.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u64> {
        self.changes().flat_map(|change| change.node.into_iter().chain([change.folder]))
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.operations.iter().flat_map(|operation| &operation.undo)
    }

    /// Makes durable what happened in `folders`, the operations that `also` accepts, and what
    /// happened before each of them in its folders: a folder never loses an operation and keeps a
    /// later one. `also` learns the folders that are concerned so far, from the latest operation
    /// backwards.
    fn commit(
        &mut self,
        mut folders: BTreeSet<u64>,
        also: impl Fn(&Operation, &BTreeSet<u64>) -> bool,
    ) {
        let mut unsynced = VecDeque::new();
        for operation in mem::take(&mut self.operations).into_iter().rev() {
            if operation.folders().any(|folder| folders.contains(&folder))
                || also(&operation, &folders)
            {
                folders.extend(operation.folders());
            } else {
                unsynced.push_front(operation);
            }
        }
        self.operations = unsynced;
    }
}

impl Operation {
    fn folders(&self) -> impl Iterator<Item = u64> {
        self.undo.iter().map(|change| change.folder)
    }
}
