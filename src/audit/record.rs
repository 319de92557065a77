//! Records as text: one JSON object a line, ASCII only, bounded, linked by its last member.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use super::keys::{Keys, Mac};
use crate::domain::json::Json;
use crate::seal::hex::{from_hex, hex};

/// Something that is recorded, as the members of a JSON object. What is too long is cut, and the
/// record says so.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    members: String,
    truncated: bool,
}

/// Longest line, in bytes, its end included.
pub(crate) const MAX_LINE: usize = 16 << 10;

/// What a line takes beside the members of its event, about.
const OWN_MEMBERS: usize = 240;

/// What the members of an event may take: the rest of a line is our own, and far shorter than a KiB.
const MAX_MEMBERS: usize = MAX_LINE - 1024;

/// Longest text of one member, in bytes as written.
const MAX_TEXT: usize = 1024;

/// Deepest nesting that is looked at when a record is read back; ours are flat.
const MAX_DEPTH: usize = 16;

impl Event {
    pub fn new(event: &'static str) -> Self {
        Self { members: format!("\"event\":\"{event}\""), truncated: false }
    }

    /// Adds a text of a stranger: escaped, cut where it is too long.
    pub fn text(self, name: &'static str, text: &str) -> Self {
        self.long_text(name, text, MAX_TEXT)
    }

    /// The same with a limit of its own, in bytes as written.
    pub fn long_text(mut self, name: &'static str, text: &str, limit: usize) -> Self {
        let mut value = String::new();
        self.truncated |= write_text(text, limit, &mut value);
        self.json(name, &value)
    }

    pub fn optional_text(self, name: &'static str, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    pub fn number(self, name: &'static str, number: u64) -> Self {
        self.json(name, &number.to_string())
    }

    /// Adds a value that is ASCII JSON of our own making; left out if there is no room for it.
    pub fn json(mut self, name: &'static str, value: &str) -> Self {
        match self.members.len() + name.len() + value.len() + 4 <= MAX_MEMBERS {
            true => {
                let _ = write!(self.members, ",\"{name}\":{value}");
            }
            false => self.truncated = true,
        }
        self
    }

    /// Marks what was cut before it came here.
    pub fn cut(mut self, cut: bool) -> Self {
        self.truncated |= cut;
        self
    }

    /// Bytes that further members may take.
    pub fn room(&self) -> usize {
        MAX_MEMBERS.saturating_sub(self.members.len())
    }

    /// Bytes that its line takes, about.
    pub fn size(&self) -> usize {
        self.members.len() + OWN_MEMBERS
    }
}

/// Appends `text` as a JSON string of ASCII alone, of at most `limit` bytes between its quotes;
/// tells whether it was cut. Nothing in a record can look like another one, or steer a terminal.
pub(crate) fn write_text(text: &str, limit: usize, out: &mut String) -> bool {
    out.push('"');
    let start = out.len();
    for c in text.chars() {
        let length = out.len();
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
        if out.len() - start > limit {
            out.truncate(length);
            out.push('"');
            return true;
        }
    }
    out.push('"');
    false
}

/// When something happened, by both clocks: the order of records is that of their numbers, whatever
/// these say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stamp {
    pub wall: SystemTime,
    /// Since the start of the process; it never goes back.
    pub up: Duration,
}

/// Who writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Writer {
    /// Of the log: the same in all its segments.
    pub instance: String,
    /// Of this start of the gateway.
    pub boot: String,
}

/// The last record of a chain.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Head {
    /// The first record has 1.
    pub seq: u64,
    pub mac: Mac,
}

impl Head {
    /// Writes the next record, and becomes it.
    pub fn write(
        &mut self,
        event: &Event,
        stamp: Stamp,
        writer: &Writer,
        keys: &Keys,
        out: &mut Vec<u8>,
    ) {
        let (seq, start) = (self.seq + 1, out.len());
        let mut text = String::with_capacity(event.members.len() + 320);
        let time = humantime::format_rfc3339_micros(stamp.wall);
        let (up, Writer { instance, boot }) = (stamp.up.as_micros(), writer);
        let _ = write!(
            text,
            "{{\"seq\":{seq},\"time\":\"{time}\",\"up_us\":{up},\"instance\":\"{instance}\",\
             \"boot\":\"{boot}\",{}",
            event.members
        );
        if event.truncated {
            text.push_str(",\"truncated\":true");
        }
        out.extend_from_slice(text.as_bytes());
        *self = Self { seq, mac: keys.link(&self.mac, &out[start..]) };
        end_line(&self.mac, out);
    }
}

