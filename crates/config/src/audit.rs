//! `[audit]`: the audit log and its key.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderName;

use super::reader::secret::Secret;
use super::reader::{MILLISECOND, Section, optional, secs, table};
use super::server::views::globs;
use super::telemetry::{COLLECTOR_RULE, collector};
use super::upstream::credential::extra_headers;
pub(crate) use base::platform::disk::{self, OpenOptions, Readers};
use base::platform::platform;
use base::seal::AuditKey;
use domain::calls::fair_share::Share;
use domain::text::glob::Glob;

table! {
    /// The configuration of the audit log; none where `path` is `""`.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Audit(section, key, share: Share) -> Option {
        /// Directory of the log. `""` disables the log.
        required pub path: PathBuf = path(section);
        /// When a record counts as written. `interval`: when the operating system has it; it
        /// survives any crash of the gateway. `strict`: when the disk has it; it survives a power
        /// failure.
        pub durability: Durability = section.choice(key, Durability::Interval, &DURABILITY);
        /// With `interval`: time between two syncs to the disk.
        pub sync: Duration = section.duration(key, secs(1), MILLISECOND);
        /// Size of the records of calls that wait to be written, and of those that are written but
        /// not synced. Each caller has its share. Records that no caller waits for have a quarter
        /// beside it.
        // The minimum holds four records of the maximum length.
        pub buffer: usize = section.size(key, 16 << 20, 64 << 10..=1 << 30);
        /// The part of `buffer` that the records of one caller may take while others want room.
        field pub share: Share = share;
        /// When the log cannot be written: `refuse` refuses calls, `degrade` serves them and
        /// records how many records are missing.
        pub on_failure: OnAuditFailure = section.choice(key, OnAuditFailure::Refuse, &ON_FAILURE);
        /// A record that waits longer counts as not written.
        pub timeout: Duration = section.duration(key, secs(5), MILLISECOND);
        /// Whether lists are recorded, too.
        pub list: bool = section.flag(key, true);
        /// Secret from which all keys of the log are derived, 32 bytes in base64. While the
        /// variable is not set, a key is generated in `audit.key` beside the file.
        #[default = {"env":"PROMPTGATE_AUDIT_KEY"}]
        key: Option<AuditKey> = configured_key(section, key);
        /// File of the generated key, which is used if no key is configured.
        field key_file: PathBuf = section.beside(KEY_FILE);
        /// Checkpoints, each of which signs all records before it.
        let checkpoint: Checkpoint = Checkpoint::read_table(section.section(key));
        /// Number of records after which a checkpoint is signed.
        field pub checkpoint_records: u64 = checkpoint.records;
        /// Time after which a checkpoint is signed.
        field pub checkpoint_every: Duration = checkpoint.every;
        /// Size at which a new segment is started, an eighth of `keep_size` at most.
        pub segment_size: u64 = section.size(key, 64 << 20, 4 << 10..=1 << 40) as u64;
        /// Age at which a new segment is started.
        pub segment_age: Duration = section.duration(key, DAY, MILLISECOND);
        /// Size of all segments as they are stored: closed ones are compressed.
        pub keep_size: u64 = section.size(key, 10 << 30, 64 << 10..=1 << 50) as u64;
        /// Age at which closed segments leave, whatever room there is; ten minutes later, since a
        /// clock may be set wrong for a moment.
        pub keep_for: Duration = section.duration(key, 400 * DAY, DAY);
        /// At `keep_size`: `remove` removes the oldest closed segments, each with a signed record;
        /// `refuse` writes nothing more, so that `on_failure` applies.
        pub on_full: OnAuditFull = section.choice(key, OnAuditFull::Remove, &ON_FULL);
        /// Interval in which the gateway verifies what was written since the last time, and a
        /// thirtieth of the rest, slowly.
        pub verify_every: Duration = section.duration(key, DAY, MILLISECOND);
        /// Patterns of public names: prompts whose argument values may be written in plain text.
        #[default = []] #[example = ["library__*"]]
        pub raw_arguments: Vec<Glob> = globs(section, key).unwrap_or_default();
        /// The export of all records to a collector.
        pub export: Option<AuditExport> = export(section, key);
    }
}

