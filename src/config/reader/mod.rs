//! Reads one table of the tree key by key. Every mistake is noted and reading goes on, so that all
//! of them are told at once; a key that nobody asked for is a mistake too.

mod secrets;

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use config::{Map, Value, ValueKind};

use super::SourceFile;
use super::error::Mistakes;
use super::raw::join;
use super::units;

/// What the reading of one configuration shares.
pub(super) struct Context<'a> {
    pub(super) mistakes: Mistakes,
    /// Looks up an environment variable for a secret.
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// Folder of the file: relative paths start here, wherever the gateway is started.
    pub(super) base: &'a Path,
    /// Files that were read beside that one.
    pub(super) files: RefCell<Vec<SourceFile>>,
}

impl Context<'_> {
    fn read_file(&self, path: PathBuf) -> io::Result<String> {
        let text = fs::read_to_string(&path);
        let digest = SourceFile::digest(text.as_ref().map(String::as_bytes));
        self.files.borrow_mut().push(SourceFile { path, digest });
        text
    }
}

/// One table of the configuration while it is read.
pub(super) struct Section<'a> {
    path: String,
    table: Map<String, Value>,
    known: Vec<&'static str>,
    /// Keys of `known` that were there.
    found: Vec<&'static str>,
    context: &'a Context<'a>,
}

impl<'a> Section<'a> {
    pub(super) fn root(table: Map<String, Value>, context: &'a Context<'a>) -> Self {
        Self { path: String::new(), table, known: Vec::new(), found: Vec::new(), context }
    }

    pub(super) fn path(&self, key: &str) -> String {
        join(&self.path, key)
    }

