//! The next lines of a log for one request, from the disk.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;

use super::cursor::{Cursor, replaced};
use super::otlp;
use crate::ledger::Ledger;
use crate::proof::prove;
use crate::queue::Queue;
use crate::record::{AuditEvent, EXPORT_REFUSED, MAX_LINE, RecordLine, next_digest};
use crate::tail::Tail;
use base::platform::{run_blocking, wall_clock};
use base::seal::hex::{from_hex, hex};

/// A log that is exported. It does not hold the ledger, so that a replaced log can end meanwhile.
pub(super) struct ExportedLog {
    path: PathBuf,
    /// `None` for a log of an earlier process, which has ended.
    queue: Option<Arc<Queue>>,
    /// The last line that the collector has accepted.
    pub cursor: Cursor,
    /// The reader behind the last batch; `None` while it reads.
    tail: Option<Tail>,
}

/// Lines that follow the cursor.
pub(super) struct Batch {
    /// Without line feeds, in the order of the log.
    pub lines: Vec<Vec<u8>>,
    /// The request with the lines, encoded.
    pub request: Bytes,
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
    /// Opens a log behind its cursor; first those that it continues, while they have lines to send.
    pub(super) fn open(ledger: &Ledger) -> io::Result<Self> {
        for path in replaced(ledger.path())? {
            let log = Self::behind_cursor(path, None)?;
            let tail = Tail::new(&log.path, log.cursor.position);
            let (_, batch) = read(tail, log.cursor.clone(), 1, u64::MAX)?;
            if batch.is_full || !batch.lines.is_empty() {
                return Ok(log);
            }
        }
        Self::behind_cursor(ledger.path().to_owned(), Some(ledger.queue().clone()))
    }

    fn behind_cursor(path: PathBuf, queue: Option<Arc<Queue>>) -> io::Result<Self> {
        let cursor = Cursor::read(&path)?;
        let log = Self { path, queue, cursor, tail: None };
        log.report_progress();
        Ok(log)
    }

    /// Whether the log is the one that is written here.
    pub(super) fn is_of(&self, ledger: &Ledger) -> bool {
        self.queue.as_ref().is_some_and(|queue| Arc::ptr_eq(queue, ledger.queue()))
    }

    /// Whether the log is no longer written.
    pub(super) fn has_ended(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.is_closed())
    }

    /// Reads at most `limit` lines behind the cursor that are known to be on the disk, and encodes
    /// them for `service`.
    pub(super) async fn next_batch(&mut self, limit: usize, service: &str) -> io::Result<Batch> {
        let written = self.queue.as_ref().filter(|queue| !queue.is_closed());
        let synced = written.map_or(u64::MAX, |queue| queue.synced.load(Ordering::Acquire));
        let cursor = self.cursor.clone();
        // A refused batch is read again.
        let tail = self.tail.take().filter(|tail| tail.position() == cursor.position);
        let tail = tail.unwrap_or_else(|| Tail::new(&self.path, cursor.position));
        let service = service.to_owned();
        let reading = move || {
            let (tail, mut batch) = read(tail, cursor, limit, synced)?;
            let Batch { lines, end, .. } = &batch;
            batch.request = otlp::request(&service, &end.instance, lines, wall_clock());
            io::Result::Ok((tail, batch))
        };
        let (tail, batch) = run_blocking(reading).await?;
        self.tail = Some(tail);
        Ok(batch)
    }

    /// Returns the record that a collector refuses the only line of a batch for good. It has what
    /// continues the hash chain and the digest of the lines in the place of that line.
    pub(super) async fn refused(&self, batch: &Batch, why: &str) -> io::Result<AuditEvent> {
        let event = AuditEvent::new(EXPORT_REFUSED).text("log", &batch.end.instance);
        let event = event.text("why", why);
        let line = batch.lines.concat();
        let read = RecordLine::read(&line);
        let Some((seq, mac)) = read.and_then(|line| Some((line.seq()?, line.mac))) else {
            // The header of a segment, which no caller has a part in.
            return Ok(event.long_text("header", &String::from_utf8_lossy(&line), MAX_LINE / 2));
        };
        let path = self.path.clone();
        let proof = run_blocking(move || prove(&path, seq)).await?;
        let before = proof.and_then(|proof| from_hex(&proof.before));
        let before = before.ok_or_else(|| io::Error::other("the refused record has left"))?;
        let lines = next_digest(&before, &[&line[..], b"\n"].concat());
        let event = event.number("record", seq).text("record_mac", &hex(&mac));
        Ok(event.text("record_lines", &hex(&lines)))
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
        if let Some(queue) = &self.queue {
            queue.unexported.store(self.cursor.position.segment, Ordering::Release);
        }
    }
}

