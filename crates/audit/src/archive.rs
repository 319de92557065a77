//! An archive: copies of closed segments in another folder, where they stay when they leave the
//! log. A copy appears complete or not at all, and only once the log has a record of it.

use std::io::{self, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::Audit;
use super::record::AuditEvent;
use super::segments::closed_segment::ClosedSegment;
use super::segments::folder::{compressed_name, open_stored, segment_name, segment_numbers};
use super::segments::recover::read_header;
use super::segments::segment_reader::{BLOCK, SegmentReader, read_full};
use base::platform::blocking;
use base::platform::disk::{self, File, OpenOptions, Readers};
use base::seal::hex::hex;
use domain::calls::fair_share::Holder;

/// The folder of an archive, locked so that one process copies into it.
pub struct Archive {
    log: PathBuf,
    folder: PathBuf,
    _lock: File,
}

/// The state of the copy of a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyState {
    Missing,
    /// The copy is a prefix of the segment.
    Incomplete,
    Complete,
    /// The content of the copy differs.
    Different,
}

/// A copy that is complete, and has no name in the archive yet.
pub struct SegmentCopy {
    number: u64,
    name: String,
    digest: String,
}

/// The statement that a segment was copied.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CopyStatement {
    /// The number of the segment.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub segment: u64,
    /// The digest of the text of the copy, decompressed; in hexadecimal.
    pub sha256: String,
    /// The folder of the archive, as it was named.
    pub folder: String,
    /// The operator.
    pub by: String,
}

const LOCK_FILE: &str = "archive.lock";
const TEMPORARY_FILE: &str = "copy.tmp";

impl Archive {
    /// Opens and locks the archive of a log; creates the folder if it does not exist.
    ///
    /// # Errors
    /// When one of the folders cannot be used, both are the same, the archive is that of another
    /// log, or another process copies into it (`WouldBlock`).
    pub fn open(log: &Path, folder: &Path) -> io::Result<Self> {
        let numbers = segment_numbers(log)?;
        disk::create_dir_all(folder, Readers::Owner)?;
        if disk::canonicalize(log)? == disk::canonicalize(folder)? {
            return Err(io::Error::other("it is the folder of the log itself"));
        }
        let instance =
            |folder: &Path, number: &u64| Some(read_header(folder, *number).ok()?.instance);
        let archived = segment_numbers(folder)?;
        let archived = archived.last().and_then(|number| instance(folder, number));
        let own = numbers.last().and_then(|number| instance(log, number));
        if archived.is_some_and(|archived| own.is_some_and(|own| own != archived)) {
            return Err(io::Error::other("it has segments of another log"));
        }
        let options = OpenOptions { create: true, write: true, ..OpenOptions::private() };
        let lock = options.open(&folder.join(LOCK_FILE))?;
        lock.try_lock()?;
        Ok(Self { log: log.to_owned(), folder: folder.to_owned(), _lock: lock })
    }

    /// Returns the closed segments of the log, oldest first.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn closed(&self) -> io::Result<Vec<u64>> {
        let mut numbers = segment_numbers(&self.log)?;
        numbers.pop();
        Ok(numbers)
    }

    /// Compares the copy of a segment with the segment, byte by byte.
    ///
    /// # Errors
    /// When one of the two cannot be read; [`io::ErrorKind::NotFound`] if the segment has left.
    pub fn state(&self, number: u64) -> io::Result<CopyState> {
        copy_state(&self.log, &self.folder, number)
    }

    /// Returns the file name of the copy of a segment.
    ///
    /// # Errors
    /// When there is none.
    pub fn name(&self, number: u64) -> io::Result<String> {
        Ok(open_stored(&self.folder, number)?.0)
    }

    /// Copies a segment as it is stored.
    ///
    /// # Errors
    /// When it cannot be read, or the copy not be written; [`io::ErrorKind::NotFound`] if it has
    /// left.
    pub fn copy(&self, number: u64) -> io::Result<SegmentCopy> {
        let (name, from) = open_stored(&self.log, number)?;
        let temporary = self.folder.join(TEMPORARY_FILE);
        let options =
            OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::private() };
        let mut to = options.open(&temporary)?;
        let modified = from.metadata()?.modified;
        io::copy(&mut BufReader::with_capacity(BLOCK, from), &mut to)?;
        // A search by time reads the modification time.
        modified.map_or(Ok(()), |modified| to.set_modified(modified))?;
        to.sync_all()?;
        let is_compressed = name == compressed_name(number);
        let copied = SegmentReader::of(File::open(&temporary)?, is_compressed)?;
        Ok(SegmentCopy { number, name, digest: text_digest(copied)? })
    }

    /// Renames a recorded copy to its final name; it replaces an incomplete copy.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn keep(&self, copy: &SegmentCopy) -> io::Result<()> {
        disk::rename(&self.folder.join(TEMPORARY_FILE), &self.folder.join(&copy.name))?;
        if copy.name != segment_name(copy.number) {
            match disk::remove_file(&self.folder.join(segment_name(copy.number))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        disk::sync_folder(&self.folder)
    }
}

