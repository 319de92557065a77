//! Open files.

use std::fmt::{Debug, Display};
use std::io::{self, SeekFrom};
use std::mem;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::platform::disk::{Metadata, OpenFile, OpenOptions};
use rustix::io::Errno;

use super::SimDisk;
use super::state::State;
use super::tree::Body;

/// No file is longer, in bytes: a wrong offset must not take the memory of the machine.
const MAX_LENGTH: u64 = 1 << 30;

/// The shared state of the clones of a handle.
pub(super) struct Handle {
    pub(super) node: u64,
    /// Where it was opened. Its power and its faults are those of this path, wherever the file is
    /// moved.
    pub(super) path: PathBuf,
    /// Whether a crash closed it.
    pub(super) dead: bool,
    pub(super) locked: bool,
    position: u64,
    clones: usize,
    reads: bool,
    writes: bool,
    appends: bool,
}

impl Handle {
    pub(super) fn new(node: u64, path: PathBuf, options: &OpenOptions) -> Self {
        let OpenOptions { read, write, append, .. } = *options;
        Self {
            node,
            path,
            dead: false,
            locked: false,
            position: 0,
            clones: 1,
            reads: read,
            writes: write || append,
            appends: append,
        }
    }
}

/// One clone of a handle.
pub(super) struct SimFile {
    pub(super) disk: SimDisk,
    pub(super) id: u64,
}

impl SimFile {
    fn sync(&self, what: &str) -> io::Result<()> {
        let takes_time = self.disk.state().setup.sync_time.clone();
        takes_time();
        self.change(what, "", State::sync)
    }

    /// Runs an operation that the observer learns of, with its operand.
    fn change<T: Debug>(
        &self,
        name: &str,
        operand: impl Display,
        act: impl FnOnce(&mut State, u64) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let mut state = self.disk.state();
        let outcome = act(&mut state, self.id);
        let path = state.handles[&self.id].path.display();
        state.tell(format_args!("{name} {path} {operand}"), outcome)
    }
}