table! {
    /// `audit.export`: every record is sent to an OpenTelemetry collector.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct AuditExport(section, key) -> Option {
        /// Base URL of an OTLP/HTTP collector for every record.
        #[default = ""] #[example = "https://collector.example.com:4318"]
        required pub endpoint: String =
            section.parsed(key, COLLECTOR_RULE, |text| optional(text, collector)).flatten();
        /// Headers of each request.
        #[example = { Authorization = { file = "collector-token" } }]
        pub headers: Vec<(HeaderName, Secret)> = extra_headers(section);
        /// Most records of a request, which also ends at 1 MiB.
        pub batch: usize = section.count(key, 1_000, 1..=10_000);
        /// Time between two requests, unless a whole batch waits.
        pub interval: Duration = section.duration(key, secs(1), MILLISECOND);
        /// Timeout of a request, which is then repeated.
        pub timeout: Duration = section.duration(key, secs(10), MILLISECOND);
        /// Size beyond `keep_size` for segments that wait for the collector; then `on_full` counts.
        pub reserve: u64 = section.size(key, 1 << 30, 0..=1 << 50) as u64;
    }
}

/// The point at which a record counts as written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Durability {
    /// The operating system has the record: it survives any crash of the gateway.
    Interval,
    /// The disk has the record: it survives a power failure.
    Strict,
}

/// Treatment of a log that has reached its size.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnAuditFull {
    /// The oldest closed segments are removed.
    Remove,
    /// Nothing is written: [`OnAuditFailure`] applies.
    Refuse,
}

/// Treatment of calls while the audit log cannot be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnAuditFailure {
    /// Calls are refused.
    Refuse,
    /// Calls are served; the number of missing records is recorded later.
    Degrade,
}

const DURABILITY: [(&str, Durability); 2] =
    [("interval", Durability::Interval), ("strict", Durability::Strict)];

const ON_FAILURE: [(&str, OnAuditFailure); 2] =
    [("refuse", OnAuditFailure::Refuse), ("degrade", OnAuditFailure::Degrade)];

const ON_FULL: [(&str, OnAuditFull); 2] =
    [("remove", OnAuditFull::Remove), ("refuse", OnAuditFull::Refuse)];

const DAY: Duration = secs(86_400);

/// Environment variable with the key, unless the file names another source.
const KEY_VARIABLE: &str = "PROMPTGATE_AUDIT_KEY";

/// Name of the generated key, in the directory of the configuration file.
const KEY_FILE: &str = "audit.key";

impl Audit {
    /// Returns the configured key, or else the key in `audit.key` next to the configuration file;
    /// `None` without a key. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read, holds no valid key, or is in the directory of the log: there the
    /// key would be stored together with the records that it protects.
    pub fn key(&self) -> io::Result<Option<AuditKey>> {
        if let Some(key) = &self.key {
            return Ok(Some(key.clone()));
        }
        let folder = self.key_file.parent();
        let folder = folder.and_then(|folder| disk::canonicalize(&folder.join(".")).ok());
        if folder.is_some() && folder == disk::canonicalize(&self.path).ok() {
            return Err(self.key_error("is in the directory of the log; set another audit.path"));
        }
        match disk::read_to_string(&self.key_file) {
            Ok(text) => AuditKey::parse(&text).map(Some).ok_or_else(|| self.key_error(KEY_RULE)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.key_error(&format!("cannot be read: {error}"))),
        }
    }

    /// Returns the file of the generated key; it exists only where no key is configured.
    pub fn key_file(&self) -> &Path {
        &self.key_file
    }

    /// Returns whether both configurations are of one log: the same directory and the same key.
    pub fn is_same_log(&self, other: &Self) -> bool {
        self.path == other.path && self.key == other.key && self.key_file == other.key_file
    }

    /// Generates a key and stores it in `audit.key` next to the configuration file. If the file
    /// exists by now, its key is used. Returns the key and the path of the file. Blocks.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn make_key(&self) -> io::Result<(AuditKey, PathBuf)> {
        let (key, text) = AuditKey::generate();
        let options = OpenOptions {
            write: true,
            create_new: true,
            readers: Readers::Owner,
            ..OpenOptions::default()
        };
        // The link makes the file appear complete or not at all: every later start would fail on a
        // truncated key.
        let temporary = self.key_file.with_extension(format!("{}.tmp", std::process::id()));
        let stored = options.open(&temporary).and_then(|mut file| {
            writeln!(file, "{text}")?;
            file.sync_all()?;
            platform().disk.hard_link(&temporary, &self.key_file)
        });
        let _ = disk::remove_file(&temporary);
        match stored {
            Ok(()) => Ok((key, self.key_file.clone())),
            // Another process created the file first: its key is valid.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let key = self.key()?.ok_or_else(|| self.key_error("cannot be created"))?;
                Ok((key, self.key_file.clone()))
            }
            Err(error) => Err(self.key_error(&format!("cannot be created: {error}"))),
        }
    }

    fn key_error(&self, problem: &str) -> io::Error {
        let file = self.key_file.display();
        io::Error::other(format!("audit key {file} {problem}; or set {KEY_VARIABLE}"))
    }
}

