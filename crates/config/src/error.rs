//! Mistakes in the configuration. The reader collects them, so that one run reports all of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use super::SourceFile;

/// One mistake: its key, its line and a message with the allowed values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    /// Dotted key; `""` for a mistake in the file as a whole.
    pub key: String,
    pub origin: Origin,
    /// Predicate of `key`, such as `must be …`, or a sentence if `key` is empty.
    pub message: String,
}

/// Source of a value.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Origin {
    /// Line of the file, counted from 1.
    Line(usize),
    /// Name of the environment variable.
    Environment(String),
    Unknown,
}

/// All mistakes of one configuration, in the order of the file. `Display` writes one line for each:
/// `FILE:LINE: KEY: MESSAGE`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    /// The file, as named on the command line.
    pub file: String,
    pub mistakes: Vec<Mistake>,
    /// The other files that were read with `file`: the mistake may be in one of them.
    pub files: Vec<SourceFile>,
}

impl ConfigError {
    /// An error with the single mistake that the file as a whole is unusable.
    pub(super) fn whole_file(
        file: impl Into<String>,
        origin: Origin,
        message: impl Into<String>,
    ) -> Self {
        let mistake = Mistake { key: String::new(), origin, message: message.into() };
        Self { file: file.into(), mistakes: vec![mistake], files: Vec::new() }
    }
}

/// Collector of the mistakes that the reader finds.
pub(super) struct Mistakes {
    found: RefCell<Vec<Mistake>>,
    /// Dotted keys of the secrets that are not set.
    unset: RefCell<Vec<String>>,
    /// Source of each dotted key.
    origins: HashMap<String, Origin>,
}

impl Mistakes {
    pub(super) fn new(origins: HashMap<String, Origin>) -> Self {
        Self { found: RefCell::default(), unset: RefCell::default(), origins }
    }

    /// Records a mistake at the dotted `key`.
    pub(super) fn add(&self, key: &str, message: impl Into<String>) {
        let mistake =
            Mistake { key: key.to_owned(), origin: self.origin(key), message: message.into() };
        self.found.borrow_mut().push(mistake);
    }

    /// Records that the secret at the dotted `key` is not set.
    pub(super) fn add_unset(&self, key: &str, message: impl Into<String>) {
        self.unset.borrow_mut().push(key.to_owned());
        self.add(key, message);
    }

    /// Removes the mistakes of unset secrets below the dotted `table`, and the mistakes that the
    /// missing secrets cause in the tables around them.
    pub(super) fn excuse_unset(&self, table: &str) {
        let is_below = |key: &str| key.strip_prefix(table).is_some_and(|key| key.starts_with('.'));
        let unset = self.unset.borrow();
        let is_excused = |key: &str| {
            let lacks = |unset: &String| {
                unset == key || unset.rsplit_once('.').is_some_and(|(around, _)| around == key)
            };
            is_below(key) && unset.iter().any(lacks)
        };
        self.found.borrow_mut().retain(|mistake| !is_excused(&mistake.key));
    }

    /// Returns whether there is a mistake at the dotted `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.found.borrow().iter().any(|mistake| mistake.key == key)
    }

    /// Returns whether there is a mistake in the table at the dotted `key`, or below it.
    pub(super) fn has_below(&self, key: &str) -> bool {
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with('.');
        self.found.borrow().iter().any(|found| found.key.strip_prefix(key).is_some_and(is_below))
    }

    /// Returns the number of mistakes so far.
    pub(super) fn count(&self) -> usize {
        self.found.borrow().len()
    }

    /// Returns `Ok` if no mistake was recorded. `files` are the files that the configuration
    /// references.
    pub(super) fn into_result(self, file: &str, files: &[SourceFile]) -> Result<(), ConfigError> {
        let mut mistakes = self.found.into_inner();
        if mistakes.is_empty() {
            return Ok(());
        }
        mistakes.sort_by(|a, b| a.origin.cmp(&b.origin));
        Err(ConfigError { file: file.to_owned(), mistakes, files: files.to_vec() })
    }

    /// Returns the origin of a key, or of the closest table around it. The origin of a table that
    /// only variables set is the first of them.
    pub(super) fn origin(&self, key: &str) -> Origin {
        if !self.origins.contains_key(key) {
            let is_in = |own: &str| own.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
            let inner = self.origins.iter().filter(|(own, _)| is_in(own));
            if let Some((_, origin)) = inner.min_by_key(|(own, _)| *own) {
                return origin.clone();
            }
        }
        let mut key = key;
        loop {
            if let Some(origin) = self.origins.get(key) {
                return origin.clone();
            }
            match key.rsplit_once('.') {
                Some((parent, _)) => key = parent,
                None => return Origin::Unknown,
            }
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Mistake { key, origin, message }) in self.mistakes.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            match origin {
                Origin::Line(line) => write!(f, "{}:{line}: ", self.file)?,
                Origin::Environment(name) => write!(f, "{name}: ")?,
                Origin::Unknown => write!(f, "{}: ", self.file)?,
            }
            if !key.is_empty() {
                write!(f, "{key}: ")?;
            }
            f.write_str(message)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
