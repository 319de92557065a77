//! The lock file on disk, and its objects: files in `promptgate.lock.d` whose names are their
//! SHA-256 hashes. `DIGEST.md` is the text of a prompt in its Markdown form, `DIGEST.json` a
//! definition or the source of a library prompt in canonical form (RFC 8785), and `DIGEST.file` a
//! file of a skill, byte for byte.
//!
//! A change writes its objects first, then replaces the lock file, then removes objects that
//! neither the old nor the new lock file needs: a gateway reads the old objects until it has
//! followed the change. A crash at any step leaves the old or the new lock file, complete with its
//! objects.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use similar::TextDiff;

use super::{Lock, NO_FILE, conflict};
use crate::durable_file::{self, UNFINISHED};
pub(crate) use base::platform::disk::{self, File, Readers};
use base::seal;
use domain::approval::{DigestText, markdown};
use domain::json::write_str;

/// A lock file and its objects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LockFile {
    lock: PathBuf,
    objects: PathBuf,
}

/// Objects by their digests.
pub type Objects = BTreeMap<DigestText, Object>;

/// A part of a version that was approved or rejected, in canonical JSON.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Object {
    /// A definition, or the source of a library prompt.
    Json(String),
    /// The text of a prompt, or a template of the text.
    Text(String),
    /// A file of a skill.
    File(Arc<[u8]>),
}

/// The kind of an object, which is the extension of its file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectKind {
    Json,
    Text,
    File,
}

impl ObjectKind {
    const ALL: [Self; 3] = [Self::Json, Self::Text, Self::File];

    fn extension(self) -> &'static str {
        match self {
            Self::Json => ".json",
            Self::Text => ".md",
            Self::File => ".file",
        }
    }
}

impl Object {
    /// Returns the canonical JSON; for a file a string, or its length if the file is not text.
    pub fn json(&self) -> Cow<'_, str> {
        match self {
            Self::Json(json) | Self::Text(json) => json.into(),
            Self::File(bytes) => file_json(bytes).into(),
        }
    }

    /// Returns the size in bytes, approximately that of the JSON.
    pub fn size(&self) -> usize {
        match self {
            Self::Json(json) | Self::Text(json) => json.len(),
            Self::File(bytes) => bytes.len(),
        }
    }

    /// Returns the content of the object's file, whose hash is the digest.
    fn content(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Json(json) => json.as_bytes().into(),
            Self::Text(text) => markdown::write(text).into_bytes().into(),
            Self::File(bytes) => (**bytes).into(),
        }
    }

    fn kind(&self) -> ObjectKind {
        match self {
            Self::Json(_) => ObjectKind::Json,
            Self::Text(_) => ObjectKind::Text,
            Self::File(_) => ObjectKind::File,
        }
    }

    /// Whether a patch can contain the object: whole lines of text.
    fn has_patch(&self) -> bool {
        !matches!(self, Self::File(bytes) if text_of(bytes).is_none())
    }
}

/// Returns the text of a file; `None` if a byte cannot occur in lines of text.
fn text_of(bytes: &[u8]) -> Option<&str> {
    let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(is_text))
}

fn file_json(bytes: &[u8]) -> String {
    let mut out = String::new();
    match std::str::from_utf8(bytes) {
        Ok(text) => write_str(text, &mut out),
        Err(_) => {
            let digest = seal::sha256_text(bytes);
            write_str(&format!("({} bytes, no text: {digest})", bytes.len()), &mut out);
        }
    }
    out
}

/// Why a lock file was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{file}: {why}", file = .path.display())]
    Broken { path: PathBuf, why: String },
    #[error("{file} has changed meanwhile; look at it, and try again", file = .0.display())]
    Conflict(PathBuf),
    #[error("another process holds {folder}; try again", folder = .0.display())]
    Busy(PathBuf),
    /// The file or its folder cannot be written.
    #[error("{file} cannot be written: {error}", file = .path.display())]
    ReadOnly { path: PathBuf, error: io::Error },
    #[error("{file}: {error}", file = .path.display())]
    Io { path: PathBuf, error: io::Error },
}

/// Why an object is not available.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("its object {digest} is missing in {folder}; restore it, for example from version control", folder = .folder.display())]
    Missing { digest: DigestText, folder: PathBuf },
    #[error("its object {digest} has another content than its digest says; restore it")]
    Corrupt { digest: DigestText },
    #[error("its object {digest} cannot be read: {error}")]
    Unreadable { digest: DigestText, error: io::Error },
}

