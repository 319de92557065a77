//! The last change of a library file, from the history of git.
//!
//! Authors control the content of a library, and a repository's configuration may name programs. So
//! git does not search for a repository, runs only commands that read objects, and reads neither
//! the index nor a file of the work tree.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use crate::git::SET;
use crate::git::listing::{TreeFile, contents, is_object};
use crate::git::program::{GitCall, GitError};
use base::platform::disk::{self, File};
use base::platform::{blocking, platform};
use domain::approval::is_same_name;

/// The last commit that changed a file, or the files of a folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileChange {
    pub author: String,
    pub email: String,
    /// The abbreviated id of the commit.
    pub commit: String,
}

/// A file or a folder, and the repository with its history.
#[derive(Clone)]
struct Tracked {
    /// The folder with the entry `.git`.
    top: PathBuf,
    /// The file or the folder, below `top`.
    path: PathBuf,
}

/// Time for one call of git.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The limit of an output, in bytes: the files of a skill may be as large.
const MAX_OUTPUT: usize = 64 << 20;

/// Options of all calls. The commands run no program of the repository's configuration; these
/// options protect against a git that does. A file name is not a pattern.
const OPTIONS: &str = "--no-pager --literal-pathspecs -c safe.bareRepository=explicit \
                       -c core.attributesFile=/dev/null -c core.fsmonitor=false \
                       -c core.hooksPath=/dev/null -c log.showSignature=false";

impl FileChange {
    /// Returns the last commit that changed a file or a folder of a library. `None` without a
    /// repository, without a commit of the file, or if the file has changed since.
    ///
    /// # Errors
    /// The reason why the commit is unknown, and the remedy.
    pub async fn last(file: PathBuf, library: PathBuf) -> Result<Option<Self>, String> {
        let found = blocking(move || Tracked::find(&file, &library)).await;
        let Some(tracked) = found.map_err(|error| error.to_string())?? else { return Ok(None) };
        tracked.last_change().await.map_err(|why| {
            let top = tracked.top.display();
            format!(
                "git cannot tell who has changed its file last ({why}); see that `git log` works \
                 in {top}, then approve it again"
            )
        })
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim_end().split('\0').map(str::to_owned);
        let author = parts.next()?;
        let email = parts.next()?;
        let commit = parts.next()?;
        (!commit.is_empty()).then_some(Self { author, email, commit })
    }

    /// Whether a person with this name is the author: by the author's name, email address, or the
    /// part of it before `@`, without regard to case.
    pub fn is_by(&self, person: &str) -> bool {
        let user = self.email.split('@').next().unwrap_or_default();
        let mut names = [self.author.as_str(), &self.email, user].into_iter();
        !person.trim().is_empty() && names.any(|name| is_same_name(name, person))
    }
}

impl Tracked {
    /// Finds the repository of a library: in its folder, or else in the nearest folder above.
    fn find(file: &Path, library: &Path) -> Result<Option<Self>, String> {
        let (Ok(file), Ok(library)) = (disk::canonicalize(file), disk::canonicalize(library))
        else {
            return Ok(None);
        };
        let is_top = |folder: &&Path| disk::symlink_metadata(&folder.join(".git")).is_ok();
        let mut below = file
            .ancestors()
            .take_while(|folder| folder.starts_with(&library) && **folder != *library);
        if let Some(inner) = below.find(is_top) {
            return Err(format!(
                "{} is a repository inside the library, whose history proves no author: make it a \
                 library of its own, or remove its `.git`",
                inner.display()
            ));
        }
        let Some(top) = library.ancestors().find(is_top) else { return Ok(None) };
        let path = file.strip_prefix(top).ok();
        Ok(path.map(|path| Self { top: top.to_owned(), path: path.to_owned() }))
    }

