//! Runs the `git` program, and ends it with all its child processes once the call is dropped.

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
    /// The shell script that runs git, whose command line is `"$@"`; `None`: no shell.
    pub script: Option<String>,
    pub arguments: Vec<OsString>,
    /// All environment variables in addition to `PATH`.
    pub environment: Vec<(OsString, OsString)>,
    pub input: Vec<u8>,
    /// Longest output, in bytes.
    pub max_output: usize,
}

/// The reason why a call of git has no output.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GitError {
    #[error("the program `git` is not installed, or not on PATH: install git 2.34 or later")]
    Missing,
    #[error("git cannot be started: {0}")]
    NotStarted(String),
    /// git has failed; the text is its error message.
    #[error("git: {0}")]
    Failed(String),
    #[error("git has put out more than {0} bytes")]
    TooMuch(usize),
}

/// Seconds of processor time of each process of git: to unpack and check 256 MiB takes a third.
const PROCESSOR: u32 = 60;

/// KiB of address space of each process of git: a pack of 256 MiB needs two thirds, and the
/// smallest container of the gateway has 1 GiB.
const ADDRESS_SPACE: u32 = 512 << 10;

/// Bytes of standard error that are kept.
const MAX_ERRORS: usize = 16 << 10;

/// Characters of an error text of git that are shown.
const MAX_SHOWN: usize = 300;

impl GitCall<'_> {
    /// Runs git and returns its output. Dropping the future before its end kills the process group.
    pub(crate) async fn run(self) -> Result<Vec<u8>, GitError> {
        let git = find(self.folder)?;
        let (program, arguments) = match self.script {
            None => (git.into(), self.arguments),
            Some(script) => {
                let shell = ["-c".into(), script.into(), "sh".into(), git.into()];
                ("/bin/sh".into(), shell.into_iter().chain(self.arguments).collect())
            }
        };
        let path = std::env::var_os("PATH").map(|path| ("PATH".into(), path));
        let started = platform().processes.spawn(&ProgramCommand {
            program,
            arguments,
            folder: self.folder.to_owned(),
            environment: path.into_iter().chain(self.environment).collect(),
        });
        let started = started.map_err(|error| GitError::NotStarted(error.to_string()))?;
        let Child { process, mut stdin, stdout, stderr } = started;
        let mut group = Group(process);
        let writing = async move {
            // A program that does not read its input states the reason on standard error.
            let _ = stdin.write_all(&self.input).await;
            let _ = stdin.shutdown().await;
            Ok(())
        };
        let errors = async { Ok(read_end(stderr).await) };
        let (output, errors, ()) =
            tokio::try_join!(read(stdout, self.max_output), errors, writing)?;
        group.0.exited().await;
        match group.0.exit() {
            Some(Exit::Code(0)) => Ok(output),
            // The exit codes of a signal, as the shell reports them.
            Some(Exit::Signal(_) | Exit::Code(129..=159)) if errors.is_empty() => {
                Err(GitError::Failed(format!("it was ended, as after {PROCESSOR} s of processor")))
            }
            _ => Err(GitError::Failed(cause(&String::from_utf8_lossy(&errors)))),
        }
    }
}

/// Returns the script with bounds for git, if the system knows them. A lower bound stays.
pub(super) fn bounded(script: &str) -> String {
    let bounds = if cfg!(target_os = "linux") {
        format!(
            "for bound in '-v {ADDRESS_SPACE}' '-t {PROCESSOR}'; do \
             (ulimit $bound) 2>/dev/null && ulimit $bound; done; "
        )
    } else {
        String::new()
    };
    bounds + script
}

/// Finds the program.
///
/// # Errors
/// [`GitError::Missing`].
pub fn find(folder: &Path) -> Result<PathBuf, GitError> {
    let path = std::env::var_os("PATH");
    let found = platform().processes.find(OsStr::new("git"), path.as_deref(), folder);
    found.map_err(|_| GitError::Missing)
}

/// The process group of a call, which ends when dropped: helpers of git may outlive git.
struct Group(Box<dyn Process>);

impl Drop for Group {
    fn drop(&mut self) {
        self.0.signal(Signal::Kill);
    }
}

/// Reads a stream.
async fn read(stream: impl AsyncRead + Unpin, limit: usize) -> Result<Vec<u8>, GitError> {
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let is_read = stream.take(most).read_to_end(&mut bytes).await.is_ok();
    if is_read && bytes.len() <= limit { Ok(bytes) } else { Err(GitError::TooMuch(limit)) }
}

/// Reads a stream to its end, and keeps the last [`MAX_ERRORS`] bytes: a program whose error stream
/// is not read may fail.
async fn read_end(mut stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut end = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        end.extend_from_slice(&chunk[..length]);
        end.drain(..end.len().saturating_sub(MAX_ERRORS));
    }
    end
}

