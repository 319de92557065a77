//! The folder of the index: one file for each UTC day, and one with the position in the audit log.
//! Each is replaced as a whole.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::day::{Detail, PREAMBLE, wanted_length};
pub(crate) use base::platform::disk::{self, File, OpenOptions, Readers};

/// The folder of an index.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    /// Held by the one process that writes; `None` for readers.
    lock: Option<File>,
}

const LOCK_FILE: &str = "lock";
const STATE_FILE: &str = "position";
const DAY_PREFIX: &str = "day-";
const TEMPORARY: &str = ".tmp";

/// The limit of a file, in bytes: far more than a day with all its keys takes.
const MAX_FILE: u64 = 64 << 20;

/// Bytes that are read before it is known how many are needed: most headers are shorter.
const FIRST_READ: usize = 4096;

impl Files {
    /// Opens the folder for the one process that writes; creates it if there is none.
    ///
    /// # Errors
    /// When the folder cannot be created or written, or another process writes it (`WouldBlock`).
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        disk::create_dir_all(path, Readers::Owner)?;
        let options = OpenOptions { create: true, write: true, ..OpenOptions::private() };
        let lock = options.open(&path.join(LOCK_FILE))?;
        lock.try_lock().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::WouldBlock, "another gateway writes this index")
            }
            _ => error,
        })?;
        Ok(Self { path: path.to_owned(), lock: Some(lock) })
    }

    /// A folder that is only read. It need not exist.
    pub(super) fn reader(path: &Path) -> Self {
        Self { path: path.to_owned(), lock: None }
    }

    /// Whether this process writes the folder.
    pub(super) fn is_writer(&self) -> bool {
        self.lock.is_some()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the days that have files, oldest first, with their sizes in bytes.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(super) fn days(&self) -> io::Result<Vec<(u64, u64)>> {
        let names = match disk::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names?,
        };
        let mut days = Vec::new();
        for name in names {
            let number = name.to_str().and_then(|name| name.strip_prefix(DAY_PREFIX)?.parse().ok());
            if let Some(number) = number
                && let Ok(meta) = disk::symlink_metadata(&self.path.join(&name))
            {
                days.push((number, meta.length));
            }
        }
        days.sort_unstable();
        Ok(days)
    }

    /// Returns the whole file of a day; `None` if there is none.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn day(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        read(&self.day_path(number))
    }

    /// Returns as much of the file of a day as is needed, or all of it if it is damaged; `None` if
    /// there is no file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn part_of_day(&self, number: u64, detail: Detail) -> io::Result<Option<Vec<u8>>> {
        let Some(mut file) = open(&self.day_path(number))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let mut wanted = FIRST_READ.max(PREAMBLE);
        loop {
            let more = wanted.saturating_sub(bytes.len()).min(MAX_FILE as usize);
            let read = (&mut file).take(more as u64).read_to_end(&mut bytes)?;
            wanted = match wanted_length(&bytes, detail) {
                Ok(length) | Err(Some(length)) => length,
                Err(None) => return Ok(Some(bytes)),
            };
            if bytes.len() >= wanted || read == 0 {
                return Ok(Some(bytes));
            }
        }
    }

    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write_day(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        replace(&self.day_path(number), bytes)
    }

    /// # Errors
    /// When the file cannot be removed.
    pub(super) fn remove_day(&self, number: u64) -> io::Result<()> {
        match disk::remove_file(&self.day_path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the file with the position; `None` if there is none.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn state(&self) -> io::Result<Option<Vec<u8>>> {
        read(&self.path.join(STATE_FILE))
    }

    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write_state(&self, bytes: &[u8]) -> io::Result<()> {
        replace(&self.path.join(STATE_FILE), bytes)
    }

    fn day_path(&self, number: u64) -> PathBuf {
        self.path.join(format!("{DAY_PREFIX}{number:08}"))
    }
}

/// Replaces a file as a whole: after a crash it is the one before, or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TEMPORARY);
    let temporary = PathBuf::from(temporary);
    let options =
        OpenOptions { create: true, write: true, truncate: true, ..OpenOptions::private() };
    let mut file = options.open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    disk::rename(&temporary, path)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open(path)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
