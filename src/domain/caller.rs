//! Who asks.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The authenticated origin of a request. Sessions, cursors and states belong to their caller; what it
/// may do depends on its groups and scopes, too.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Who>);

#[derive(Debug)]
struct Who {
    id: Box<str>,
    /// Sorted, each once.
    groups: Vec<String>,
    scopes: Vec<String>,
}

/// Longest id of a caller, in characters: it is part of every session id and cursor.
pub const MAX_ID: usize = 128;

/// What nobody else may be called.
pub const ANONYMOUS: &str = "anonymous";

impl Caller {
    /// Whoever reaches the gateway without a credential where none is required.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS)
    }

    pub fn is_anonymous(&self) -> bool {
        self.id() == ANONYMOUS
    }

    pub fn new(id: &str) -> Self {
        Self::in_groups(id, &[])
    }

    /// A caller and the groups that it belongs to.
    pub fn in_groups(id: &str, groups: &[String]) -> Self {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        Self(Arc::new(Who { id: id.into(), groups, scopes: Vec::new() }))
    }

    pub fn id(&self) -> &str {
        &self.0.id
    }

    pub fn groups(&self) -> &[String] {
        &self.0.groups
    }

    /// What its token allows, where it came with one.
    pub fn scopes(&self) -> &[String] {
        &self.0.scopes
    }
}

/// Two are the same if they have the same id: their groups may change in between.
impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}
