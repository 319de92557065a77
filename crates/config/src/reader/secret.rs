//! Secrets in memory.

use std::fmt;

/// Text that must not appear in logs, errors, metrics or audit records. `Debug` redacts it.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret {
    text: String,
    /// Whether the secret stands in the configuration file in plain text. It is treated as a
    /// secret, but not searched for in texts of others.
    is_plain: bool,
}

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_plain: false }
    }

    /// Wraps a plain text.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_plain: true }
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
}
