//! The last good walk of a store on the disk, for a start at which the store cannot be read.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::api::Listed;
use super::version::StoreVersion;
use base::platform::disk::{self, Readers};
use base::platform::wall_clock;
use config::durable_file;

/// The versions that a walk has found.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct KeptWalk {
    /// Digest of the configuration with which the store was read.
    pub source: String,
    /// By the names of the rows.
    pub rows: BTreeMap<String, KeptRow>,
}

/// A version, with the state that a later walk needs.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct KeptRow {
    pub listed: Listed,
    pub stamp: Option<String>,
    pub size: usize,
    pub version: StoreVersion,
}

const FILE: &str = "walk.json";

impl KeptWalk {
    /// Reads the walk in a state folder, with its age. `None` without a walk of this source.
    ///
    /// # Errors
    /// When the file cannot be read, has more than `most` bytes, or is no walk.
    pub(super) fn read(
        state: &Path,
        source: &str,
        most: usize,
    ) -> io::Result<Option<(Self, Duration)>> {
        let path = state.join(FILE);
        let metadata = match disk::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            metadata => metadata?,
        };
        if usize::try_from(metadata.length).is_ok_and(|length| length <= most) {
            let kept: Self = serde_json::from_str(&disk::read_to_string(&path)?)?;
            let age = metadata.modified.and_then(|at| wall_clock().duration_since(at).ok());
            return Ok((kept.source == source).then_some((kept, age.unwrap_or_default())));
        }
        Err(too_large())
    }

    /// Writes the walk into a state folder.
    ///
    /// # Errors
    /// When the walk takes more than `most` bytes, or the folder cannot be written.
    pub(super) fn write(&self, state: &Path, most: usize) -> io::Result<()> {
        let text = serde_json::to_string(self)?;
        if text.len() > most {
            return Err(too_large());
        }
        disk::create_dir_all(state, Readers::Owner)?;
        durable_file::replace(&state.join(FILE), text, Readers::Owner)
    }
}

fn too_large() -> io::Error {
    io::Error::other("it is larger than max_walk")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_walk_is_read_as_it_was_written_and_another_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("s");
        let read = |source: &str, most| KeptWalk::read(&state, source, most);
        assert!(read("a", 1_000).unwrap().is_none());
        let kept = KeptWalk { source: "a".to_owned(), rows: BTreeMap::new() };
        assert!(kept.write(&state, 3).is_err(), "larger than max_walk");
        kept.write(&state, 1_000).unwrap();
        assert_eq!(read("a", 1_000).unwrap().unwrap().0, kept);
        assert!(read("b", 1_000).unwrap().is_none(), "another configuration");
        assert!(read("a", 3).is_err(), "larger than max_walk");
        fs::write(state.join(FILE), "{\"source\":\"a\"").unwrap();
        assert!(read("a", 1_000).is_err(), "a broken file");
    }
}
