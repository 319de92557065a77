//! The files of a library. Symbolic links are followed as far as their targets, fully resolved,
//! stay inside the library's folder: the files of a Kubernetes ConfigMap or Secret are such links.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base::platform::disk::{self, File, FileKind};
use base::platform::platform;

/// The limit of nested subfolders: a library is a tree that people browse.
const MAX_DEPTH: usize = 8;

/// The prompt files of a folder and its subfolders, in the order of their paths.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct PromptFiles {
    pub prompts: Vec<PromptFile>,
    /// The links that are not followed, each with the reason.
    pub refused: Vec<String>,
    /// The files and folders that cannot be read, each with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
    /// Files whose names have almost the ending of prompts.
    pub ignored: Vec<PromptFile>,
    /// Links to files and folders that are found without these links, too.
    pub repeated: Vec<PromptFile>,
}

/// A file by its path in the library, and by its resolved path, from which it is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PromptFile {
    pub path: PathBuf,
    pub resolved: PathBuf,
}

impl PromptFiles {
    /// Finds every `.md` file; entries whose names begin with a dot are skipped. A file or folder
    /// is found once: at its own path, if that is in the folder, else through the first link.
    ///
    /// # Errors
    /// The folder itself cannot be read. A part of it that cannot be read is left out.
    pub(super) fn find(folder: &Path) -> io::Result<Self> {
        let root = disk::canonicalize(folder)?;
        let seen = HashSet::from([root.clone()]);
        let links = VecDeque::new();
        let mut walk = Walk { root: root.clone(), seen, links, files: PromptFiles::default() };
        walk.read(&PromptFile { path: folder.to_owned(), resolved: root }, 0)?;
        while let Some(link) = walk.links.pop_front() {
            walk.follow(link);
        }
        let mut files = walk.files;
        files.prompts.sort_by(|a, b| a.path.cmp(&b.path));
        files.ignored.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }
}

/// Whether a name has another usual ending of Markdown, or `.md` with capitals.
fn is_nearly_markdown(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    !name.ends_with(".md") && matches!(ending.as_deref(), Some("md" | "markdown"))
}

/// A walk through the folders of a library: first without links, so that the own path of a file
/// comes before each link to it.
struct Walk {
    /// The library's folder without links.
    root: PathBuf,
    /// Resolved paths of the files and folders so far.
    seen: HashSet<PathBuf>,
    /// The links that are still to be followed.
    links: VecDeque<Entry>,
    files: PromptFiles,
}

/// An entry of a folder; only its last part may be a link. `depth` is the number of folders above
/// it in the library.
struct Entry {
    file: PromptFile,
    depth: usize,
}

impl Walk {
    fn read(&mut self, folder: &PromptFile, depth: usize) -> io::Result<()> {
        let mut names = disk::read_dir(&folder.resolved)?;
        names.sort();
        for name in names {
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let resolved = folder.resolved.join(&name);
            let file = PromptFile { path: folder.path.join(name), resolved };
            let entry = Entry { file, depth: depth + 1 };
            match disk::symlink_metadata(&entry.file.resolved) {
                Ok(metadata) if metadata.kind == FileKind::Link => self.links.push_back(entry),
                Ok(metadata) => self.add(entry, metadata.kind),
                // No entry of the folder can be read.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                Err(error) => self.leave_out(entry.file.path, &error),
            }
        }
        Ok(())
    }

    /// Adds a file or folder that is no link, unless it was found before.
    fn add(&mut self, Entry { file, depth }: Entry, kind: FileKind) {
        let is_file = kind == FileKind::File;
        let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if kind == FileKind::Folder && depth <= MAX_DEPTH {
            if self.seen.insert(file.resolved.clone())
                && let Err(error) = self.read(&file, depth)
            {
                self.leave_out(file.path, &error);
            }
        } else if is_file && name.ends_with(".md") {
            if self.seen.insert(file.resolved.clone()) {
                self.files.prompts.push(file);
            }
        } else if is_file && is_nearly_markdown(&name) {
            self.files.ignored.push(file);
        }
    }

    fn follow(&mut self, link: Entry) {
        let Entry { file: PromptFile { path, .. }, depth } = link;
        let is_prompt = path.extension().is_some_and(|ending| ending == "md");
        match resolve(&self.root, &path) {
            Ok(resolved) if self.seen.contains(&resolved) => {
                self.files.repeated.push(PromptFile { path, resolved });
            }
            Ok(resolved) => match disk::metadata(&resolved) {
                Ok(metadata) => {
                    let file = PromptFile { path, resolved };
                    self.add(Entry { file, depth }, metadata.kind);
                }
                Err(error) => self.leave_out(path, &error),
            },
            Err(reason) if is_prompt || disk::is_folder(&path) => {
                self.files.refused.push(format!("{}: {reason}", path.display()));
            }
            // Other files are of no interest.
            Err(_) => {}
        }
    }

    /// Leaves out a file or folder with the reason, unless it was removed during the walk.
    fn leave_out(&mut self, path: PathBuf, error: &io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            self.files.unreadable.push((path, format!("cannot be read: {error}")));
        }
    }
}

