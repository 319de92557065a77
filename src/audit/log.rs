//! The log as a state machine: records go in, lines lie on the disk. One thread owns it; the clock
//! is handed in.
//!
//! What was written but not synced is kept, so that a file that fails can be left for another one,
//! in which the same lines stand again. A file that failed to sync is never synced again: the
//! system may have thrown away what it could not write, and say so once only.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::folder::{Folder, Segment, Syncing, segment_name};
use super::header::Header;
use super::keys::Keys;
use super::record::{Event, Head, Stamp, Writer};
use super::recover::{Recovered, read_header};
use crate::seal::hex::hex;

/// An open log.
pub(crate) struct Log {
    folder: Folder,
    keys: Arc<Keys>,
    settings: LogSettings,
    writer: Writer,
    /// The last record that was written.
    head: Head,
    /// The segment that is written to; none after it failed, until another one is there.
    segment: Option<Segment>,
    number: u64,
    opened: Duration,
    /// What is known to be on the disk.
    durable: Mark,
    /// What is being synced: up to where, and the lines since `durable`.
    syncing: Option<Mark>,
    in_sync: Vec<u8>,
    /// Lines behind those.
    fresh: Vec<u8>,
    /// Why the last segment was given up.
    broken: Option<String>,
    checkpoint: Checkpoint,
    /// Bytes of all segments.
    total: u64,
}

/// What bounds a log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LogSettings {
    pub segment_size: u64,
    pub segment_age: Duration,
    /// Of all segments.
    pub max_size: u64,
    /// How many segments are kept; 0 for all.
    pub keep: usize,
    pub checkpoint_records: u64,
    pub checkpoint_every: Duration,
}

/// A place in a segment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Mark {
    head: Head,
    bytes: u64,
}

/// What was last signed.
#[derive(Clone, Copy, Debug, Default)]
struct Checkpoint {
    seq: u64,
    at: Duration,
}

/// A signed head, to be kept elsewhere: a log that ends before it was cut.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Signed {
    pub seq: u64,
    pub mac: String,
    pub signature: String,
}

impl Log {
    /// From now on it has these bounds.
    pub(crate) fn tune(&mut self, settings: LogSettings) {
        self.settings = settings;
    }

