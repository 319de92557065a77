//! Reader of one table, key by key. A mistake is recorded and reading continues with the default,
//! so that one run reports all mistakes. A key that is not read is unknown: that is a mistake, too.

pub mod key;
mod meaning;
mod placeholder;
pub(crate) mod raw;
pub(super) mod schema;
pub(crate) mod secret;
mod secrets;
mod table;
pub(crate) mod units;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Map, Value, ValueKind};
use serde_json::{Value as Json, json};

use super::SourceFile;
use super::error::{Mistakes, Origin};
use base::platform::disk;
use domain::text::similar::is_typing_error;
use domain::text::text_file;
use key::{ELEMENTS, NAMED};
use placeholder::placeholder;
use raw::{ENV_PREFIX, LEVELS, join};
use schema::Recorder;
pub(super) use table::table;

/// State that all sections of one configuration share.
pub(super) struct Context<'a> {
    pub(super) mistakes: Mistakes,
    /// Looks up an environment variable for a secret.
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// Directory of the configuration file, against which relative paths are resolved. The working
    /// directory of the gateway does not matter.
    pub(super) base: &'a Path,
    /// Referenced files that were read so far.
    pub(super) files: RefCell<Vec<SourceFile>>,
    /// Names of the environment variables that were looked up so far.
    pub(super) variables: RefCell<HashSet<String>>,
    /// `Some` while the schema is recorded.
    pub(super) recorder: Option<RefCell<Recorder>>,
}

impl<'a> Context<'a> {
    /// Creates the state of a configuration that is still unread; no schema is recorded.
    pub(super) fn new(
        origins: HashMap<String, Origin>,
        env: &'a dyn Fn(&str) -> Option<String>,
        base: &'a Path,
    ) -> Self {
        Self {
            mistakes: Mistakes::new(origins),
            env,
            base,
            files: RefCell::default(),
            variables: RefCell::default(),
            recorder: None,
        }
    }

    /// Reads a file and records it with its digest, even if it cannot be read: a file that appears
    /// later must lead to a reload.
    fn read_file(&self, path: PathBuf) -> io::Result<String> {
        let bytes = disk::read(&path);
        // The digest covers the bytes, as at the next poll: the file need not be text.
        let digest = SourceFile::digest(bytes.as_deref());
        self.files.borrow_mut().push(SourceFile { path, digest });
        let text = text_file::decode(bytes?);
        text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// Minimum of most durations: zero would be a timeout that always expires.
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// The values of a share.
pub(super) const FRACTION: &str = "a number from 0 to 1: 0.05 is 5 %";

/// The names of rules and limits.
const NAME: &str = "1 to 64 letters, digits, signs and inner spaces, without commas, \" and \\";

/// A number of seconds, for defaults.
pub(super) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The source of a value. A value in the file must have the type of its key; a variable is always
/// text, which is converted.
#[derive(Clone, Copy)]
enum ValueSource {
    File,
    Variable,
}

/// One table of the configuration while it is read.
pub(super) struct Section<'a> {
    /// Dotted key of the table; empty for the root.
    path: String,
    /// The dotted key with one place for all tables of an array, and one for all named tables.
    place: String,
    /// Keys that were not read yet.
    table: Map<String, Value>,
    /// Keys that were read, set or not.
    known: Vec<&'static str>,
    /// Keys of `known` that are set.
    found: Vec<&'static str>,
    /// Keys that must be set.
    required: BTreeSet<String>,
    context: &'a Context<'a>,
}

impl<'a> Section<'a> {
    pub(super) fn root(table: Map<String, Value>, context: &'a Context<'a>) -> Self {
        Self::new(String::new(), String::new(), table, context)
    }

    fn new(
        path: String,
        place: String,
        table: Map<String, Value>,
        context: &'a Context<'a>,
    ) -> Self {
        Self {
            path,
            place,
            table,
            known: Vec::new(),
            found: Vec::new(),
            required: BTreeSet::new(),
            context,
        }
    }

    /// Records the schema of a key, if the schema is recorded.
    fn record(&self, key: &str, schema: impl FnOnce() -> Json) {
        if let Some(recorder) = &self.context.recorder {
            recorder.borrow_mut().key(&self.place, key, schema());
        }
    }

    /// Records the rule of a string whose mistakes depend on the configuration that is read, or its
    /// default if a constant has it.
    pub(super) fn record_text(&self, key: &str, rule: &str, default: Option<&str>) {
        self.record(key, || match default {
            Some(default) => json!({"type": "string", "description": rule, "default": default}),
            None => json!({"type": "string", "description": rule}),
        });
    }

