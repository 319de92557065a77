//! The log as a state machine: records go in, lines are appended to segments. The writer thread
//! owns it; the clock is handed in.
//!
//! Lines that are written but not synced are kept in memory, so that a segment whose file fails can
//! be abandoned and the same lines written to a new segment. A file whose sync failed is never
//! synced again: the system may have discarded the unwritten pages, and reports an error only once.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::Statement;
use super::keys::{Digest, Keys};
use super::record::{AuditEvent, Head, Stamp, WriterId, next_digest, time_text};
use super::segments::folder::{CheckpointCopies, LogFolder, LogSegment, PendingSync, segment_name};
use super::segments::header::SegmentHeader;
use super::segments::recover::Recovered;

/// A log that is open for writing.
pub(crate) struct Log {
    folder: LogFolder,
    keys: Arc<Keys>,
    settings: LogSettings,
    writer: WriterId,
    /// The last record that was written, synced or not.
    head: Head,
    /// The current segment; `None` from a failure of its file until the next segment exists.
    segment: Option<LogSegment>,
    number: u64,
    opened_at: Duration,
    /// The position up to which everything is known to be on the disk.
    durable: WritePosition,
    /// The position that becomes `durable` when the sync under way succeeds, with the lines since
    /// `durable`.
    syncing: Option<WritePosition>,
    syncing_lines: Vec<u8>,
    /// The lines after `syncing_lines`, for the next sync.
    unsynced_lines: Vec<u8>,
    /// Lines of checkpoints that are copied after the next sync.
    signed_lines: Vec<u8>,
    /// The bytes of `signed_lines` that the sync under way copies.
    syncing_signed: usize,
    /// Why the last segment was abandoned.
    abandon_reason: Option<String>,
    last_checkpoint: LastCheckpoint,
    /// The running digest of the headers of all segments.
    headers: Digest,
    /// The size of all segments, in bytes.
    total: u64,
}

/// The limits of a log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LogSettings {
    /// Bytes from which on a new segment is started.
    pub segment_size: u64,
    pub segment_age: Duration,
    /// The limit of all segments together, as they are stored; in bytes.
    pub keep_size: u64,
    /// The age at which closed segments leave.
    pub keep_for: Duration,
    /// Bytes beyond `keep_size` for segments that wait for the export; `None` without an export.
    pub export_reserve: Option<u64>,
    /// Whether records are refused at `keep_size`; else the oldest closed segments leave.
    pub refuses_when_full: bool,
    /// Records after which a checkpoint is due.
    pub checkpoint_records: u64,
    pub checkpoint_every: Duration,
}

/// A position in a segment: the last record before it, and the length in bytes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct WritePosition {
    head: Head,
    bytes: u64,
}

/// The last checkpoint: the number of its record, and when it was signed.
#[derive(Clone, Copy, Debug, Default)]
struct LastCheckpoint {
    seq: u64,
    at: Duration,
}

impl Log {
    /// Replaces the limits.
    pub(crate) fn reconfigure(&mut self, settings: LogSettings) {
        self.settings = settings;
    }

    /// Opens the log, which continues where `recovered` ended.
    pub(crate) fn new(
        folder: LogFolder,
        keys: Arc<Keys>,
        settings: LogSettings,
        recovered: &Recovered,
        stamp: Stamp,
    ) -> io::Result<Self> {
        let writer = recovered.writer.clone();
        let mut log = Self {
            total: folder.total()?,
            folder,
            keys,
            settings,
            writer,
            head: recovered.head,
            segment: None,
            number: recovered.number,
            opened_at: stamp.up,
            durable: WritePosition { head: recovered.head, bytes: recovered.bytes },
            syncing: None,
            syncing_lines: Vec::new(),
            unsynced_lines: Vec::new(),
            signed_lines: Vec::new(),
            syncing_signed: 0,
            abandon_reason: None,
            last_checkpoint: LastCheckpoint { seq: recovered.head.seq, at: stamp.up },
            headers: recovered.headers,
        };
        if recovered.is_closed || recovered.number == 0 {
            log.start_segment(stamp)?;
        } else {
            let segment = log.folder.reopen(&segment_name(recovered.number))?;
            segment.pending_sync()?.run()?;
            log.segment = Some(segment);
        }
        Ok(log)
    }