/// The name of the file in the folder of the objects that a writer locks.
const WRITER: &str = ".writer";

/// The time for another writer to finish. A writer writes a few files.
const WRITER_TIMEOUT: Duration = Duration::from_secs(10);

impl LockFile {
    /// The lock file at a path, and the objects in the folder with the same name and `.d`.
    pub fn at(lock: PathBuf) -> Self {
        let mut objects = lock.clone().into_os_string();
        objects.push(".d");
        Self { lock, objects: objects.into() }
    }

    /// Returns the path of the lock file.
    pub fn path(&self) -> &Path {
        &self.lock
    }

    /// Reads the lock file.
    ///
    /// # Errors
    /// As [`LockFile::parse`].
    pub fn read(&self) -> Result<Lock, LockError> {
        self.parse(disk::read_to_string(&self.lock))
    }

    /// Returns the content of the lock file, as it was read; a file that does not exist approves
    /// nothing.
    pub(crate) fn parse(&self, read: io::Result<String>) -> Result<Lock, LockError> {
        let broken = |why| LockError::Broken { path: self.lock.clone(), why };
        match read {
            Ok(text) => Lock::parse(&text).map_err(broken),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Lock::none()),
            Err(error) => Err(LockError::Io { path: self.lock.clone(), error }),
        }
    }

    /// Reads an object as canonical JSON, and checks its digest.
    ///
    /// # Errors
    /// The object is missing, or its content does not match the digest.
    pub fn object(&self, digest: &DigestText) -> Result<String, ObjectError> {
        let is_missing =
            |read: &Result<String, ObjectError>| matches!(read, Err(ObjectError::Missing { .. }));
        let mut kinds = ObjectKind::ALL.into_iter().map(|kind| self.read_object(digest, kind));
        let missing =
            || ObjectError::Missing { digest: digest.clone(), folder: self.objects.clone() };
        kinds.find(|read| !is_missing(read)).unwrap_or_else(|| Err(missing()))
    }

    /// Reads a file of a skill, and checks its digest.
    ///
    /// # Errors
    /// As [`LockFile::object`].
    pub fn file(&self, digest: &DigestText) -> Result<Vec<u8>, ObjectError> {
        self.read_content(digest, ObjectKind::File)
    }

    /// Reads the object whose file has the extension of this kind.
    fn read_object(&self, digest: &DigestText, kind: ObjectKind) -> Result<String, ObjectError> {
        let content = self.read_content(digest, kind)?;
        let json = match kind {
            ObjectKind::File => Some(file_json(&content)),
            ObjectKind::Text => {
                String::from_utf8(content).ok().and_then(|text| markdown::read(&text))
            }
            ObjectKind::Json => String::from_utf8(content).ok(),
        };
        json.ok_or_else(|| ObjectError::Corrupt { digest: digest.clone() })
    }

    /// Reads the content of an object, whose hash is its digest.
    fn read_content(&self, digest: &DigestText, kind: ObjectKind) -> Result<Vec<u8>, ObjectError> {
        let path = self.objects.join(file_name(digest, kind));
        let content = disk::read(&path).map_err(|error| {
            let digest = digest.clone();
            match error.kind() {
                io::ErrorKind::NotFound => {
                    ObjectError::Missing { digest, folder: self.objects.clone() }
                }
                _ => ObjectError::Unreadable { digest, error },
            }
        })?;
        let is_intact = |content: &[u8]| seal::sha256_text(content) == **digest;
        if is_intact(&content) {
            return Ok(content);
        }
        // Git may have converted the line ends.
        let unix = String::from_utf8(content).ok().map(|text| text.replace("\r\n", "\n"));
        let unix = unix.map(String::into_bytes).filter(|unix| is_intact(unix));
        unix.ok_or_else(|| ObjectError::Corrupt { digest: digest.clone() })
    }

    /// Replaces the lock file if its digest is still `before`. Returns the new lock. Blocks.
    ///
    /// # Errors
    /// [`LockError::Conflict`] if the digest differs, [`LockError::ReadOnly`] if the files cannot
    /// be written; the files are unchanged then.
    pub fn replace(&self, before: &str, lock: &Lock, objects: &Objects) -> Result<Lock, LockError> {
        // The lock is released when the file is closed, also by a crash.
        let _writer = self.hold_writer()?;
        if self.digest()? != before {
            return Err(LockError::Conflict(self.lock.clone()));
        }
        let replaced = self.read()?;
        self.write_objects(objects)?;
        self.swap(lock)?;
        // The change is done; the next change removes objects that remain.
        let _ = self.collect([&replaced, lock]);
        let digest = seal::sha256_text(lock.to_text().as_bytes());
        Ok(Lock { digest, ..lock.clone() })
    }

    /// Rewrites the lock file with the digest of its entries, after a person has reviewed them. Of
    /// a merge conflict the entries of both sides stay. Each version gets one entry. Unneeded
    /// objects stay. Blocks.
    ///
    /// # Errors
    /// [`LockError::Broken`] if the lock file has a mistake other than its digest; or it cannot be
    /// written.
    pub fn rewrite(&self) -> Result<Lock, LockError> {
        let _writer = self.hold_writer()?;
        let path = || self.lock.clone();
        let text = disk::read_to_string(&self.lock)
            .map_err(|error| LockError::Io { path: path(), error })?;
        let merged = conflict::parse_merged(&text);
        let mut lock = merged.map_err(|why| LockError::Broken { path: path(), why })?;
        let objects = lock.merge_versions(self);
        self.write_objects(&objects)?;
        self.swap(&lock)?;
        self.read()
    }

    /// Keeps other writers out until the file is dropped.
    fn hold_writer(&self) -> Result<File, LockError> {
        self.hold_writer_within(WRITER_TIMEOUT)
    }

    fn hold_writer_within(&self, patience: Duration) -> Result<File, LockError> {
        disk::create_dir_all(&self.objects, Readers::Usual)
            .map_err(|error| self.unwritable(error))?;
        let file = lockable(&self.objects).map_err(|error| self.unwritable(error))?;
        let path = || self.objects.clone();
        durable_file::lock(&file, patience).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => LockError::Busy(path()),
            _ => LockError::Io { path: path(), error },
        })?;
        Ok(file)
    }

    fn digest(&self) -> Result<String, LockError> {
        match disk::read_to_string(&self.lock) {
            Ok(text) => Ok(seal::sha256_text(text.as_bytes())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NO_FILE.to_owned()),
            Err(error) => Err(LockError::Io { path: self.lock.clone(), error }),
        }
    }

    fn write_objects(&self, objects: &Objects) -> Result<(), LockError> {
        let mut files = Vec::new();
        for (digest, object) in objects {
            if !self.has_object(digest, object.kind()) {
                let path = self.objects.join(file_name(digest, object.kind()));
                files.push((path, object.content()));
            }
        }
        let written = durable_file::replace_all(&self.objects, &files, Readers::Usual);
        written.map_err(|error| self.unwritable(error))
    }

    fn has_object(&self, digest: &DigestText, kind: ObjectKind) -> bool {
        self.read_object(digest, kind).is_ok()
    }

    fn swap(&self, lock: &Lock) -> Result<(), LockError> {
        // The file that links lead to is replaced, not the link.
        let target = disk::canonicalize(&self.lock).unwrap_or_else(|_| self.lock.clone());
        let written = durable_file::replace(&target, lock.to_text(), Readers::Usual);
        written.map_err(|error| self.unwritable(error))
    }

    /// Removes objects that neither lock needs, and unfinished files.
    fn collect(&self, locks: [&Lock; 2]) -> io::Result<()> {
        let names = locks.into_iter().flat_map(Lock::objects);
        let names = names.map(|(digest, kind)| file_name(digest, kind));
        let needed: HashSet<String> = names.collect();
        for name in disk::read_dir(&self.objects)? {
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(UNFINISHED) || (is_object(name) && !needed.contains(name)) {
                disk::remove_file(&self.objects.join(name))?;
            }
        }
        Ok(())
    }

    fn unwritable(&self, error: io::Error) -> LockError {
        let path = self.lock.clone();
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                LockError::ReadOnly { path, error }
            }
            _ => LockError::Io { path, error },
        }
    }
}

