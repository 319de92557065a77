//! Places in the files of a library, in the form that editors and terminals open.

use std::fmt;
use std::path::Path;

/// A remark on a file: why it is not a prompt, or a likely slip of its author. `Display` writes the
/// text behind the path: `:LINE:COLUMN: text`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Remark {
    /// The line, counted from 1.
    line: Option<usize>,
    /// The column, counted from 1, in characters.
    column: Option<usize>,
    text: String,
}

impl Remark {
    /// Creates a remark on the place at `offset` (in bytes) of the file's text.
    pub(super) fn at(file: &str, offset: usize, text: impl Into<String>) -> Self {
        let before = file.get(..offset).unwrap_or(file);
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        Self::placed(line, column, text)
    }

    /// Creates a remark on a line and a column, both counted from 1.
    pub(super) fn placed(line: usize, column: usize, text: impl Into<String>) -> Self {
        Self { line: Some(line), column: Some(column), text: text.into() }
    }

    /// Writes the remark behind the path of its file.
    pub(super) fn on(&self, file: &Path) -> String {
        format!("{}{self}", file.display())
    }
}

impl<T: Into<String>> From<T> for Remark {
    fn from(text: T) -> Self {
        Self { line: None, column: None, text: text.into() }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for number in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        write!(f, ": {}", self.text)
    }
}
