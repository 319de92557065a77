//! `promptgate audit verify --from`: checks what a collector has kept of exported logs. The lines
//! may be of several logs, repeated and in any order.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, BufRead, Read as _};

use serde_json::Value;

use super::verifier::{Successor, Verifier};
use super::{TrustAnchors, VerificationReport, Violation};
use crate::record::{EXPORT_REFUSED, Head, RecordLine};
use crate::segments::folder::segment_name;
use crate::segments::header::SegmentHeader;
use base::seal::hex::from_hex;

/// The lines of all logs that a collector has kept.
#[derive(Debug, Default)]
pub struct ExportedLines {
    logs: BTreeMap<String, LinesOfLog>,
    refusals: Vec<RefusedRecord>,
}

/// The record of a log that a collector has refused another record, of the same log or not.
#[derive(Debug)]
struct RefusedRecord {
    /// The log that says so, and the number of its record.
    by: String,
    seq: u64,
    /// The log of the refused record.
    log: String,
    refused: Head,
}

/// The lines of one log.
#[derive(Debug, Default)]
struct LinesOfLog {
    /// The headers of segments, by the number of the segment; with line feeds.
    headers: BTreeMap<u64, Vec<u8>>,
    /// The records, by their sequence numbers; with line feeds.
    records: BTreeMap<u64, Vec<u8>>,
    /// The last record that is a checkpoint.
    checkpoint: u64,
    refused: BTreeMap<u64, Head>,
    repeated: u64,
    /// The lines that came with different contents.
    mistakes: Vec<Violation>,
}

/// The outcome for one log.
#[derive(Debug)]
pub struct ExportedLogReport {
    /// The id of the log.
    pub instance: String,
    /// Lines that came more than once.
    pub repeated: u64,
    pub report: VerificationReport,
}

/// The limit of a line of the input, in bytes: a collector writes a whole request as one line.
const MAX_INPUT_LINE: u64 = 64 << 20;

/// Members in which collectors keep the body of a log record, at any depth.
const BODIES: [&str; 3] = ["body", "message", "log"];

impl ExportedLines {
    /// Reads JSON lines: lines of logs as they are, or in the bodies of log records, as file
    /// exporters of collectors write them. Holds all lines in memory.
    ///
    /// # Errors
    /// When the input cannot be read, or has a line beyond 64 MiB.
    pub fn read(mut input: impl BufRead) -> io::Result<Self> {
        let mut lines = Self::default();
        let mut text = Vec::new();
        loop {
            text.clear();
            let length = input.by_ref().take(MAX_INPUT_LINE).read_until(b'\n', &mut text)?;
            if length == 0 {
                return Ok(lines);
            }
            if length as u64 == MAX_INPUT_LINE && !text.ends_with(b"\n") {
                return Err(io::Error::other("a line is longer than 64 MiB; it is not JSON lines"));
            }
            let text = text.trim_ascii();
            if !lines.add(text)
                && let Ok(value) = serde_json::from_slice(text)
            {
                lines.add_bodies(&value);
            }
        }
    }

