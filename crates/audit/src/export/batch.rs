//! The next lines of a log for one request, from the disk.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::cursor::Cursor;
use super::run_blocking;
use crate::ledger::Ledger;
use crate::queue::Queue;
use crate::record::RecordLine;
use crate::tail::Tail;

/// A log that is exported. It does not hold the ledger, so that a replaced log can end meanwhile.
pub(super) struct ExportedLog {
    pub path: PathBuf,
    queue: Arc<Queue>,
    /// The last line that the collector has accepted.
    pub cursor: Cursor,
    /// The reader behind the last batch; `None` while it reads.
    tail: Option<Tail>,
}

/// Lines that follow the cursor.
pub(super) struct Batch {
    /// Without line feeds, in the order of the log.
    pub lines: Vec<Vec<u8>>,
    /// The cursor once the collector has accepted the lines.
    pub end: Cursor,
    /// Whether further lines may wait.
    pub is_full: bool,
}

/// The limit of the lines of one request, in bytes: collectors accept 4 MiB by default, and a
/// request is about twice its lines.
const MAX_BYTES: usize = 1 << 20;

/// Bytes that are read for a batch: a bound where most lines were exported before.
const MAX_READ: usize = 8 << 20;

impl ExportedLog {
    /// Opens a log behind its cursor.
    pub(super) fn open(ledger: &Ledger) -> io::Result<Self> {
        let path = ledger.path().to_owned();
        let cursor = Cursor::read(&path)?;
        let log = Self { path, queue: ledger.queue().clone(), cursor, tail: None };
        log.report_progress();
        Ok(log)
    }

    /// Whether the log is no longer written.
    pub(super) fn has_ended(&self) -> bool {
        self.queue.is_closed()
    }

    /// Reads at most `limit` lines behind the cursor that are known to be on the disk.
    pub(super) async fn next_batch(&mut self, limit: usize) -> io::Result<Batch> {
        let synced = match self.has_ended() {
            true => u64::MAX,
            false => self.queue.synced.load(Ordering::Acquire),
        };
        let cursor = self.cursor.clone();
        // A refused batch is read again.
        let tail = self.tail.take().filter(|tail| tail.position() == cursor.position);
        let tail = tail.unwrap_or_else(|| Tail::new(&self.path, cursor.position));
        let (tail, batch) = run_blocking(move || read(tail, cursor, limit, synced)).await?;
        self.tail = Some(tail);
        Ok(batch)
    }

    /// Moves the cursor behind lines that the collector has accepted.
    pub(super) async fn accept(&mut self, end: Cursor) -> io::Result<()> {
        self.cursor = end.clone();
        self.report_progress();
        let path = self.path.clone();
        run_blocking(move || end.write(&path)).await
    }

    /// Lets retention remove the segments before that of the cursor.
    fn report_progress(&self) {
        let segment = self.cursor.position.segment;
        self.queue.unexported.store(segment, Ordering::Release);
    }
}

/// Reads at most `limit` lines behind the cursor, and no record after `synced`.
fn read(mut tail: Tail, cursor: Cursor, limit: usize, synced: u64) -> io::Result<(Tail, Batch)> {
    let begin = cursor.position;
    let mut batch = Batch { lines: Vec::new(), end: cursor, is_full: false };
    let mut bytes = 0;
    let at_end = tail.read_while(MAX_READ, |line| {
        let read = RecordLine::read(line);
        let seq = read.as_ref().and_then(RecordLine::seq);
        // Lines of an abandoned segment are written again, an incomplete line as a whole.
        if read.is_none() || seq.is_some_and(|seq| seq <= batch.end.seq) {
            batch.end.pass(line, None);
            return ControlFlow::Continue(());
        }
        batch.is_full = batch.lines.len() >= limit || bytes + line.len() > MAX_BYTES;
        if batch.is_full || seq.is_some_and(|seq| seq > synced) {
            return ControlFlow::Break(());
        }
        bytes += line.len();
        batch.end.pass(line, seq);
        batch.lines.push(line.to_owned());
        ControlFlow::Continue(())
    })?;
    batch.end.position = tail.position();
    // Lines that were exported before are skipped at once.
    batch.is_full |= !at_end && batch.lines.is_empty() && batch.end.position != begin;
    Ok((tail, batch))
}

impl Batch {
    /// Returns when the first record was made, by the wall clock.
    pub(super) fn begin(&self) -> Option<SystemTime> {
        self.lines.first().and_then(|line| RecordLine::read(line)?.time())
    }
}
