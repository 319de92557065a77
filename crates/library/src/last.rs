//! The last snapshot: a poll without changes reuses it.

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

impl<Of: PartialEq> LastSnapshot<Of> {
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
