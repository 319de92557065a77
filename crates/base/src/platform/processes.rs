//! Child processes, each in a separate process group.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process;

use super::System;

/// Environment variable of child processes: how many gateways have started one another before them.
pub const GATEWAY_DEPTH: &str = "PROMPTGATE_DEPTH";

/// Returns how many gateways have started one another before this process.
pub fn gateway_depth() -> u32 {
    std::env::var(GATEWAY_DEPTH).ok().and_then(|depth| depth.parse().ok()).unwrap_or_default()
}

/// The child processes of the machine.
pub trait Processes: Send + Sync {
    /// Starts a child process with pipes for its standard streams. It is killed when its
    /// [`Process`] is dropped.
    fn spawn(&self, command: &ProgramCommand) -> io::Result<Child>;

    /// Looks a program up: by its path from `folder` on, or by its name in the folders of `path`.
    fn find(&self, program: &OsStr, path: Option<&OsStr>, folder: &Path) -> io::Result<PathBuf>;
}

/// A program to start.
#[derive(Clone, Debug)]
pub struct ProgramCommand {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// The working directory.
    pub folder: PathBuf,
    /// All environment variables: the child inherits no variable.
    pub environment: Vec<(OsString, OsString)>,
}

/// A child process that was started.
pub struct Child {
    pub process: Box<dyn Process>,
    pub stdin: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    pub stdout: Box<dyn AsyncRead + Send + Sync + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Sync + Unpin>,
}

/// A child process, and those of its descendants that stay in its process group.
#[async_trait]
pub trait Process: Send + Sync {
    /// Returns the process id; `None` once the end of the process is known.
    fn id(&self) -> Option<u32>;

    /// Waits until the process itself has exited. Cancel safe.
    async fn exited(&mut self);

    /// Returns how the process has exited; `None` while it runs.
    fn exit(&mut self) -> Option<Exit>;

    /// Sends a signal to the whole group. Does nothing if the group is empty. It must not be called
    /// again after [`Signal::Kill`]: the system may have given the id to another process. Windows
    /// has no groups and no signals: [`Signal::Kill`] ends the process itself there.
    fn signal(&mut self, signal: Signal);
}

/// How a process has exited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Signal {
    Terminate,
    Kill,
}

/// A process of the operating system.
struct SystemProcess {
    leader: process::Child,
    /// The process group, which has the leader's id.
    #[cfg(unix)]
    group: Option<u32>,
}

impl Processes for System {
    fn spawn(&self, command: &ProgramCommand) -> io::Result<Child> {
        let mut spawning = process::Command::new(&command.program);
        spawning.args(&command.arguments).current_dir(&command.folder).env_clear();
        spawning.envs(command.environment.iter().map(|(name, value)| (name, value)));
        // A separate process group: a signal to it reaches descendants, and signals of a terminal
        // do not reach it.
        #[cfg(unix)]
        spawning.process_group(0);
        spawning.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut leader = spawning.kill_on_drop(true).spawn()?;
        let missing = || io::Error::other("the child process has no standard streams");
        let stdin = Box::new(leader.stdin.take().ok_or_else(missing)?);
        let stdout = Box::new(leader.stdout.take().ok_or_else(missing)?);
        let stderr = Box::new(leader.stderr.take().ok_or_else(missing)?);
        let process = Box::new(SystemProcess {
            // The id is unknown once the leader was reaped.
            #[cfg(unix)]
            group: leader.id(),
            leader,
        });
        Ok(Child { process, stdin, stdout, stderr })
    }

    fn find(&self, program: &OsStr, path: Option<&OsStr>, folder: &Path) -> io::Result<PathBuf> {
        which::which_in(program, path, folder).map_err(|error| io::Error::other(error.to_string()))
    }
}

#[async_trait]
impl Process for SystemProcess {
    fn id(&self) -> Option<u32> {
        self.leader.id()
    }

    async fn exited(&mut self) {
        let _ = self.leader.wait().await;
    }

    fn exit(&mut self) -> Option<Exit> {
        let status: ExitStatus = self.leader.try_wait().ok().flatten()?;
        #[cfg(unix)]
        if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
            return Some(Exit::Signal(signal));
        }
        status.code().map(Exit::Code)
    }

    #[cfg(unix)]
    fn signal(&mut self, signal: Signal) {
        let group = self.group.and_then(|id| i32::try_from(id).ok());
        let signal = match signal {
            Signal::Kill => rustix::process::Signal::KILL,
            Signal::Terminate => rustix::process::Signal::TERM,
        };
        if let Some(group) = group.and_then(rustix::process::Pid::from_raw) {
            // An error means that the group is empty.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    #[cfg(not(unix))]
    fn signal(&mut self, signal: Signal) {
        if signal == Signal::Kill {
            // An error means that the process has ended.
            let _ = self.leader.start_kill();
        }
    }
}
