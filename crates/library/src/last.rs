//! The snapshot that was made last: a poll that finds nothing new makes nothing anew.

use std::sync::{Arc, Mutex, PoisonError};

use super::LibrarySnapshot;

/// The last snapshot, and what it was made of.
#[derive(Debug)]
pub struct LastSnapshot<Of>(Mutex<Option<(Of, Arc<LibrarySnapshot>)>>);

impl<Of> Default for LastSnapshot<Of> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Of: PartialEq> LastSnapshot<Of> {
    /// Returns the last snapshot if it was made of the same.
    pub fn of(&self, of: &Of) -> Option<Arc<LibrarySnapshot>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(made_of, _)| made_of == of).map(|(_, snapshot)| snapshot.clone())
    }

    /// Keeps a new snapshot in place of the one before.
    pub fn keep(&self, of: Of, snapshot: LibrarySnapshot) -> Arc<LibrarySnapshot> {
        let snapshot = Arc::new(snapshot);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((of, snapshot.clone()));
        snapshot
    }
}
