//! The walk through a log, line by line.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use super::{Kept, Known, MAX_MISTAKES, Mistake, Report};
use crate::audit::folder::segment_number;
use crate::audit::header::Header;
use crate::audit::keys::{Keys, Mac};
use crate::audit::log::signed_text;
use crate::audit::record::{Head, Line, MAX_LINE};
use crate::seal::hex::from_hex;

/// What stands behind a segment.
pub(super) enum Behind {
    Nothing,
    /// Another one with this header, if it can be read.
    Segment(Option<Header>),
}

/// What the walk knows so far.
pub(super) struct Judge {
    known: Known,
    pub report: Report,
    pub head: Option<Head>,
    instance: String,
    name: String,
    /// Calls without their end, by start of the gateway and number of the call.
    open: HashMap<(String, u64), u64>,
    /// What was found at the places that kept checkpoints name.
    kept: Vec<Option<Mac>>,
    /// Whether one of them is of this log.
    has_kept: bool,
}

impl Judge {
    pub(crate) fn new(known: Known) -> Self {
        let kept = vec![None; known.checkpoints.len()];
        Self {
            known,
            report: Report::default(),
            head: None,
            instance: String::new(),
            name: String::new(),
            open: HashMap::new(),
            kept,
            has_kept: false,
        }
    }

