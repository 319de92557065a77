//! The cursor of an export: the last line that the collector has accepted. It is kept in a file in
//! the folder of the log, so that a restart goes on behind that line.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::record::MAX_LINE;
use crate::segments::folder::segment_numbers;
use crate::segments::recover::read_header;
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

/// The file with the folders of the logs before this one, oldest first.
const REPLACED_FILE: &str = "replaced.json";

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
        let next = segment_numbers(folder)?.into_iter().find(|number| *number >= segment);
        // A log that ends before the cursor is an older copy, which gets other records.
        let Some(next) = next else { return Ok(false) };
        if next > segment || offset == 0 {
            return Ok(read_header(folder, next)?.previous.seq >= self.seq);
        }
        let mut file = SegmentReader::open(folder, segment)?;
        if offset > file.length()? {
            return Ok(false);
        }
        let start = offset.saturating_sub(MAX_LINE as u64);
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(offset - start).read_to_end(&mut text)?;
        let last = text.strip_suffix(b"\n").and_then(|text| text.rsplit(|&b| b == b'\n').next());
        Ok(last.is_some_and(|line| digest(line) == self.digest))
    }
}

/// Keeps in the folder of a log that it continues the log in the folder `before`: a restart does
/// not know that log, whose last records may not be exported yet.
pub(crate) fn keep_replaced(folder: &Path, before: &Path) -> io::Result<()> {
    let own = disk::canonicalize(folder)?;
    let mut all = replaced(folder)?;
    for earlier in replaced(before)?.into_iter().chain([disk::canonicalize(before)?]) {
        if earlier != own && !all.contains(&earlier) {
            all.push(earlier);
        }
    }
    let text = serde_json::to_string(&all).map_err(io::Error::other)?;
    durable_file::replace(&folder.join(REPLACED_FILE), text, Readers::Owner)
}

/// Returns the folders of the logs that a log continues, oldest first.
pub(super) fn replaced(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let file = folder.join(REPLACED_FILE);
    match disk::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => serde_json::from_str(&text?)
            .map_err(|error| io::Error::other(format!("{}: {error}; remove it", file.display()))),
    }
}

fn digest(line: &[u8]) -> String {
    hex(&sha256(line))
}