    /// Goes on where `recovered` ended.
    ///
    /// # Errors
    /// When the segment cannot be opened, or the first one not made.
    pub(crate) fn new(
        folder: Folder,
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
            opened: stamp.up,
            durable: Mark { head: recovered.head, bytes: recovered.bytes },
            syncing: None,
            in_sync: Vec::new(),
            fresh: Vec::new(),
            broken: None,
            checkpoint: Checkpoint { seq: recovered.head.seq, at: stamp.up },
        };
        match recovered.number {
            0 => log.start_segment(stamp)?,
            number => {
                let segment = log.folder.reopen(&segment_name(number))?;
                segment.syncing()?.run()?;
                log.segment = Some(segment);
            }
        }
        Ok(log)
    }

    /// Writes records; all of them or, as far as anybody is told, none.
    ///
    /// # Errors
    /// When they could be written neither to the segment nor to a new one. What was written before
    /// stays to be written again.
    pub(crate) fn append<'a>(
        &mut self,
        records: impl Iterator<Item = (&'a Event, Stamp)>,
        now: Stamp,
    ) -> io::Result<()> {
        let (start, before) = (self.fresh.len(), self.head);
        for (event, stamp) in records {
            self.head.write(event, stamp, &self.writer, &self.keys, &mut self.fresh);
        }
        let written = self.write_from(start, now);
        if written.is_err() {
            self.fresh.truncate(start);
            self.head = before;
        }
        written
    }

    fn write_from(&mut self, start: usize, now: Stamp) -> io::Result<()> {
        let length = (self.fresh.len() - start) as u64;
        if self.total + length > self.settings.max_size {
            let full = "the segments take all of audit.max_size: move old ones away";
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        if let Some(segment) = &mut self.segment {
            match segment.append(&self.fresh[start..]) {
                Ok(()) => {
                    self.total += length;
                    return Ok(());
                }
                Err(error) => self.give_up(&error),
            }
        }
        self.start_segment(now)
    }

    /// Leaves numbers out for records that could not be written, and says which.
    pub(crate) fn append_gap(&mut self, gap: &Gap, now: Stamp) -> io::Result<()> {
        let (from, to) = (self.head.seq + 1, self.head.seq + gap.count);
        let time = |stamp: Stamp| format!("\"{}\"", humantime::format_rfc3339_micros(stamp.wall));
        let event = Event::new("gap")
            .number("from_seq", from)
            .number("count", gap.count)
            .json("first_time", &time(gap.first))
            .json("last_time", &time(gap.last));
        let before = self.head;
        self.head.seq = to;
        let written = self.append(std::iter::once((&event, now)), now);
        if written.is_err() {
            self.head = before;
        }
        written
    }

    /// What has to be synced, if there is anything and it is not being done already.
    pub(crate) fn begin_sync(&mut self) -> Option<io::Result<Syncing>> {
        let segment = self.segment.as_ref().filter(|_| self.syncing.is_none())?;
        if self.fresh.is_empty() {
            return None;
        }
        self.syncing = Some(Mark { head: self.head, bytes: segment.bytes });
        std::mem::swap(&mut self.in_sync, &mut self.fresh);
        Some(segment.syncing())
    }

    /// Takes in how a sync ended.
    ///
    /// # Errors
    /// When it failed, and the lines could not be written to another segment either.
    pub(crate) fn end_sync(&mut self, synced: io::Result<()>, now: Stamp) -> io::Result<()> {
        let Some(mark) = self.syncing.take() else {
            return Ok(());
        };
        match synced {
            Ok(()) if self.segment.is_some() => {
                self.durable = mark;
                self.in_sync.clear();
                Ok(())
            }
            // The segment was given up meanwhile, and its lines are to be written again.
            Ok(()) => {
                self.unsync();
                Ok(())
            }
            Err(error) => {
                self.give_up(&error);
                self.unsync();
                self.start_segment(now)
            }
        }
    }

    /// Syncs all that was written.
    pub(crate) fn sync(&mut self, now: Stamp) -> io::Result<()> {
        match self.begin_sync() {
            Some(syncing) => self.end_sync(syncing.and_then(Syncing::run), now),
            None if self.segment.is_none() => self.start_segment(now),
            None => Ok(()),
        }
    }

    /// Whether a sync is under way, whose end is to be told.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }

    /// Bytes that are kept until they are synced.
    pub(crate) fn unsynced(&self) -> usize {
        self.in_sync.len() + self.fresh.len()
    }

    /// Whether the segment is large or old enough for another one.
    pub(crate) fn wants_rotation(&self, now: Stamp) -> bool {
        let LogSettings { segment_size, segment_age, .. } = self.settings;
        let is_old = now.up.saturating_sub(self.opened) >= segment_age;
        self.segment.as_ref().is_some_and(|segment| segment.bytes >= segment_size || is_old)
    }

    /// Ends the segment with a checkpoint and starts another one. Not while a sync is under way.
    pub(crate) fn rotate(&mut self, now: Stamp) -> io::Result<Signed> {
        let signed = self.sign(now)?;
        self.sync(now)?;
        self.start_segment(now)?;
        Ok(signed)
    }

    /// The oldest segment, if there are more than are to be kept, and the number of its last record.
    pub(crate) fn surplus(&self) -> io::Result<Option<(String, u64)>> {
        let names = self.folder.segments()?;
        let (keep, [oldest, second, ..]) = (self.settings.keep, names.as_slice()) else {
            return Ok(None);
        };
        if keep == 0 || names.len() <= keep {
            return Ok(None);
        }
        let header = read_header(&self.folder.path().join(second))?;
        Ok(Some((oldest.clone(), header.previous.seq)))
    }

    /// Removes a segment; that it is to be removed was recorded.
    pub(crate) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.folder.remove(name)?;
        self.total = self.folder.total()?;
        Ok(())
    }

    /// Whether a checkpoint is due: enough records since the last one, or enough time.
    pub(crate) fn wants_checkpoint(&self, now: Stamp) -> bool {
        let since = self.head.seq - self.checkpoint.seq;
        since >= self.settings.checkpoint_records || self.checkpoint_due() <= now.up
    }

    /// When the next one is due by time.
    pub(crate) fn checkpoint_due(&self) -> Duration {
        self.checkpoint.at + self.settings.checkpoint_every
    }

    /// Signs the head, and records the signature.
    pub(crate) fn sign(&mut self, now: Stamp) -> io::Result<Signed> {
        let head = self.head;
        let text = signed_text(&self.writer.instance, &head);
        let signature = self.keys.sign(text.as_bytes());
        let mac = hex(&head.mac);
        let event = Event::new("checkpoint")
            .number("count", head.seq)
            .text("head", &mac)
            .text("signature", &signature);
        self.append(std::iter::once((&event, now)), now)?;
        self.checkpoint = Checkpoint { seq: self.head.seq, at: now.up };
        Ok(Signed { seq: head.seq, mac, signature })
    }

    /// Whether the segment's file was taken away; another one is started then.
    pub(crate) fn check_place(&mut self) -> bool {
        let is_lost = self.segment.as_ref().is_some_and(|segment| !self.folder.holds(segment));
        if is_lost {
            self.give_up(&io::Error::new(io::ErrorKind::NotFound, "its file was taken away"));
        }
        is_lost
    }

    /// Looks how much there is: others may have moved segments away.
    pub(crate) fn recount(&mut self) {
        self.total = self.folder.total().unwrap_or(self.total);
    }

    /// How full the folder is, in percent of what it may hold.
    pub(crate) fn fill(&self) -> u64 {
        self.total.saturating_mul(100) / self.settings.max_size.max(1)
    }

    /// The last record that is known to be on the disk.
    pub(crate) fn durable_seq(&self) -> u64 {
        self.durable.head.seq
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// From here on nothing is written to the segment, nor synced.
    fn give_up(&mut self, error: &io::Error) {
        self.segment = None;
        self.broken = Some(error.to_string());
        if self.syncing.is_none() {
            self.unsync();
        }
    }

    /// What was to be synced is to be written again.
    fn unsync(&mut self) {
        self.in_sync.append(&mut self.fresh);
        std::mem::swap(&mut self.in_sync, &mut self.fresh);
    }

    /// Starts the next segment with all lines that are not known to be on the disk.
    fn start_segment(&mut self, now: Stamp) -> io::Result<()> {
        if self.syncing.is_some() {
            let why = self.broken.as_deref().unwrap_or_default();
            return Err(io::Error::other(format!("{why} (its last sync has not ended yet)")));
        }
        let number = self.number + 1;
        let header = Header {
            number,
            instance: self.writer.instance.clone(),
            previous: self.durable.head,
            name: if self.number == 0 { String::new() } else { segment_name(self.number) },
            bytes: self.durable.bytes,
            abandoned: self.broken.clone(),
        };
        let mut content = header.write(now, &self.keys);
        content.extend_from_slice(&self.fresh);
        let created = self.folder.create(&segment_name(number), &content);
        // It may be there although that failed: nothing more must go to the one before it, and the
        // next try takes its place.
        let segment = created.inspect_err(|error| self.give_up(error))?;
        if self.broken.take().is_some() {
            // What is beyond the mark stands in the new one. Where this fails, the header says so.
            let _ = self.folder.truncate(&header.name, header.bytes);
        }
        self.fresh.clear();
        (self.number, self.opened) = (number, now.up);
        self.durable = Mark { head: self.head, bytes: segment.bytes };
        self.segment = Some(segment);
        self.total = self.folder.total().unwrap_or(self.total);
        Ok(())
    }
}

/// Records that could not be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Gap {
    pub count: u64,
    pub first: Stamp,
    pub last: Stamp,
}

/// What a checkpoint signs.
pub(crate) fn signed_text(instance: &str, head: &Head) -> String {
    let mac = hex(&head.mac);
    format!("promptgate audit checkpoint v1\n{instance}\n{}\n{mac}", head.seq)
}