    /// Appends records: all of them, or none counts as written.
    pub(crate) fn append<'a>(
        &mut self,
        records: impl Iterator<Item = (&'a AuditEvent, Stamp)>,
        now: Stamp,
    ) -> io::Result<()> {
        self.write(records, |log, start| {
            log.check_room(start).or_else(|_| {
                // Segments may have been compressed meanwhile.
                log.recount();
                log.check_room(start)
            })?;
            log.write_to_segment(start).or_else(|_| log.start_segment(now))
        })
    }

    /// Appends records as [`Log::append`] does, but never starts a segment: a caller waits for one
    /// write at most.
    pub(crate) fn append_to_segment<'a>(
        &mut self,
        records: impl Iterator<Item = (&'a AuditEvent, Stamp)>,
    ) -> io::Result<()> {
        self.write(records, |log, start| {
            log.check_room(start)?;
            log.write_to_segment(start)
        })
    }

    /// Numbers and chains records, and calls `write` with the offset of their lines. An error of
    /// `write` restores the head and the unsynced lines.
    fn write<'a>(
        &mut self,
        records: impl Iterator<Item = (&'a AuditEvent, Stamp)>,
        write: impl FnOnce(&mut Self, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let start = self.unsynced_lines.len();
        let before = self.head;
        for (event, stamp) in records {
            self.head.write(event, stamp, &self.writer, &self.keys, &mut self.unsynced_lines);
        }
        let written = write(self, start);
        if written.is_err() {
            self.unsynced_lines.truncate(start);
            self.head = before;
        }
        written
    }

    fn check_room(&self, start: usize) -> io::Result<()> {
        let length = (self.unsynced_lines.len() - start) as u64;
        let LogSettings { keep_size, refuses_when_full, .. } = self.settings;
        if refuses_when_full && self.total + length > keep_size {
            let full = "the segments have reached audit.keep_size";
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        Ok(())
    }

    fn write_to_segment(&mut self, start: usize) -> io::Result<()> {
        let lines = &self.unsynced_lines[start..];
        let Some(segment) = &mut self.segment else {
            return Err(io::Error::other("there is no segment"));
        };
        if let Err(error) = segment.append(lines) {
            self.abandon_segment(&error);
            return Err(error);
        }
        self.total += lines.len() as u64;
        Ok(())
    }

    /// Skips the sequence numbers of the records of a gap, and records which ones.
    pub(crate) fn append_gap(&mut self, gap: &Gap, now: Stamp) -> io::Result<()> {
        let from = self.head.seq + 1;
        let to = self.head.seq + gap.count;
        let event = AuditEvent::new("gap")
            .number("from_seq", from)
            .number("count", gap.count)
            .json("first_time", &time_text(gap.first))
            .json("last_time", &time_text(gap.last));
        let before = self.head;
        self.head.seq = to;
        let written = self.append(std::iter::once((&event, now)), now);
        if written.is_err() {
            self.head = before;
        }
        written
    }

    /// Begins a sync of the unsynced lines. Returns `None` if there are none, or if a sync is under
    /// way. The caller runs the sync, and reports its outcome to [`Log::end_sync`].
    pub(crate) fn begin_sync(&mut self) -> Option<io::Result<PendingSync>> {
        let segment = self.segment.as_ref().filter(|_| self.syncing.is_none())?;
        if self.unsynced_lines.is_empty() {
            return None;
        }
        self.syncing = Some(WritePosition { head: self.head, bytes: segment.bytes });
        std::mem::swap(&mut self.syncing_lines, &mut self.unsynced_lines);
        let folder = self.folder.path().to_owned();
        self.syncing_signed = self.signed_lines.len();
        let copies = CheckpointCopies { folder, lines: self.signed_lines.clone() };
        Some(segment.pending_sync().map(|sync| sync.with_copies(copies)))
    }

    /// Applies the outcome of a sync. After a failure the lines are written to a new segment.
    pub(crate) fn end_sync(&mut self, synced: io::Result<()>, now: Stamp) -> io::Result<()> {
        let Some(mark) = self.syncing.take() else {
            return Ok(());
        };
        if synced.is_ok() {
            self.signed_lines.drain(..self.syncing_signed);
        }
        match synced {
            Ok(()) if self.segment.is_some() => {
                self.durable = mark;
                self.syncing_lines.clear();
                Ok(())
            }
            // The segment was abandoned during the sync: its lines are written again.
            Ok(()) => {
                self.requeue_syncing();
                Ok(())
            }
            Err(error) => {
                self.abandon_segment(&error);
                self.requeue_syncing();
                self.start_segment(now)
            }
        }
    }

    /// Syncs all unsynced lines, and blocks until that has ended.
    pub(crate) fn sync(&mut self, now: Stamp) -> io::Result<()> {
        match self.begin_sync() {
            Some(syncing) => self.end_sync(syncing.and_then(PendingSync::run), now),
            None if self.segment.is_none() => self.start_segment(now),
            None => Ok(()),
        }
    }

    /// Whether a record is written by one write to the page cache: a segment is open, on this
    /// machine, and no sync of it is under way, which a write may have to wait for.
    pub(crate) fn is_quick(&self) -> bool {
        self.segment.is_some() && !self.is_syncing() && !self.folder.is_remote()
    }

    /// Whether a sync is under way whose outcome is not reported yet.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }

    /// The size of the lines that are kept until they are synced, in bytes.
    pub(crate) fn unsynced(&self) -> usize {
        self.syncing_lines.len() + self.unsynced_lines.len()
    }

    /// Whether the segment has reached its size or age.
    pub(crate) fn wants_rotation(&self, now: Stamp) -> bool {
        let is_old = now.up.saturating_sub(self.opened_at) >= self.settings.segment_age;
        let size = self.settings.closing_size();
        self.segment.as_ref().is_some_and(|segment| segment.bytes >= size || is_old)
    }

    /// Ends the segment with a checkpoint and starts the next one. The caller ensures that no sync
    /// is under way.
    pub(crate) fn rotate(&mut self, now: Stamp) -> io::Result<()> {
        self.sign(now)?;
        self.sync(now)?;
        self.start_segment(now)
    }

    /// Removes a segment. The caller has recorded the removal before.
    pub(crate) fn remove(&mut self, number: u64) -> io::Result<()> {
        self.folder.remove(number)?;
        self.total = self.folder.total()?;
        Ok(())
    }

    pub(super) fn settings(&self) -> &LogSettings {
        &self.settings
    }

    /// Returns the number of the segment that is written.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether a checkpoint is due, by the number of records or by time.
    pub(crate) fn wants_checkpoint(&self, now: Stamp) -> bool {
        let since = self.head.seq - self.last_checkpoint.seq;
        since >= self.settings.checkpoint_records || self.checkpoint_due() <= now.up
    }

    /// When the next checkpoint is due by time, as an `up` stamp.
    pub(crate) fn checkpoint_due(&self) -> Duration {
        self.last_checkpoint.at + self.settings.checkpoint_every
    }

    /// Signs the head, and records the signature as a checkpoint.
    pub(crate) fn sign(&mut self, now: Stamp) -> io::Result<()> {
        let statement = Statement::of(&self.head, self.number, self.headers);
        let checkpoint = statement.sign(&self.writer.instance, &self.keys);
        let start = self.unsynced_lines.len();
        self.append(std::iter::once((&checkpoint.event(), now)), now)?;
        // There is no line where a new segment, which is synced, had to be started for it.
        self.signed_lines.extend(self.unsynced_lines.get(start..).unwrap_or_default());
        self.last_checkpoint = LastCheckpoint { seq: self.head.seq, at: now.up };
        Ok(())
    }

    /// Abandons the segment if its file was removed, replaced, or changed in length by others.
    /// Returns the damage.
    pub(crate) fn abandon_if_damaged(&mut self) -> Option<&'static str> {
        let damage = self.folder.damage(self.segment.as_ref()?)?;
        self.abandon_segment(&io::Error::other(damage));
        Some(damage)
    }

    /// Reads the size of all segments again: an operator may have moved segments away.
    pub(crate) fn recount(&mut self) {
        self.total = self.folder.total().unwrap_or(self.total);
    }

    /// Returns the size of all segments, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.total
    }