impl SegmentCopy {
    /// Returns the file name of the copy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the statement that the log records of the copy.
    pub fn statement(&self, folder: &Path, by: &str) -> CopyStatement {
        CopyStatement {
            segment: self.number,
            sha256: self.digest.clone(),
            folder: folder.display().to_string(),
            by: by.to_owned(),
        }
    }
}

impl CopyStatement {
    /// Returns the record of the copy, after checking that its text is that of the segment.
    fn event(&self, log: &Path) -> io::Result<AuditEvent> {
        let closed = ClosedSegment::find(log, self.segment)?;
        if text_digest(SegmentReader::open(log, self.segment)?)? != self.sha256 {
            let message = format!("the copy of {} differs from it", segment_name(self.segment));
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let event = closed.event("segment_archived").text("sha256", &self.sha256);
        Ok(event.text("folder", &self.folder).text("by", &self.by))
    }

    /// Records the copy in the log that has the segment, and waits until that is written.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the segment has left the log, or is not closed;
    /// [`io::ErrorKind::InvalidData`] if the copy differs from it; else when the segment cannot be
    /// read, or the record not be written.
    pub async fn record(self, audit: &Audit) -> io::Result<()> {
        let ledger = audit.ledger().ok_or_else(|| io::Error::other("the audit log is disabled"))?;
        let log = ledger.path().to_owned();
        let event = blocking(move || self.event(&log))
            .await
            .map_err(|error| io::Error::other(error.to_string()))??;
        // Operators have no share as callers: they use the share of this machine.
        let holder = Holder::Network(Ipv4Addr::LOCALHOST.into());
        ledger.record(&holder, event).await.map_err(io::Error::other)
    }
}

/// Compares the copy of a segment in another folder with the segment.
pub(crate) fn copy_state(log: &Path, archive: &Path, number: u64) -> io::Result<CopyState> {
    let (name, original) = open_stored(log, number)?;
    let (copied_name, copy) = match open_stored(archive, number) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(CopyState::Missing),
        opened => opened?,
    };
    if name == copied_name {
        return compare(original, copy);
    }
    // The segment or its copy was compressed since.
    let reader = |name: &str, file| SegmentReader::of(file, name == compressed_name(number));
    let original = reader(&name, original)?;
    match reader(&copied_name, copy).and_then(|copy| compare(original, copy)) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(CopyState::Different),
        compared => compared,
    }
}

fn compare(mut original: impl Read, mut copy: impl Read) -> io::Result<CopyState> {
    let mut text = vec![0; BLOCK];
    let mut copied = vec![0; BLOCK];
    loop {
        let length = read_full(&mut original, &mut text)?;
        let copied_length = read_full(&mut copy, &mut copied)?;
        if !text[..length].starts_with(&copied[..copied_length]) {
            return Ok(CopyState::Different);
        }
        if copied_length < length {
            return Ok(CopyState::Incomplete);
        }
        if length < BLOCK {
            return Ok(CopyState::Complete);
        }
    }
}

/// Returns the SHA-256 digest of the text of a segment, in hexadecimal.
fn text_digest(mut segment: SegmentReader) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        let length = read_full(&mut segment, &mut block)?;
        digest.update(&block[..length]);
        if length < BLOCK {
            return Ok(hex(&digest.finalize()));
        }
    }
}
