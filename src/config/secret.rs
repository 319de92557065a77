//! Secrets in memory.

use std::fmt;

/// Text that must not appear in logs, errors, metrics or audit records. `Debug` redacts it.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the plain text. Review every call site: `tests/architecture.rs` lists the files that
    /// may call it.
    pub fn expose(&self) -> &str {
        &self.0
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
