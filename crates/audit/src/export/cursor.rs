//! The cursor of an export: the last line that the collector has accepted. It is kept in a file in
//! the folder of the log, so that a restart goes on behind that line.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::record::MAX_LINE;
use crate::segments::segment_reader::SegmentReader;
use crate::tail::{Position, instance};
use base::platform::disk::{self, Readers};
use base::seal::hex::hex;
use base::seal::sha256;
use config::durable_file;

/// The last line that the collector has accepted.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cursor {
    /// The id of the log.
    pub instance: String,
    /// The position behind the line.
    pub position: Position,
    /// The number of the last record; 0 before the first.
    pub seq: u64,
    /// The SHA-256 digest of the line, in hexadecimal.
    pub digest: String,
}

const FILE: &str = "export.json";

impl Cursor {
    /// Reads the cursor of the log in a folder. A cursor that does not fit the log is the begin of
    /// the log: a line that is sent twice does no harm, a line that is never sent does.
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let begin = Self { instance: instance(folder)?.unwrap_or_default(), ..Self::default() };
        let text = match disk::read_to_string(&folder.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(begin),
            text => text?,
        };
        let cursor = serde_json::from_str(&text).ok();
        let cursor = cursor.filter(|cursor: &Self| cursor.instance == begin.instance);
        if let Some(cursor) = cursor
            && cursor.fits(folder)?
        {
            return Ok(cursor);
        }
        warn!(
            path = %folder.display(),
            "the export cursor does not fit the audit log; exporting all again"
        );
        Ok(begin)
    }

    /// Writes the cursor to the folder of its log.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        durable_file::replace(&folder.join(FILE), text, Readers::Owner)
    }

    /// Passes a line, without its line feed; `seq` is the number of a record that was not passed
    /// before.
    pub(super) fn pass(&mut self, line: &[u8], seq: Option<u64>) {
        self.seq = seq.unwrap_or(self.seq);
        self.digest = digest(line);
    }

    /// Whether the line before the position is the accepted one, or has left with its segment.
    fn fits(&self, folder: &Path) -> io::Result<bool> {
        let Position { segment, offset } = self.position;
        let mut file = match SegmentReader::open(folder, segment) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            file => file?,
        };
        if offset == 0 || offset > file.length()? {
            return Ok(offset == 0);
        }
        let start = offset.saturating_sub(MAX_LINE as u64);
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(offset - start).read_to_end(&mut text)?;
        let last = text.strip_suffix(b"\n").and_then(|text| text.rsplit(|&b| b == b'\n').next());
        Ok(last.is_some_and(|line| digest(line) == self.digest))
    }
}

fn digest(line: &[u8]) -> String {
    hex(&sha256(line))
}