impl OpenFile for SimFile {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.disk.state().read(self.id, buffer)?)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.change("write", bytes.len(), |state, id| state.write(id, bytes))
    }

    fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        Ok(self.disk.state().seek(self.id, to)?)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        let state = self.disk.state();
        Ok(state.metadata(state.alive(self.id)?.node))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.change("set_len", length, |state, id| state.set_len(id, length))
    }

    fn set_modified(&self, at: SystemTime) -> io::Result<()> {
        self.change("set_modified", "", |state, id| {
            let node = state.alive(id)?.node;
            state.tree.node_mut(node).modified = at;
            state.changed(&state.handles[&id].path);
            Ok(())
        })
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.change("set_mode", format_args!("{mode:o}"), |state, id| {
            let node = state.alive(id)?.node;
            state.tree.node_mut(node).mode = mode & 0o7777;
            state.changed(&state.handles[&id].path);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync("sync_data")
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync("sync_all")
    }

    fn try_lock(&self) -> io::Result<()> {
        self.change("lock", "", |state, id| {
            let node = state.alive(id)?.node;
            let held = |(&other, handle): (&u64, &Handle)| {
                other != id && handle.node == node && handle.locked
            };
            if state.handles.iter().any(held) {
                return Err(Errno::WOULDBLOCK);
            }
            state.handle(id).locked = true;
            Ok(())
        })
    }

    fn try_clone(&self) -> io::Result<Box<dyn OpenFile>> {
        let mut state = self.disk.state();
        state.alive(self.id)?;
        state.handle(self.id).clones += 1;
        Ok(Box::new(Self { disk: self.disk.clone(), id: self.id }))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        let handle = state.handle(self.id);
        handle.clones -= 1;
        if handle.clones == 0 {
            state.handles.remove(&self.id);
        }
    }
}

impl State {
    /// Returns a handle that no crash has closed, on a disk that has power.
    fn alive(&self, id: u64) -> Result<&Handle, Errno> {
        let handle = &self.handles[&id];
        if handle.dead {
            return Err(Errno::IO);
        }
        self.check_power(&handle.path)?;
        Ok(handle)
    }

    fn handle(&mut self, id: u64) -> &mut Handle {
        self.handles.get_mut(&id).expect("a handle stays until its last clone is dropped")
    }

    fn read(&mut self, id: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let &Handle { node, reads, position, ref path, .. } = self.alive(id)?;
        let path = path.clone();
        if !reads {
            return Err(Errno::BADF);
        }
        self.may_fail(&path, |faults| faults.read)?;
        let bytes = self.tree.content(node)?.bytes();
        let rest = &bytes[bytes.len().min(position as usize)..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.handle(id).position += count as u64;
        Ok(count)
    }

    fn write(&mut self, id: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let &Handle { node, writes, appends, position, ref path, .. } = self.alive(id)?;
        let path = path.clone();
        if !writes {
            return Err(Errno::BADF);
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        self.may_fail(&path, |faults| faults.write)?;
        let length = self.tree.content(node)?.bytes().len() as u64;
        let at = if appends { length } else { position };
        let end = length.saturating_add(self.room(&path));
        let count = self.write_size(&path, bytes.len());
        let fits = (count as u64).min(end.saturating_sub(at)) as usize;
        if fits == 0 {
            return Err(Errno::NOSPC);
        }
        if at + fits as u64 > MAX_LENGTH {
            return Err(Errno::FBIG);
        }
        self.tree.content(node)?.write(at as usize, &bytes[..fits]);
        self.tree.node_mut(node).modified = (self.setup.clock)();
        self.handle(id).position = at + fits as u64;
        self.changed(&path);
        Ok(fits)
    }

    /// Returns how many of so many bytes one write takes.
    fn write_size(&mut self, path: &Path, all: usize) -> usize {
        let short = self.faults_of(path).map_or(0.0, |(_, faults)| faults.short_write);
        if all > 1 && self.happens(short) { self.setup.rng.usize(1..all) } else { all }
    }

    fn seek(&mut self, id: u64, to: SeekFrom) -> Result<u64, Errno> {
        let handle = self.alive(id)?;
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => handle.position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata(handle.node).length.checked_add_signed(by),
        };
        let position = position.filter(|at| i64::try_from(*at).is_ok()).ok_or(Errno::INVAL)?;
        self.handle(id).position = position;
        Ok(position)
    }

    fn set_len(&mut self, id: u64, length: u64) -> Result<(), Errno> {
        let &Handle { node, writes, ref path, .. } = self.alive(id)?;
        let path = path.clone();
        if !writes || i64::try_from(length).is_err() {
            return Err(Errno::INVAL);
        }
        if length > MAX_LENGTH {
            return Err(Errno::FBIG);
        }
        self.may_fail(&path, |faults| faults.write)?;
        let before = self.tree.content(node)?.bytes().len() as u64;
        // A hole takes the room of its bytes here, which is the worse case.
        if length.saturating_sub(before) > self.room(&path) {
            return Err(Errno::NOSPC);
        }
        self.set_length(node, length as usize)?;
        self.changed(&path);
        Ok(())
    }

    fn sync(&mut self, id: u64) -> Result<(), Errno> {
        let &Handle { node, ref path, .. } = self.alive(id)?;
        let path = path.clone();
        self.sync_fault(&path, node)?;
        match &mut self.tree.node_mut(node).body {
            Body::File(content) => {
                content.sync();
                self.journal.sync_file(node);
            }
            _ => self.journal.sync_folder(node),
        }
        Ok(())
    }

    /// Fails as the faults of a path say. The bytes that the sync was for may then be lost; entries
    /// of folders stay unsynced.
    fn sync_fault(&mut self, path: &Path, node: u64) -> Result<(), Errno> {
        // A folder has no bytes to lose, so that fault waits for a file.
        let is_file = self.tree.content(node).is_ok();
        let Some((_, faults)) = self.faults_of(path) else {
            return Ok(());
        };
        let probability = faults.sync;
        let loses = is_file && mem::take(&mut faults.fail_next_sync_loses);
        if !loses && !self.happens(probability) {
            return Ok(());
        }
        if (loses || self.setup.rng.bool())
            && let Ok(content) = self.tree.content(node)
        {
            content.lose_unsynced();
        }
        Err(Errno::IO)
    }
}
