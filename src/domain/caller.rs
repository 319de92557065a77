//! Who asks.

use std::sync::Arc;

/// The authenticated origin of a request. Sessions and cursors belong to their caller.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Caller {
    id: Arc<str>,
}

impl Caller {
    /// Whoever reaches the gateway while no authentication is configured.
    pub fn anonymous() -> Self {
        Self::new("anonymous")
    }

    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self { id: id.into() }
    }

    pub fn id(&self) -> &str {
        &self.id
    }
}