    /// Judges one segment.
    pub(crate) fn segment(
        &mut self,
        name: &str,
        mut text: impl BufRead,
        behind: Behind,
    ) -> io::Result<()> {
        let before = std::mem::replace(&mut self.name, name.to_owned());
        let (is_last, next) = match behind {
            Behind::Nothing => (true, None),
            Behind::Segment(header) => (false, header),
        };
        // What was written again elsewhere does not count here.
        let counts = next.filter(|next| next.abandoned.is_some() && next.name == name);
        let (mut line, mut at, mut is_first) = (Vec::new(), 0, true);
        let (mut beyond, mut is_torn) = (None, false);
        loop {
            line.clear();
            let length = text.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line)?;
            if length == 0 {
                return Ok(());
            }
            let read = line.strip_suffix(b"\n").and_then(Line::read);
            if counts.as_ref().is_some_and(|next| at >= next.bytes) {
                match read.filter(|_| !is_torn) {
                    Some(line) => beyond = self.beyond(&line, beyond),
                    // Half a line, with which the writing broke off.
                    None => is_torn = true,
                }
                continue;
            }
            at += length as u64;
            match (read, is_first) {
                (Some(line), true) => self.header(&line, &before),
                (Some(line), false) => self.record(&line),
                (None, false) if is_last && length <= MAX_LINE && !line.ends_with(b"\n") => {
                    // By now the rest of it may be there, and would be taken for a line.
                    self.report.unfinished = length as u64;
                    return Ok(());
                }
                (None, _) => {
                    let after = self.head.map(|head| head.seq + 1);
                    self.wrong(after, "this line is no whole record: it was cut or written over");
                }
            }
            is_first = false;
        }
    }

    /// A line that was written again elsewhere, or never counted: it must go on from the one before
    /// it, all the same.
    fn beyond(&mut self, line: &Line<'_>, before: Option<Head>) -> Option<Head> {
        let head = before.or(self.head).unwrap_or_default();
        let seq = line.seq().unwrap_or_default();
        if let Some(keys) = &self.known.keys
            && keys.link(&head.mac, line.text) != line.mac
        {
            self.wrong(Some(seq), "this line was added behind the end of its segment");
        }
        Some(Head { seq, mac: line.mac })
    }

    fn header(&mut self, line: &Line<'_>, before: &str) {
        let Some(header) = Header::read(line) else {
            return self.wrong(None, "the segment does not start with its header");
        };
        if segment_number(&self.name) != Some(header.number) {
            self.wrong(None, "the file has the name of another segment");
        }
        if let Some(keys) = &self.known.keys
            && !header.is_of(line, keys)
        {
            self.wrong(None, "the header was changed, or the log was written with another key");
        }
        match self.head {
            None => {
                self.report.first = header.previous.seq + 1;
                self.instance.clone_from(&header.instance);
            }
            Some(head) if head != header.previous => {
                let Head { seq, .. } = header.previous;
                let what = match head.seq.cmp(&seq) {
                    std::cmp::Ordering::Less => {
                        format!("the records {} to {seq} are missing", head.seq + 1)
                    }
                    _ => "the segment before it ends in another way than it did".to_owned(),
                };
                self.wrong(Some(head.seq + 1), what);
            }
            Some(head) if header.name != before => {
                let what = format!("it goes on from {}, which is not before it", header.name);
                self.wrong(Some(head.seq + 1), what);
            }
            Some(_) => {}
        }
        if header.instance != self.instance {
            self.wrong(None, "the segment belongs to another log");
        }
        self.head = Some(header.previous);
    }

    fn record(&mut self, line: &Line<'_>) {
        let Some(seq) = line.seq() else {
            return self.wrong(None, "this line is no record");
        };
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
            self.wrong(Some(expected), what);
        } else if seq < expected {
            self.wrong(Some(seq), "the record is out of order, or there twice");
        }
        if let Some(keys) = &self.known.keys
            && keys.link(&head.mac, line.text) != line.mac
        {
            self.wrong(Some(seq), "the record, or the one before it, is not as it was written");
        }
        self.head = Some(Head { seq, mac: line.mac });
        self.report.records += 1;
        self.report.last = seq;
        for (kept, found) in self.known.checkpoints.iter().zip(&mut self.kept) {
            if kept.head.seq == seq {
                *found = Some(line.mac);
            }
        }
        self.event(line, seq, head);
    }

    /// What a record means to the record as a whole.
    fn event(&mut self, line: &Line<'_>, seq: u64, before: Head) {
        let call = || Some((line.string("boot")?, line.number("call")?));
        if line.is("received") {
            self.open.extend(call().map(|call| (call, seq)));
        } else if line.is("completed") {
            let _ = call().and_then(|call| self.open.remove(&call));
        } else if line.is("segment_removed") {
            self.report.removed = line.number("last_seq").unwrap_or_default();
        } else if line.is("checkpoint") {
            self.checkpoint(line, seq, before);
        }
    }

    fn checkpoint(&mut self, line: &Line<'_>, seq: u64, before: Head) {
        let signature = line.string("signature").unwrap_or_default();
        let head = line.string("head").and_then(|text| from_hex(&text));
        let signed =
            Head { seq: line.number("count").unwrap_or_default(), mac: head.unwrap_or_default() };
        if signed != before {
            self.wrong(Some(seq), "the checkpoint is not of the record before it");
        } else if !self.is_signed(&self.instance, &signed, &signature) {
            self.wrong(Some(seq), "the signature of the checkpoint is not of this log's key");
        }
        self.report.checkpoint = Some(signed.seq);
    }

    fn has_key(&self) -> bool {
        self.known.keys.is_some() || self.known.public.is_some()
    }

    fn is_signed(&self, instance: &str, head: &Head, signature: &str) -> bool {
        let own = || self.known.keys.as_ref().map(Keys::public);
        let Some(public) = self.known.public.clone().or_else(own) else {
            return true;
        };
        public.verify(signed_text(instance, head).as_bytes(), signature)
    }

    pub(crate) fn finish(mut self) -> Report {
        self.name = String::new();
        let (first, removed) = (self.report.first, self.report.removed);
        if first > removed + 1 {
            let what = format!("the records {} to {} are missing", removed + 1, first - 1);
            self.wrong(Some(removed + 1), what);
        }
        let checkpoints = std::mem::take(&mut self.known.checkpoints);
        for (kept, found) in checkpoints.iter().zip(std::mem::take(&mut self.kept)) {
            self.compare(kept, found);
        }
        if !checkpoints.is_empty() && !self.has_kept {
            self.wrong(None, "none of the kept checkpoints is of this log");
        }
        self.report.unknown = self.open.into_values().collect();
        self.report.unknown.sort_unstable();
        self.report
    }

    /// Holds a checkpoint that was kept elsewhere against what is here.
    fn compare(&mut self, kept: &Kept, found: Option<Mac>) {
        let Kept { instance, head, signature } = kept;
        if *instance != self.instance {
            // Of another gateway's log, maybe; one that this key has signed belongs here.
            if self.has_key() && self.is_signed(instance, head, signature) {
                self.wrong(
                    None,
                    format!("a kept checkpoint is of a log that is not here: {instance}"),
                );
            }
            return;
        }
        self.has_kept = true;
        if head.seq < self.report.first {
            return;
        }
        if !self.is_signed(instance, head, signature) {
            return self
                .wrong(Some(head.seq), "the kept checkpoint is not signed with this log's key");
        }
        match found {
            Some(mac) if mac == head.mac => {}
            Some(_) => {
                self.wrong(Some(head.seq), "the record is another one than when it was signed")
            }
            None => {
                let what = format!(
                    "the log ends at record {}, but a kept checkpoint has signed record {}",
                    self.report.last, head.seq
                );
                self.wrong(Some(self.report.last + 1), what);
            }
        }
    }

    fn wrong(&mut self, seq: Option<u64>, what: impl Into<String>) {
        if self.report.mistakes.len() < MAX_MISTAKES {
            let (segment, what) = (self.name.clone(), what.into());
            self.report.mistakes.push(Mistake { segment, seq, what });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that goes on behind each end that was seen, which an empty part stands for.
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
    fn d1_a_line_that_is_finished_while_it_is_read_is_no_mistake() {
        let whole = "{\"segment\":1,\"time\":\"t\",\"instance\":\"i\",\"after\":0,\"after_mac\":\"";
        let whole = format!(
            "{whole}{0}\",\"previous\":\"\",\"previous_bytes\":0,\"mac\":\"{0}\"}}\n",
            "0".repeat(64)
        );
        let parts = vec![whole.as_bytes(), b"{\"seq\":1,", b"", b"\"x\":1}\n"];
        let mut judge = Judge::new(Known::default());
        let text = Growing { parts, at_end: false };
        judge.segment("audit-00000001.jsonl", text, Behind::Nothing).unwrap();
        let report = judge.finish();
        assert!(report.mistakes.is_empty(), "{:?}", report.mistakes);
        assert_eq!(report.unfinished, 9);
    }
}