/// Returns a path in `folder` without links.
pub(super) fn resolve_inside(folder: &Path, path: &Path) -> Result<PathBuf, String> {
    let root = disk::canonicalize(folder).map_err(|error| error.to_string())?;
    resolve(&root, path)
}

/// Reads a file of a library by its resolved path. A link that has replaced a part of the path
/// meanwhile is not followed, and at most `limit` bytes are read, whatever the length was before.
pub(super) fn read(folder: &Path, resolved: &Path, limit: usize) -> Result<Vec<u8>, String> {
    let reading = |error: io::Error| error.to_string();
    let root = disk::canonicalize(folder).map_err(reading)?;
    let path = resolved.strip_prefix(&root).map_err(|error| error.to_string())?;
    let file = File::open_below(&root, path).map_err(reading)?;
    if !file.metadata().map_err(reading)?.is_file() {
        return Err("not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    file.take(most).read_to_end(&mut bytes).map_err(reading)?;
    if bytes.len() > limit {
        return Err("larger than max_message".to_owned());
    }
    if is_lfs_pointer(&bytes) {
        return Err("a pointer of Git LFS: run `git lfs pull`, or keep the file out of LFS".into());
    }
    Ok(bytes)
}

/// Whether a file stands for a file that Git LFS keeps elsewhere (git-lfs, docs/spec.md).
fn is_lfs_pointer(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    lines.next().is_some_and(|line| line.starts_with(b"version https://git-lfs.github.com/spec/"))
        && lines.any(|line| line.starts_with(b"oid sha256:"))
}

/// Returns a resolved path. `root` must be resolved.
fn resolve(root: &Path, path: &Path) -> Result<PathBuf, String> {
    let resolved =
        disk::canonicalize(path).map_err(|error| format!("cannot be resolved: {error}"))?;
    let inside = resolved.strip_prefix(root);
    let inside = inside.map_err(|_| "the link leads out of the library's folder".to_owned())?;
    // Kubernetes keeps the files of a volume in folders such as `..2026_11_21`.
    let is_hidden = |part: std::path::Component<'_>| {
        let part = part.as_os_str().as_encoded_bytes();
        part.starts_with(b".") && !part.starts_with(b"..")
    };
    if inside.components().any(is_hidden) {
        return Err("the link leads to a dot-file".to_owned());
    }
    Ok(resolved)
}

/// The target of `..data`, the link through which Kubernetes swaps all files of a mounted ConfigMap
/// or Secret at once; empty for other folders.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Volume(Option<PathBuf>);

impl Volume {
    pub(super) fn of(folder: &Path) -> Self {
        Self(platform().disk.read_link(&folder.join("..data")).ok())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_inside_the_folder_are_followed_and_others_are_refused_with_a_reason() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.md"), "").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        // As a ConfigMap is mounted.
        fs::create_dir_all(root.join("..2026/sub")).unwrap();
        fs::write(root.join("..2026/a.md"), "").unwrap();
        fs::write(root.join("..2026/sub/b.md"), "").unwrap();
        symlink("..2026", root.join("..data")).unwrap();
        symlink("..data/a.md", root.join("a.md")).unwrap();
        symlink("..data/sub", root.join("sub")).unwrap();
        // Twice, in a circle, out of it, and to nothing.
        symlink("a.md", root.join("again.md")).unwrap();
        symlink("..", root.join("..2026/sub/up")).unwrap();
        symlink(outside.path().join("secret.md"), root.join("out.md")).unwrap();
        symlink(outside.path(), root.join("outside")).unwrap();
        symlink("nowhere.md", root.join("lost.md")).unwrap();
        symlink("/etc/passwd", root.join("passwd")).unwrap();
        fs::create_dir(root.join(".git")).unwrap();
        fs::write(root.join(".git/config.md"), "").unwrap();
        symlink(".git/config.md", root.join("hidden.md")).unwrap();
        for name in ["c.markdown", "D.MD", "e.mdx", "f.txt"] {
            fs::write(root.join(name), "").unwrap();
        }
        let PromptFiles { prompts, refused, ignored, repeated, unreadable } =
            PromptFiles::find(root).unwrap();
        assert_eq!(unreadable, []);
        let names = |files: Vec<PromptFile>| {
            let names = files.iter().map(|file| file.path.strip_prefix(root).unwrap());
            let names = names.map(|name| name.to_str().unwrap());
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(names(prompts), ["a.md", "sub/b.md"]);
        assert_eq!(names(ignored), ["D.MD", "c.markdown"]);
        assert_eq!(names(repeated), ["again.md"]);
        let refused: Vec<_> =
            refused.iter().map(|why| &why[root.to_str().unwrap().len() + 1..]).collect();
        assert_eq!(refused[0], "hidden.md: the link leads to a dot-file");
        let refused = &refused[1..];
        assert_eq!(refused.len(), 3, "{refused:?}");
        assert!(refused[0].starts_with("lost.md: cannot be resolved"), "{refused:?}");
        let out = |name| format!("{name}: the link leads out of the library's folder");
        assert_eq!(refused[1..], [out("out.md"), out("outside")].each_ref().map(String::as_str));
    }

    #[test]
    fn a_file_is_found_at_its_own_path_whichever_name_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("m/x")).unwrap();
        fs::write(root.join("m/x/SKILL.md"), "").unwrap();
        fs::write(root.join("m/b.md"), "").unwrap();
        symlink("m", root.join("a")).unwrap();
        symlink("m", root.join("z")).unwrap();
        symlink("m/x/SKILL.md", root.join("AGENT.md")).unwrap();
        symlink("../b.md", root.join("m/x/c.md")).unwrap();
        let found = PromptFiles::find(root).unwrap();
        let below = |file: &PromptFile| file.path.strip_prefix(root).unwrap().to_owned();
        let prompts: Vec<_> = found.prompts.iter().map(below).collect();
        assert_eq!(prompts, [Path::new("m/b.md"), Path::new("m/x/SKILL.md")]);
        let repeated: Vec<_> = found.repeated.iter().map(below).collect();
        assert_eq!(repeated, ["AGENT.md", "a", "m/x/c.md", "z"].map(PathBuf::from));
        assert_eq!((found.refused, found.unreadable), (vec![], vec![]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_part_of_the_folder_that_cannot_be_read_costs_itself() {
        let folder = tempfile::tempdir().unwrap();
        let mut root = folder.path().canonicalize().unwrap();
        while root.as_os_str().len() < 3_700 {
            root.push("x".repeat(200));
        }
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("a.md"), "").unwrap();
        // The system refuses paths of more than 4,095 bytes.
        let below = fs::File::open(&root).unwrap();
        let name = "y".repeat(250);
        rustix::fs::mkdirat(&below, &name, rustix::fs::Mode::RWXU).unwrap();
        let below = rustix::fs::openat(
            &below,
            &name,
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        rustix::fs::mkdirat(&below, &name, rustix::fs::Mode::RWXU).unwrap();
        let found = PromptFiles::find(&root).unwrap();
        assert_eq!(found.prompts.len(), 1);
        let [(path, why)] = found.unreadable.as_slice() else { panic!("{:?}", found.unreadable) };
        assert!(path.starts_with(root.join(&name)) && why.starts_with("cannot be read: "), "{why}");
    }

    #[test]
    fn a_pointer_of_git_lfs_is_not_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let oid = "oid sha256:4d7a2146\nsize 12345\n";
        let version = "version https://git-lfs.github.com/spec/v1\n";
        for (text, is_read) in [
            (format!("{version}{oid}"), false),
            (format!("{version}ext-0-foo sha256:ab\n{oid}"), false),
            (format!("{version}is the first line of a pointer\n"), true),
            (format!("a\n{version}{oid}"), true),
        ] {
            fs::write(folder.path().join("a"), &text).unwrap();
            let resolved = resolve_inside(folder.path(), &folder.path().join("a")).unwrap();
            let read = read(folder.path(), &resolved, 999);
            assert_eq!(read.is_ok(), is_read, "{text}");
            assert!(read.err().is_none_or(|why| why.contains("git lfs pull")));
        }
    }

    #[test]
    fn a_link_that_takes_the_place_of_a_resolved_path_is_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("a"), "secret").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let sub = folder.path().join("sub");
        fs::create_dir(&sub).unwrap();
        fs::write(sub.join("a"), "12345").unwrap();
        let resolved = resolve_inside(root, &sub.join("a")).unwrap();
        assert_eq!(read(root, &resolved, 5).unwrap(), b"12345");
        assert!(read(root, &resolved, 4).unwrap_err().contains("max_message"));
        fs::rename(&sub, root.join("aside")).unwrap();
        symlink(outside.path(), &sub).unwrap();
        assert!(read(root, &resolved, 9).is_err(), "a folder");
        fs::remove_file(&sub).unwrap();
        fs::create_dir(&sub).unwrap();
        symlink(outside.path().join("a"), sub.join("a")).unwrap();
        assert!(read(root, &resolved, 9).is_err(), "the file");
        fs::remove_file(sub.join("a")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            sub.join("a"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!(read(root, &resolved, 9).unwrap_err(), "not a file", "a pipe without a writer");
        assert!(read(root, Path::new("/etc/hostname"), 999).is_err());
    }

    #[test]
    fn a_path_that_leads_out_of_the_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        symlink("/etc/hostname", folder.path().join("out")).unwrap();
        assert!(resolve_inside(folder.path(), &folder.path().join("a")).is_ok());
        fs::write(folder.path().join(".env"), "").unwrap();
        symlink(".env", folder.path().join("env")).unwrap();
        let hidden = resolve_inside(folder.path(), &folder.path().join("env")).unwrap_err();
        assert!(hidden.contains("dot-file"), "{hidden}");
        let out = resolve_inside(folder.path(), &folder.path().join("out")).unwrap_err();
        assert!(out.contains("leads out"), "{out}");
    }
}
