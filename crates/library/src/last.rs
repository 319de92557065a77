//! The last snapshot: a poll without changes reuses it, and the next snapshot takes texts over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
    /// Returns the reasons for missing files that may be prompts, by their paths below `folder`:
    /// also the files of the snapshot before that are in a folder that is `unreadable` now.
    pub(super) fn left_out_prompts(
        self,
        folder: &Path,
        unreadable: &[(PathBuf, String)],
    ) -> BTreeMap<PathBuf, String> {
        let parts = |reason: &String| {
            let (path, why) = reason.split_once(".md: ")?;
            Some((format!("{path}.md").into(), why.to_owned()))
        };
        let served = self.snapshot.into_iter().flat_map(|snapshot| snapshot.prompts.values());
        let lost = served.filter_map(|prompt| {
            let path = folder.join(&prompt.path);
            let (above, why) = unreadable.iter().find(|(above, _)| path.starts_with(above))?;
            Some((prompt.path.clone(), format!("its folder {} {why}", above.display())))
        });
        self.left_out.iter().filter_map(parts).chain(lost).collect()
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::LibraryLabels;
    use config::Settings;

    #[test]
    fn a_folder_that_cannot_be_read_any_more_takes_no_prompt_along() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::create_dir(folder.join("sub")).unwrap();
        fs::write(folder.join("sub/a.md"), "---\nname: a\n---\nA").unwrap();
        fs::write(folder.join("b.md"), "---\nname: b\n---\nB").unwrap();
        let (settings, labels) = (Settings::default(), LibraryLabels::default());
        let snapshot = LibrarySnapshot::load(folder, "lib", &settings, &labels).unwrap();
        let before = Before { snapshot: Some(&snapshot), left_out: &[] };
        let unreadable = [(folder.join("sub"), "cannot be read: I/O error".to_owned())];
        let left_out = before.left_out_prompts(folder, &unreadable);
        let [(path, why)] = left_out.iter().collect::<Vec<_>>()[..] else { panic!("{left_out:?}") };
        assert_eq!(path, Path::new("sub/a.md"));
        assert!(why.contains("sub cannot be read: I/O error"), "{why}");
    }
}
