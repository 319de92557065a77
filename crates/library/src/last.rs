//! The last snapshot: a poll without changes reuses it, and the next snapshot takes texts over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::LibrarySnapshot;

/// The last snapshot, and its origin.
#[derive(Debug)]
pub struct LastSnapshot<Of>(Mutex<Option<(Of, Arc<LibrarySnapshot>)>>);

impl<Of> Default for LastSnapshot<Of> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// The state in which a library is read again.
#[derive(Clone, Copy, Default)]
pub struct Before<'a> {
    /// The snapshot before, whose texts stay served while their files are not valid.
    pub snapshot: Option<&'a LibrarySnapshot>,
    /// The files that the folder lacks, each with the reason (`GitTree::left_out`).
    pub left_out: &'a [String],
}

impl Before<'_> {
    /// Returns the reasons for missing files that may be prompts, by their paths.
    pub(super) fn left_out_prompts(self) -> BTreeMap<PathBuf, String> {
        let parts = |reason: &String| {
            let (path, why) = reason.split_once(".md: ")?;
            Some((format!("{path}.md").into(), why.to_owned()))
        };
        self.left_out.iter().filter_map(parts).collect()
    }
}

impl<Of: PartialEq> LastSnapshot<Of> {
    /// Returns the last snapshot, whatever its origin.
    pub fn any(&self) -> Option<Arc<LibrarySnapshot>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|(_, snapshot)| snapshot.clone())
    }

    /// Returns the last snapshot if its origin is equal.
    pub fn of(&self, of: &Of) -> Option<Arc<LibrarySnapshot>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(made_of, _)| made_of == of).map(|(_, snapshot)| snapshot.clone())
    }

    /// Replaces the last snapshot.
    pub fn keep(&self, of: Of, snapshot: LibrarySnapshot) -> Arc<LibrarySnapshot> {
        let snapshot = Arc::new(snapshot);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((of, snapshot.clone()));
        snapshot
    }
}
