//! The header, the first line of a segment: it names the record from which the hash chain
//! continues. The header is not a record and has no sequence number, so that lines can be written
//! again to a different segment unchanged.

use crate::keys::{Digest, Keys};
use crate::record::{Head, RecordLine, Stamp, end_line, write_text};
use base::seal::hex::{from_hex, hex};

/// The header of a segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SegmentHeader {
    /// The number of the segment; the first one has 1.
    pub number: u64,
    pub instance: String,
    /// The record before the first one of this segment; its number is 0 in the first segment.
    pub previous: Head,
    /// The file name of the segment before; empty in the first segment.
    pub name: String,
    /// The length of the segment before up to that record, in bytes.
    pub bytes: u64,
    /// The running digest of the headers of all segments before.
    pub headers: Digest,
    /// The reason why the segment before was abandoned: its content beyond `bytes` does not count.
    pub abandoned: Option<String>,
}

/// The limit of the reason, in bytes as written: enough for an error of the system.
const MAX_REASON: usize = 256;

impl SegmentHeader {
    /// Returns the line of the header, with its line feed.
    pub(crate) fn write(&self, stamp: Stamp, keys: &Keys) -> Vec<u8> {
        let Self { number, instance, previous, name, bytes, headers, abandoned } = self;
        let time = humantime::format_rfc3339_micros(stamp.wall);
        let mut text = format!(
            "{{\"segment\":{number},\"time\":\"{time}\",\"instance\":\"{instance}\",\"after\":{},\
             \"after_mac\":\"{}\",\"previous\":\"{name}\",\"previous_bytes\":{bytes},\
             \"after_lines\":\"{}\",\"after_headers\":\"{}\"",
            previous.seq,
            hex(&previous.mac),
            hex(&previous.lines),
            hex(headers)
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

    /// Reads a line of [`SegmentHeader::write`]; `None` if it is not a header.
    pub(crate) fn read(line: &RecordLine<'_>) -> Option<Self> {
        let digest = |name| from_hex(&line.string(name)?);
        Some(Self {
            number: line.number("segment")?,
            instance: line.string("instance")?,
            previous: Head {
                seq: line.number("after")?,
                mac: digest("after_mac")?,
                lines: digest("after_lines")?,
            },
            headers: digest("after_headers")?,
            name: line.string("previous")?,
            bytes: line.number("previous_bytes")?,
            abandoned: line.string("abandoned"),
        })
    }

    /// Whether the authentication code of the line was made with these keys.
    pub(crate) fn is_authentic(&self, line: &RecordLine<'_>, keys: &Keys) -> bool {
        keys.link(&self.previous.mac, line.text) == line.mac
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use base::seal::AuditKey;

    #[test]
    fn a_header_survives_a_round_trip_and_is_authentic_only_under_its_key() {
        let header = SegmentHeader {
            number: 7,
            instance: "0a".into(),
            previous: Head { seq: 12, mac: [3; 32], lines: [4; 32] },
            headers: [5; 32],
            name: "audit-00000006.jsonl".into(),
            bytes: 99,
            abandoned: Some("no \"space\"\n".into()),
        };
        let keys = Keys::new(&AuditKey::generate().0);
        let stamp = Stamp { wall: SystemTime::now(), up: Duration::ZERO };
        let text = header.write(stamp, &keys);
        let line = RecordLine::read(text.trim_ascii_end()).unwrap();
        assert_eq!(SegmentHeader::read(&line).as_ref(), Some(&header));
        assert!(header.is_authentic(&line, &keys));
        assert!(!header.is_authentic(&line, &Keys::new(&AuditKey::generate().0)));
        assert_eq!(line.seq(), None);
    }
}
