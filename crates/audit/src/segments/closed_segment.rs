//! A closed segment, as the record of its removal names it.

use std::io;
use std::path::Path;

use crate::record::{AuditEvent, Head};
use crate::segments::folder::segment_name;
use crate::segments::recover::read_header;
use base::seal::hex::hex;

/// A segment before the one that is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ClosedSegment {
    pub number: u64,
    pub first_seq: u64,
    /// The last record of the segment.
    pub last: Head,
}

impl ClosedSegment {
    /// Reads where a segment begins and ends, by its header and by that of the segment `next`.
    pub(crate) fn read(folder: &Path, number: u64, next: u64) -> io::Result<Self> {
        let first_seq = read_header(folder, number)?.previous.seq + 1;
        let last = read_header(folder, next)?.previous;
        Ok(Self { number, first_seq, last })
    }

    /// Returns a record about the segment. It names the records and the running digest of their
    /// lines, by which a copy is recognized.
    pub(crate) fn event(&self, kind: &'static str) -> AuditEvent {
        let Self { number, first_seq, last } = self;
        AuditEvent::new(kind)
            .text("name", &segment_name(*number))
            .number("first_seq", *first_seq)
            .number("last_seq", last.seq)
            .number("count", (last.seq + 1).saturating_sub(*first_seq))
            .text("lines", &hex(&last.lines))
    }
}