    /// Gives the keys of this table their meanings, as [`meaning`] describes it.
    pub(super) fn explain(&self, keys: &str) {
        if let Some(recorder) = &self.context.recorder {
            recorder.borrow_mut().explain(&self.place, keys);
        }
    }

    /// Gives one key its meaning: the first paragraph of a text of entries.
    pub(super) fn explain_key(&self, text: &str) {
        self.explain(text.split("\n\n").next().unwrap_or_default());
    }

    /// Returns the dotted key of `key` in this table.
    pub(super) fn path(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Records a mistake at `key`, or at the table itself if `key` is empty.
    pub(super) fn mistake(&self, key: &str, message: impl Into<String>) {
        self.context.mistakes.add(&self.path(key), message);
    }

    /// Returns whether the value of a key was rejected: a missing value is then no second mistake.
    pub(super) fn is_rejected(&self, key: &str) -> bool {
        self.context.mistakes.has(&self.path(key))
    }

    /// Returns whether the value or the table at a dotted key of the file has a mistake: it counts
    /// as existing, so that a reference to it is no second mistake.
    pub(super) fn is_broken(&self, key: &str) -> bool {
        self.context.mistakes.has_below(key)
    }

    /// Returns the dotted key of a table, as its header names it: without numbers.
    fn header(&self, key: &str) -> String {
        let path = self.path(key);
        let names = path.split('.').filter(|part| part.parse::<usize>().is_err());
        names.collect::<Vec<_>>().join(".")
    }

    /// Returns the number of mistakes in the whole configuration so far.
    pub(super) fn mistake_count(&self) -> usize {
        self.context.mistakes.count()
    }

    /// Returns the value of an environment variable, without surrounding white space, which
    /// variables set from files often have.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.context.variables.borrow_mut().insert(name.to_owned());
        (self.context.env)(name).map(|value| value.trim().to_owned())
    }

    /// Returns whether a key is set but not read yet.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Returns whether a key is set and was read already.
    pub(super) fn was_read(&self, key: &str) -> bool {
        self.found.contains(&key)
    }

    /// Reads a string.
    pub(super) fn text(&mut self, key: &'static str, default: &str) -> String {
        self.record(key, || json!({"type": "string", "default": default}));
        self.optional_text(key).unwrap_or_else(|| default.to_owned())
    }

    /// Returns the text of a key that was not read yet.
    pub(super) fn unread_text(&self, key: &str) -> Option<String> {
        into_text(self.table.get(key)?.kind.clone())
    }

    /// Reads a string; `None` if the key is not set.
    pub(super) fn optional_text(&mut self, key: &'static str) -> Option<String> {
        self.record(key, || json!({"type": "string"}));
        self.read(key, "a string", |value, _| into_text(value.kind))
    }

    /// Reads a string that may be left out; an empty one counts as left out.
    pub(super) fn given_text(&mut self, key: &'static str) -> Option<String> {
        self.optional_text(key).filter(|text| !text.is_empty())
    }

    /// Reads a string and parses it. `allowed` completes the sentence "must be …" in the mistake.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.record(key, || json!({"type": "string", "description": allowed}));
        let mut expected = None;
        let parsed = self.read(key, allowed, |value, _| {
            let text = into_text(value.kind)?;
            let parsed = parse(&text);
            let counts = parsed.is_none() || text.contains("://");
            expected = placeholder(&text).filter(|_| counts).map(str::to_owned);
            parsed
        });
        if let Some(name) = expected {
            let own = self.path(key).to_uppercase().replace('.', LEVELS);
            let message = format!(
                "has a place for the variable {name}, which is not expanded in this file: set the whole value by \
                 the variable {ENV_PREFIX}{own}"
            );
            self.mistake(key, message);
        }
        parsed
    }

    /// Reads the name of a rule or of a limit. Commas separate names in decisions.
    pub(super) fn name(&mut self) -> Option<String> {
        let is_sign = |c: char| c == ' ' || c.is_ascii_graphic() && !",\"\\".contains(c);
        let is_part = |c: char| c.is_alphanumeric() || is_sign(c);
        self.parsed("name", NAME, |text| {
            let has_length = (1..=64).contains(&text.chars().count());
            (has_length && text.trim() == text && text.chars().all(is_part))
                .then(|| text.to_owned())
        })
    }

