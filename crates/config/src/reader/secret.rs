//! Secrets in memory.

use std::fmt;
use std::path::PathBuf;

use base::platform::disk;

/// Text that must not appear in logs, errors, metrics or audit records. `Debug` redacts it.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret {
    text: String,
    /// Boxed: configurations have many secrets, and lie in futures.
    origin: Option<Box<SecretOrigin>>,
}

/// The origin of a secret that is neither a variable nor an explicit value.
#[derive(Clone, Eq, PartialEq)]
enum SecretOrigin {
    /// Plain text in the configuration file. It is treated as a secret, but not searched for in
    /// texts of others.
    Plain,
    /// A file, and the text before its content, such as an authentication scheme.
    File { path: PathBuf, prefix: &'static str },
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), origin: None }
    }

    /// Wraps the content of a file, with a text before it.
    pub(crate) fn of_file(content: &str, path: PathBuf, prefix: &'static str) -> Self {
        let text = format!("{prefix}{}", content.trim_end());
        Self { text, origin: Some(Box::new(SecretOrigin::File { path, prefix })) }
    }

    /// Wraps a plain text.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), origin: Some(Box::new(SecretOrigin::Plain)) }
    }

    /// Returns the secret with a text before it.
    pub(crate) fn with_prefix(self, prefix: &'static str) -> Self {
        match self.origin.as_deref() {
            Some(SecretOrigin::File { path, .. }) => {
                Self::of_file(&self.text, path.clone(), prefix)
            }
            _ => Self { text: format!("{prefix}{}", self.text), ..self },
        }
    }

    /// Whether it is in a file, which may change.
    pub fn is_in_file(&self) -> bool {
        matches!(self.origin.as_deref(), Some(SecretOrigin::File { .. }))
    }

    /// Reads its file again; `None` without a file with a text. May block.
    pub fn read_again(&self) -> Option<Self> {
        let Some(SecretOrigin::File { path, prefix }) = self.origin.as_deref() else { return None };
        let content =
            disk::read_text(path).ok().filter(|content| !content.trim_end().is_empty())?;
        Some(Self::of_file(&content, path.clone(), prefix))
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.origin.as_deref(), Some(SecretOrigin::Plain))
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
        let secret = Secret::of_file("one\n", file.clone(), "").with_prefix("Bearer ");
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