/// Parts of the lines of git, of ssh and of servers that tell why git has failed, and the remedy
/// of each. The first that occurs counts: later lines are consequences.
const CAUSES: [(&str, &str); 11] = [
    ("HOST IDENTIFICATION HAS CHANGED", "if the server has a new key, renew it in known_hosts"),
    ("Host key verification failed", "add the server's key to known_hosts of the gateway's user"),
    ("Permission denied (", "give the server the public key of the gateway's user"),
    ("ssh: ", "correct `url`, or the network between here and the server"),
    ("kex_exchange_identification", "look into the log of the server: it has ended the connection"),
    ("cannot run ssh", "install OpenSSH"),
    ("not found", "correct `url`, or use a credential that may read the repository"),
    ("Authentication failed", "set `credential`, or renew it"),
    ("could not read Username", "set `credential`: the server wants one"),
    ("returned error: 403", "use a `credential` that may read the repository"),
    (
        "not valid: is this a git repository",
        "it answers with a page, perhaps to sign in: correct \
      `url`, or set `credential`",
    ),
];

/// Parts of lines that follow any failure and tell nothing.
const VAGUE: [&str; 5] = [
    "Could not read from remote repository",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
    "the remote end hung up unexpectedly",
    "early EOF",
];

/// Returns the line of an error output that tells most, with a remedy where there is one: a known
/// cause, the last `fatal:` that tells something, or else the first such line.
fn cause(errors: &str) -> String {
    let blank = [' ', '\t', '\r', '@'];
    let lines =
        || errors.lines().map(|line| line.trim_matches(blank)).filter(|line| !line.is_empty());
    let known = CAUSES.iter().find_map(|(part, remedy)| {
        let line = lines().find(|line| line.contains(part))?;
        Some((line, format!("; {remedy}")))
    });
    let telling = || lines().filter(|line| !VAGUE.iter().any(|vague| line.contains(vague)));
    let fatal = || telling().rfind(|line| line.starts_with("fatal:"));
    let (said, remedy) = known.unwrap_or_else(|| {
        let said = fatal().or_else(|| telling().next()).or_else(|| lines().next());
        (said.unwrap_or("it has failed without a word"), String::new())
    });
    // A remote server writes a part of the text.
    let said: String = said.chars().filter(|c| !c.is_control()).take(MAX_SHOWN).collect();
    said + &remedy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    async fn scripted(script: &str) -> Result<Vec<u8>, GitError> {
        let call = GitCall {
            folder: Path::new("/"),
            script: Some(script.to_owned()),
            arguments: Vec::new(),
            environment: Vec::new(),
            input: Vec::new(),
            max_output: 64,
        };
        call.run().await
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_script_has_bounds_of_memory_and_processor_or_lower_ones_that_were_there() {
        let bounds = scripted(&bounded("ulimit -v; ulimit -t")).await.unwrap();
        let bounds = String::from_utf8(bounds).unwrap();
        let bounds: Vec<u32> = bounds.lines().map(|bound| bound.parse().unwrap()).collect();
        assert!(bounds[0] <= ADDRESS_SPACE && bounds[1] <= PROCESSOR, "{bounds:?}");
        let lower = format!("ulimit -t 7; {}", bounded("ulimit -t"));
        assert_eq!(scripted(&lower).await.unwrap(), b"7\n");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn errors_beyond_their_bound_are_read_and_the_last_ones_are_kept() {
        let talk = "i=0; while [ $i -lt 3000 ]; do echo 'remote: hello, this is a remote' >&2; \
                    i=$((i+1)); done; ";
        assert_eq!(scripted(&format!("{talk} echo done")).await.unwrap(), b"done\n");
        let failed = scripted(&format!("{talk} echo 'fatal: no' >&2; exit 1")).await;
        assert_eq!(failed, Err(GitError::Failed("fatal: no".to_owned())));
        let endless = scripted("while :; do echo more; done; sleep 1000").await;
        assert_eq!(endless, Err(GitError::TooMuch(64)));
    }

    #[test]
    fn the_line_that_says_most_is_shown() {
        let errors = "remote: hello\nremote: x\u{1b}[31m\nfatal: first\nfatal: could not read\n";
        assert_eq!(cause(errors), "fatal: could not read");
        assert_eq!(cause("\n error: no \u{1b}signature\nmore\n"), "error: no signature");
        assert_eq!(cause(""), "it has failed without a word");
        let end = "fatal: Could not read from remote repository.\n\nPlease make sure you have the \
                   correct access rights\nand the repository exists.\n";
        for (line, remedy) in [
            (
                "No ED25519 host key is known for h.\r\nHost key verification failed.\r",
                "known_hosts",
            ),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                "renew",
            ),
            ("git@h: Permission denied (publickey).", "public key"),
            ("ssh: connect to host h port 22: Connection refused", "network"),
            ("ssh: Could not resolve hostname h: Name or service not known", "`url`"),
            ("ERROR: Repository not found.", "`url`"),
            ("kex_exchange_identification: Connection closed by remote host", "log of the server"),
            ("fatal: https://h/x/info/refs not valid: is this a git repository?", "page"),
            ("fatal: Authentication failed for 'https://h/x'", "`credential`"),
        ] {
            let told = cause(&format!("{line}\n{end}"));
            let said = line.lines().last().unwrap().trim_matches(['@', ' ', '\r']);
            let said = if remedy == "renew" { "WARNING: REMOTE HOST" } else { said };
            assert!(told.starts_with(said) && told.contains(remedy), "{told}");
        }
        assert_eq!(cause(&format!("remote: busy\n{end}")), "remote: busy");
        assert!(cause(end).contains("Could not read"), "nothing else is said");
        assert_eq!(cause(&"x".repeat(999)).len(), MAX_SHOWN);
    }
}
