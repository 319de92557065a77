//! Reads only the paths of the audit log, the usage index and the lock file, so that commands work
//! without the gateway's secrets and with mistakes elsewhere in the file.

use std::path::{Path, PathBuf};

use super::audit::{self, Audit};
use super::error::ConfigError;
use super::lock::LockFile;
use super::reader::raw::Raw;
use super::reader::{Context, Section};
use super::{admin, approvals, environment, lookup, text_or_empty};
use domain::calls::fair_share::Share;

/// The folders of the records.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Records {
    /// `None`: the audit log is disabled.
    pub audit_log: Option<PathBuf>,
    /// `None`: usage is counted in memory only.
    pub usage_index: Option<PathBuf>,
    /// Whether other replicas also keep records (`[cluster]`).
    pub is_replica: bool,
}

impl Records {
    /// Reads the paths in the file at `path`, with the overrides in the environment of this
    /// process. A file that does not exist has the defaults. Blocks.
    ///
    /// # Errors
    /// The file cannot be read or is not TOML, or a path has a mistake.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        read(path, &environment(), |root| {
            let mut section = root.section("audit");
            let audit_log = audit::path(&mut section);
            section.ignore_rest();
            let mut section = root.section("admin");
            let mut usage = section.section("usage");
            let usage_index = admin::usage_path(&mut usage);
            usage.ignore_rest();
            section.ignore_rest();
            let is_replica = root.has("cluster");
            Self { audit_log, usage_index, is_replica }
        })
    }
}

/// Reads `[audit]` with its key in the file at `path`, like [`Records::load`]; `None` if the log is
/// disabled.
///
/// # Errors
/// The file cannot be read or is not TOML, or the table has a mistake.
pub fn load_audit(path: &Path) -> Result<Option<Audit>, ConfigError> {
    read(path, &environment(), |root| Audit::read_table(root.section("audit"), Share::WHOLE))
}

/// Finds the lock file that the file at `path` names, like [`Records::load`]. The lock file itself
/// may have mistakes.
///
/// # Errors
/// The file cannot be read or is not TOML, or `approvals.lock` has a mistake.
pub fn lock_store(path: &Path) -> Result<LockFile, ConfigError> {
    read(path, &environment(), |root| {
        let mut section = root.section("approvals");
        let store = approvals::store(&mut section);
        section.ignore_rest();
        store
    })
}

fn read<T>(
    path: &Path,
    env: &[(String, String)],
    read: impl FnOnce(&mut Section<'_>) -> T,
) -> Result<T, ConfigError> {
    let file = path.display().to_string();
    let raw = Raw::read(&file, &text_or_empty(path)?, env.iter().cloned())?;
    let variable = lookup(env);
    let base = path.parent().unwrap_or(Path::new(""));
    let context = Context::new(raw.origins, &variable, base);
    let mut root = Section::root(raw.root, &context);
    let found = read(&mut root);
    root.ignore_rest();
    context.mistakes.into_result(&file, &[])?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folders_of_records_are_found_beside_mistakes_and_missing_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.toml");
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Records::load(&file)
        };
        let found = load(
            "[server]\nlisen = 1\n[audit]\npath = \"log\"\nkey = { env = \"NOT_SET\" }\n\
             [admin]\ntoken = { env = \"NOT_SET\" }\nwrite = true\n[admin.usage]\nsize = 7\n",
        );
        let at = |name: &str| Some(folder.path().join(name));
        assert_eq!(
            found.unwrap(),
            Records { audit_log: at("log"), usage_index: at("usage"), is_replica: false }
        );
        assert!(load_audit(&file).unwrap_err().to_string().contains("NOT_SET"));
        let disabled = load("[audit]\npath = \"\"\n[admin.usage]\npath = \"\"\n").unwrap();
        assert_eq!(disabled, Records { audit_log: None, usage_index: None, is_replica: false });
        assert!(load("[audit]\npath = 7\n").is_err());
        assert!(load("[audit").is_err());
        std::fs::remove_file(&file).unwrap();
        assert_eq!(Records::load(&file).unwrap().audit_log, at("audit"));
    }
}
