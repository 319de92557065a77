//! A gateway as a process of its own: what only the real binary can show.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::{Client, PATIENCE, eventually};

pub const BINARY: &str = env!("CARGO_BIN_EXE_promptgate");

pub struct Process {
    pub child: Child,
    pub addr: SocketAddr,
    /// What it prints.
    pub lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Serves the `gateway.toml` in this folder on a free port.
    pub async fn serve(folder: &Path) -> Self {
        Self::serve_with(folder, Stdio::null()).await
    }

    /// The same, with somewhere for its log to go.
    pub async fn serve_with(folder: &Path, stderr: Stdio) -> Self {
        Self::start(folder, stderr, [("SERVER__LIMITS__PRE_DRAIN", "0s"), ("ADMIN__LISTEN", "")])
            .await
    }

    /// The same, with an admin side at this address that can be looked at while it drains.
    pub async fn serve_admin(folder: &Path, admin: &str) -> Self {
        let settings = [("SERVER__LIMITS__PRE_DRAIN", "5s"), ("ADMIN__LISTEN", admin)];
        Self::start(folder, Stdio::null(), settings).await
    }

    /// The same, and where it can be looked at; with these variables beside its own, once it is ready.
    pub async fn serve_watched(folder: &Path, variables: &[(&str, &str)]) -> (Self, Client) {
        // Free a moment ago: the binary is told it, since nobody prints it.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let listen = at.to_string();
        let variables = [&[("PROMPTGATE__ADMIN__LISTEN", listen.as_str())], variables].concat();
        let (process, admin) = (Self::serve_env(folder, &variables).await, Client::new(at));
        let ready = async || admin.send("GET", "/readyz", &[], b"").await.status == 200;
        eventually(async || ready().await, |seen| *seen).await;
        (process, admin)
    }

    /// The same, with these variables.
    pub async fn serve_env(folder: &Path, variables: &[(&str, &str)]) -> Self {
        let settings = [("SERVER__LIMITS__PRE_DRAIN", "0s"), ("ADMIN__LISTEN", "")];
        Self::start_env(folder, Stdio::null(), settings, variables).await
    }

    async fn start(folder: &Path, stderr: Stdio, settings: [(&str, &str); 2]) -> Self {
        Self::start_env(folder, stderr, settings, &[]).await
    }

    async fn start_env(
        folder: &Path,
        stderr: Stdio,
        settings: [(&str, &str); 2],
        variables: &[(&str, &str)],
    ) -> Self {
        let settings = settings.map(|(key, value)| (format!("PROMPTGATE__{key}"), value));
        let mut child = Command::new(BINARY)
            .current_dir(folder)
            .env("PROMPTGATE__SERVER__LISTEN", "127.0.0.1:0")
            .envs(settings)
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

    #[cfg(unix)]
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.unwrap(), signal).unwrap();
    }
}

/// Runs a command of the binary in this folder.
pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    std::process::Command::new(BINARY).args(arguments).current_dir(folder).output().unwrap()
}
