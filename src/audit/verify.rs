//! `promptgate audit verify`: whether a log is whole and as it was written, without trusting
//! whoever holds it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::Path;

use super::folder::{segment_number, segments};
use super::header::Header;
use super::keys::{Keys, Mac, PublicKey};
use super::log::signed_text;
use super::record::{Head, Line, MAX_LINE};
use crate::seal::hex::from_hex;

/// What is known of a log by somebody who checks it.
#[derive(Debug, Default)]
pub struct Known {
    /// With the secret everything is checked; without it numbers, shape and, with a public key,
    /// checkpoints.
    pub keys: Option<Keys>,
    pub public: Option<PublicKey>,
    /// Checkpoints that were kept elsewhere.
    pub checkpoints: Vec<Kept>,
}

/// A checkpoint that was kept elsewhere.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kept {
    pub instance: String,
    pub head: Head,
    pub signature: String,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// The numbers of the first and of the last record.
    pub first: u64,
    pub last: u64,
    pub records: u64,
    pub segments: usize,
    /// Everything that should not be; nothing of a log that is whole.
    pub mistakes: Vec<Mistake>,
    /// Records that the log itself says are missing.
    pub missing: Vec<RangeInclusive<u64>>,
    /// Calls that were received and of which no end was recorded, by the numbers of their records:
    /// a crash came between.
    pub unknown: Vec<u64>,
    /// The last record that is covered by a checkpoint of the log.
    pub checkpoint: Option<u64>,
    /// The last record that was removed as configured.
    pub removed: u64,
    /// Bytes of a line at the very end that has no end of its own: the gateway is writing it just
    /// now, or was killed while it did. Nobody was told that it is on record.
    pub unfinished: u64,
}

/// Something that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    pub segment: String,
    /// Number of the record, where it has one.
    pub seq: Option<u64>,
    pub what: String,
}

/// How many mistakes are told: from the first one on a broken log has many.
const MAX_MISTAKES: usize = 100;

impl Kept {
    /// Reads a line of a log of the gateway, or of an audit log; nothing if it is no checkpoint.
    pub fn read(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value.get(name)?.as_str();
        let seq = value.get("count")?.as_u64()?;
        let mac = from_hex(text("head")?)?;
        let (instance, signature) = (text("instance")?.to_owned(), text("signature")?.to_owned());
        Some(Self { instance, head: Head { seq, mac }, signature })
    }
}

/// Walks a log from its first segment to its last.
///
/// # Errors
/// When a file cannot be read.
pub fn verify(path: &Path, known: Known) -> io::Result<Report> {
    let names = segments(path)?;
    let mut judge = Judge::new(known);
    for (index, name) in names.iter().enumerate() {
        let behind = match names.get(index + 1) {
            Some(next) => Behind::Segment(super::recover::read_header(&path.join(next)).ok()),
            None => Behind::Nothing,
        };
        judge.segment(name, BufReader::new(File::open(path.join(name))?), behind)?;
    }
    judge.report.segments = names.len();
    Ok(judge.finish())
}

/// What stands behind a segment.
enum Behind {
    Nothing,
    /// Another one with this header, if it can be read.
    Segment(Option<Header>),
}

/// What the walk knows so far.
struct Judge {
    known: Known,
    report: Report,
    head: Option<Head>,
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
    fn new(known: Known) -> Self {
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
    fn segment(&mut self, name: &str, mut text: impl BufRead, behind: Behind) -> io::Result<()> {
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
                    self.report.unfinished = length as u64;
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

    fn finish(mut self) -> Report {
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
