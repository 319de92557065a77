//! Records as text: one JSON object per line, ASCII only, bounded, chained by its last member
//! `mac`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use super::keys::{Digest, Keys, Mac};
use base::seal::hex::{from_hex, hex};
use domain::json::Json;

/// An event to record, as the members of a JSON object. Values that are too long are truncated, and
/// the record is marked with `"truncated":true`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuditEvent {
    kind: &'static str,
    members: String,
    truncated: bool,
}

/// The event of a line that a collector refuses for good.
pub(crate) const EXPORT_REFUSED: &str = "export_refused";

/// The limit of a line, in bytes, including its line feed (docs/audit.md).
pub(crate) const MAX_LINE: usize = 16 << 10;

/// Bytes of a line in addition to the members of its event, approximately.
const OWN_MEMBERS: usize = 240;

/// The limit of the members of an event, in bytes. The rest of a line is far shorter than the KiB
/// that is reserved for it.
const MAX_MEMBERS: usize = MAX_LINE - 1024;

/// The limit of the text of one member, in bytes as written.
const MAX_TEXT: usize = 1024;

/// The limit of nesting when a record is read back. Records are nearly flat; a deeper line is not a
/// record.
pub(crate) const MAX_DEPTH: usize = 16;

impl AuditEvent {
    /// Creates an event of this type.
    pub fn new(event: &'static str) -> Self {
        // Most events have more members than this, but `size` counts the capacity.
        let mut members = String::with_capacity(OWN_MEMBERS);
        members.extend(["\"event\":\"", event, "\""]);
        Self { kind: event, members, truncated: false }
    }

    /// Returns the type of the event.
    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    /// Adds an untrusted text: escaped, and truncated after 1,024 bytes as written.
    pub fn text(self, name: &'static str, text: &str) -> Self {
        self.long_text(name, text, MAX_TEXT)
    }

    /// Adds an untrusted text, truncated after `limit` bytes as written.
    pub fn long_text(mut self, name: &'static str, text: &str, limit: usize) -> Self {
        let before = self.members.len();
        self.name(name);
        self.truncated |= write_text(text, limit, &mut self.members);
        self.fit(before)
    }

    /// Adds an untrusted text, if there is one.
    pub fn optional_text(self, name: &'static str, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    /// Adds a number.
    pub fn number(self, name: &'static str, number: u64) -> Self {
        self.json(name, &number.to_string())
    }

    /// Adds a value that the gateway has written as ASCII JSON. Without room the value is left out,
    /// and the record is marked as truncated.
    pub fn json(mut self, name: &'static str, value: &str) -> Self {
        let before = self.members.len();
        self.name(name);
        self.members.push_str(value);
        self.fit(before)
    }

    fn name(&mut self, name: &'static str) {
        self.members.push_str(",\"");
        self.members.push_str(name);
        self.members.push_str("\":");
    }

    /// Cuts the members to `before` bytes if there is no room for more.
    fn fit(mut self, before: usize) -> Self {
        if self.members.len() > MAX_MEMBERS {
            self.members.truncate(before);
            self.truncated = true;
        }
        // A text grows by doubling: the memory of no event is more than a line has.
        if self.members.capacity() > MAX_MEMBERS {
            self.members.shrink_to(MAX_MEMBERS);
        }
        self
    }

    /// Marks the record as truncated.
    pub(super) fn mark_truncated(mut self) -> Self {
        self.truncated = true;
        self
    }

    /// Returns the room for further members, in bytes.
    pub fn room(&self) -> usize {
        MAX_MEMBERS.saturating_sub(self.members.len())
    }

    /// Returns the size of the line of this event, in bytes, approximately: no less than the memory
    /// of the event.
    pub fn size(&self) -> usize {
        (self.members.len() + OWN_MEMBERS).max(self.members.capacity())
    }
}

/// Appends `text` as a JSON string of ASCII alone, with at most `limit` bytes between the quotes.
/// Returns whether it was truncated. No text can look like a second record, or control a terminal.
pub fn write_text(text: &str, limit: usize, out: &mut String) -> bool {
    out.push('"');
    let end = out.len().saturating_add(limit);
    let mut rest = text;
    let is_cut = loop {
        let fits = &rest.as_bytes()[..rest.len().min(end - out.len())];
        let plain = fits.iter().position(|byte| !is_plain(*byte)).unwrap_or(fits.len());
        out.push_str(&rest[..plain]);
        rest = &rest[plain..];
        let Some(c) = rest.chars().next() else {
            break false;
        };
        let before = out.len();
        write_char(c, out);
        if out.len() > end {
            out.truncate(before);
            break true;
        }
        rest = &rest[c.len_utf8()..];
    };
    out.push('"');
    is_cut
}

/// Whether a byte of a text is written as it is: printable ASCII without `"` and `\`.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')
}

