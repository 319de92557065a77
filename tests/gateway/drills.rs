//! Drills of an operator with the shipped configuration of haproxy before three replicas: rolling
//! restarts, a kill, a replica that hangs. `apt-get install haproxy redis-server`, then `cargo test
//! --test gateway drills:: -- --ignored`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::support::process::BINARY;
use crate::support::replicas::{Store, environment, free_port};
use crate::support::{Client, Process, Upstream, eventually};

/// A replica at addresses that it has again after a restart.
struct Node {
    process: Option<Process>,
    admin: Client,
    name: String,
    folder: tempfile::TempDir,
    addr: SocketAddr,
    admin_port: u16,
    store: String,
}

impl Node {
    async fn start(number: usize, store: &Store, toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port().await));
        let mut node = Self {
            process: None,
            admin: Client::new(addr),
            name: format!("replica-{number}"),
            folder,
            addr,
            admin_port: free_port().await,
            store: store.url(),
        };
        node.run().await;
        node
    }

    async fn run(&mut self) {
        let mut variables = environment(&self.store, &self.name);
        variables.extend([
            ("PROMPTGATE__SERVER__LISTEN", self.addr.to_string()),
            ("PROMPTGATE__ADMIN__LISTEN", format!("127.0.0.1:{}", self.admin_port)),
            // Until the balancer has noticed /readyz.
            ("PROMPTGATE__SERVER__LIMITS__PRE_DRAIN", "3s".to_owned()),
        ]);
        let variables: Vec<_> = variables.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let (process, admin) = Process::serve_build(BINARY, self.folder.path(), &variables).await;
        (self.process, self.admin) = (Some(process), admin);
    }

    /// The gets that it has served since its log begins.
    async fn uses(&self) -> u64 {
        let usage = json!({"by": "Prompt", "from": {"secs_since_epoch": 0, "nanos_since_epoch": 0},
            "to": {"secs_since_epoch": 9_999_999_999_u64, "nanos_since_epoch": 0},
            "filter": {}, "limit": 9, "sort": "Uses"});
        let body = json!({"question": {"usage": usage}, "replica": self.name}).to_string();
        let json = [("Content-Type", "application/json")];
        let reply =
            self.admin.send("POST", "/api/v1/evidence", &json, body.as_bytes()).await.json();
        let rows = reply["answered"][0]["answer"]["usage"]["sums"]["rows"].clone();
        let rows = rows.as_object().expect("sums by prompt").values();
        rows.map(|row| row["counts"]["uses"].as_u64().unwrap()).sum()
    }

    /// Waits until the balancer sends it calls.
    async fn serves_more(&self) {
        let before = self.uses().await;
        eventually(async || self.uses().await, |uses| *uses > before).await;
    }
}

/// A running haproxy.
struct Balancer {
    _child: Child,
    addr: SocketAddr,
}

impl Balancer {
    /// Starts it with the configuration of the examples, but for its addresses.
    async fn start(folder: &Path, nodes: &[Node]) -> Self {
        let shipped = include_str!("../../examples/replicas/haproxy.cfg");
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port().await));
        let mut own = shipped.to_owned();
        let mut replace = |from: &str, to: &str| {
            assert!(own.contains(from), "{from}");
            own = own.replace(from, to);
        };
        replace("bind :8080", &format!("bind {addr}"));
        replace("check port 9877", "check");
        // As many as the open-file limit of a test machine allows.
        replace("maxconn 16384", "maxconn 1024");
        replace("    default-server resolvers docker init-addr none\n", "");
        for (number, node) in (1..).zip(nodes) {
            let Node { addr, admin_port, .. } = node;
            let shipped = format!("replica-{number}:8080");
            replace(&shipped, &format!("{addr} port {admin_port}"));
        }
        let (before, rest) = own.split_once("resolvers docker").expect("a section");
        let (_, after) = rest.split_once("\n\n").expect("another section");
        let file = folder.join("haproxy.cfg");
        std::fs::write(&file, [before, after].concat()).unwrap();
        let mut child = Command::new("haproxy");
        child.arg("-db").arg("-f").arg(&file).stdout(Stdio::null()).kill_on_drop(true);
        let child = child.spawn().expect("haproxy is installed");
        let connects = async || tokio::net::TcpStream::connect(addr).await.is_ok();
        eventually(connects, |connects| *connects).await;
        Self { _child: child, addr }
    }
}

/// Callers that get a prompt again and again.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    callers: Vec<JoinHandle<()>>,
}

/// Callers at once: as many calls can be lost with a replica.
const CALLERS: usize = 8;

impl Load {
    fn start(balancer: &Balancer) -> Self {
        let (stop, served, failed) = (Arc::default(), Arc::default(), Arc::default());
        let caller = |_| {
            let client = Client::new(balancer.addr);
            let (stop, served, failed) =
                (Arc::clone(&stop), Arc::clone(&served), Arc::clone(&failed));
            tokio::spawn(async move {
                while !AtomicBool::load(&stop, Ordering::Relaxed) {
                    let got = client.modern("prompts/get", json!({"name": "up__p"})).await;
                    let counter: &AtomicUsize = if got.status == 200 { &served } else { &failed };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let callers = (0..CALLERS).map(caller).collect();
        Self { stop, served, failed, callers }
    }

    fn failed(&self) -> usize {
        self.failed.load(Ordering::Relaxed)
    }

    /// Waits for this many more calls; returns how many have failed meanwhile.
    async fn serves(&self, calls: usize) -> usize {
        let (served, failed) = (self.served.load(Ordering::Relaxed), self.failed());
        let now = async || self.served.load(Ordering::Relaxed);
        eventually(now, |now| *now >= served + calls).await;
        self.failed() - failed
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
    }
}

#[tokio::test]
#[ignore = "needs redis-server and haproxy"]
async fn rolling_restarts_lose_no_call_and_a_lost_replica_only_those_that_it_held() {
    let store = Store::start().await;
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = upstream.table("up");
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(Node::start(number, &store, &toml).await);
    }
    let folder = tempfile::tempdir().unwrap();
    let balancer = Balancer::start(folder.path(), &nodes).await;
    let client = Client::new(balancer.addr);
    let is_up = async || client.modern("prompts/get", json!({"name": "up__p"})).await.status;
    eventually(is_up, |status| *status == 200).await;
    let load = Load::start(&balancer);
    assert_eq!(load.serves(100).await, 0);

    for node in &mut nodes {
        node.process.take().expect("it runs").stop().await;
        assert_eq!(load.serves(100).await, 0, "{} is gone", node.name);
        node.run().await;
        node.serves_more().await;
        assert_eq!(load.failed(), 0, "{} is back", node.name);
    }

    nodes[0].process.take().expect("it runs").kill().await;
    // Until the balancer knows.
    let settled = async || load.serves(200).await;
    eventually(settled, |failed| *failed == 0).await;
    let lost = load.failed();
    assert!(lost <= 2 * CALLERS, "{lost}");
    nodes[0].run().await;
    nodes[0].serves_more().await;

    // It accepts connections, and answers nothing.
    nodes[1].process.as_ref().expect("it runs").signal(Signal::STOP);
    eventually(async || load.failed(), |failed| *failed > lost).await;
    eventually(settled, |failed| *failed == 0).await;
    let hung = load.failed() - lost;
    assert!(hung <= 2 * CALLERS, "{hung}");
    nodes[1].process.as_ref().expect("it runs").signal(Signal::CONT);
    nodes[1].serves_more().await;
    assert_eq!(load.serves(100).await, 0);
    load.stop().await;
}
