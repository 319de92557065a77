//! `[audit]`: what is recorded, where, and what happens when that fails.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::reader::Section;
use super::views::globs;
use crate::domain::glob::Glob;
use crate::seal::AuditKey;

/// The audit log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Audit {
    /// Folder of the segments.
    pub path: PathBuf,
    pub durability: Durability,
    /// How often what was written is brought to the disk, if that is by interval.
    pub sync: Duration,
    /// Bytes of records that may wait to be written, and that may be written and not synced.
    pub buffer: usize,
    pub on_failure: OnAuditFailure,
    /// Whether lists are recorded, too.
    pub list: bool,
    key: Option<AuditKey>,
    /// Where the key is kept if none is given.
    key_file: PathBuf,
    /// After how many records, and after how long, a checkpoint is signed.
    pub checkpoint_records: u64,
    pub checkpoint_every: Duration,
    pub segment_size: u64,
    pub segment_age: Duration,
    /// Of all segments.
    pub max_size: u64,
    /// How many segments are kept; 0 for all.
    pub keep: usize,
    /// Over public names: whose argument values may be written.
    pub raw_arguments: Vec<Glob>,
}

/// When a record counts as written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Durability {
    /// Once the system has it: it survives any crash of the gateway.
    Interval,
    /// Once the disk has it: it survives a loss of power.
    Strict,
}

/// What becomes of calls whose records cannot be written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnAuditFailure {
    Refuse,
    /// They go on, and how many are not recorded is.
    Degrade,
}

const KEY_VARIABLE: &str = "PROMPTGATE_AUDIT_KEY";
const KEY_FILE: &str = "audit.key";

impl Audit {
    /// The key, if there is one: as configured, or in the file beside the configuration.
    ///
    /// # Errors
    /// When the file cannot be read, holds no key, or lies in the folder of the log.
    pub fn key(&self) -> io::Result<Option<AuditKey>> {
        if let Some(key) = &self.key {
            return Ok(Some(key.clone()));
        }
        let folder = self.key_file.parent().and_then(|folder| folder.join(".").canonicalize().ok());
        if folder.is_some() && folder == self.path.canonicalize().ok() {
            return Err(
                self.key_failed("would lie in the folder of the log: set another audit.path")
            );
        }
        match fs::read_to_string(&self.key_file) {
            Ok(text) => AuditKey::parse(&text).map(Some).ok_or_else(|| self.key_failed(NO_KEY)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.key_failed(&error.to_string())),
        }
    }

    /// Whether it is the same log: in the same folder, with the same key.
    pub fn is_same_log(&self, other: &Self) -> bool {
        self.path == other.path && self.key == other.key && self.key_file == other.key_file
    }

    /// Makes a key and keeps it beside the configuration; also tells where.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn make_key(&self) -> io::Result<(AuditKey, PathBuf)> {
        let (key, text) = AuditKey::generate();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // Whole or not at all: half a key would be in the way of every later start.
        let temporary = self.key_file.with_extension(format!("{}.tmp", std::process::id()));
        let kept = options.open(&temporary).and_then(|mut file| {
            writeln!(file, "{text}")?;
            file.sync_all()?;
            fs::hard_link(&temporary, &self.key_file)
        });
        let _ = fs::remove_file(&temporary);
        match kept {
            Ok(()) => Ok((key, self.key_file.clone())),
            // Somebody else was faster; that one counts.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let key = self.key()?.ok_or_else(|| self.key_failed("cannot be made"))?;
                Ok((key, self.key_file.clone()))
            }
            Err(error) => Err(self.key_failed(&format!("cannot be made: {error}"))),
        }
    }

    fn key_failed(&self, what: &str) -> io::Error {
        let file = self.key_file.display();
        io::Error::other(format!("audit key {file}: {what}; or set {KEY_VARIABLE}"))
    }
}

const NO_KEY: &str = "is not base64 of exactly 32 bytes; make one with `openssl rand -base64 32`";

