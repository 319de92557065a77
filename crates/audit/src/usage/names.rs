//! Names as numbers, bounded in memory.

use std::collections::HashMap;
use std::sync::Arc;

/// The number of no name.
pub(super) const NONE: u32 = 0;

/// The number of all names that found no room.
pub(super) const OTHERS: u32 = 1;

/// The name of rows of [`OTHERS`].
pub(crate) const OTHERS_NAME: &str = "(others)";

/// Names with their numbers, which count from zero.
#[derive(Debug)]
pub(super) struct Names {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    bytes: usize,
    limit: usize,
}

/// Bytes that a name takes beside its text, approximately.
const OVERHEAD: usize = 80;

impl Names {
    /// Creates an empty set that takes at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        let mut names = Self { numbers: HashMap::new(), names: Vec::new(), bytes: 0, limit };
        names.push("");
        names.push(OTHERS_NAME);
        names
    }

    /// Returns the number of a name, a new one if it is not known; [`OTHERS`] where there is no
    /// room for it.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        match self.numbers.get(name) {
            Some(number) => *number,
            None if self.bytes + name.len() + OVERHEAD > self.limit => OTHERS,
            None => self.push(name),
        }
    }

    /// Returns the number of a name, or [`NONE`].
    pub(super) fn optional(&mut self, name: Option<&str>) -> u32 {
        name.map_or(NONE, |name| self.number(name))
    }

    /// Returns the number of a known name.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the name of a number; the empty one of a number that has none.
    pub(super) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", |name| name)
    }

    /// Returns the memory that the names take, in bytes, approximately.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there may be no room for another name.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.bytes + 1024 > self.limit
    }

    fn push(&mut self, name: &str) -> u32 {
        let number = u32::try_from(self.names.len()).unwrap_or(OTHERS);
        let name: Arc<str> = name.into();
        self.bytes += name.len() + OVERHEAD;
        self.numbers.insert(name.clone(), number);
        self.names.push(name);
        number
    }
}
