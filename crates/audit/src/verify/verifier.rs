//! The verifier, which reads a log line by line.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, Read};
use std::ops::{Range, RangeInclusive};

use super::{KeptCheckpoint, MAX_MISTAKES, TrustAnchors, VerificationReport, Violation};
use crate::checkpoint::{Checkpoint, Statement};
use crate::keys::{Digest, Mac};
use crate::record::{Head, MAX_LINE, RecordLine, next_digest};
use crate::segments::folder::segment_number;
use crate::segments::header::SegmentHeader;

/// The segment after the one that is verified.
pub(super) enum Successor {
    None,
    /// The header of the next segment, if it can be read.
    Segment(Option<SegmentHeader>),
}

/// The state of a verification.
pub(super) struct Verifier {
    anchors: TrustAnchors,
    pub report: VerificationReport,
    /// The last record that was read, or the one that the first header names.
    pub head: Option<Head>,
    /// The running digests; `None` before the first header.
    running: Option<RunningDigests>,
    /// The running digests of the headers, by segment.
    headers: HashMap<u64, Digest>,
    instance: String,
    /// The file name of the current segment.
    name: String,
    /// The sequence numbers of `received` without `completed`, by `boot` and `call`.
    open: HashMap<(String, u64), u64>,
    /// The records that the kept checkpoints sign, in the order of the checkpoints.
    found: Vec<Option<FoundRecord>>,
    /// The first record that the digests cover.
    digests_from: u64,
    /// Whether a kept checkpoint belongs to this log.
    has_own_checkpoint: bool,
    /// The last record that `segment_removed` names, among all lines and among the signed lines.
    removed: u64,
    removed_signed: u64,
    /// Segments that were not read between others that were.
    gaps: Vec<SegmentGap>,
    /// Records that a collector has refused, by their sequence numbers.
    pub refused: BTreeMap<u64, Head>,
}

/// Segments that were not read.
struct SegmentGap {
    numbers: Range<u64>,
    records: RangeInclusive<u64>,
}

/// A record that a kept checkpoint signs.
#[derive(Clone, Copy, Debug)]
struct FoundRecord {
    mac: Mac,
    /// The running digests up to the record, where there are any.
    running: Option<RunningDigests>,
}

/// The running digests over the lines read so far, which checkpoints sign.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct RunningDigests {
    lines: Digest,
    headers: Digest,
}

