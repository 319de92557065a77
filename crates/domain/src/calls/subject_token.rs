//! The access token of a caller.

use std::fmt;
use std::sync::Arc;

use crate::time::unix_time::UnixSeconds;

/// An access token of a caller, to be exchanged for a token for an upstream (RFC 8693, section 2.1:
/// `subject_token`). It is sent for one call to the configured token endpoint, and not stored.
/// `Debug` redacts it.
#[derive(Clone)]
pub struct SubjectToken {
    text: Arc<str>,
    /// End of the token's lifetime (`exp`).
    pub expires: UnixSeconds,
}

impl SubjectToken {
    pub fn new(text: &str, expires: UnixSeconds) -> Self {
        Self { text: text.into(), expires }
    }

    /// Returns the token. Review every call site: `tests/architecture.rs` lists the files that may
    /// call it.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for SubjectToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubjectToken(redacted)")
    }
}
