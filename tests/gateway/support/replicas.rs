//! Several gateway processes, the Redis or Valkey server that they share, a balancer before them,
//! and proxies between them that can be cut.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::process::{BINARY, LOG_WARNINGS};
use super::{Client, Process, eventually};

/// A Redis or Valkey server in memory.
pub struct Store {
    child: Child,
    pub port: u16,
    folder: TempDir,
    arguments: Vec<String>,
}

/// The program, as distributions call it.
fn program() -> String {
    std::env::var("PROMPTGATE_TEST_STORE").unwrap_or_else(|_| "redis-server".to_owned())
}

impl Store {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same, with more arguments.
    pub async fn start_with(arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|text| (*text).to_owned()).collect();
        for _ in 0..5 {
            let folder = tempfile::tempdir().unwrap();
            let port = free_port().await;
            let child = spawn(folder.path(), port, &arguments);
            let mut store = Self { child, port, folder, arguments: arguments.clone() };
            // Somebody else may have taken the port.
            if store.answers().await {
                return store;
            }
        }
        panic!("{} ends at once with {arguments:?}", program());
    }

    /// Waits until it answers and has read its files; false if it has ended.
    async fn answers(&mut self) -> bool {
        let port = self.port;
        let child = &mut self.child;
        let look = async || match child.try_wait().unwrap() {
            Some(_) => Some(false),
            None => {
                let answer = ask(port, "PING").await;
                answer.is_some_and(|answer| !answer.starts_with("-LOADING")).then_some(true)
            }
        };
        eventually(look, Option::is_some).await.unwrap_or_default()
    }

    /// Starts a server that follows this one.
    pub async fn replica(&self) -> Self {
        let replica = Self::start().await;
        replica.command(&format!("REPLICAOF 127.0.0.1 {}", self.port)).await;
        let linked = async || replica.command("INFO replication").await;
        eventually(linked, |info| info.contains("master_link_status:up")).await;
        replica
    }

    pub fn url(&self) -> String {
        url(self.port)
    }

    /// Sends a command and returns what it answers.
    pub async fn command(&self, command: &str) -> String {
        // A Sentinel ends the connections to a server whose role it changes.
        let answer = eventually(async || ask(self.port, command).await, Option::is_some).await;
        answer.expect("it answers")
    }

    /// Where it keeps what it is told to keep.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        rustix::process::kill_process(pid.expect("it runs"), signal).unwrap();
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Starts it again, empty, on the same port.
    pub async fn restart(&mut self) {
        self.child = spawn(self.folder.path(), self.port, &self.arguments);
        assert!(self.answers().await, "it starts again");
    }
}

fn spawn(folder: &Path, port: u16, arguments: &[String]) -> Child {
    Command::new(program())
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(["--appendonly", "no", "--dir"])
        .arg(folder)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("redis-server is installed")
}

/// Sends an inline command to the server on this port.
pub async fn ask(port: u16, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).await.ok()?;
    // It closes as well, once it has answered. A Sentinel knows no QUIT.
    stream.shutdown().await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    (!answer.is_empty()).then_some(answer)
}

pub fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

pub async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// A balancer: each connection goes to the next of its targets. It can be cut.
pub struct Balancer {
    pub addr: SocketAddr,
    is_cut: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Balancer {
    pub async fn before(targets: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (is_cut, cut) = watch::channel(false);
        let next = Arc::new(AtomicUsize::new(0));
        let serving = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let target = targets[next.fetch_add(1, Ordering::Relaxed) % targets.len()];
                let mut cut = cut.clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.wait_for(|is_cut| *is_cut) => {}
                    }
                });
            }
        });
        Self { addr, is_cut, serving }
    }

    /// Ends all connections, and those that come, until it is mended.
    pub fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    pub fn mend(&self) {
        self.is_cut.send_replace(false);
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One gateway of several.
pub struct Replica {
    pub process: Process,
    pub admin: Client,
    pub folder: PathBuf,
}

/// Three gateways, which share a store, behind a balancer.
pub struct Replicas {
    pub replicas: Vec<Replica>,
    pub balancer: Balancer,
    _folder: TempDir,
}

/// The same for all.
pub const SEAL_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

impl Replicas {
    /// Starts three gateways with this configuration and this store.
    pub async fn start(store: &str, toml: &str) -> Self {
        Self::start_each([store; 3], toml).await
    }

    /// The same, each with its own way to the store.
    pub async fn start_each(stores: [&str; 3], toml: &str) -> Self {
        Self::start_builds([BINARY; 3], stores, toml).await
    }

    /// The same, each of its own build.
    pub async fn start_builds(builds: [&str; 3], stores: [&str; 3], toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut replicas = Vec::new();
        for (number, store) in stores.iter().enumerate() {
            let name = format!("replica-{number}");
            let folder = folder.path().join(&name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("gateway.toml"), toml).unwrap();
            let variables = environment(store, &name);
            let variables: Vec<_> = variables.iter().map(|(n, v)| (*n, v.as_str())).collect();
            let (process, admin) = Process::serve_build(builds[number], &folder, &variables).await;
            // Where a token is needed, it is this one.
            let admin = admin.with("Authorization", "Bearer t");
            replicas.push(Replica { process, admin, folder });
        }
        let addresses = replicas.iter().map(|replica| replica.process.addr).collect();
        let balancer = Balancer::before(addresses).await;
        let replicas = Self { replicas, balancer, _folder: folder };
        replicas.know_each_other().await;
        replicas
    }

    /// Waits until each replica has heard of all, with the catalog that it serves by now.
    pub async fn know_each_other(&self) {
        for replica in &self.replicas {
            let look = async || replica.cluster().await;
            eventually(look, |cluster| {
                let rows = cluster["replicas"].as_array().expect("replicas");
                rows.len() == 3 && rows.iter().all(|row| row["catalogDigest"] != "")
            })
            .await;
        }
    }

    /// Waits until the store is available to all of them, or to none.
    pub async fn see_store(&self, is_available: bool) {
        for replica in &self.replicas {
            replica.sees_store(is_available).await;
        }
    }

    /// A client of the balancer.
    pub fn client(&self) -> Client {
        Client::new(self.balancer.addr)
    }
}

/// The environment of a replica.
pub fn environment(store: &str, name: &str) -> Vec<(&'static str, String)> {
    vec![
        ("PROMPTGATE__CLUSTER__STORE", store.to_owned()),
        ("PROMPTGATE__CLUSTER__REPLICA", name.to_owned()),
        // The machine may be slow: an answer that comes late would be counted by a share.
        ("PROMPTGATE__CLUSTER__TIMEOUT", "2s".to_owned()),
        ("PROMPTGATE_SEAL_KEY", SEAL_KEY.to_owned()),
        ("PROMPTGATE__TELEMETRY__LOG", LOG_WARNINGS.to_owned()),
    ]
}

impl Replica {
    pub fn client(&self) -> Client {
        self.process.client()
    }

    /// The state of the cluster, as its admin API shows it.
    pub async fn cluster(&self) -> serde_json::Value {
        self.admin.send("GET", "/api/v1/replicas", &[], b"").await.json()
    }

    /// Waits until the store is available to it, or is not.
    pub async fn sees_store(&self, is_available: bool) {
        let wanted = if is_available { "available" } else { "unavailable" };
        eventually(async || self.cluster().await, |cluster| cluster["store"] == wanted).await;
    }
}
