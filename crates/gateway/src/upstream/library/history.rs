//! The last change of a library file, where git tells.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use crate::upstream::git::program::GitCall;
use base::platform::{blocking, platform};

/// The last commit that changed a file, or the files of a folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileChange {
    pub author: String,
    pub email: String,
    /// The abbreviated id of the commit.
    pub commit: String,
}

/// git does not answer in time, so it is not worth asking again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Hangs;

/// Time for one call of git.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of an output that are read: an answer is one line.
const MAX_OUTPUT: usize = 64 << 10;

/// Variables that git inherits, to know the repositories that its user trusts (`safe.directory`).
const INHERITED: [&str; 2] = ["HOME", "XDG_CONFIG_HOME"];

/// The others: no configuration of the system, no question, no lock and no download.
const SET: [(&str, &str); 5] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("LC_ALL", "C"),
];

/// Options of all calls. A repository may name programs that git runs for its work tree and for
/// signatures, and a name of a file is no pattern.
const OPTIONS: [&str; 6] = [
    "--no-pager",
    "--literal-pathspecs",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "log.showSignature=false",
];

impl FileChange {
    /// Returns the last commit that changed a file or a folder. `None` where git does not tell:
    /// there is no git, no repository that it trusts, no commit of the file, or the file has
    /// changed since.
    ///
    /// # Errors
    /// [`Hangs`] when git takes too long.
    pub(crate) async fn last(file: PathBuf) -> Result<Option<Self>, Hangs> {
        let found = blocking(move || platform().disk.canonicalize(&file)).await;
        let Ok(Ok(file)) = found else { return Ok(None) };
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
            return Ok(None);
        };
        let log = ["log", "-1", "--format=%an%x00%ae%x00%h", "--"];
        let Some(change) = git(folder, &log, name).await?.as_deref().and_then(Self::parse) else {
            return Ok(None);
        };
        let uncommitted = git(folder, &["status", "--porcelain", "--"], name).await?;
        Ok(uncommitted.is_some_and(|changes| changes.is_empty()).then_some(change))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim_end().split('\0').map(str::to_owned);
        let (author, email, commit) = (parts.next()?, parts.next()?, parts.next()?);
        (!commit.is_empty()).then_some(Self { author, email, commit })
    }

    /// Whether a person with this name is the author: by the author's name, email address, or the
    /// part of it before `@`, without regard to case.
    pub(crate) fn is_by(&self, person: &str) -> bool {
        let person = person.trim().to_lowercase();
        let (name, email) = (self.author.trim().to_lowercase(), self.email.to_lowercase());
        let user = email.split('@').next().unwrap_or_default();
        !person.is_empty() && [name.as_str(), email.as_str(), user].contains(&person.as_str())
    }
}

/// Runs git in a folder, for one file in it, and returns its output; `None` if it fails.
async fn git(folder: &Path, command: &[&str], name: &OsStr) -> Result<Option<String>, Hangs> {
    let arguments = OPTIONS.iter().chain(command).map(OsString::from);
    let inherited =
        INHERITED.into_iter().filter_map(|key| Some((key.into(), std::env::var_os(key)?)));
    let set = SET.into_iter().map(|(key, value)| (key.into(), value.into()));
    let call = GitCall {
        folder,
        arguments: arguments.chain([name.to_owned()]).collect(),
        environment: inherited.chain(set).collect(),
        input: Vec::new(),
        max_output: MAX_OUTPUT,
    };
    let output = timeout(CALL_TIMEOUT, call.run()).await.map_err(|_| Hangs)?;
    Ok(output.ok().and_then(|output| String::from_utf8(output).ok()))
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
        let (name, email) = (format!("user.name={name}"), format!("user.email={email}"));
        run(folder, &["add", "."]);
        run(folder, &["-c", &name, "-c", &email, "commit", "-q", "-m", "change"]);
    }

    #[tokio::test]
    async fn the_author_is_that_of_the_last_commit_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let author = async |name: &str| {
            FileChange::last(file(name)).await.unwrap().map(|change| change.author)
        };
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
        let change = FileChange::last(file("below/a.md")).await.unwrap().unwrap();
        assert_eq!((&*change.author, &*change.email), ("Ada Lovelace", "ada@example.com"));
        assert!(change.commit.len() >= 7, "{change:?}");
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