    /// Returns the last change; see [`FileChange::last`].
    async fn last_change(&self) -> Result<Option<FileChange>, String> {
        let format = "--format=%an%x00%ae%x00%h%x00%H";
        let log =
            ["rev-list", "-1", "--no-commit-header", "--encoding=UTF-8", format, "HEAD", "--"];
        let found = match self.git(&log, Some(&self.path), String::new()).await {
            // The repository has no commit yet.
            Err(GitError::Failed(why)) if why.contains("bad revision 'HEAD'") => return Ok(None),
            found => found.map_err(|error| error.to_string())?,
        };
        let found = String::from_utf8_lossy(&found).into_owned();
        let commit = found.trim_end().rsplit('\0').next().filter(|commit| is_object(commit));
        let (Some(change), Some(commit)) = (FileChange::parse(&found), commit) else {
            return Ok(None);
        };
        Ok(self.is_as_in(commit).await?.then_some(change))
    }

    /// Whether the files on the disk equal the files of a commit, apart from line ends, which git
    /// may convert to the system's form.
    async fn is_as_in(&self, commit: &str) -> Result<bool, String> {
        let listing = ["ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--"];
        let listed = self.git(&listing, Some(&self.path), String::new()).await;
        let listed = String::from_utf8(listed.map_err(|error| error.to_string())?);
        let listed = listed.map_err(|_| "the name of a file is not UTF-8".to_owned())?;
        let files: Vec<_> = listed.split_terminator('\0').filter_map(blob).collect();
        let ids = files.iter().map(|file| format!("{}\n", file.object)).collect();
        let output = self.git(&["cat-file", "--batch"], None, ids).await;
        let output = output.map_err(|error| error.to_string())?;
        let top = self.top.clone();
        let comparing = move || {
            let contents = contents(&output, &files).ok_or("git lacks a file of the commit")?;
            for (TreeFile { path, .. }, content) in files.iter().zip(contents) {
                let shown = path.display();
                if is_on_disk(&top, path, content).map_err(|error| format!("{shown}: {error}"))? {
                    continue;
                }
                let mut folders = path.ancestors().skip(1).map(|folder| top.join(folder));
                let is_there = |file: &Path| disk::symlink_metadata(file).is_ok();
                if folders.any(|folder| is_there(&folder.join(".gitattributes"))) {
                    return Err(format!("{shown} differs from its commit: commit it"));
                }
                return Ok(false);
            }
            Ok(!files.is_empty())
        };
        blocking(comparing).await.map_err(|error| error.to_string())?
    }

    /// Runs a command that reads objects, for `path` if it has one.
    async fn git(
        &self,
        command: &[&str],
        path: Option<&Path>,
        input: String,
    ) -> Result<Vec<u8>, GitError> {
        // The top folder has no path.
        let path = path.filter(|path| !path.as_os_str().is_empty());
        let named = |option: &str, path: &Path| {
            let mut named = OsString::from(option);
            named.push(path);
            named
        };
        let places =
            [named("--git-dir=", &self.top.join(".git")), named("--work-tree=", &self.top)];
        let arguments = places
            .into_iter()
            .chain(OPTIONS.split(' ').chain(command.iter().copied()).map(OsString::from));
        let call = GitCall {
            // A relative folder in PATH must not resolve to a folder of the library.
            folder: self.top.ancestors().last().unwrap_or(&self.top),
            script: None,
            arguments: arguments.chain(path.map(OsString::from)).collect(),
            // A lazy download may run a program for its protocol.
            environment: SET
                .into_iter()
                .chain([("GIT_ALLOW_PROTOCOL", "none")])
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
            input: input.into_bytes(),
            max_output: MAX_OUTPUT,
        };
        let late = |_| Err(GitError::Failed(format!("no answer within {CALL_TIMEOUT:?}")));
        timeout(CALL_TIMEOUT, call.run()).await.unwrap_or_else(late)
    }
}

/// Reads one entry of `git ls-tree -l`; `None` for a submodule.
fn blob(entry: &str) -> Option<TreeFile> {
    let (head, path) = entry.split_once('\t')?;
    let mut words = head.split_whitespace().skip(1);
    let is_blob = words.next()? == "blob";
    let object = words.next()?.to_owned();
    // A missing object has no size, and counts as not found.
    let size = words.next()?.parse().unwrap_or_default();
    is_blob.then(|| TreeFile { object, size, path: path.into() })
}

