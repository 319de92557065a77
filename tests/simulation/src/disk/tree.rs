//! The nodes of the disk, and the paths that lead to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::platform::disk::Links;
use rustix::io::Errno;

use super::durability::Content;

/// The folder `/`, to which relative paths are relative.
pub(super) const ROOT: u64 = 1;

/// The links that one path may lead over, as on Linux.
const MAX_LINKS: usize = 40;

/// A file, folder or link. Its number is its inode.
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) mode: u32,
    pub(super) modified: SystemTime,
}

pub(super) enum Body {
    File(Content),
    Folder(BTreeMap<OsString, u64>),
    Link(PathBuf),
}

/// An entry of a folder that is set or, without a node, removed.
pub(super) struct Change {
    pub(super) folder: u64,
    pub(super) name: OsString,
    pub(super) node: Option<u64>,
}

/// Where a path leads.
pub(super) struct Place {
    /// Absolute, and without links but perhaps the last.
    pub(super) path: PathBuf,
    folder: u64,
    name: OsString,
    /// `None` where the folder has no such entry.
    pub(super) node: Option<u64>,
}

/// The inode table.
pub(super) struct Tree {
    nodes: BTreeMap<u64, Node>,
    next: u64,
}

impl Tree {
    /// A tree with nothing but `/`.
    pub(super) fn new(now: SystemTime) -> Self {
        let root = Node { body: Body::Folder(BTreeMap::new()), mode: 0o755, modified: now };
        Self { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    pub(super) fn add(&mut self, node: Node) -> u64 {
        let number = self.next;
        self.next += 1;
        self.nodes.insert(number, node);
        number
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Drops the nodes that neither an entry nor one of `held` leads to.
    pub(super) fn sweep(&mut self, held: impl Iterator<Item = u64>) {
        let mut alive = self.below(ROOT, |_| Vec::new());
        for node in held {
            if !alive.contains(&node) {
                alive.extend(self.below(node, |_| Vec::new()));
            }
        }
        self.nodes.retain(|number, _| alive.contains(number));
    }

    pub(super) fn node(&self, number: u64) -> &Node {
        &self.nodes[&number]
    }

    pub(super) fn node_mut(&mut self, number: u64) -> &mut Node {
        self.nodes.get_mut(&number).expect("what an entry or a handle leads to is not swept")
    }

    /// Returns the content of a file.
    ///
    /// # Errors
    /// When it is a folder or a link.
    pub(super) fn content(&mut self, number: u64) -> Result<&mut Content, Errno> {
        match &mut self.node_mut(number).body {
            Body::File(content) => Ok(content),
            Body::Folder(_) => Err(Errno::ISDIR),
            Body::Link(_) => Err(Errno::LOOP),
        }
    }

    /// Returns the entries of a folder.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn entries(&self, number: u64) -> Result<&BTreeMap<OsString, u64>, Errno> {
        match &self.node(number).body {
            Body::Folder(entries) => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Sets or removes an entry. Returns the change that takes it back.
    pub(super) fn change(&mut self, change: Change) -> Change {
        let Change { folder, name, node } = change;
        let Body::Folder(entries) = &mut self.node_mut(folder).body else {
            unreachable!("only folders have entries");
        };
        let before = match node {
            Some(node) => entries.insert(name.clone(), node),
            None => entries.remove(&name),
        };
        Change { folder, name, node: before }
    }

    /// Returns a node and all below it, with those that `more` adds to a folder.
    pub(super) fn below(&self, start: u64, more: impl Fn(u64) -> Vec<u64>) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let mut ahead = vec![start];
        while let Some(number) = ahead.pop() {
            if found.insert(number)
                && let Ok(entries) = self.entries(number)
            {
                ahead.extend(entries.values());
                ahead.extend(more(number));
            }
        }
        found
    }

    /// Follows a path. Its last entry need not exist.
    ///
    /// # Errors
    /// When a folder on the way is missing or none, or there are too many links.
    pub(super) fn resolve(&self, path: &Path, links: Links) -> Result<Place, Errno> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT);
        }
        let mut walked: Vec<(OsString, u64)> = Vec::new();
        let mut ahead = steps(path);
        let mut followed = 0;
        while let Some(step) = ahead.pop() {
            let entries = self.entries(walked.last().map_or(ROOT, |(_, node)| *node))?;
            match (step.to_str(), entries.get(&step)) {
                (Some("/"), _) => walked.clear(),
                (Some("."), _) => {}
                (Some(".."), _) => drop(walked.pop()),
                (_, None) if ahead.is_empty() => return Ok(Place::new(walked, Some(step))),
                (_, None) => return Err(Errno::NOENT),
                (_, Some(&node)) => match &self.node(node).body {
                    Body::Link(target) if links == Links::Follow || !ahead.is_empty() => {
                        followed += 1;
                        if followed > MAX_LINKS {
                            return Err(Errno::LOOP);
                        }
                        ahead.extend(steps(target));
                    }
                    _ => walked.push((step, node)),
                },
            }
        }
        Ok(Place::new(walked, None))
    }
}

/// Returns the names in a path, last first.
fn steps(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|component| component.as_os_str().to_owned()).collect()
}

impl Place {
    fn new(mut walked: Vec<(OsString, u64)>, missing: Option<OsString>) -> Self {
        let mut path = PathBuf::from("/");
        path.extend(walked.iter().map(|(name, _)| name));
        let (name, node) = match missing {
            Some(name) => {
                path.push(&name);
                (name, None)
            }
            None => match walked.pop() {
                Some((name, node)) => (name, Some(node)),
                None => (OsString::new(), Some(ROOT)),
            },
        };
        let folder = walked.last().map_or(ROOT, |(_, node)| *node);
        Self { path, folder, name, node }
    }

    /// Returns the change that makes the place lead to a node or, with `None`, nowhere.
    pub(super) fn leading_to(&self, node: Option<u64>) -> Change {
        Change { folder: self.folder, name: self.name.clone(), node }
    }

    /// Returns the folder of the entry.
    pub(super) fn folder(&self) -> u64 {
        self.folder
    }
}