    pub(super) fn mistake(&self, key: &str, message: impl Into<String>) {
        self.context.mistakes.add(&self.path(key), message);
    }

    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.context.env)(name)
    }

    /// Whether the key is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether a key that was read was there.
    pub(super) fn was_read(&self, key: &str) -> bool {
        self.found.contains(&key)
    }

    pub(super) fn text(&mut self, key: &'static str, default: &str) -> String {
        self.optional_text(key).unwrap_or_else(|| default.to_owned())
    }

    pub(super) fn optional_text(&mut self, key: &'static str) -> Option<String> {
        self.read(key, "a string", |value, _| value.into_string().ok())
    }

    /// A text that `parse` turns into something; `allowed` says what it accepts.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.read(key, allowed, |value, _| parse(&value.into_string().ok()?))
    }

    /// As [`Section::parsed`]; the key must be there.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        if !self.table.contains_key(key) {
            self.mistake(key, format!("is required: {allowed}"));
        }
        self.parsed(key, allowed, parse)
    }

    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> T {
        let find = |text: &str| chosen(choices, text);
        self.parsed(key, &one_of(choices), find).unwrap_or(default)
    }

    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let parse = |value: Value, from_env| match (value.kind, from_env) {
            (ValueKind::Boolean(flag), _) => Some(flag),
            (ValueKind::String(text), true) => text.parse().ok(),
            _ => None,
        };
        self.read(key, "true or false", parse).unwrap_or(default)
    }

    pub(super) fn count(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> usize {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        let parse = |value: Value, from_env| {
            let number = match (value.kind, from_env) {
                (ValueKind::I64(number), _) => usize::try_from(number).ok(),
                (ValueKind::String(text), true) => text.parse().ok(),
                _ => None,
            };
            number.filter(|n| range.contains(n))
        };
        self.read(key, &allowed, parse).unwrap_or(default)
    }

    /// A number from 0 to 1.
    pub(super) fn fraction(&mut self, key: &'static str, default: f64) -> f64 {
        let parse = |value: Value, from_env| {
            let number = match (value.kind, from_env) {
                (ValueKind::Float(number), _) => Some(number),
                (ValueKind::I64(0), _) => Some(0.0),
                (ValueKind::I64(1), _) => Some(1.0),
                (ValueKind::String(text), true) => text.parse().ok(),
                _ => None,
            };
            number.filter(|number| (0.0..=1.0).contains(number))
        };
        self.read(key, "a number from 0 to 1", parse).unwrap_or(default)
    }

    /// A duration of at least `least`.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        least: Duration,
    ) -> Duration {
        let allowed =
            format!("a duration such as \"250ms\", \"30s\" or \"5m\", at least {least:?}");
        let parse = |text: &str| units::duration(text).filter(|d| *d >= least);
        self.parsed(key, &allowed, parse).unwrap_or(default)
    }

    /// A size in `range`, in bytes.
    pub(super) fn size(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> usize {
        let (least, most) = (range.start(), range.end());
        let allowed = format!("a size such as \"64KiB\" or \"4MiB\", from {least}B to {most}B");
        let parse = |text: &str| units::size(text).filter(|s| range.contains(s));
        self.parsed(key, &allowed, parse).unwrap_or(default)
    }

    /// A list of texts; in the environment also separated by commas.
    pub(super) fn texts(&mut self, key: &'static str) -> Vec<String> {
        let parse = |value: Value, from_env| match (value.kind, from_env) {
            (ValueKind::Array(items), _) => {
                items.into_iter().map(|item| into_text(item.kind)).collect()
            }
            (ValueKind::String(text), true) => {
                Some(text.split(',').map(|t| t.trim().to_owned()).collect())
            }
            _ => None,
        };
        self.read(key, "a list of strings", parse).unwrap_or_default()
    }

    /// A table inside this one; empty if it is not there.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'a> {
        let parse = |value: Value, _| value.into_table().ok();
        let table = self.read(key, "a table", parse).unwrap_or_default();
        Section {
            path: self.path(key),
            table,
            known: Vec::new(),
            found: Vec::new(),
            context: self.context,
        }
    }

    /// Any of the words, in the order in which they stand.
    pub(super) fn choices<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Vec<T> {
        let mut all = Vec::new();
        for text in self.texts(key) {
            match chosen(choices, &text) {
                Some(one) => all.push(one),
                None => self.mistake(key, format!("{text:?} is not {}", one_of(choices))),
            }
        }
        all
    }

    /// `true`, `false`, or one of the words.
    pub(super) fn flag_or<T: Copy>(
        &mut self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> T {
        let parse = |value: Value, _| {
            let text = match value.kind {
                ValueKind::Boolean(flag) => flag.to_string(),
                kind => into_text(kind)?,
            };
            chosen(choices, &text)
        };
        self.read(key, &one_of(choices), parse).unwrap_or(default)
    }

    /// The tables of an array, in their order.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let parse = |value: Value, _| {
            let items = value.into_array().ok()?;
            items.into_iter().map(|item| item.into_table().ok()).collect()
        };
        let tables: Vec<Map<String, Value>> =
            self.read(key, "an array of tables", parse).unwrap_or_default();
        let (path, context) = (self.path(key), self.context);
        let section = |(index, table): (usize, _)| {
            let path = join(&path, &index.to_string());
            Section { path, table, known: Vec::new(), found: Vec::new(), context }
        };
        tables.into_iter().enumerate().map(section).collect()
    }

    /// The tables inside this key with their names, in the order of their names.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<(String, Section<'a>)> {
        let outer = self.section(key);
        let mut inner: Vec<_> = outer.table.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        inner.sort_by(|a, b| a.0.cmp(&b.0));
        let read = |(name, value): (String, Value)| {
            let path = outer.path(&name);
            match value.into_table() {
                Ok(table) => {
                    let context = outer.context;
                    Some((
                        name,
                        Section { path, table, known: Vec::new(), found: Vec::new(), context },
                    ))
                }
                Err(_) => {
                    outer.context.mistakes.add(&path, "must be a table");
                    None
                }
            }
        };
        inner.into_iter().filter_map(read).collect()
    }

    /// A path, relative to the folder of the file; "" is none.
    pub(super) fn file(&mut self, key: &'static str) -> Option<PathBuf> {
        let text = self.optional_text(key).filter(|text| !text.is_empty())?;
        Some(self.context.base.join(text))
    }

    /// The text of a file that belongs to the configuration.
    pub(super) fn read_file(&self, path: PathBuf) -> io::Result<String> {
        self.context.read_file(path)
    }

    /// What lies in the folder of the file under this name.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.context.base.join(name)
    }

    /// A folder, relative to the folder of the file, which it is by default.
    pub(super) fn folder(&mut self, key: &'static str) -> PathBuf {
        let folder = self.file(key).unwrap_or_else(|| self.context.base.to_path_buf());
        // An empty path names the folder that the gateway was started in, but not for everybody.
        if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }
    }

    /// Keys that belong to the configuration surface but are not served by this version. They are
    /// refused rather than ignored: whoever wrote one counts on what it does.
    pub(super) fn not_yet(&mut self, keys: &[&'static str]) {
        for key in keys {
            if self.table.remove(*key).is_some() {
                self.mistake(key, "is not available in this version of promptgate; remove it");
            }
        }
    }

    /// Passes over the keys that were not read yet.
    pub(super) fn ignore_rest(&mut self) {
        self.table.clear();
    }

    /// Ends reading: whatever is left is unknown.
    pub(super) fn finish(mut self) {
        self.known.sort_unstable();
        let mut left: Vec<_> = self.table.keys().collect();
        left.sort();
        for key in left {
            let near = self.known.iter().find(|known| is_near(known, key));
            let hint = match near {
                Some(near) => format!("unknown key; did you mean `{near}`?"),
                None => format!("unknown key; allowed here: {}", self.known.join(", ")),
            };
            self.mistake(key, hint);
        }
    }

    fn read<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        parse: impl FnOnce(Value, bool) -> Option<T>,
    ) -> Option<T> {
        self.known.push(key);
        let value = self.table.remove(key)?;
        self.found.push(key);
        let from_env = self.context.mistakes.is_from_environment(&self.path(key));
        let parsed = parse(value, from_env);
        if parsed.is_none() {
            self.mistake(key, format!("must be {allowed}"));
        }
        parsed
    }
}

/// What a mistake says of a key that takes one of these.
fn one_of<T>(choices: &[(&str, T)]) -> String {
    let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    format!("one of {}", names.join(", "))
}

fn chosen<T: Copy>(choices: &[(&str, T)], text: &str) -> Option<T> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice)
}

fn into_text(kind: ValueKind) -> Option<String> {
    match kind {
        ValueKind::String(text) => Some(text),
        _ => None,
    }
}

/// Whether two keys differ by one edit, as a slip of the finger does.
fn is_near(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let head = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let tail = |a: &[char], b: &[char]| {
        a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count()
    };
    let tail = tail(&a[head..], &b[head..]);
    let (rest_a, rest_b) = (a.len() - head - tail, b.len() - head - tail);
    rest_a.max(rest_b) <= 2 && a.len().min(b.len()) > 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_near() {
        assert!(is_near("listen", "lisen"));
        assert!(is_near("listen", "listne"));
        assert!(is_near("page_size", "page_sise"));
        assert!(!is_near("path", "name"));
        assert!(!is_near("poll", "url"));
    }
}
