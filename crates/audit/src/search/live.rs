//! Follows a log: returns its new entries, poll by poll.

use std::io;
use std::path::Path;

use super::{Ends, Find, LogEntry, SearchCriteria, entry};
use crate::tail::Tail;

/// A reader of new entries. A call is shown once it has ended.
pub struct Live {
    tail: Tail,
    /// The begins of calls that have not ended.
    open: Ends,
}

/// Bytes that are read at once, at most.
const MAX_READ: usize = 1 << 20;

impl Live {
    /// Creates a reader of records that are written from now on.
    ///
    /// # Errors
    /// When the folder or its last segment cannot be read.
    pub fn at_end(path: &Path) -> io::Result<Self> {
        Ok(Self { tail: Tail::at_end(path)?, open: Ends::default() })
    }

    /// Returns entries that are new, oldest first, and whether there may be more by now. At most 1
    /// MiB of the log is read at once.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn poll(&mut self, find: &Find) -> io::Result<(Vec<LogEntry>, bool)> {
        let wanted = SearchCriteria::new(find);
        let mut entries = Vec::new();
        let open = &mut self.open;
        let at_end = self.tail.read(MAX_READ, |line| {
            let id = || entry::call_id(line);
            let entry = match entry::kind(line) {
                Some("received") => {
                    if let Some(id) = id() {
                        open.put(id, line);
                    }
                    None
                }
                Some("completed") => {
                    let received = id().and_then(|id| open.take(&id));
                    received.and_then(|received| wanted.call(&received, Some(line)))
                }
                Some(kind) => wanted.event(kind, line),
                None => None,
            };
            entries.extend(entry);
        })?;
        Ok((entries, !at_end))
    }
}