impl Verifier {
    pub(crate) fn new(anchors: TrustAnchors) -> Self {
        let found = vec![None; anchors.checkpoints.len()];
        Self {
            anchors,
            report: VerificationReport::default(),
            head: None,
            running: None,
            headers: HashMap::new(),
            instance: String::new(),
            name: String::new(),
            open: HashMap::new(),
            found,
            digests_from: 0,
            has_own_checkpoint: false,
            removed: 0,
            removed_signed: 0,
            gaps: Vec::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Verifies one segment.
    pub(crate) fn segment(
        &mut self,
        name: &str,
        mut text: impl BufRead,
        successor: Successor,
    ) -> io::Result<()> {
        let before = std::mem::replace(&mut self.name, name.to_owned());
        let (is_last, next) = match successor {
            Successor::None => (true, None),
            Successor::Segment(header) => (false, header),
        };
        // Lines beyond the length in the next header were written again to the next segment.
        let counts = next.filter(|next| next.abandoned.is_some() && next.name == name);
        let mut line = Vec::new();
        let mut at = 0;
        let mut is_first = true;
        let mut beyond = None;
        let mut is_torn = false;
        loop {
            line.clear();
            let length = text.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
            if length == 0 {
                if is_first {
                    self.report_mistake(None, "the segment is empty");
                }
                return Ok(());
            }
            let read = line.strip_suffix(b"\n").and_then(RecordLine::read);
            if counts.as_ref().is_some_and(|next| at >= next.bytes) {
                self.report.abandoned += length as u64;
                match read.filter(|_| !is_torn) {
                    Some(line) => beyond = self.abandoned_line(&line, beyond),
                    // An incomplete line, at which writing failed.
                    None => is_torn = true,
                }
                continue;
            }
            at += length as u64;
            match (read, is_first) {
                (Some(read), true) => self.header(&read, &line, &before),
                (Some(read), false) => self.record(&read, &line),
                (None, false) if is_last && length <= MAX_LINE && !line.ends_with(b"\n") => {
                    // A second read could return the rest of the line as a separate line.
                    self.report.unfinished = length as u64;
                    return Ok(());
                }
                (None, _) => {
                    let after = self.head.map(|head| head.seq + 1);
                    self.report_mistake(
                        after,
                        "the line is not a complete record: it was truncated or overwritten",
                    );
                }
            }
            is_first = false;
        }
    }

    /// Begins at a record within the segment `name`, whose header is not known: later lines are
    /// verified against it.
    pub(super) fn begin_within(&mut self, name: &str, text: &[u8]) {
        let Some(line) = RecordLine::read(text) else { return };
        let seq = line.seq().unwrap_or_default();
        name.clone_into(&mut self.name);
        self.instance = line.string("instance").unwrap_or_default();
        self.report.first = seq;
        self.report.last = seq;
        self.report.records = 1;
        self.head = Some(Head { seq, mac: line.mac, ..Head::default() });
    }

    /// Verifies a record, with its line feed, of the segment in which the verification began.
    pub(super) fn line(&mut self, text: &[u8]) {
        if let Some(line) = RecordLine::read(text.trim_ascii_end()) {
            self.record(&line, text);
        }
    }

    /// Reports a compressed segment that can only be decompressed in part.
    pub(crate) fn damaged_segment(&mut self, name: &str, error: &io::Error) {
        name.clone_into(&mut self.name);
        let after = self.head.map(|head| head.seq + 1);
        self.report_mistake(after, error.to_string());
    }

    /// Verifies a line of an abandoned segment beyond its counted length: it must continue the hash
    /// chain, too. Returns it as the head of these lines.
    fn abandoned_line(&mut self, line: &RecordLine<'_>, before: Option<Head>) -> Option<Head> {
        let head = before.or(self.head).unwrap_or_default();
        let seq = line.seq().unwrap_or_default();
        if let Some(keys) = &self.anchors.keys
            && keys.link(&head.mac, line.text) != line.mac
        {
            self.report_mistake(Some(seq), "the line was added after the end of its segment");
        }
        Some(Head { seq, mac: line.mac, ..Head::default() })
    }

    /// Verifies a header; `text` is its line with the line feed.
    fn header(&mut self, line: &RecordLine<'_>, text: &[u8], before: &str) {
        let Some(header) = SegmentHeader::read(line) else {
            return self.report_mistake(None, "the segment does not start with a header");
        };
        if segment_number(&self.name) != Some(header.number) {
            self.report_mistake(None, "the file name does not match the number in the header");
        }
        if let Some(keys) = &self.anchors.keys
            && !header.is_authentic(line, keys)
        {
            self.report_mistake(
                None,
                "the header was changed, or the log was written with another key",
            );
        }
        self.pass_refused(header.previous.seq.saturating_add(1));
        let before_number = segment_number(before);
        match self.head {
            // Whether earlier records may be missing is decided at the end.
            Some(head)
                if before_number.is_some_and(|before| before + 1 < header.number)
                    && head.seq <= header.previous.seq =>
            {
                let numbers = before_number.unwrap_or_default() + 1..header.number;
                let records = head.seq + 1..=header.previous.seq;
                self.gaps.push(SegmentGap { numbers, records });
                self.running = None;
                self.open.clear();
            }
            None => {
                self.report.first = header.previous.seq + 1;
                self.instance.clone_from(&header.instance);
            }
            Some(head) if (head.seq, head.mac) != (header.previous.seq, header.previous.mac) => {
                let Head { seq, .. } = header.previous;
                let what = match head.seq.cmp(&seq) {
                    std::cmp::Ordering::Less => {
                        format!("the records {} to {seq} are missing", head.seq + 1)
                    }
                    _ => "the end of the segment before was changed".to_owned(),
                };
                self.report_mistake(Some(head.seq + 1), what);
            }
            Some(head) if header.name != before => {
                let what = format!(
                    "the segment continues {}, which is not the segment before it",
                    header.name
                );
                self.report_mistake(Some(head.seq + 1), what);
            }
            Some(_) => {}
        }
        if header.instance != self.instance {
            self.report_mistake(None, "the segment belongs to another log");
        }
        self.continue_digests(&header, text);
        self.head = Some(header.previous);
    }

    /// Continues the running digests with a header. The first one says where they begin.
    fn continue_digests(&mut self, header: &SegmentHeader, text: &[u8]) {
        let stated = RunningDigests { lines: header.previous.lines, headers: header.headers };
        if self.running.is_some_and(|running| running != stated) {
            self.report_mistake(
                None,
                "the header does not continue the lines and headers before it",
            );
        }
        if self.running.is_none() {
            self.digests_from = header.previous.seq + 1;
        }
        let headers = next_digest(&stated.headers, text);
        self.headers.insert(header.number, headers);
        self.running = Some(RunningDigests { headers, ..stated });
    }

    /// Passes the refused records between the last line and the record `next`.
    fn pass_refused(&mut self, next: u64) {
        let Some(mut head) = self.head else { return };
        while let Some(first) = self.refused.first_entry().filter(|first| *first.key() < next) {
            let (seq, refused) = first.remove_entry();
            // A collector can refuse a record after it has accepted the same one.
            if seq <= head.seq {
                continue;
            }
            if seq > head.seq + 1 {
                self.missing_records(&(head.seq + 1..=seq - 1));
            }
            head = refused;
            let lines = head.lines;
            self.running = self.running.map(|running| RunningDigests { lines, ..running });
            self.report.refused.push(seq);
        }
        self.head = Some(head);
    }

    /// Verifies a record; `text` is its line with the line feed.
    fn record(&mut self, line: &RecordLine<'_>, text: &[u8]) {
        let Some(seq) = line.seq() else {
            return self.report_mistake(None, "the line is not a record");
        };
        self.pass_refused(seq);
        let head = self.head.unwrap_or_default();
        let mut expected = head.seq + 1;
        if line.is("gap")
            && let (Some(from), Some(count)) = (line.number("from_seq"), line.number("count"))
            && (from, Some(seq)) == (expected, from.checked_add(count))
        {
            self.report.missing.push(from..=seq - 1);
            expected = seq;
        }
        if seq > expected {
            let what = format!("the records {expected} to {} are missing", seq - 1);
            self.report_mistake(Some(expected), what);
        } else if seq < expected {
            self.report_mistake(Some(seq), "the record is out of order or a duplicate");
        }
        if let Some(keys) = &self.anchors.keys
            && keys.link(&head.mac, line.text) != line.mac
        {
            self.report_mistake(Some(seq), "the record, or the record before it, was changed");
        }
        self.head = Some(Head { seq, mac: line.mac, ..Head::default() });
        self.report.records += 1;
        self.report.last = seq;
        self.event(line, seq, head);
        if let Some(running) = &mut self.running {
            running.lines = next_digest(&running.lines, text);
        }
        for (kept, found) in self.anchors.checkpoints.iter().zip(&mut self.found) {
            if kept.checkpoint.statement.seq == seq {
                *found = Some(FoundRecord { mac: line.mac, running: self.running });
            }
        }
    }

    /// Updates the state of the verification by the event of a record.
    fn event(&mut self, line: &RecordLine<'_>, seq: u64, before: Head) {
        let call = || Some((line.string("boot")?, line.number("call")?));
        if line.is("received") {
            self.open.extend(call().map(|call| (call, seq)));
        } else if line.is("completed") {
            let _ = call().and_then(|call| self.open.remove(&call));
        } else if line.is("segment_removed") {
            self.removed = line.number("last_seq").unwrap_or_default();
        } else if line.is("checkpoint") {
            self.checkpoint(line, seq, before);
        }
    }

    fn checkpoint(&mut self, line: &RecordLine<'_>, seq: u64, before: Head) {
        let checkpoint = Checkpoint::read(|name| line.number(name), |name| line.string(name));
        let Some(checkpoint) = checkpoint else {
            return self.report_mistake(Some(seq), "the checkpoint cannot be read");
        };
        let statement = &checkpoint.statement;
        let is_signed = self.is_signed(&self.instance, &checkpoint);
        if (statement.seq, statement.mac) != (before.seq, before.mac) {
            self.report_mistake(Some(seq), "the checkpoint does not sign the record before it");
        } else if !is_signed {
            self.report_mistake(
                Some(seq),
                "the signature of the checkpoint was not made with this log's key",
            );
        } else {
            self.signed_lines(seq, statement);
        }
        self.report.checkpoint = Some(statement.seq);
    }

    /// Compares the lines that were read with the lines up to the record `through` that a
    /// checkpoint, the record `seq`, has signed.
    fn signed_lines(&mut self, seq: u64, signed: &Statement) {
        // Within a segment whose header is not known, there are none to compare.
        let Some(running) = &mut self.running else { return };
        let is_same = running.lines == signed.lines
            && self.headers.get(&signed.segment) == Some(&signed.headers);
        // Later lines are compared with the signed digest, so that one change is reported once.
        running.lines = signed.lines;
        if is_same {
            self.report.signed = self.has_key().then_some(self.digests_from..=signed.seq);
            self.removed_signed = self.removed;
        } else {
            let after = self.report.checkpoint.unwrap_or(self.report.first.saturating_sub(1));
            let what = format!(
                "a line between the records {after} and {seq}, or a header, is not the one that this checkpoint \
                 has signed"
            );
            self.report_mistake(Some(seq), what);
        }
    }

    fn has_key(&self) -> bool {
        self.anchors.keys.is_some() || self.anchors.public.is_some()
    }

    /// Whether a checkpoint is signed with the key of this log; true where no key is known.
    fn is_signed(&self, instance: &str, checkpoint: &Checkpoint) -> bool {
        let own = || self.anchors.keys.as_ref().map(|keys| keys.public());
        let public = self.anchors.public.clone().or_else(own);
        public.is_none_or(|public| checkpoint.is_signed(instance, &public))
    }

    /// Returns the keys and checkpoints, for another verification.
    pub(crate) fn into_anchors(self) -> TrustAnchors {
        self.anchors
    }

    /// Completes the report: records missing at the start, kept checkpoints, calls without an end.
    pub(crate) fn finish(mut self) -> VerificationReport {
        self.name = String::new();
        let first = self.report.first;
        // A line that only claims a removal must not explain records that are missing.
        let is_believed = self.anchors.keys.is_some() || self.report.signed.is_none();
        let removed = if is_believed { self.removed } else { self.removed_signed };
        // A removal that failed is on record, too.
        self.report.removed = removed.min(first.saturating_sub(1));
        if first > removed + 1 {
            self.missing_records(&(removed + 1..=first - 1));
        }
        for SegmentGap { records, .. } in std::mem::take(&mut self.gaps) {
            if *records.end() > removed {
                self.missing_records(&records);
            }
        }
        let checkpoints = std::mem::take(&mut self.anchors.checkpoints);
        for (kept, found) in checkpoints.iter().zip(std::mem::take(&mut self.found)) {
            self.check_kept(kept, found);
        }
        if !checkpoints.is_empty() && !self.has_own_checkpoint {
            self.report_mistake(None, "none of the kept checkpoints belongs to this log");
        }
        self.report.unknown = self.open.into_values().collect();
        self.report.unknown.sort_unstable();
        self.report
    }

    /// Completes the report on some of the segments that are `listed`; the content of the others is
    /// unknown.
    pub(crate) fn finish_part(mut self, listed: &[u64]) -> VerificationReport {
        self.pass_refused(u64::MAX);
        self.name = String::new();
        for SegmentGap { numbers, records } in std::mem::take(&mut self.gaps) {
            if !numbers.clone().all(|number| listed.binary_search(&number).is_ok()) {
                if records.is_empty() {
                    self.report_mistake(None, "the header of a segment is missing");
                } else {
                    self.missing_records(&records);
                }
            }
        }
        self.report.removed = self.removed;
        self.report
    }

    fn missing_records(&mut self, records: &RangeInclusive<u64>) {
        let first = records.start();
        let last = records.end();
        self.report_mistake(Some(*first), format!("the records {first} to {last} are missing"));
    }

    /// Compares a kept checkpoint with the record that it signs.
    fn check_kept(&mut self, kept: &KeptCheckpoint, found: Option<FoundRecord>) {
        let KeptCheckpoint { instance, checkpoint } = kept;
        let Statement { seq, mac, lines, segment, headers } = checkpoint.statement;
        if *instance != self.instance {
            // It may belong to the log of another gateway, unless it is signed with this log's key.
            if self.has_key() && self.is_signed(instance, checkpoint) {
                self.report_mistake(
                    None,
                    format!("a kept checkpoint belongs to a log that is missing: {instance}"),
                );
            }
            return;
        }
        self.has_own_checkpoint = true;
        if seq < self.report.first {
            return;
        }
        if !self.is_signed(instance, checkpoint) {
            return self.report_mistake(
                Some(seq),
                "the kept checkpoint is not signed with this log's key",
            );
        }
        match found {
            Some(found) if found.mac == mac => {
                let read = self.headers.get(&segment);
                let is_changed = |running: RunningDigests| {
                    lines != running.lines || read.is_some_and(|read| *read != headers)
                };
                if found.running.is_some_and(is_changed) {
                    self.report_mistake(
                        Some(seq),
                        "a line up to this record, or a header, is not the one that a kept checkpoint has signed",
                    );
                }
            }
            Some(_) => self.report_mistake(
                Some(seq),
                "the record differs from the one that a kept checkpoint has signed",
            ),
            None => {
                let what = format!(
                    "the log ends at record {}, but a kept checkpoint has signed record {seq}",
                    self.report.last
                );
                self.report_mistake(Some(self.report.last + 1), what);
            }
        }
    }

    fn report_mistake(&mut self, seq: Option<u64>, what: impl Into<String>) {
        if self.report.mistakes.len() < MAX_MISTAKES {
            let segment = self.name.clone();
            self.report.mistakes.push(Violation { segment, seq, what: what.into() });
        } else {
            self.report.more_mistakes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that grows while it is read: an empty part is an end of file, after which it
    /// continues.
    struct Growing<'a> {
        parts: Vec<&'a [u8]>,
        at_end: bool,
    }

    impl Read for Growing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.fill_buf()?.read(buffer)?;
            self.consume(length);
            Ok(length)
        }
    }

    impl BufRead for Growing<'_> {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            if std::mem::take(&mut self.at_end) {
                self.parts.remove(0);
            }
            let part = self.parts.first().copied().unwrap_or_default();
            self.at_end = part.is_empty() && !self.parts.is_empty();
            Ok(part)
        }

        fn consume(&mut self, length: usize) {
            if length > 0 {
                self.parts[0] = &self.parts[0][length..];
                if self.parts[0].is_empty() {
                    self.parts.remove(0);
                }
            }
        }
    }

    #[test]
    fn d1_a_line_that_is_completed_during_the_verification_is_not_reported() {
        let whole = "{\"segment\":1,\"time\":\"t\",\"instance\":\"i\",\"after\":0,\"after_mac\":\"";
        let whole = format!(
            "{whole}{0}\",\"previous\":\"\",\"previous_bytes\":0,\"after_lines\":\"{0}\",\
             \"after_headers\":\"{0}\",\"mac\":\"{0}\"}}\n",
            "0".repeat(64)
        );
        let parts = vec![whole.as_bytes(), b"{\"seq\":1,", b"", b"\"x\":1}\n"];
        let mut verifier = Verifier::new(TrustAnchors::default());
        let text = Growing { parts, at_end: false };
        verifier.segment("audit-00000001.jsonl", text, Successor::None).unwrap();
        let report = verifier.finish();
        assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
        assert_eq!(report.unfinished, 9);
    }
}
