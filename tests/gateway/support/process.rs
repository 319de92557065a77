//! A gateway as a process of its own: what only the real binary can show.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::{Client, PATIENCE, eventually};

pub const BINARY: &str = env!("CARGO_BIN_EXE_promptgate");

/// `telemetry.log` for tests whose calls would write much: warnings, and the address of the admin
/// side.
pub const LOG_WARNINGS: &str = "warn,promptgate::app=info";

pub struct Process {
    pub child: Child,
    pub addr: SocketAddr,
    /// The lines of its standard output.
    pub lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Serves the `gateway.toml` in this folder on a free port, without an admin side.
    pub async fn serve(folder: &Path) -> Self {
        Self::serve_with(folder, Stdio::null()).await
    }

    /// The same, with a destination for its log.
    pub async fn serve_with(folder: &Path, stderr: Stdio) -> Self {
        Self::start(folder, stderr, &[]).await
    }

    /// The same, with these environment variables.
    pub async fn serve_env(folder: &Path, variables: &[(&str, &str)]) -> Self {
        Self::start(folder, Stdio::null(), variables).await
    }

    /// The same, with an admin side on a free port and a client of it; returns once it is ready.
    ///
    /// The address is read from the log, so `telemetry.log` must let [`LOG_WARNINGS`] pass.
    pub async fn serve_admin(folder: &Path, variables: &[(&str, &str)]) -> (Self, Client) {
        Self::serve_build(BINARY, folder, variables).await
    }

    /// The same, of another build of the gateway.
    pub async fn serve_build(
        binary: &str,
        folder: &Path,
        variables: &[(&str, &str)],
    ) -> (Self, Client) {
        let log = tempfile::NamedTempFile::new().unwrap();
        let variables = [&[("PROMPTGATE__ADMIN__LISTEN", "127.0.0.1:0")], variables].concat();
        let stderr = log.reopen().unwrap().into();
        let process = Self::start_build(binary, folder, stderr, &variables).await;
        let text = || std::fs::read_to_string(log.path()).unwrap();
        let text = eventually(async || text(), |text| admin_addr(text).is_some()).await;
        let admin = Client::new(admin_addr(&text).expect("it was accepted"));
        let ready = async || admin.send("GET", "/readyz", &[], b"").await.status;
        eventually(ready, |status| *status == 200).await;
        (process, admin)
    }

    async fn start(folder: &Path, stderr: Stdio, variables: &[(&str, &str)]) -> Self {
        Self::start_build(BINARY, folder, stderr, variables).await
    }

    /// Both sides listen on free ports, so that tests run beside each other and beside a gateway.
    async fn start_build(
        binary: &str,
        folder: &Path,
        stderr: Stdio,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut child = Command::new(binary)
            .current_dir(folder)
            .env("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:0")
            .env("PROMPTGATE__SERVER__LIMITS__PRE_DRAIN", "0s")
            .env("PROMPTGATE__ADMIN__LISTEN", "")
            .env("XDG_RUNTIME_DIR", folder)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = timeout(PATIENCE, lines.next_line()).await.expect("it starts").unwrap();
        let first = first.expect("it says where it listens");
        assert!(first.starts_with("promptgate "), "{first}");
        let at = first.split("://").nth(1).and_then(|url| url.split('/').next()).unwrap();
        let addr = at.parse().unwrap();
        Self { child, addr, lines }
    }

    pub fn client(&self) -> Client {
        Client::new(self.addr)
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Ends it as a crash would.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Ends it as an operator would.
    #[cfg(unix)]
    pub async fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let ended = timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert!(ended.success(), "{ended}");
    }

    /// Sends a signal. After `STOP` the process does nothing more: its threads stop one after
    /// another, and on a busy machine some answer meanwhile.
    #[cfg(unix)]
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.unwrap(), signal).unwrap();
        while cfg!(target_os = "linux")
            && signal == rustix::process::Signal::STOP
            && !self.has_stopped()
        {
            std::thread::yield_now();
        }
    }

    /// Whether all threads of the process are stopped (proc(5)).
    #[cfg(unix)]
    fn has_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        threads.filter_map(Result::ok).all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('T')
        })
    }
}

/// The address of the admin side in a log of JSON lines.
fn admin_addr(log: &str) -> Option<SocketAddr> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut addresses = lines.filter_map(|line| line["addr"].as_str()?.parse().ok());
    addresses.next()
}

/// Runs a command of the binary in this folder.
pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

/// A command of the binary in this folder, which finds the gateways that run there.
pub fn command(folder: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(BINARY);
    command.args(arguments).current_dir(folder).env("XDG_RUNTIME_DIR", folder);
    command
}

/// A copy of the binary in this folder, for a user who may not enter the folder of the build, such
/// as one below `/root`.
///
/// `cp` writes it: a file that this process writes is open in the children that other tests start
/// meanwhile, and cannot be executed until they have closed it.
#[cfg(unix)]
pub fn copy_of_binary(folder: &Path) -> std::path::PathBuf {
    let copy = folder.join("promptgate");
    let status = std::process::Command::new("cp").arg(BINARY).arg(&copy).status().unwrap();
    assert!(status.success(), "{status}");
    copy
}