    fn add_bodies(&mut self, value: &Value) {
        match value {
            Value::Array(elements) => elements.iter().for_each(|element| self.add_bodies(element)),
            Value::Object(members) => {
                // Callers chose some attributes: no attribute counts as a line.
                for (name, value) in members.iter().filter(|(name, _)| *name != "attributes") {
                    let text = value.as_str().or_else(|| value["stringValue"].as_str());
                    match text.filter(|_| BODIES.contains(&name.as_str())) {
                        Some(text) => _ = self.add(text.trim_end_matches('\n').as_bytes()),
                        None => self.add_bodies(value),
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds a line; returns whether it is a line of a log.
    fn add(&mut self, text: &[u8]) -> bool {
        let Some(line) = RecordLine::read(text) else { return false };
        let Some(instance) = line.string("instance") else { return false };
        if line.is(EXPORT_REFUSED) {
            if let Some(header) = line.string("header") {
                self.add(header.as_bytes());
            }
            self.refusals.extend(RefusedRecord::read(&line));
        }
        let log = self.logs.entry(instance).or_default();
        if line.is("checkpoint") {
            log.checkpoint = log.checkpoint.max(line.seq().unwrap_or_default());
        }
        let (number, of_kind, kind) = match (line.seq(), line.number("segment")) {
            (Some(seq), _) => (seq, &mut log.records, "record"),
            (None, Some(segment)) => (segment, &mut log.headers, "segment"),
            (None, None) => return false,
        };
        match of_kind.entry(number) {
            Entry::Vacant(free) => {
                free.insert([text, b"\n"].concat());
            }
            Entry::Occupied(same) if same.get().strip_suffix(b"\n") == Some(text) => {
                log.repeated += 1;
            }
            Entry::Occupied(_) => log.mistakes.push(Violation {
                segment: String::new(),
                seq: (kind == "record").then_some(number),
                what: format!("the {kind} {number} came with two different contents"),
            }),
        }
        true
    }

    /// Verifies each log from the first line to the last that came.
    pub fn verify(mut self, anchors: &TrustAnchors) -> Vec<ExportedLogReport> {
        for RefusedRecord { by, seq, log, refused } in self.refusals {
            // Without the secret, only a later checkpoint shows that the log says so.
            let is_signed = self.logs.get(&by).is_some_and(|by| by.checkpoint > seq);
            let is_believed = is_signed || anchors.keys.is_some();
            if let Some(log) = self.logs.get_mut(&log).filter(|_| is_believed) {
                log.refused.insert(refused.seq, refused);
            }
        }
        let verify = |(instance, lines): (String, LinesOfLog)| {
            let repeated = lines.repeated;
            ExportedLogReport { instance, repeated, report: lines.verify(anchors.clone()) }
        };
        self.logs.into_iter().map(verify).collect()
    }
}

impl RefusedRecord {
    /// Reads a record of a refusal; `None` if the refused line was no record.
    fn read(line: &RecordLine<'_>) -> Option<Self> {
        let digest = |name| from_hex(&line.string(name)?);
        Some(Self {
            by: line.string("instance")?,
            seq: line.seq()?,
            log: line.string("log")?,
            refused: Head {
                seq: line.number("record")?,
                mac: digest("record_mac")?,
                lines: digest("record_lines")?,
            },
        })
    }
}

impl LinesOfLog {
    /// Verifies the lines in the segments in which they were written.
    fn verify(self, anchors: TrustAnchors) -> VerificationReport {
        let Self { headers, mut records, refused, mistakes, .. } = self;
        let begins = headers.into_iter().filter_map(|(number, text)| {
            let line = RecordLine::read(text.trim_ascii_end())?;
            let after = SegmentHeader::read(&line)?.previous.seq;
            Some((number, after, text))
        });
        let begins: Vec<_> = begins.collect();
        let mut verifier = Verifier::new(anchors);
        verifier.refused = refused;
        // Records before the first header that came: their segment began before.
        let first = begins.first().map_or(u64::MAX, |(_, after, _)| after.saturating_add(1));
        let rest = records.split_off(&first);
        let mut before = std::mem::replace(&mut records, rest).into_values();
        if let Some(line) = before.next() {
            let segment = begins.first().map(|(number, ..)| segment_name(number - 1));
            verifier.begin_within(&segment.unwrap_or_default(), line.trim_ascii_end());
        }
        before.for_each(|line| verifier.line(&line));
        let numbers: Vec<u64> = begins.iter().map(|(number, ..)| *number).collect();
        let mut begins = begins.into_iter().peekable();
        while let Some((number, _, mut text)) = begins.next() {
            let next = begins.peek().map_or(u64::MAX, |(_, after, _)| after.saturating_add(1));
            let rest = records.split_off(&next);
            std::mem::replace(&mut records, rest).into_values().for_each(|line| text.extend(line));
            // Reading from memory does not fail.
            let _ = verifier.segment(&segment_name(number), &text[..], Successor::Segment(None));
        }
        verifier.report.mistakes.splice(0..0, mistakes);
        verifier.report.segments = numbers.len();
        verifier.finish_part(&numbers)
    }
}
