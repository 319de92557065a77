//! Secrets in memory.

use std::fmt;
use std::path::PathBuf;

use base::platform::disk;

/// Text that must not appear in logs, errors, metrics or audit records. `Debug` redacts it.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret {
    text: String,
    /// Whether the secret stands in the configuration file in plain text. It is treated as a
    /// secret, but not searched for in texts of others.
    is_plain: bool,
    file: Option<PathBuf>,
    /// The text before the content of the file, such as an authentication scheme.
    prefix: &'static str,
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_plain: false, file: None, prefix: "" }
    }

    /// Wraps the content of a file.
    pub(crate) fn of_file(content: &str, file: PathBuf) -> Self {
        Self { file: Some(file), ..Self::new(content.trim_end()) }
    }

    /// Wraps a plain text.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { is_plain: true, ..Self::new(text) }
    }

    /// Returns the secret with a text before it.
    pub(crate) fn with_prefix(self, prefix: &'static str) -> Self {
        Self { text: format!("{prefix}{}", self.text), prefix, ..self }
    }

    /// Whether it is in a file, which may change.
    pub fn is_in_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads its file again; `None` without a file with a text. May block.
    pub fn read_again(&self) -> Option<Self> {
        let file = self.file.as_ref()?;
        let content = disk::read_text(file).ok()?;
        let secret = Self::of_file(&content, file.clone());
        (!secret.text.is_empty()).then(|| secret.with_prefix(self.prefix))
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Returns the plain text. Review every call site: `tests/architecture.rs` lists the files that
    /// may call it.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_debug_redacts_the_text() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(redacted)");
    }

    #[test]
    fn a_file_is_read_again_with_the_text_before_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let secret = Secret::of_file("one\n", file.clone()).with_prefix("Bearer ");
        assert_eq!((secret.expose(), secret.read_again()), ("Bearer one", None));
        std::fs::write(&file, "two\n").unwrap();
        let again = secret.read_again().unwrap();
        assert_eq!(again.expose(), "Bearer two");
        assert_eq!(again.read_again(), Some(again));
        std::fs::write(&file, "\n").unwrap();
        assert_eq!(secret.read_again(), None, "a file that is being written");
        assert_eq!(Secret::new("one").read_again(), None);
    }
}