fn write_char(c: char, out: &mut String) {
    match c {
        '"' | '\\' => out.extend(['\\', c]),
        ' '..='~' => out.push(c),
        _ => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}

/// The time of an event, by two clocks. The order of records is that of their sequence numbers, not
/// of their times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stamp {
    /// The wall clock, which can be set back.
    pub wall: SystemTime,
    /// The time since the log was opened; monotonic.
    pub up: Duration,
}

/// Returns the wall-clock time of a stamp as a JSON string.
pub(super) fn time_text(stamp: Stamp) -> String {
    format!("\"{}\"", humantime::format_rfc3339_micros(stamp.wall))
}

/// The identity of a writer, in each of its records.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct WriterId {
    /// The id of the log: the same in all its segments.
    pub instance: String,
    /// A random id, different each time the log is opened.
    pub boot: String,
}

/// The head of a hash chain: its last record.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Head {
    /// The sequence number. The first record has 1; 0 stands for no record.
    pub seq: u64,
    pub mac: Mac,
    /// The SHA-256 digest of the lines of all records ([`next_digest`]).
    pub(super) lines: Digest,
}

/// Returns the running digest after a line, with its line feed: SHA-256 of the digest before it and
/// the line.
pub(crate) fn next_digest(before: &Digest, line: &[u8]) -> Digest {
    Sha256::new().chain_update(before).chain_update(line).finalize().into()
}

impl Head {
    /// Appends the line of the next record, which becomes the head.
    pub(crate) fn write(
        &mut self,
        event: &AuditEvent,
        stamp: Stamp,
        writer: &WriterId,
        keys: &Keys,
        out: &mut Vec<u8>,
    ) {
        let seq = self.seq + 1;
        let start = out.len();
        let time = humantime::format_rfc3339_micros(stamp.wall);
        let up = stamp.up.as_micros();
        let WriterId { instance, boot } = writer;
        // Writing to a vector cannot fail.
        let _ = write!(
            out,
            "{{\"seq\":{seq},\"time\":\"{time}\",\"up_us\":{up},\"instance\":\"{instance}\",\
             \"boot\":\"{boot}\",{}",
            event.members
        );
        if event.truncated {
            out.extend_from_slice(b",\"truncated\":true");
        }
        let mac = keys.link(&self.mac, &out[start..]);
        end_line(&mac, out);
        *self = Self { seq, mac, lines: next_digest(&self.lines, &out[start..]) };
    }
}

const MAC: &[u8] = b",\"mac\":\"";

/// The bytes after the authenticated text: the name `mac`, 64 hexadecimal digits, and the closing
/// quote and brace.
const MAC_LEN: usize = MAC.len() + 64 + 2;

/// Ends a line with the authentication code of the text before it.
pub(crate) fn end_line(mac: &Mac, out: &mut Vec<u8>) {
    out.extend_from_slice(MAC);
    out.extend_from_slice(hex(mac).as_bytes());
    out.extend_from_slice(b"\"}\n");
}

/// A line that was read back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLine<'a> {
    pub json: Json<'a>,
    /// The authenticated part of the line.
    pub text: &'a [u8],
    pub mac: Mac,
}

impl<'a> RecordLine<'a> {
    /// Parses a line without its line feed; `None` if it is not a line of an audit log.
    pub(crate) fn read(line: &'a [u8]) -> Option<Self> {
        let (text, mac) = line.split_at_checked(line.len().checked_sub(MAC_LEN)?)?;
        let digits = mac.strip_prefix(MAC)?.strip_suffix(b"\"}")?;
        let mac = from_hex(std::str::from_utf8(digits).ok()?)?;
        let json = Json::parse(line, MAX_DEPTH).ok().filter(|json| json.is_object())?;
        Some(Self { json, text, mac })
    }

    /// Returns the sequence number; `None` if the line is not a record.
    pub(crate) fn seq(&self) -> Option<u64> {
        self.number("seq")
    }