const MAC: &[u8] = b",\"mac\":\"";

/// What stands behind the text that a code is made of: its name, 64 digits, and the end.
const MAC_LEN: usize = MAC.len() + 64 + 2;

/// Ends a line with the code of what stands before it.
pub(crate) fn end_line(mac: &Mac, out: &mut Vec<u8>) {
    out.extend_from_slice(MAC);
    out.extend_from_slice(hex(mac).as_bytes());
    out.extend_from_slice(b"\"}\n");
}

/// A line as it is read back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub json: Json<'a>,
    /// What the code was made of.
    pub text: &'a [u8],
    pub mac: Mac,
}

impl<'a> Line<'a> {
    /// Reads a line without its end; nothing if it is none of ours.
    pub(crate) fn read(line: &'a [u8]) -> Option<Self> {
        let (text, mac) = line.split_at_checked(line.len().checked_sub(MAC_LEN)?)?;
        let digits = mac.strip_prefix(MAC)?.strip_suffix(b"\"}")?;
        let mac = from_hex(std::str::from_utf8(digits).ok()?)?;
        let json = Json::parse(line, MAX_DEPTH).ok().filter(|json| json.is_object())?;
        Some(Self { json, text, mac })
    }

    /// Its number, if it is a record.
    pub(crate) fn seq(&self) -> Option<u64> {
        self.number("seq")
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.json.get(name)?.text().parse().ok()
    }

    pub(crate) fn string(&self, name: &str) -> Option<String> {
        Some(self.json.get(name)?.as_str()?.into_owned())
    }

    pub(crate) fn is(&self, event: &str) -> bool {
        self.json.get("event").is_some_and(|e| e.is(event))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::seal::AuditKey;

    fn write(event: &Event) -> Vec<u8> {
        let keys = Keys::new(&AuditKey::generate().0);
        let stamp = Stamp { wall: SystemTime::UNIX_EPOCH, up: Duration::from_micros(5) };
        let writer = Writer { instance: "a".into(), boot: "b".into() };
        let (mut head, mut out) = (Head::default(), Vec::new());
        head.write(event, stamp, &writer, &keys, &mut out);
        out
    }

    #[test]
    fn d8_what_strangers_write_stays_inside_its_record() {
        let forged = "x\n{\"seq\":7}\u{1b}[2J\u{2028}\u{1f600}\"\\";
        let line = write(&Event::new("test").text("name", forged));
        assert_eq!(line.iter().filter(|&&b| b == b'\n').count(), 1);
        assert!(line.iter().all(|&b| b == b'\n' || (b' '..=b'~').contains(&b)));
        let read = Line::read(line.trim_ascii_end()).unwrap();
        assert_eq!(read.string("name").unwrap(), forged);
        assert_eq!(read.seq(), Some(1));
        assert_eq!(read.string("time").unwrap(), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn d8_what_is_too_long_is_cut_and_says_so() {
        let event = Event::new("test").text("name", &"\u{2028}".repeat(1 << 20));
        let line = write(&event);
        let read = Line::read(line.trim_ascii_end()).unwrap();
        assert_eq!(read.string("name").unwrap().chars().count(), MAX_TEXT / 6);
        assert_eq!(read.json.get("truncated").and_then(Json::as_bool), Some(true));
        let many = (0..100).fold(Event::new("test"), |e, _| e.text("name", &"x".repeat(MAX_TEXT)));
        assert!(write(&many).len() <= MAX_LINE);
        let fits = write(&Event::new("test").text("name", &"x".repeat(MAX_TEXT)));
        assert_eq!(Line::read(fits.trim_ascii_end()).unwrap().json.get("truncated"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_as_it_was(text in any::<String>()) {
            let mut out = String::new();
            prop_assert!(!write_text(&text, usize::MAX, &mut out));
            prop_assert!(out.is_ascii());
            let read: String = serde_json::from_str(&out).unwrap();
            prop_assert_eq!(read, text);
        }

        #[test]
        fn reading_strangers_lines_never_fails_badly(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Line::read(&bytes);
        }
    }
}
