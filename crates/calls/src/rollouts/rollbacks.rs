//! Persists rollbacks of rollouts, and carries them to other replicas, so that only a person can
//! restart a rollout. The file lies beside the folder of the audit log.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::warn;

use base::platform::disk::{self, Readers};
use config::{Config, durable_file};

/// The rollback or restart of a rollout.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RollbackNotice {
    /// Public name of the prompt.
    pub prompt: String,
    pub from: String,
    pub to: String,
    /// Time of the rollback, in seconds since the Unix epoch; absent after a restart by a person.
    pub at: Option<u64>,
    /// Time of the change, in seconds since the Unix epoch: of two notices the newer counts. 0 in
    /// those of releases that did not write it.
    #[serde(default)]
    pub changed: u64,
}

/// The name of the file.
const FILE: &str = "rollouts.json";

/// Returns the file of a configuration; `None` where nothing is kept on the disk.
pub(super) fn file_of(config: &Config) -> Option<PathBuf> {
    Some(config.audit.as_ref()?.path.parent()?.join(FILE))
}

/// Reads the rollbacks of a file; an absent file has none.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<RollbackNotice>> {
    match disk::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => serde_json::from_str(&read?).map_err(io::Error::from),
    }
}

/// Records a rollback or restart. Keeps the entries of other rollouts, which another process may
/// have written. Without the file, a process restart restarts all rollouts.
pub(super) fn record(path: &Path, news: &RollbackNotice) {
    if let Err(error) = change(path, news) {
        warn!(path = %path.display(), %error, "the rollbacks of rollouts cannot be written; a restart forgets them");
    }
}

/// The lock file that serializes writers.
const LOCK: &str = ".rollouts.lock";

/// The longest wait for another process that writes the file.
const PATIENCE: Duration = Duration::from_secs(5);

fn change(path: &Path, news: &RollbackNotice) -> io::Result<()> {
    let _held = durable_file::hold(&path.with_file_name(LOCK), Readers::Owner, PATIENCE)?;
    // The entries of a file that cannot be read are lost: each rollout waits for a person.
    let mut kept = read(path).unwrap_or_default();
    kept.retain(|other| {
        (&other.prompt, &other.from, &other.to) != (&news.prompt, &news.from, &news.to)
    });
    kept.extend(news.at.is_some().then(|| news.clone()));
    let text = serde_json::to_string_pretty(&kept).map_err(io::Error::from)?;
    durable_file::replace(path, text, Readers::Usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_the_rollbacks_that_another_has_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let news = |prompt: &str, at| RollbackNotice {
            prompt: prompt.to_owned(),
            from: "1".to_owned(),
            to: "2".to_owned(),
            at,
            changed: at.unwrap_or(9),
        };
        record(&file, &news("a", Some(7)));
        record(&file, &news("b", Some(8)));
        assert_eq!(read(&file).unwrap(), [news("a", Some(7)), news("b", Some(8))]);
        record(&file, &news("a", None));
        assert_eq!(read(&file).unwrap(), [news("b", Some(8))], "a person began again");
    }
}