    /// Returns a member that is a non-negative integer.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.json.get(name)?.text().parse().ok()
    }

    /// Returns a member that is a string.
    pub(crate) fn string(&self, name: &str) -> Option<String> {
        Some(self.json.get(name)?.as_str()?.into_owned())
    }

    /// Returns the wall-clock time of the line.
    pub(crate) fn time(&self) -> Option<SystemTime> {
        humantime::parse_rfc3339(&self.string("time")?).ok()
    }

    /// Whether the line is a record of this event.
    pub(crate) fn is(&self, event: &str) -> bool {
        self.json.get("event").is_some_and(|e| e.is(event))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use base::seal::AuditKey;

    fn write(event: &AuditEvent) -> Vec<u8> {
        let keys = Keys::new(&AuditKey::generate().0);
        let stamp = Stamp { wall: SystemTime::UNIX_EPOCH, up: Duration::from_micros(5) };
        let writer = WriterId { instance: "a".into(), boot: "b".into() };
        let mut head = Head::default();
        let mut out = Vec::new();
        head.write(event, stamp, &writer, &keys, &mut out);
        out
    }

    #[test]
    fn an_event_counts_no_less_than_its_memory_and_no_more_than_a_line() {
        let check = |event: &AuditEvent| {
            assert!((event.members.capacity()..=MAX_LINE).contains(&event.size()));
        };
        check(&AuditEvent::new("test").long_text("x", &"y".repeat(MAX_LINE), MAX_LINE));
        let mut event = AuditEvent::new("test");
        for step in 0..2_000 {
            event = event.text("x", &"y".repeat(step % 1_100));
            check(&event);
        }
    }

    #[test]
    fn d8_untrusted_text_stays_inside_its_record() {
        let forged = "x\n{\"seq\":7}\u{1b}[2J\u{2028}\u{1f600}\"\\";
        let line = write(&AuditEvent::new("test").text("name", forged));
        assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
        assert!(line.iter().all(|&b| b == b'\n' || (b' '..=b'~').contains(&b)));
        let read = RecordLine::read(line.trim_ascii_end()).unwrap();
        assert_eq!(read.string("name").unwrap(), forged);
        assert_eq!(read.seq(), Some(1));
        assert_eq!(read.string("time").unwrap(), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn d8_a_text_that_is_too_long_is_truncated_and_marked() {
        let event = AuditEvent::new("test").text("name", &"\u{2028}".repeat(1 << 20));
        let line = write(&event);
        let read = RecordLine::read(line.trim_ascii_end()).unwrap();
        assert_eq!(read.string("name").unwrap().chars().count(), MAX_TEXT / 6);
        assert_eq!(read.json.get("truncated").and_then(Json::as_bool), Some(true));
        let many =
            (0..100).fold(AuditEvent::new("test"), |e, _| e.text("name", &"x".repeat(MAX_TEXT)));
        assert!(write(&many).len() <= MAX_LINE);
        let fits = write(&AuditEvent::new("test").text("name", &"x".repeat(MAX_TEXT)));
        assert_eq!(RecordLine::read(fits.trim_ascii_end()).unwrap().json.get("truncated"), None);
    }

    proptest! {
        #[test]
        fn any_text_survives_a_round_trip(text in any::<String>()) {
            let mut out = String::new();
            prop_assert!(!write_text(&text, usize::MAX, &mut out));
            prop_assert!(out.is_ascii());
            let read: String = serde_json::from_str(&out).unwrap();
            prop_assert_eq!(read, text);
        }

        #[test]
        fn a_text_is_cut_before_the_first_character_that_does_not_fit(
            text in r#"([a-c]{0,6}["\\\n\u{e9}\u{1f600}]{0,2}){0,4}"#,
            limit in 0..40_usize,
        ) {
            let mut out = String::new();
            let is_cut = write_text(&text, limit, &mut out);
            let read: String = serde_json::from_str(&out).unwrap();
            prop_assert!(text.starts_with(&read));
            prop_assert!(out.len() <= limit + 2);
            let next = text[read.len()..].chars().next();
            prop_assert_eq!(is_cut, next.is_some());
            if let Some(next) = next {
                let mut longer = String::new();
                write_text(&format!("{read}{next}"), usize::MAX, &mut longer);
                prop_assert!(longer.len() > limit + 2);
            }
        }

        #[test]
        fn reading_an_arbitrary_line_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RecordLine::read(&bytes);
        }
    }
}
