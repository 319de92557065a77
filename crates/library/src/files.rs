//! The files of a library. Symbolic links are followed as far as their targets, fully resolved,
//! stay inside the library's folder: the files of a Kubernetes ConfigMap or Secret are such links.

use std::collections::HashSet;
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
    /// Files whose names have almost the ending of prompts.
    pub ignored: Vec<PromptFile>,
}

/// A file by its path in the library, and by its resolved path, from which it is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PromptFile {
    pub path: PathBuf,
    pub resolved: PathBuf,
}

impl PromptFiles {
    /// Finds every `.md` file; entries whose names begin with a dot are skipped. A file or folder
    /// that several links lead to is found once.
    pub(super) fn find(folder: &Path) -> io::Result<Self> {
        let root = disk::canonicalize(folder)?;
        let seen = HashSet::from([root.clone()]);
        let mut walk = Walk { root, seen, files: PromptFiles::default() };
        walk.read(folder, 0)?;
        Ok(walk.files)
    }
}

/// Whether a name has another usual ending of Markdown, or `.md` with capitals.
fn is_nearly_markdown(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    !name.ends_with(".md") && matches!(ending.as_deref(), Some("md" | "markdown"))
}

/// A walk through the folders of a library.
struct Walk {
    /// The library's folder without links.
    root: PathBuf,
    /// Resolved paths of the files and folders so far.
    seen: HashSet<PathBuf>,
    files: PromptFiles,
}

impl Walk {
    fn read(&mut self, folder: &Path, depth: usize) -> io::Result<()> {
        let mut names = disk::read_dir(folder)?;
        names.sort();
        for name in names {
            let path = folder.join(&name);
            let name = name.to_string_lossy();
            if name.starts_with('.') {
                continue;
            }
            let resolved = match resolve(&self.root, &path) {
                Ok(resolved) => resolved,
                Err(reason) => {
                    // Other files may be removed during the walk, and are of no interest.
                    let is_link = disk::symlink_metadata(&path)
                        .is_ok_and(|entry| entry.kind == FileKind::Link);
                    if is_link && (name.ends_with(".md") || disk::is_folder(&path)) {
                        self.files.refused.push(format!("{}: {reason}", path.display()));
                    }
                    continue;
                }
            };
            let kind = match disk::metadata(&resolved) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                kind => kind?,
            };
            if kind.is_folder() && depth < MAX_DEPTH {
                if self.seen.insert(resolved) {
                    self.read(&path, depth + 1)?;
                }
            } else if kind.is_file() && name.ends_with(".md") && self.seen.insert(resolved.clone())
            {
                self.files.prompts.push(PromptFile { path, resolved });
            } else if kind.is_file() && is_nearly_markdown(&name) {
                self.files.ignored.push(PromptFile { path, resolved });
            }
        }
        Ok(())
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
    Ok(bytes)
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
        let PromptFiles { prompts, refused, ignored } = PromptFiles::find(root).unwrap();
        let names = |files: Vec<PromptFile>| {
            let names = files.iter().map(|file| file.path.strip_prefix(root).unwrap());
            let names = names.map(|name| name.to_str().unwrap());
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(names(prompts), ["a.md", "sub/b.md"]);
        assert_eq!(names(ignored), ["D.MD", "c.markdown"]);
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
