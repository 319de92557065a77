//! The first line of a segment: where the chain goes on from. It is no record and has no number, so
//! that records can move to another segment as they are.

use super::keys::Keys;
use super::record::{Head, Line, Stamp, end_line, write_text};
use crate::seal::hex::{from_hex, hex};

/// Where a segment goes on from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub number: u64,
    pub instance: String,
    /// The last record before its first one; number 0 if it is the first of all.
    pub previous: Head,
    /// The segment before it, and its length up to there.
    pub name: String,
    pub bytes: u64,
    /// Why the one before it was given up, if it was: what it holds beyond that length does not count.
    pub abandoned: Option<String>,
}

/// Longest reason that is kept, in bytes as written.
const MAX_REASON: usize = 256;

impl Header {
    /// Its line.
    pub(crate) fn write(&self, stamp: Stamp, keys: &Keys) -> Vec<u8> {
        let Self { number, instance, previous, name, bytes, abandoned } = self;
        let time = humantime::format_rfc3339_micros(stamp.wall);
        let mut text = format!(
            "{{\"segment\":{number},\"time\":\"{time}\",\"instance\":\"{instance}\",\"after\":{},\
             \"after_mac\":\"{}\",\"previous\":\"{name}\",\"previous_bytes\":{bytes}",
            previous.seq,
            hex(&previous.mac)
        );
        if let Some(reason) = abandoned {
            text.push_str(",\"abandoned\":");
            write_text(reason, MAX_REASON, &mut text);
        }
        let mac = keys.link(&previous.mac, text.as_bytes());
        let mut line = text.into_bytes();
        end_line(&mac, &mut line);
        line
    }

    /// Reads what [`Header::write`] wrote, without its end.
    pub(crate) fn read(line: &Line<'_>) -> Option<Self> {
        Some(Self {
            number: line.number("segment")?,
            instance: line.string("instance")?,
            previous: Head {
                seq: line.number("after")?,
                mac: from_hex(&line.string("after_mac")?)?,
            },
            name: line.string("previous")?,
            bytes: line.number("previous_bytes")?,
            abandoned: line.string("abandoned"),
        })
    }

    /// Whether its code was made with these keys.
    pub(crate) fn is_of(&self, line: &Line<'_>, keys: &Keys) -> bool {
        keys.link(&self.previous.mac, line.text) == line.mac
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::seal::AuditKey;

    #[test]
    fn a_header_is_read_as_it_was_written_and_belongs_to_its_key() {
        let header = Header {
            number: 7,
            instance: "0a".into(),
            previous: Head { seq: 12, mac: [3; 32] },
            name: "audit-00000006.jsonl".into(),
            bytes: 99,
            abandoned: Some("no \"space\"\n".into()),
        };
        let keys = Keys::new(&AuditKey::generate().0);
        let stamp = Stamp { wall: SystemTime::now(), up: Duration::ZERO };
        let text = header.write(stamp, &keys);
        let line = Line::read(text.trim_ascii_end()).unwrap();
        assert_eq!(Header::read(&line).as_ref(), Some(&header));
        assert!(header.is_of(&line, &keys));
        assert!(!header.is_of(&line, &Keys::new(&AuditKey::generate().0)));
        assert_eq!(line.seq(), None);
    }
}
