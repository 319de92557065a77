//! Runs the `git` program, and ends it with all that it has started when it is not waited for any
//! more.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use base::platform::platform;
use base::platform::processes::{Child, Exit, Process, ProgramCommand, Signal};

/// One call of git.
#[derive(Clone, Debug)]
pub(crate) struct GitCall<'a> {
    /// The working directory.
    pub folder: &'a Path,
    pub arguments: Vec<OsString>,
    /// All environment variables beside `PATH`.
    pub environment: Vec<(OsString, OsString)>,
    pub input: Vec<u8>,
    /// Longest output, in bytes.
    pub max_output: usize,
}

/// Why a call of git has no output.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum GitError {
    #[error("the program `git` is not installed, or not on PATH: install git 2.34 or later")]
    Missing,
    #[error("git cannot be started: {0}")]
    NotStarted(String),
    /// It has failed, and says why.
    #[error("git: {0}")]
    Failed(String),
    #[error("git has put out more than {0} bytes")]
    TooMuch(usize),
}

/// Bytes of standard error that are kept.
const MAX_ERRORS: usize = 16 << 10;

/// Characters of an error text of git that are shown.
const MAX_SHOWN: usize = 300;

impl GitCall<'_> {
    /// Runs git and returns its output. Dropped before the end, it kills the process group.
    ///
    /// # Errors
    /// git is missing, fails, or puts out more than `max_output`.
    pub(crate) async fn run(self) -> Result<Vec<u8>, GitError> {
        let program = find(self.folder)?;
        let path = std::env::var_os("PATH").map(|path| ("PATH".into(), path));
        let started = platform().processes.spawn(&ProgramCommand {
            program: program.into(),
            arguments: self.arguments,
            folder: self.folder.to_owned(),
            environment: path.into_iter().chain(self.environment).collect(),
        });
        let started = started.map_err(|error| GitError::NotStarted(error.to_string()))?;
        let Child { process, mut stdin, stdout, stderr } = started;
        let mut group = Group(process);
        let writing = async move {
            // A program that does not read its input says why on standard error.
            let _ = stdin.write_all(&self.input).await;
            let _ = stdin.shutdown().await;
        };
        let reading = read(stdout, self.max_output);
        let ((output, is_whole), (errors, _), ()) =
            tokio::join!(reading, read(stderr, MAX_ERRORS), writing);
        if !is_whole {
            return Err(GitError::TooMuch(self.max_output));
        }
        group.0.exited().await;
        match group.0.exit() {
            Some(Exit::Code(0)) => Ok(output),
            _ => Err(GitError::Failed(cause(&String::from_utf8_lossy(&errors)))),
        }
    }
}

/// Finds the program.
///
/// # Errors
/// [`GitError::Missing`].
pub(crate) fn find(folder: &Path) -> Result<PathBuf, GitError> {
    let path = std::env::var_os("PATH");
    let found = platform().processes.find(OsStr::new("git"), path.as_deref(), folder);
    found.map_err(|_| GitError::Missing)
}

/// The process group of a call, which ends with this: helpers of git may outlive it.
struct Group(Box<dyn Process>);

impl Drop for Group {
    fn drop(&mut self) {
        self.0.signal(Signal::Kill);
    }
}

/// Reads a stream up to a length, and says whether that was all of it. The stream is closed then:
/// a program that writes more ends.
async fn read(stream: impl AsyncRead + Unpin, limit: usize) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let is_read = stream.take(most).read_to_end(&mut bytes).await.is_ok();
    let is_whole = is_read && bytes.len() <= limit;
    bytes.truncate(limit);
    (bytes, is_whole)
}

/// Returns the line of an error output that says most: the last `fatal:`, or else the first line.
fn cause(errors: &str) -> String {
    let lines = || errors.lines().map(str::trim).filter(|line| !line.is_empty());
    let fatal = lines().rfind(|line| line.starts_with("fatal:"));
    let said = fatal.or_else(|| lines().next()).unwrap_or("it has failed without a word");
    // A remote server writes a part of it.
    said.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_says_most_is_shown() {
        let errors = "remote: hello\nremote: x\u{1b}[31m\nfatal: first\nfatal: could not read\n";
        assert_eq!(cause(errors), "fatal: could not read");
        assert_eq!(cause("\n error: no \u{1b}signature\nmore\n"), "error: no signature");
        assert_eq!(cause(""), "it has failed without a word");
        assert_eq!(cause(&"x".repeat(999)).len(), MAX_SHOWN);
    }
}