    /// As [`Section::parsed`], for a key that must be set.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.required.insert(key.to_owned());
        if !self.has(key) {
            self.mistake(key, format!("is required: {allowed}"));
        }
        self.parsed(key, allowed, parse)
    }

    /// Reads one of the named choices.
    pub(super) fn choice<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> T {
        let of_default = choices.iter().find(|(_, choice)| *choice == default);
        let name = of_default.map(|(name, _)| *name);
        self.record(key, || json!({"enum": names(choices), "default": name}));
        let find = |text: &str| find_choice(choices, text);
        self.parsed(key, &one_of(choices), find).unwrap_or(default)
    }

    /// As [`Section::required`], for named choices; `allowed` names them.
    pub(super) fn required_choice<T: Copy>(
        &mut self,
        key: &'static str,
        allowed: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        self.record(key, || json!({"enum": names(choices)}));
        self.required(key, allowed, |text| find_choice(choices, text))
    }

    /// Reads a boolean.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.record(key, || json!({"type": "boolean", "default": default}));
        let parse = |value: Value, source| match (value.kind, source) {
            (ValueKind::Boolean(flag), _) => Some(flag),
            (ValueKind::String(text), ValueSource::Variable) => text.parse().ok(),
            _ => None,
        };
        self.read(key, "true or false", parse).unwrap_or(default)
    }

    /// Reads an integer in `range`.
    pub(super) fn count(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> usize {
        self.record(key, || {
            json!({"type": "integer", "minimum": range.start(), "maximum": range.end(),
                "default": default})
        });
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        let parse = |value: Value, source| {
            let number = match (value.kind, source) {
                (ValueKind::I64(number), _) => usize::try_from(number).ok(),
                (ValueKind::String(text), ValueSource::Variable) => text.parse().ok(),
                _ => None,
            };
            number.filter(|n| range.contains(n))
        };
        self.read(key, &allowed, parse).unwrap_or(default)
    }

    /// Reads an integer in `range`; `None` if the key is not set.
    pub(super) fn optional_count(
        &mut self,
        key: &'static str,
        range: RangeInclusive<usize>,
    ) -> Option<usize> {
        self.record(
            key,
            || json!({"type": "integer", "minimum": range.start(), "maximum": range.end()}),
        );
        let least = *range.start();
        let count = self.count(key, least, range);
        self.was_read(key).then_some(count)
    }

    /// Reads a number from 0 to 1.
    pub(super) fn fraction(&mut self, key: &'static str, default: f64) -> f64 {
        self.record(
            key,
            || json!({"type": "number", "minimum": 0, "maximum": 1, "default": default}),
        );
        let parse = |value: Value, source| {
            let number = match (value.kind, source) {
                (ValueKind::Float(number), _) => Some(number),
                (ValueKind::I64(0), _) => Some(0.0),
                (ValueKind::I64(1), _) => Some(1.0),
                (ValueKind::String(text), ValueSource::Variable) => text.parse().ok(),
                _ => None,
            };
            number.filter(|number| (0.0..=1.0).contains(number))
        };
        self.read(key, FRACTION, parse).unwrap_or(default)
    }

    /// Reads a duration of at least `min`.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        min: Duration,
    ) -> Duration {
        let least = units::duration_text(min);
        self.record(key, || {
            json!({"type": "string", "pattern": units::DURATION_PATTERN, "description":
                format!("a duration, at least {least}"), "default": units::duration_text(default)})
        });
        let allowed =
            format!("a duration such as \"250ms\", \"30s\" or \"5m\", at least \"{least}\"");
        let parse = |text: &str| units::duration(text).filter(|d| *d >= min);
        self.parsed(key, &allowed, parse).unwrap_or(default)
    }

    /// Reads a size in bytes; `range` is in bytes, too.
    pub(super) fn size(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> usize {
        let least = units::size_text(*range.start());
        let most = units::size_text(*range.end());
        self.record(key, || {
            json!({"type": "string", "pattern": units::SIZE_PATTERN, "description":
                format!("a size from {least} to {most}"), "default": units::size_text(default)})
        });
        let allowed =
            format!("a size such as \"64KiB\" or \"4MiB\", from \"{least}\" to \"{most}\"");
        let parse = |text: &str| units::size(text).filter(|s| range.contains(s));
        self.parsed(key, &allowed, parse).unwrap_or(default)
    }

    /// Reads a list of strings. A variable may also separate them by commas.
    pub(super) fn texts(&mut self, key: &'static str) -> Vec<String> {
        self.record(key, || json!({"type": "array", "items": {"type": "string"}}));
        self.read(key, "a list of strings", |value, source| text_list(value.kind, source))
            .unwrap_or_default()
    }

    /// Adds a mistake for each of these lists that is set and empty, before the list is read: an
    /// absent list stands for all, and a template may have left the list empty by mistake.
    pub(super) fn reject_empty(&self, keys: &[&str]) {
        for key in keys {
            if let Some(recorder) = &self.context.recorder {
                recorder.borrow_mut().not_empty(&self.place, key);
            }
            let value = self.table.get(*key).map(|value| &value.kind);
            if matches!(value, Some(ValueKind::Array(items)) if items.is_empty()) {
                self.mistake(key, "must hold at least one value; leave the key out for all");
            }
        }
    }

    /// Reads a list of strings; a single string may replace the list.
    pub(super) fn text_or_texts(&mut self, key: &'static str) -> Vec<String> {
        self.record(key, || {
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
        });
        let parse = |value: Value, source| match (value.kind, source) {
            (ValueKind::String(text), ValueSource::File) => Some(vec![text]),
            (kind, source) => text_list(kind, source),
        };
        self.read(key, "a string or a list of strings", parse).unwrap_or_default()
    }

    /// Reads a table inside this one; it is empty if the key is not set.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'a> {
        self.section_at(key, "")
    }

    /// As [`Section::section`]; `name` completes the header that a mistake shows.
    fn section_at(&mut self, key: &'static str, name: &str) -> Section<'a> {
        self.record(key, || json!({"type": "object"}));
        let parse = |value: Value, _| value.into_table().ok();
        let allowed = format!("a table: write [{}{name}]", self.header(key));
        let table = self.read(key, &allowed, parse).unwrap_or_default();
        Section::new(self.path(key), join(&self.place, key), table, self.context)
    }

    /// Reads a list of named choices, in the order of the file.
    pub(super) fn choices<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Vec<T> {
        self.record(key, || json!({"type": "array", "items": {"enum": names(choices)}}));
        let mut chosen = Vec::new();
        for text in self.texts(key) {
            match find_choice(choices, &text) {
                Some(choice) => chosen.push(choice),
                None => self.mistake(key, format!("{text:?} is not {}", one_of(choices))),
            }
        }
        chosen
    }

    /// Reads one of the named choices, where `"true"` and `"false"` may also be written as
    /// booleans.
    pub(super) fn flag_or<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> T {
        self.record(key, || {
            let flags = names(choices).into_iter().filter_map(|name| name.parse::<bool>().ok());
            let all: Vec<Json> =
                names(choices).into_iter().map(Json::from).chain(flags.map(Json::from)).collect();
            let of_default = choices.iter().find(|(_, choice)| *choice == default);
            json!({"enum": all, "default": of_default.map(|(name, _)| *name)})
        });
        let parse = |value: Value, _| {
            let text = match value.kind {
                ValueKind::Boolean(flag) => flag.to_string(),
                kind => into_text(kind)?,
            };
            find_choice(choices, &text)
        };
        self.read(key, &one_of(choices), parse).unwrap_or(default)
    }

    /// Reads an array of tables, in the order of the file. Mistakes number them from 1.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let parse = |value: Value, _| {
            let items = value.into_array().ok()?;
            items.into_iter().map(|item| item.into_table().ok()).collect()
        };
        let allowed = format!("an array of tables: write [[{}]]", self.header(key));
        let tables: Vec<Map<String, Value>> = self.read(key, &allowed, parse).unwrap_or_default();
        self.record(key, || json!({"type": "array", "items": {"type": "object"}}));
        let path = self.path(key);
        let place = join(&join(&self.place, key), ELEMENTS);
        let mut sections = Vec::with_capacity(tables.len());
        for (index, table) in tables.into_iter().enumerate() {
            let path = join(&path, &(index + 1).to_string());
            sections.push(Section::new(path, place.clone(), table, self.context));
        }
        sections
    }

    /// Reads every key of this table as a string.
    pub(super) fn strings(mut self) -> BTreeMap<String, String> {
        if let Some(recorder) = &self.context.recorder {
            recorder.borrow_mut().open(&self.place);
        }
        let mut strings = BTreeMap::new();
        for (name, value) in std::mem::take(&mut self.table) {
            match into_text(value.kind) {
                Some(text) => {
                    strings.insert(name, text);
                }
                None => self.mistake(&name, "must be a string"),
            }
        }
        strings
    }

    /// Reads the named tables inside a table, sorted by name.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<(String, Section<'a>)> {
        let mut outer = self.section_at(key, ".NAME");
        let place = join(&outer.place, NAMED);
        let mut entries: Vec<_> = std::mem::take(&mut outer.table).into_iter().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut sections = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            match value.into_table() {
                Ok(table) => {
                    let path = outer.path(&name);
                    sections.push((name, Section::new(path, place.clone(), table, self.context)));
                }
                Err(_) => outer
                    .mistake(&name, format!("must be a table: write [{}.NAME]", self.header(key))),
            }
        }
        outer.finish();
        sections
    }

    /// Reads a path, resolved against the directory of the configuration file; `None` if the key is
    /// not set or is `""`.
    pub(super) fn file(&mut self, key: &'static str) -> Option<PathBuf> {
        let text = self.optional_text(key).filter(|text| !text.is_empty())?;
        Some(self.context.base.join(text))
    }

    /// Reads a path as [`Section::file`] does. If the key is not set, the path is `default` in the
    /// directory of the configuration file; `None` if the key is `""`.
    pub(super) fn file_or(&mut self, key: &'static str, default: &str) -> Option<PathBuf> {
        self.record(key, || json!({"type": "string", "default": default}));
        let file = self.file(key);
        if self.was_read(key) { file } else { Some(self.beside(default)) }
    }

    /// Reads a file that the configuration references. The gateway reloads when it changes.
    pub(super) fn read_file(&self, path: PathBuf) -> io::Result<String> {
        self.context.read_file(path)
    }

    /// Returns the path of a file in the directory of the configuration file.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.context.base.join(name)
    }

    /// Reads the path of a directory, resolved against the directory of the configuration file,
    /// which is also the default.
    pub(super) fn folder(&mut self, key: &'static str) -> PathBuf {
        let folder = self.file(key).unwrap_or_else(|| self.context.base.to_path_buf());
        // Some functions take an empty path as the working directory, others reject it.
        if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }
    }

    /// Rejects a key that belongs elsewhere, with a hint instead of the list of allowed keys.
    pub(super) fn reject(&mut self, key: &str, message: &str) {
        if self.table.remove(key).is_some() {
            self.mistake(key, message);
        }
    }

    /// Ignores the keys that were not read yet.
    pub(super) fn ignore_rest(&mut self) {
        self.table.clear();
    }

    /// Ends reading: the remaining keys are unknown.
    pub(super) fn finish(mut self) {
        if let Some(recorder) = &self.context.recorder {
            recorder.borrow_mut().table(&self.place, std::mem::take(&mut self.required));
        }
        self.known.sort_unstable();
        let mut unknown: Vec<_> = self.table.keys().collect();
        unknown.sort();
        for key in unknown {
            let similar = self.known.iter().find(|known| is_typing_error(known, key));
            let message = match similar {
                Some(similar) => format!("unknown key; did you mean `{similar}`?"),
                None => format!("unknown key; allowed here: {}", self.known.join(", ")),
            };
            self.mistake(key, message);
        }
    }

    /// Takes the value of a key and parses it; records the mistake "must be …" if that fails.
    fn read<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        parse: impl FnOnce(Value, ValueSource) -> Option<T>,
    ) -> Option<T> {
        self.known.push(key);
        let value = self.table.remove(key)?;
        self.found.push(key);
        let source = match self.context.mistakes.origin(&self.path(key)) {
            Origin::Environment(_) => ValueSource::Variable,
            Origin::Line(_) | Origin::Unknown => ValueSource::File,
        };
        let parsed = parse(value, source);
        if parsed.is_none() {
            self.mistake(key, format!("must be {allowed}"));
        }
        parsed
    }
}

/// Reads a list of strings. A variable separates them by commas.
fn text_list(kind: ValueKind, source: ValueSource) -> Option<Vec<String>> {
    match (kind, source) {
        (ValueKind::Array(items), _) => {
            items.into_iter().map(|item| into_text(item.kind)).collect()
        }
        (ValueKind::String(text), ValueSource::Variable) => {
            Some(text.split(',').map(|part| part.trim().to_owned()).collect())
        }
        _ => None,
    }
}

/// Parses a text in which `""` means "none": `Some(None)` if it is empty, else as `parse`.
pub(super) fn optional<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text.is_empty() { Some(None) } else { parse(text).map(Some) }
}

/// Lists the allowed choices for a mistake.
fn one_of<T>(choices: &[(&str, T)]) -> String {
    let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    format!("one of {}", names.join(", "))
}

fn names<'a, T>(choices: &[(&'a str, T)]) -> Vec<&'a str> {
    choices.iter().map(|(name, _)| *name).collect()
}

fn find_choice<T: Copy>(choices: &[(&str, T)], text: &str) -> Option<T> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice)
}

fn into_text(kind: ValueKind) -> Option<String> {
    match kind {
        ValueKind::String(text) => Some(text),
        _ => None,
    }
}
