//! The served commit on the disk: its files in an immutable folder, and a record that names the
//! commit. A new commit is served from the moment at which the record is replaced; after a crash
//! the files match the record, or are not served.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::listing::{TreeFile, is_object};
use base::platform::disk::{self, OpenOptions, Readers};
use base::seal;
use config::durable_file;

/// The record of the commit that is served.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Kept {
    /// Digest of the configuration with which the commit was fetched.
    pub source: String,
    /// The object that the reference named: the commit, or an annotated tag of it.
    pub object: String,
    pub commit: String,
    /// The digest of the files on the disk.
    pub digest: String,
    /// The files that are left out, each with the reason.
    pub left_out: Vec<String>,
}

const RECORD: &str = "served.json";
const TREES: &str = "trees";

/// The prefix of the names of incomplete folders.
const UNFINISHED: &str = ".unfinished-";

impl Kept {
    /// Reads the record of a state folder. `None` without a record for this configuration.
    pub(super) fn read(state: &Path, source: &str) -> Option<Self> {
        let text = disk::read_to_string(&state.join(RECORD)).ok()?;
        let kept: Self = serde_json::from_str(&text).ok()?;
        let is_named = is_object(&kept.commit) && kept.source == source;
        (is_named && disk::is_folder(&kept.folder(state))).then_some(kept)
    }

    /// Whether the files match their digest: a crash may have truncated them.
    pub(super) fn is_whole(&self, state: &Path) -> bool {
        digest(&self.folder(state)).is_ok_and(|digest| digest == self.digest)
    }

    /// Returns the folder of the files.
    pub(super) fn folder(&self, state: &Path) -> PathBuf {
        state.join(TREES).join(self.name())
    }

    fn name(&self) -> String {
        let source = self.source.trim_start_matches("sha256:");
        format!("{}-{}", self.commit, source.get(..8).unwrap_or_default())
    }

    /// Writes the files of a commit, and serves them from now on instead of `before`. Of the
    /// earlier commits, only the last is kept, since it may still be read.
    pub(super) fn serve(
        mut self,
        state: &Path,
        files: &[TreeFile],
        contents: &[&[u8]],
        before: Option<&Self>,
    ) -> io::Result<Self> {
        let name = self.name();
        let trees = state.join(TREES);
        let folder = trees.join(&name);
        let unfinished = trees.join(format!("{UNFINISHED}{name}"));
        let _ = disk::remove_dir_all(&unfinished);
        disk::create_dir_all(&unfinished, Readers::Owner)?;
        for (file, content) in files.iter().zip(contents) {
            write(&unfinished.join(&file.path), content)?;
        }
        self.digest = digest(&unfinished)?;
        if digest(&folder).is_ok_and(|digest| digest == self.digest) {
            // Another tag of the same commit.
            disk::remove_dir_all(&unfinished)?;
        } else {
            let _ = disk::remove_dir_all(&folder);
            disk::rename(&unfinished, &folder)?;
        }
        let record = serde_json::to_string(&self).map_err(io::Error::other)?;
        durable_file::replace(&state.join(RECORD), &record, Readers::Owner)?;
        let needed = [Some(name), before.map(Self::name)];
        for old in disk::read_dir(&trees)? {
            if !needed.iter().flatten().any(|needed| **needed == *old) {
                let _ = disk::remove_dir_all(&trees.join(old));
            }
        }
        Ok(self)
    }
}

/// Removes the record of an incomplete commit, so that the commit is fetched again.
pub(super) fn forget(state: &Path) {
    let _ = disk::remove_file(&state.join(RECORD));
}

/// Writes a new file, and the folders above it.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !disk::is_folder(folder)) {
        disk::create_dir_all(folder, Readers::Owner)?;
    }
    let options = OpenOptions { create_new: true, write: true, ..OpenOptions::private() };
    options.open(path)?.write_all(content)
}

/// Returns the digest of all files below a folder, with their names.
fn digest(folder: &Path) -> io::Result<String> {
    let mut lines = String::new();
    describe(folder, "", &mut lines)?;
    Ok(seal::sha256_text(lines.as_bytes()))
}

fn describe(folder: &Path, prefix: &str, lines: &mut String) -> io::Result<()> {
    let mut names = disk::read_dir(folder)?;
    names.sort();
    for name in names {
        let path = folder.join(&name);
        let shown = format!("{prefix}/{}", name.to_string_lossy());
        if disk::symlink_metadata(&path)?.is_folder() {
            describe(&path, &shown, lines)?;
        } else {
            let _ = writeln!(lines, "{shown} {}", seal::sha256_text(&disk::read(&path)?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn kept(commit: char) -> Kept {
        Kept {
            source: seal::sha256_text(b"configuration"),
            object: commit.to_string().repeat(40),
            commit: commit.to_string().repeat(40),
            digest: String::new(),
            left_out: vec!["link.md: why".to_owned()],
        }
    }

    fn serve(state: &Path, commit: char, content: &[u8], before: Option<&Kept>) -> Kept {
        let file = |path: &str| TreeFile { object: String::new(), size: 0, path: path.into() };
        let files = [file("a.md"), file("deep/er/b.md")];
        kept(commit).serve(state, &files, &[content, b"b"], before).unwrap()
    }

    #[test]
    fn a_new_commit_is_served_whole_and_the_last_one_can_still_be_read() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        let read = || Kept::read(state, &seal::sha256_text(b"configuration"));
        assert_eq!(read(), None);
        let first = serve(state, 'a', b"1", None);
        assert_eq!(read().as_ref(), Some(&first));
        assert_eq!(fs::read(first.folder(state).join("deep/er/b.md")).unwrap(), b"b");
        let second = serve(state, 'b', b"2", Some(&first));
        let third = serve(state, 'c', b"3", Some(&second));
        assert_eq!(read().as_ref(), Some(&third));
        let there = [&first, &second, &third].map(|kept| kept.folder(state).exists());
        assert_eq!(there, [false, true, true]);
        assert_eq!(Kept::read(state, "sha256:other"), None, "another configuration");
    }

    #[test]
    fn files_that_a_crash_has_cut_are_not_served() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path();
        let kept = serve(state, 'a', b"whole", None);
        assert!(kept.is_whole(state));
        let file = kept.folder(state).join("a.md");
        fs::write(&file, "who").unwrap();
        assert!(!kept.is_whole(state));
        fs::write(&file, "whole").unwrap();
        assert!(kept.is_whole(state));
        fs::write(kept.folder(state).join("more.md"), "").unwrap();
        assert!(!kept.is_whole(state));
        forget(state);
        assert_eq!(Kept::read(state, &kept.source), None);
        assert!(serve(state, 'a', b"whole", None).is_whole(state), "it is taken anew");
        fs::write(state.join(RECORD), "{\"source\":").unwrap();
        assert_eq!(Kept::read(state, &kept.source), None);
    }
}