    /// Returns the size of all segments, in percent of the size at which records are refused; 0
    /// where the oldest segments leave instead.
    pub(crate) fn fill_percent(&self) -> u64 {
        let LogSettings { keep_size, refuses_when_full, .. } = self.settings;
        if refuses_when_full { self.total.saturating_mul(100) / keep_size.max(1) } else { 0 }
    }

    /// Returns the last record that is known to be on the disk.
    pub(super) fn synced(&self) -> u64 {
        self.durable.head.seq
    }

    /// Returns the folder of the log.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Stops writing and syncing the segment; its unsynced lines go to the next one.
    fn abandon_segment(&mut self, error: &io::Error) {
        self.segment = None;
        self.abandon_reason = Some(error.to_string());
        if self.syncing.is_none() {
            self.requeue_syncing();
        }
    }

    /// Puts the lines of the sync under way back before the unsynced lines.
    fn requeue_syncing(&mut self) {
        self.syncing_lines.append(&mut self.unsynced_lines);
        std::mem::swap(&mut self.syncing_lines, &mut self.unsynced_lines);
    }

    /// Starts the next segment with all lines that are not known to be on the disk.
    fn start_segment(&mut self, now: Stamp) -> io::Result<()> {
        if self.syncing.is_some() {
            let why = self.abandon_reason.as_deref().unwrap_or_default();
            return Err(io::Error::other(format!("{why} (the last sync has not ended yet)")));
        }
        let number = self.number + 1;
        let header = SegmentHeader {
            number,
            instance: self.writer.instance.clone(),
            previous: self.durable.head,
            name: if self.number == 0 { String::new() } else { segment_name(self.number) },
            bytes: self.durable.bytes,
            headers: self.headers,
            abandoned: self.abandon_reason.clone(),
        };
        let mut content = header.write(now, &self.keys);
        let headers = next_digest(&self.headers, &content);
        content.extend_from_slice(&self.unsynced_lines);
        let created = self.folder.create(&segment_name(number), &content);
        // The file may exist although creating it failed: nothing more may go to the segment before
        // it, and the next attempt replaces it.
        let segment = created.inspect_err(|error| self.abandon_segment(error))?;
        if self.abandon_reason.take().is_some() {
            // The lines beyond `durable` are in the new segment. Where this fails, the header says
            // so.
            let _ = self.folder.truncate(&header.name, header.bytes);
        }
        self.unsynced_lines.clear();
        self.headers = headers;
        self.number = number;
        self.opened_at = now.up;
        self.durable = WritePosition { head: self.head, bytes: segment.bytes };
        self.segment = Some(segment);
        self.total = self.folder.total().unwrap_or(self.total);
        Ok(())
    }
}

impl LogSettings {
    /// The size at which a segment is closed: an eighth of all at most, so that little leaves at
    /// once.
    pub(super) fn closing_size(&self) -> u64 {
        self.segment_size.min(self.keep_size / 8)
    }
}

/// A row of records that could not be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Gap {
    pub count: u64,
    pub first: Stamp,
    pub last: Stamp,
}

impl Gap {
    /// Adds records up to `last`.
    pub(super) fn add(&mut self, records: u64, last: Stamp) {
        self.count += records;
        self.last = last;
    }

    /// Joins a gap with a later one.
    pub(super) fn followed_by(self, later: Option<Self>) -> Self {
        match later {
            Some(Self { count, last, .. }) => Self { count: self.count + count, last, ..self },
            None => self,
        }
    }
}
