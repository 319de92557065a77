//! Step backs of rollouts, as they outlast the process and reach other replicas: only a person
//! begins again. They are in one small file beside the folder of the audit log.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use base::platform::disk::{self, Readers};
use config::{Config, durable_file};

/// A rollout whose new version was taken back, or is served again.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StepBackNews {
    /// Public name of the prompt.
    pub prompt: String,
    pub from: String,
    pub to: String,
    /// When it was taken back, in seconds since the Unix epoch; absent once a person has begun the
    /// rollout again.
    pub at: Option<u64>,
}

/// The name of the file.
const FILE: &str = "rollouts.json";

/// Returns the file of a configuration; `None` where none of its rollouts steps back, or nothing
/// is kept on the disk.
pub(super) fn file_of(config: &Config) -> Option<PathBuf> {
    config.rollouts.iter().find(|rollout| rollout.step_back.is_some())?;
    Some(config.audit.as_ref()?.path.parent()?.join(FILE))
}

/// Reads the step backs of a file. One that cannot be read is no reason not to start: the version
/// is taken back again if it still fails.
pub(super) fn read(path: &Path) -> Vec<StepBackNews> {
    let read = disk::read_to_string(path);
    match read.and_then(|text| serde_json::from_str(&text).map_err(io::Error::from)) {
        Ok(kept) => kept,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            warn!(path = %path.display(), %error, "the step backs of rollouts cannot be read");
            Vec::new()
        }
    }
}

/// Writes the step backs. Without them a restart begins the rollouts again.
pub(super) fn write(path: &Path, kept: &[StepBackNews]) {
    let text = serde_json::to_string_pretty(kept).map_err(io::Error::from);
    if let Err(error) = text.and_then(|text| durable_file::replace(path, text, Readers::Usual)) {
        warn!(path = %path.display(), %error, "the step backs of rollouts cannot be written; a restart forgets them");
    }
}