/// Opens the file that writers lock. Only users who may write the folder of the objects can open
/// it: a user who can open a file, or the folder itself, can hold its lock.
fn lockable(objects: &Path) -> io::Result<File> {
    let options = disk::OpenOptions {
        create: true,
        write: true,
        readers: Readers::Owner,
        refuses_links: true,
        ..disk::OpenOptions::default()
    };
    let file = options.open(&objects.join(WRITER))?;
    if let Some(folder) = disk::metadata(objects)?.mode {
        let writers = folder & 0o222;
        let wanted = writers | writers << 1;
        if file.metadata()?.mode.is_some_and(|mode| mode != wanted) {
            // Only the owner can change the mode; other writers ignore the failure.
            let _ = file.set_mode(wanted);
        }
    }
    Ok(file)
}

/// Returns the name of an object's file: the digest without its algorithm, and the extension.
fn file_name(digest: &DigestText, kind: ObjectKind) -> String {
    [digest.strip_prefix("sha256:").unwrap_or(digest), kind.extension()].concat()
}

/// Whether a file has the name of an object.
fn is_object(name: &str) -> bool {
    let kinds = ObjectKind::ALL.into_iter();
    let mut stems = kinds.filter_map(|kind| name.strip_suffix(kind.extension()));
    stems.any(|stem| stem.len() == 64 && stem.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns a change as a patch that `patch -p1` and `git apply` understand, from the folder of the
/// lock file; `None` if a file of a skill is not text.
pub fn patch(store: &LockFile, before: &Lock, after: &Lock, objects: &Objects) -> Option<String> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let lock = name(&store.lock);
    let folder = name(&store.objects);
    let is_new = before.digest == NO_FILE;
    // The text in the file may be in another order.
    let text = disk::read_to_string(&store.lock).ok();
    let old = if is_new { String::new() } else { text.unwrap_or_else(|| before.to_text()) };
    let old_name = if is_new { "/dev/null".to_owned() } else { format!("a/{lock}") };
    let new = after.to_text();
    let difference = TextDiff::from_lines(&old, &new);
    let mut patch = difference.unified_diff().header(&old_name, &format!("b/{lock}")).to_string();
    for (digest, object) in objects {
        if store.has_object(digest, object.kind()) {
            continue;
        }
        let content = object.content();
        let content = std::str::from_utf8(&content).ok().filter(|_| object.has_patch())?;
        let difference = TextDiff::from_lines("", content);
        let name = format!("b/{folder}/{}", file_name(digest, object.kind()));
        patch += &difference.unified_diff().header("/dev/null", &name).to_string();
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;
    use domain::approval::{ApprovalKind, Attribution, Version};

    fn digest(text: &str) -> DigestText {
        seal::sha256_text(text.as_bytes()).into()
    }

    fn version_of(definition: &str) -> Version {
        Version {
            definition: digest(definition),
            source: None,
            texts: BTreeMap::default(),
            variants: Default::default(),
            files: Default::default(),
        }
    }

    fn attribution() -> Attribution {
        Attribution { by: "a".into(), at: "b".into(), ..Attribution::default() }
    }

    /// A lock that approves one definition, and its object.
    fn approving(before: &Lock, text: &str) -> (Lock, Objects) {
        let mut lock = before.clone();
        let version = version_of(text);
        let attribution = attribution();
        // Not `approve`: the version before is not kept.
        lock.approval_mut(ApprovalKind::Prompt, "up", "p").approved = None;
        lock.approval_mut(ApprovalKind::Prompt, "up", "p").approve(version, attribution);
        (lock, Objects::from([(digest(text), Object::Json(text.to_owned()))]))
    }

    fn objects(store: &LockFile) -> Vec<String> {
        let entries = fs::read_dir(&store.objects).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != WRITER).collect();
        names.sort();
        names
    }

    #[test]
    fn a_change_that_stops_at_any_step_leaves_the_old_lock_or_the_new_one_with_its_objects() {
        for steps in 0..=3 {
            let folder = tempfile::tempdir().unwrap();
            let store = LockFile::at(folder.path().join("promptgate.lock"));
            let (first, its_objects) = approving(&Lock::none(), "\"one\"");
            store.replace(NO_FILE, &first, &its_objects).unwrap();
            let (second, its_objects) = approving(&first, "\"two\"");
            // The process ends after so many steps.
            fs::write(store.objects.join(format!("{UNFINISHED}1")), "half").unwrap();
            if steps >= 1 {
                store.write_objects(&its_objects).unwrap();
            }
            if steps >= 2 {
                store.swap(&second).unwrap();
            }
            if steps >= 3 {
                store.collect([&first, &second]).unwrap();
            }
            let read = store.read().unwrap();
            let expected = if steps < 2 { &first } else { &second };
            assert_eq!(read.to_text(), expected.to_text());
            for (digest, _) in read.objects() {
                store.object(digest).unwrap();
            }
            // The next change removes the objects of all but this one.
            let (third, its_objects) = approving(&read, "\"three\"");
            store.replace(&read.digest, &third, &its_objects).unwrap();
            let kept = if steps < 2 { "\"one\"" } else { "\"two\"" };
            let mut kept =
                [kept, "\"three\""].map(|text| file_name(&digest(text), ObjectKind::Json));
            kept.sort();
            assert_eq!(objects(&store), kept);
        }
    }

    #[test]
    fn objects_of_the_lock_before_stay_until_the_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let mut held = Lock::none();
        for text in ["\"one\"", "\"two\"", "\"three\""] {
            let (lock, its_objects) = approving(&held, text);
            let replaced = store.replace(&held.digest, &lock, &its_objects).unwrap();
            // A gateway that has not followed the change still reads them.
            for (digest, _) in held.objects() {
                store.object(digest).unwrap();
            }
            held = replaced;
        }
        assert_eq!(objects(&store).len(), 2, "those of the first are gone");
    }

    #[test]
    fn a_lock_that_has_changed_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let (lock, its_objects) = approving(&Lock::none(), "\"one\"");
        assert!(matches!(
            store.replace("sha256:other", &lock, &its_objects),
            Err(LockError::Conflict(_))
        ));
        assert_eq!((store.read().unwrap(), objects(&store).len()), (Lock::none(), 0));
        store.replace(NO_FILE, &lock, &its_objects).unwrap();
        assert!(store.replace(NO_FILE, &lock, &its_objects).is_err());
    }

    #[test]
    fn a_lock_that_was_reviewed_gets_its_digest_and_keeps_its_objects() {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let (lock, its_objects) = approving(&Lock::none(), "\"one\"");
        let known = store.replace(NO_FILE, &lock, &its_objects).unwrap();
        let text = fs::read_to_string(store.path()).unwrap();
        // As a merge leaves it.
        fs::write(store.path(), text.replace("by = \"a\"", "by = \"other\"")).unwrap();
        let why = store.read().unwrap_err().to_string();
        assert!(why.contains("has not the digest of its entries"), "{why}");
        let rewritten = store.rewrite().unwrap();
        assert!(rewritten != known && store.read().unwrap() == rewritten);
        let endless = text.split("\n[end]").next().unwrap();
        fs::write(store.path(), endless).unwrap();
        assert_eq!(store.rewrite().unwrap(), known);
        assert_eq!(objects(&store), [file_name(&digest("\"one\""), ObjectKind::Json)]);
        fs::write(store.path(), text + "<<<<<<< ours\n").unwrap();
        assert!(matches!(store.rewrite(), Err(LockError::Broken { .. })));
    }

    #[test]
    fn a_rewritten_lock_has_one_entry_for_all_names_of_a_version() {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let definition =
            |name: &str, meta: &str| format!("{{\"_meta\":{{{meta}}},\"name\":\"{name}\"}}");
        let labelled = r#""label":"production","version":"2""#;
        let entries = [
            ("refund", definition("refund", labelled), Some("s2")),
            ("refund@production", definition("refund@production", labelled), Some("s2")),
            ("refund@1", definition("refund@1", r#""version":"1""#), Some("s1")),
            ("newest", definition("newest", r#""version":"2""#), Some("plain file")),
            ("remote", definition("remote", labelled), None),
        ];
        let mut lock = Lock::none();
        let mut objects = Objects::new();
        for (name, text, source) in &entries {
            objects.insert(digest(text), Object::Json(text.clone()));
            let source = source.map(|source| {
                objects.insert(
                    digest(&format!("\"{source}\"")),
                    Object::Json(format!("\"{source}\"")),
                );
                digest(&format!("\"{source}\""))
            });
            let version = Version { source, ..version_of(text) };
            lock.approval_mut(ApprovalKind::Prompt, "team", name).approve(version, attribution());
        }
        store.replace(NO_FILE, &lock, &objects).unwrap();
        let merged = store.rewrite().unwrap();
        let approvals = merged.of_upstream(ApprovalKind::Prompt, "team").unwrap();
        let names: Vec<_> = approvals.keys().collect();
        assert_eq!(names, ["newest", "refund@1", "refund@2", "remote"]);
        let second = &approvals["refund@2"].approved.as_ref().unwrap().version;
        let text = store.object(&second.definition).unwrap();
        assert_eq!(text, definition("refund@2", r#""version":"2""#));
        assert_eq!(second.source, Some(digest("\"s2\"")));
        assert_eq!(store.rewrite().unwrap(), merged);
    }

    #[test]
    fn of_two_writers_who_read_the_same_lock_one_wins() {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let texts = ["\"one\"", "\"two\"", "\"three\"", "\"four\""];
        let outcomes: Vec<bool> = std::thread::scope(|scope| {
            let writers = texts.map(|text| {
                let store = &store;
                scope.spawn(move || {
                    let (lock, its_objects) = approving(&Lock::none(), text);
                    store.replace(NO_FILE, &lock, &its_objects).is_ok()
                })
            });
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|won| **won).count(), 1);
        let winner = texts[outcomes.iter().position(|won| *won).unwrap()];
        assert_eq!(objects(&store), [file_name(&digest(winner), ObjectKind::Json)]);
    }

    #[cfg(unix)]
    #[test]
    fn only_those_who_may_write_the_folder_can_hold_the_lock() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let (lock, its_objects) = approving(&Lock::none(), "\"one\"");
        fs::create_dir(&store.objects).unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (folder, expected) in [(0o755, 0o600), (0o775, 0o660), (0o777, 0o666), (0o700, 0o600)] {
            set(&store.objects, folder);
            let writer = store.hold_writer().unwrap();
            let path = store.objects.join(WRITER);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, expected);
            assert!(matches!(store.hold_writer_within(Duration::ZERO), Err(LockError::Busy(_))));
            drop(writer);
            // As version control makes it.
            set(&path, 0o644);
        }
        // A reader of the folder holds what it can open.
        let reader = fs::File::open(&store.objects).unwrap();
        reader.try_lock().unwrap();
        store.replace(NO_FILE, &lock, &its_objects).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_lock_file_stays_linked_and_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared.lock");
        fs::write(&shared, Lock::none().to_text()).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("promptgate.lock");
        std::os::unix::fs::symlink("shared.lock", &link).unwrap();
        let store = LockFile::at(link.clone());
        let (lock, its_objects) = approving(&Lock::none(), "\"one\"");
        let before = store.read().unwrap();
        let after = store.replace(&before.digest, &lock, &its_objects).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&shared).unwrap(), lock.to_text());
        assert_eq!(fs::metadata(&shared).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(store.read().unwrap(), after);
    }

    #[test]
    fn objects_are_checked_against_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let (lock, its_objects) = approving(&Lock::none(), "\"one\"");
        store.replace(NO_FILE, &lock, &its_objects).unwrap();
        let name = digest("\"one\"");
        assert_eq!(store.object(&name).unwrap(), "\"one\"");
        fs::write(store.objects.join(file_name(&name, ObjectKind::Json)), "\"evil\"").unwrap();
        assert!(matches!(store.object(&name), Err(ObjectError::Corrupt { .. })));
        let missing = store.object(&digest("\"two\"")).unwrap_err();
        assert!(missing.to_string().contains("promptgate.lock.d"), "{missing}");
        // A change mends it.
        let before = store.read().unwrap();
        store.replace(&before.digest, &lock, &its_objects).unwrap();
        assert!(store.object(&name).is_ok());
    }

    /// An approval of a skill with these files.
    fn with_skill(before: &Lock, files: &[(&str, &[u8])]) -> (Lock, Objects) {
        let entry = format!("\"{}\"", files.len());
        let of = |(path, bytes): &(&str, &[u8])| {
            (Arc::from(*path), DigestText::from(seal::sha256_text(bytes)))
        };
        let version = Version {
            definition: digest(&entry),
            source: None,
            texts: BTreeMap::default(),
            variants: Default::default(),
            files: files.iter().map(of).collect(),
        };
        let object = |file: &(&str, &[u8])| (of(file).1, Object::File(file.1.into()));
        let mut objects: Objects = files.iter().map(object).collect();
        objects.insert(digest(&entry), Object::Json(entry));
        let mut lock = before.clone();
        let attribution = Attribution { by: "a".into(), at: "b".into(), ..Attribution::default() };
        lock.approval_mut(ApprovalKind::Skill, "up", "a/p").approve(version, attribution);
        (lock, objects)
    }

    #[test]
    fn files_of_skills_are_kept_byte_for_byte_beside_prompts_of_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let (prompt, its_objects) = approving(&Lock::none(), "\"one\"");
        let before = store.replace(NO_FILE, &prompt, &its_objects).unwrap();
        let files: [(&str, &[u8]); 3] =
            [("SKILL.md", b"a\r\nb"), ("a \"b\".md", b"\"one\""), ("logo.png", b"\xff\x00")];
        let (lock, its_objects) = with_skill(&before, &files);
        let after = store.replace(&before.digest, &lock, &its_objects).unwrap();
        let read = store.read().unwrap();
        assert_eq!((&read, read.len()), (&after, 2));
        assert!(read.to_text().contains("[skills.approved.files]\n\"SKILL.md\" = "), "{read:?}");
        for (_, bytes) in files {
            let digest = seal::sha256_text(bytes).into();
            assert_eq!(store.file(&digest).unwrap(), bytes);
        }
        let shown = |bytes| store.object(&seal::sha256_text(bytes).into()).unwrap();
        assert_eq!(shown(b"a\r\nb"), r#""a\r\nb""#);
        assert!(shown(b"\xff\x00").starts_with(r#""(2 bytes, no text: sha256:"#));
        assert!(patch(&store, &before, &lock, &its_objects).is_some(), "nothing is missing");
        let (other, its_objects) = with_skill(&read, &[("SKILL.md", b"\xff")]);
        assert_eq!(patch(&store, &read, &other, &its_objects), None);
        let after = store.replace(&read.digest, &other, &its_objects).unwrap();
        let names = objects(&store);
        let files = names.iter().filter(|name| name.ends_with(".file"));
        assert_eq!(files.count(), 4, "of the version before, too: {names:?}");
        let lost = after.to_text().replace("[skills.approved.files]", "[skills.approved.texts]");
        assert!(Lock::parse(&lost).is_err());
    }

    /// A store with a copy of a lock file of this version.
    fn copy_of(format: &str) -> (tempfile::TempDir, LockFile) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats").join(format);
        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let old = LockFile::at(from.join("promptgate.lock"));
        fs::create_dir(&store.objects).unwrap();
        fs::copy(&old.lock, &store.lock).unwrap();
        for name in objects(&old) {
            fs::copy(old.objects.join(&name), store.objects.join(&name)).unwrap();
        }
        (folder, store)
    }

    #[test]
    fn a_lock_is_read_and_written_as_it_was() {
        for format in ["lock-3", "lock-3-skills"] {
            let (_folder, store) = copy_of(format);
            let lock = store.read().unwrap();
            assert_eq!(fs::read_to_string(&store.lock).unwrap(), lock.to_text());
            for (digest, kind) in lock.objects() {
                store.read_object(digest, kind).unwrap();
            }
            let needed: HashSet<_> = lock.objects().map(|(digest, _)| digest.clone()).collect();
            assert_eq!(needed.len(), objects(&store).len());
        }
        let (_folder, store) = copy_of("lock-3-skills");
        let lock = store.read().unwrap();
        let approval = lock.approval(ApprovalKind::Skill, "library", "refunds").unwrap();
        assert!(approval.approved.is_some() && approval.rejected.is_some());
    }

    #[cfg(unix)]
    #[test]
    fn a_patch_makes_the_change_where_the_file_cannot_be_written() {
        use std::process::{Command, Stdio};

        let folder = tempfile::tempdir().unwrap();
        let store = LockFile::at(folder.path().join("promptgate.lock"));
        let (first, its_objects) = approving(&Lock::none(), "{\"name\":\"one\"}");
        for (before, after, objects) in [(Lock::none(), first.clone(), its_objects), {
            let read = Lock::parse(&first.to_text()).unwrap();
            let (second, objects) = approving(&read, "{\"name\":\"two\"}");
            (read, second, objects)
        }] {
            let text = patch(&store, &before, &after, &objects).unwrap();
            let mut child = Command::new("git")
                .args(["apply", "--whitespace=nowarn"])
                .current_dir(folder.path())
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(child.wait().unwrap().success(), "{text}");
            assert_eq!(store.read().unwrap().to_text(), after.to_text());
            for digest in objects.keys() {
                store.object(digest).unwrap();
            }
        }
    }
}