/// Whether a file has this content on the disk; the content of a link is its target.
fn is_on_disk(top: &Path, path: &Path, content: &[u8]) -> io::Result<bool> {
    if let Ok(target) = platform().disk.read_link(&top.join(path)) {
        return Ok(target.into_os_string().into_encoded_bytes() == content);
    }
    // The file is at most twice as long: each line end may take one more byte.
    let most = u64::try_from(content.len()).unwrap_or(u64::MAX).saturating_mul(2);
    let mut found = Vec::new();
    File::open_below(top, path)?.take(most.saturating_add(1)).read_to_end(&mut found)?;
    Ok(found == content || lines(&found).eq(lines(content)))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|byte| *byte == b'\n');
    lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    fn run(folder: &Path, arguments: &[&str]) {
        let mut git = Command::new("git");
        let git = git.current_dir(folder).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
        let done = git.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }

    fn commit(folder: &Path, name: &str, email: &str) {
        let name = format!("user.name={name}");
        let email = format!("user.email={email}");
        run(folder, &["add", "."]);
        run(folder, &["-c", &name, "-c", &email, "commit", "-q", "-m", "change"]);
    }

    #[tokio::test]
    async fn the_author_is_that_of_the_last_commit_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let last = async |name: &str| {
            FileChange::last(file(name), folder.path().to_owned()).await.unwrap()
        };
        let author = async |name: &str| last(name).await.map(|change| change.author);
        fs::create_dir(file("below")).unwrap();
        fs::write(file("below/a.md"), "one").unwrap();
        assert_eq!(author("below/a.md").await, None, "no repository");
        run(folder.path(), &["init", "-q"]);
        assert_eq!(author("below/a.md").await, None, "no commit");
        commit(folder.path(), "Ada Lovelace", "ada@example.com");
        fs::write(file("*.md"), "one").unwrap();
        assert_eq!(author("*.md").await, None, "a name is no pattern, and it is not committed");
        commit(folder.path(), "Bob", "bob@example.com");
        assert_eq!(author("*.md").await.as_deref(), Some("Bob"));
        let change = last("below/a.md").await.unwrap();
        assert_eq!((&*change.author, &*change.email), ("Ada Lovelace", "ada@example.com"));
        assert!(change.commit.len() >= 7, "{change:?}");
        fs::write(file("*.md"), "one\r\n").unwrap();
        commit(folder.path(), "Bob", "bob@example.com");
        fs::write(file("*.md"), "one\n").unwrap();
        assert_eq!(author("*.md").await.as_deref(), Some("Bob"), "ends of lines are git's");
        fs::write(file(".gitattributes"), "*.md ident\n").unwrap();
        fs::write(file("*.md"), "$Id: x$").unwrap();
        let why = FileChange::last(file("*.md"), folder.path().to_owned()).await.unwrap_err();
        assert!(why.contains("*.md differs from its commit: commit it"), "{why}");
        fs::remove_file(file(".gitattributes")).unwrap();
        fs::write(file("*.md"), "one\r\n").unwrap();
        fs::write(file("below/a.md"), "two").unwrap();
        assert_eq!(author("below/a.md").await, None, "it has changed since");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(file("*.md"), file("link.md")).unwrap();
            commit(folder.path(), "Carol", "carol@example.com");
            assert_eq!(author("link.md").await.as_deref(), Some("Bob"), "the content counts");
        }
        assert_eq!(author("gone.md").await, None);
    }

    /// A program that leaves a mark, and writes as gpg does for a signature.
    #[cfg(unix)]
    fn trap(folder: &Path) -> (String, PathBuf) {
        use std::os::unix::fs::PermissionsExt as _;
        let program = folder.join("trap");
        let mark = folder.join("mark");
        let text = format!(
            "#!/bin/sh\ntouch {}\nprintf '\\n[GNUPG:] SIG_CREATED \\n' >&2\necho signed\n",
            mark.display()
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        (program.display().to_string(), mark)
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_repository_that_authors_write_runs_no_program_and_names_no_author() {
        let outside = tempfile::tempdir().unwrap();
        let (program, mark) = trap(outside.path());
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("prompts");
        let evil = library.join("evil");
        fs::create_dir_all(&evil).unwrap();
        fs::write(evil.join("p.md"), "one").unwrap();
        // A repository without `.git`: each of its names can be in a commit.
        run(&evil, &["init", "-q"]);
        commit(&evil, "Mallory", "mallory@example.com");
        for name in fs::read_dir(evil.join(".git")).unwrap().map(|entry| entry.unwrap().file_name())
        {
            fs::rename(evil.join(".git").join(&name), evil.join(name)).unwrap();
        }
        fs::remove_dir(evil.join(".git")).unwrap();
        let config = format!(
            "[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\n\
             fsmonitor = {program}\n[filter \"x\"]\nclean = {program}\n"
        );
        fs::write(evil.join("config"), config).unwrap();
        fs::create_dir_all(evil.join("info")).unwrap();
        fs::write(evil.join("info/attributes"), "* filter=x\n").unwrap();
        // Another time than in the index, so that git would look at the content.
        fs::write(evil.join("p.md"), "one").unwrap();
        let last = async || FileChange::last(evil.join("p.md"), library.clone()).await;
        assert_eq!(last().await, Ok(None), "no repository of the library");
        run(folder.path(), &["init", "-q"]);
        commit(folder.path(), "Ada", "ada@example.com");
        assert_eq!(last().await.unwrap().unwrap().author, "Ada");
        // One with `.git`, that was not made by git.
        fs::create_dir(evil.join(".git")).unwrap();
        assert!(last().await.unwrap_err().contains("evil is a repository inside the library"));
        assert!(!mark.exists(), "a program of the folder has run");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn the_configuration_of_a_clone_runs_no_program() {
        let outside = tempfile::tempdir().unwrap();
        let (program, mark) = trap(outside.path());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let last = async || FileChange::last(path.join("p.md"), path.to_owned()).await;
        run(path, &["init", "-q"]);
        for (key, value) in [
            ("filter.x.clean", &*program),
            ("diff.x.textconv", &program),
            ("diff.external", &program),
            ("core.fsmonitor", &program),
            ("core.pager", &program),
            ("core.alternateRefsCommand", &program),
            ("alias.rev-list", &format!("!{program}")),
            ("log.showSignature", "true"),
            ("gpg.program", &program),
            ("core.repositoryFormatVersion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.promisor", "true"),
            ("remote.origin.url", &format!("ext::{program}")),
            ("protocol.ext.allow", "always"),
        ] {
            run(path, &["config", key, value]);
        }
        fs::write(path.join(".git/info/attributes"), "* filter=x diff=x\n").unwrap();
        fs::write(path.join("p.md"), "one").unwrap();
        let plain = ["-c", "core.fsmonitor=false", "-c", "filter.x.clean=cat"];
        run(path, &[&plain[..], &["add", "."]].concat());
        let ada = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        run(path, &[&plain[..], &ada, &["commit", "-q", "-S", "-m", "signed"]].concat());
        fs::remove_file(&mark).expect("the trap works");
        // Another time than in the index, so that the content counts.
        fs::write(path.join("p.md"), "one").unwrap();
        assert_eq!(last().await.unwrap().unwrap().author, "Ada");
        // The object of "one", which a partial clone would fetch now.
        let blob = ".git/objects/43/dd47ea691c90a5fa7827892c70241913351963";
        fs::remove_file(path.join(blob)).unwrap();
        assert!(last().await.unwrap_err().contains("see that `git log` works"), "it is missing");
        assert!(!mark.exists(), "a program of the configuration has run");
    }

    #[test]
    fn a_person_is_known_by_name_address_or_user_name() {
        let change = FileChange::parse("Ada Lovelace\0Ada@example.com\0abc1234\n").unwrap();
        for (person, is_author) in [
            ("ada lovelace", true),
            ("ada@EXAMPLE.com", true),
            ("ada", true),
            ("Ada L", false),
            ("example.com", false),
            ("", false),
        ] {
            assert_eq!(change.is_by(person), is_author, "{person}");
        }
        let bare = FileChange::parse("\0\0abc1234\n").unwrap();
        assert!(!bare.is_by("") && !bare.is_by(" "));
        assert_eq!(FileChange::parse(""), None);
        assert_eq!(FileChange::parse("Ada\0\0"), None);
    }
}