const KEY_RULE: &str =
    "is not base64 of exactly 32 bytes; generate a key with `openssl rand -base64 32`";

/// Reads the folder of the log; `None` if the log is disabled.
pub(super) fn path(section: &mut Section<'_>) -> Option<PathBuf> {
    section.file_or("path", "audit")
}

table! {
    /// `audit.checkpoint`.
    struct Checkpoint(section, key) {
        /// Records after which a checkpoint is signed.
        records: u64 = section.count(key, 1_000, 1..=1_000_000) as u64;
        /// Time after which a checkpoint is signed.
        every: Duration = section.duration(key, secs(60), MILLISECOND);
    }
}

/// Reads `audit.export`, which needs an endpoint.
fn export(section: &mut Section<'_>, key: &'static str) -> Option<AuditExport> {
    let is_there = section.has(key);
    let section = section.section(key);
    if is_there && !section.has("endpoint") {
        section.mistake("endpoint", format!("is required: {COLLECTOR_RULE}"));
    }
    AuditExport::read_table(section)
}

fn configured_key(section: &mut Section<'_>, name: &'static str) -> Option<AuditKey> {
    let text = section.secret_or_variable(name, KEY_VARIABLE)?;
    let key = AuditKey::parse(text.expose());
    if key.is_none() {
        section.mistake(name, KEY_RULE);
    }
    key
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::{Config, schema_check};

    fn parse(text: &str, base: &Path) -> Result<Config, String> {
        schema_check::parse("g", text, base, &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let audit = parse("", Path::new("conf")).unwrap().audit.unwrap();
        let expected = Audit {
            path: "conf/audit".into(),
            durability: Durability::Interval,
            sync: Duration::from_secs(1),
            buffer: 16 << 20,
            share: Share::new(0.25),
            on_failure: OnAuditFailure::Refuse,
            timeout: Duration::from_secs(5),
            list: true,
            key: None,
            key_file: "conf/audit.key".into(),
            checkpoint_records: 1000,
            checkpoint_every: Duration::from_secs(60),
            segment_size: 64 << 20,
            segment_age: Duration::from_secs(86_400),
            keep_size: 10 << 30,
            keep_for: 400 * DAY,
            on_full: OnAuditFull::Remove,
            verify_every: DAY,
            raw_arguments: Vec::new(),
            export: None,
        };
        assert_eq!(audit, expected);
        assert_eq!(parse("[audit]\npath = \"\"\n", Path::new("")).unwrap().audit, None);
    }

    #[test]
    fn k1_mistakes_in_audit_are_reported() {
        let mistake = |text: &str| parse(&format!("[audit]\n{text}\n"), Path::new("")).unwrap_err();
        assert!(mistake("key = { value = \"AAAA\" }").contains("g:2: audit.key: is not base64"));
        let endpoint = mistake("export = { endpoint = \"grpc://c\" }");
        assert!(endpoint.contains("audit.export.endpoint: must be"), "{endpoint}");
        assert!(mistake("export = { batch = 5 }").contains("audit.export.endpoint: is required"));
        assert!(mistake("keep_for = \"1h\"").contains("audit.keep_for: must be"));
        assert!(
            mistake("checkpoint = { seconds = 1 }").contains("audit.checkpoint.seconds: unknown")
        );
        assert!(mistake("buffer = \"65535B\"").contains("from \"64KiB\" to"));
    }

    #[test]
    fn a_key_is_generated_once_and_never_in_the_directory_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let audit = parse("", folder.path()).unwrap().audit.unwrap();
        assert_eq!(audit.key().unwrap(), None);
        let (made, file) = audit.make_key().unwrap();
        assert_eq!(file, folder.path().join("audit.key"));
        assert_eq!(audit.key().unwrap(), Some(made.clone()));
        assert_eq!(audit.make_key().unwrap().0, made, "an existing key is not overwritten");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        let beside = parse("[audit]\npath = \".\"\n", folder.path()).unwrap().audit.unwrap();
        assert!(beside.key().unwrap_err().to_string().contains("directory of the log"));
        fs::write(&file, "nonsense").unwrap();
        assert!(audit.key().unwrap_err().to_string().contains("is not base64"));
    }
}
