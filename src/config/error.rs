//! Mistakes in the configuration, gathered until all of them are known.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

/// One mistake: where, and what is allowed there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mistake {
    /// Dotted key; "" when the file as a whole is at fault.
    pub key: String,
    pub origin: Origin,
    pub message: String,
}

/// Where a value came from.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Origin {
    Line(usize),
    /// The name of the environment variable.
    Environment(String),
    Unknown,
}

/// All mistakes of one configuration, in the order of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    /// The file as it was named on the command line.
    pub file: String,
    pub mistakes: Vec<Mistake>,
}

/// Collects mistakes while the file is read.
pub(super) struct Mistakes {
    found: RefCell<Vec<Mistake>>,
    origins: HashMap<String, Origin>,
}

impl Mistakes {
    pub(super) fn new(origins: HashMap<String, Origin>) -> Self {
        Self { found: RefCell::default(), origins }
    }

    pub(super) fn add(&self, key: &str, message: impl Into<String>) {
        let origin = self.origin(key);
        let (key, message) = (key.to_owned(), message.into());
        self.found.borrow_mut().push(Mistake { key, origin, message });
    }

    /// All that was found; `Ok` when nothing was.
    pub(super) fn into_result(self, file: &str) -> Result<(), ConfigError> {
        let mut mistakes = self.found.into_inner();
        mistakes.sort_by(|a, b| a.origin.cmp(&b.origin));
        match mistakes.is_empty() {
            true => Ok(()),
            false => Err(ConfigError { file: file.to_owned(), mistakes }),
        }
    }

    pub(super) fn is_from_environment(&self, key: &str) -> bool {
        matches!(self.origin(key), Origin::Environment(_))
    }

    /// Where a key, or the nearest table around it, was written.
    fn origin(&self, key: &str) -> Origin {
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
            match key.is_empty() {
                true => write!(f, "{message}")?,
                false => write!(f, "{key}: {message}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