/// Nothing if `path` is "": no log is kept.
pub(super) fn read(mut section: Section<'_>) -> Option<Audit> {
    let millis = Duration::from_millis(1);
    let durability = [("interval", Durability::Interval), ("strict", Durability::Strict)];
    let on_failure = [("refuse", OnAuditFailure::Refuse), ("degrade", OnAuditFailure::Degrade)];
    let (is_given, path) = (section.has("path"), section.file("path"));
    let is_off = is_given && path.is_none();
    let key = section.secret_or_variable("key", KEY_VARIABLE).and_then(|text| {
        let key = AuditKey::parse(text.expose());
        if key.is_none() {
            section.mistake("key", NO_KEY);
        }
        key
    });
    let mut checkpoint = section.section("checkpoint");
    let (checkpoint_records, checkpoint_every) = (
        checkpoint.count("records", 1_000, 1..=1_000_000) as u64,
        checkpoint.duration("every", Duration::from_secs(60), millis),
    );
    checkpoint.finish();
    let audit = Audit {
        key_file: section.beside(KEY_FILE),
        path: path.unwrap_or_else(|| section.beside("audit")),
        durability: section.choice("durability", Durability::Interval, &durability),
        sync: section.duration("sync", Duration::from_secs(1), millis),
        // Room for the longest record, and then some.
        buffer: section.size("buffer", 16 << 20, 64 << 10..=1 << 30),
        on_failure: section.choice("on_failure", OnAuditFailure::Refuse, &on_failure),
        list: section.flag("list", true),
        key,
        checkpoint_records,
        checkpoint_every,
        segment_size: section.size("segment_size", 64 << 20, 4 << 10..=1 << 40) as u64,
        segment_age: section.duration("segment_age", Duration::from_secs(86_400), millis),
        max_size: section.size("max_size", 10 << 30, 64 << 10..=1 << 50) as u64,
        keep: section.count("keep", 0, 0..=1_000_000),
        raw_arguments: globs(&mut section, "raw_arguments").unwrap_or_default(),
    };
    if audit.max_size < audit.segment_size {
        section.mistake("max_size", "must have room for one segment of segment_size");
    }
    section.finish();
    (!is_off).then_some(audit)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn parse(text: &str, base: &Path) -> Result<Config, String> {
        Config::parse("g", text, base, &[]).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let audit = parse("", Path::new("conf")).unwrap().audit.unwrap();
        let expected = Audit {
            path: "conf/audit".into(),
            durability: Durability::Interval,
            sync: Duration::from_secs(1),
            buffer: 16 << 20,
            on_failure: OnAuditFailure::Refuse,
            list: true,
            key: None,
            key_file: "conf/audit.key".into(),
            checkpoint_records: 1000,
            checkpoint_every: Duration::from_secs(60),
            segment_size: 64 << 20,
            segment_age: Duration::from_secs(86_400),
            max_size: 10 << 30,
            keep: 0,
            raw_arguments: Vec::new(),
        };
        assert_eq!(audit, expected);
        assert_eq!(parse("[audit]\npath = \"\"\n", Path::new("")).unwrap().audit, None);
    }

    #[test]
    fn k1_mistakes_about_the_log_are_told() {
        let mistake = |text: &str| parse(&format!("[audit]\n{text}\n"), Path::new("")).unwrap_err();
        assert!(mistake("key = { value = \"AAAA\" }").contains("g:2: audit.key: is not base64"));
        assert!(mistake("max_size = \"1MiB\"").contains("must have room for one segment"));
        assert!(
            mistake("checkpoint = { seconds = 1 }").contains("audit.checkpoint.seconds: unknown")
        );
        assert!(mistake("buffer = \"65535B\"").contains("from 65536B"));
    }

    #[test]
    fn a_key_is_made_once_and_never_in_the_folder_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let audit = parse("", folder.path()).unwrap().audit.unwrap();
        assert_eq!(audit.key().unwrap(), None);
        let (made, file) = audit.make_key().unwrap();
        assert_eq!(file, folder.path().join("audit.key"));
        assert_eq!(audit.key().unwrap(), Some(made.clone()));
        assert_eq!(audit.make_key().unwrap().0, made, "nobody's key is overwritten");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        let beside = parse("[audit]\npath = \".\"\n", folder.path()).unwrap().audit.unwrap();
        assert!(beside.key().unwrap_err().to_string().contains("folder of the log"));
        fs::write(&file, "nonsense").unwrap();
        assert!(audit.key().unwrap_err().to_string().contains("is not base64"));
    }
}