/// Reads at most `limit` lines behind the cursor, and no record after `synced`.
fn read(mut tail: Tail, cursor: Cursor, limit: usize, synced: u64) -> io::Result<(Tail, Batch)> {
    let begin = cursor.position;
    let request = Bytes::new();
    let mut batch = Batch { lines: Vec::new(), request, end: cursor, is_full: false };
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
    batch.is_full |= !at_end && batch.lines.is_empty() && batch.end.position != begin;
    Ok((tail, batch))
}

impl Batch {
    /// Returns when the first record was made, by the wall clock.
    pub(super) fn begin(&self) -> Option<SystemTime> {
        self.lines.first().and_then(|line| RecordLine::read(line)?.time())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::segments::folder::segment_name;
    use crate::tail::Position;

    fn line(head: &str) -> String {
        format!("{{{head},\"instance\":\"i\",\"mac\":\"{}\"}}\n", "0".repeat(64))
    }

    fn log(folder: &Path) {
        let begin = |number: u64, after: u64| {
            let zero = "0".repeat(64);
            line(&format!(
                "\"segment\":{number},\"after\":{after},\"after_mac\":\"{zero}\",\"previous\":\"\",\
                 \"previous_bytes\":0,\"after_lines\":\"{zero}\",\"after_headers\":\"{zero}\""
            ))
        };
        let record = |seq| line(&format!("\"seq\":{seq}"));
        // The record 3 was written again, after its segment was abandoned within the record 4.
        let first = begin(1, 0) + &[1, 2, 3].map(record).concat() + "{\"seq\":4,";
        let second = begin(2, 2) + &[3, 4, 5, 6].map(record).concat();
        fs::write(folder.join(segment_name(1)), first).unwrap();
        fs::write(folder.join(segment_name(2)), second).unwrap();
    }

    fn next(folder: &Path, cursor: &Cursor, limit: usize, synced: u64) -> (Vec<u64>, Cursor) {
        let tail = Tail::new(folder, cursor.position);
        let (_, batch) = read(tail, cursor.clone(), limit, synced).unwrap();
        let seq = |line: &Vec<u8>| RecordLine::read(line).unwrap().seq().unwrap_or_default();
        (batch.lines.iter().map(seq).collect(), batch.end)
    }

    #[test]
    fn batches_go_on_behind_the_cursor_once_each_and_never_beyond_the_last_sync() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        log(path);
        let begin = Cursor::read(path).unwrap();
        assert_eq!((begin.seq, &*begin.instance), (0, "i"));
        let (lines, cursor) = next(path, &begin, 3, 6);
        assert_eq!(lines, [0, 1, 2], "the header, and two records");
        cursor.write(path).unwrap();
        let cursor = Cursor::read(path).unwrap();
        assert_eq!(cursor.seq, 2, "a restart goes on there");
        let (lines, cursor) = next(path, &cursor, 10, 4);
        assert_eq!(lines, [3, 0, 4], "the record 3 once; 5 and 6 are not on the disk yet");
        cursor.write(path).unwrap();
        let (lines, cursor) = next(path, &Cursor::read(path).unwrap(), 10, u64::MAX);
        assert_eq!(lines, [5, 6]);
        assert!(next(path, &cursor, 10, u64::MAX).0.is_empty());
    }

    #[test]
    fn a_cursor_that_does_not_fit_the_log_begins_again_and_one_whose_segment_has_left_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        log(path);
        let (_, cursor) = next(path, &Cursor::read(path).unwrap(), 3, 6);
        for wrong in [
            Cursor { digest: "0".repeat(64), ..cursor.clone() },
            Cursor { instance: "j".to_owned(), ..cursor.clone() },
            Cursor { position: Position { offset: 1 << 20, ..cursor.position }, ..cursor.clone() },
            // An older copy of the log, which gets other records under the same numbers.
            Cursor { position: Position { segment: 3, offset: 0 }, seq: 9, ..cursor.clone() },
            Cursor { position: Position { segment: 2, offset: 0 }, seq: 9, ..cursor.clone() },
        ] {
            wrong.write(path).unwrap();
            assert_eq!(Cursor::read(path).unwrap().seq, 0, "{wrong:?}");
        }
        cursor.write(path).unwrap();
        fs::remove_file(path.join(segment_name(1))).unwrap();
        assert_eq!(next(path, &Cursor::read(path).unwrap(), 10, 6).0, [0, 3, 4, 5, 6]);
        fs::write(path.join("export.json"), "{").unwrap();
        assert_eq!(Cursor::read(path).unwrap().seq, 0);
    }
}
