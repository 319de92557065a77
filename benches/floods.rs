//! The effect on one caller while another one floods the gateway: `cargo bench --bench floods`,
//! about two minutes.
//!
//! One caller, at an address of its own, does a hundred gets a second. Beside it another caller, or
//! a stranger, floods in one way after the other. Printed are the caller's errors and its median
//! and p99, first without a flood. No call of the caller may fail. Linux only, for the second
//! loopback address.

#![allow(
    dead_code,
    unused_imports,
    reason = "the tests' support is shared, not all of it is needed here"
)]

#[path = "../tests/gateway/support/mod.rs"]
mod support;

use std::fs;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use support::client::{modern, modern_bytes, request};
use support::gateway::api_key;
use support::h2::{Http2, PING, frame};
use support::process::LOG_WARNINGS;
use support::upstream::{HANG, good_modern};
use support::{Client, Process, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

/// Of each flood.
const DURATION: Duration = Duration::from_secs(8);

/// Between two gets of the caller.
const PERIOD: Duration = Duration::from_millis(10);

/// Connections that flood at once.
const FLOODERS: usize = 48;

/// A get that takes longer counts as an error.
const PATIENCE: Duration = Duration::from_secs(5);

/// The attacked gateway.
#[derive(Clone)]
struct Target {
    addr: SocketAddr,
    admin: SocketAddr,
    goes_on: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

type Flooding = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One flooder, which is started again as long as the flood goes on.
type Flood = fn(Target) -> Flooding;

impl Target {
    fn client(&self) -> Client {
        Client::new(self.addr).with("X-API-Key", "pg_flood")
    }

    /// Sends bytes over one connection again and again, and reads what comes.
    async fn pour(&self, addr: SocketAddr, bytes: &[u8]) {
        let Ok(stream) = TcpStream::connect(addr).await else { return };
        let (mut reader, mut writer) = stream.into_split();
        let reading = async {
            let mut buffer = vec![0; 64 << 10];
            while matches!(reader.read(&mut buffer).await, Ok(1..)) {}
        };
        let writing = async {
            while writer.write_all(bytes).await.is_ok() {
                self.sent.fetch_add(1, Ordering::Relaxed);
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => {}
        }
    }

    /// A modern request of the flooder as it goes over the wire, on a connection that stays open.
    fn bytes(&self, method: &str, params: serde_json::Value, headers: &str) -> Vec<u8> {
        let text = String::from_utf8(modern_bytes("HTTP/1.1", method, params)).unwrap();
        text.replacen("\r\n", &format!("\r\nX-API-Key: pg_flood\r\n{headers}"), 1).into_bytes()
    }

    /// Keeps a connection open after these bytes.
    async fn hold(&self, addr: SocketAddr, bytes: &[u8]) {
        if let Ok(mut stream) = TcpStream::connect(addr).await {
            let _ = stream.write_all(bytes).await;
            self.sent.fetch_add(1, Ordering::Relaxed);
            let mut buffer = vec![0; 4096];
            while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
        }
    }
}

const FLOODS: [(&str, Flood); 12] = [
    ("streams that are refused (406)", |target| {
        Box::pin(async move {
            let params = json!({"notifications": {}});
            let bytes =
                target.bytes("subscriptions/listen", params, "Accept: application/json\r\n");
            target.pour(target.addr, &bytes).await;
        })
    }),
    ("streams that are opened and closed", |target| {
        Box::pin(async move {
            drop(target.client().listen().await);
            target.sent.fetch_add(1, Ordering::Relaxed);
        })
    }),
    ("stalled uploads of 4 MiB", |target| {
        Box::pin(async move {
            let length = (4 << 20) - 1;
            let head = format!(
                "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-API-Key: pg_flood\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            );
            let bytes = [head.as_bytes(), &vec![b' '; length - 10]].concat();
            target.hold(target.addr, &bytes).await;
        })
    }),
    ("idle connections of a stranger", |target| {
        Box::pin(async move {
            let mut held = JoinSet::new();
            for _ in 0..40 {
                let target = target.clone();
                held.spawn(async move {
                    target
                        .hold(target.addr, b"OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
                        .await;
                });
            }
            held.join_next().await;
        })
    }),
    ("idle connections to the admin side", |target| {
        Box::pin(async move {
            target.hold(target.admin, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        })
    }),
    ("calls beyond a rate limit (429)", |target| {
        Box::pin(async move {
            let complete = json!({"ref": {"type": "ref/prompt", "name": "up__p"},
                "argument": {"name": "x", "value": "y"}});
            target.pour(target.addr, &target.bytes("completion/complete", complete, "")).await;
        })
    }),
    ("gets of a prompt that hangs", |target| {
        Box::pin(async move {
            let bytes = target.bytes("prompts/get", json!({"name": "slow__p"}), "");
            target.hold(target.addr, &bytes).await;
        })
    }),
    ("gets, as fast as they are answered", |target| {
        Box::pin(async move {
            let params = json!({"name": "up__p", "arguments": {"x": "y"}});
            target.client().try_modern("prompts/get", params).await;
            target.sent.fetch_add(1, Ordering::Relaxed);
        })
    }),
    ("lists, pipelined", |target| {
        Box::pin(async move {
            target.pour(target.addr, &target.bytes("prompts/list", json!({}), "")).await;
        })
    }),
    ("sessions that are opened and ended", |target| {
        Box::pin(async move {
            let session = target.client().legacy("2025-06-18").await;
            session.send("DELETE", "/mcp", &[], b"").await;
            target.sent.fetch_add(1, Ordering::Relaxed);
        })
    }),
    ("HTTP/2 pings", |target| {
        Box::pin(async move {
            let mut client = Http2::open(target.addr, &[]).await;
            let pings = frame(PING, 0, 0, &[7; 8]).repeat(64);
            while client.pour(&pings).await {
                target.sent.fetch_add(64, Ordering::Relaxed);
            }
        })
    }),
    ("bodies of 4 MiB that are costly to read", |target| {
        Box::pin(async move {
            let body = [b"{\"a\":[".as_slice(), &b"0,".repeat(2_000_000), b"0]}"].concat();
            let json = ("Content-Type", "application/json");
            target.client().try_send("POST", "/mcp", &[json], &body).await;
            target.sent.fetch_add(1, Ordering::Relaxed);
        })
    }),
];

/// The times and errors of the caller's gets.
struct Seen {
    times: Vec<Duration>,
    errors: usize,
}

/// A get of the caller over a connection of its own address; returns the connection for a further
/// get.
async fn get(kept: Option<TcpStream>, addr: SocketAddr, bytes: &[u8]) -> Result<TcpStream, String> {
    let mut stream = match kept {
        Some(stream) => stream,
        None => {
            let socket = TcpSocket::new_v4().map_err(|e| e.to_string())?;
            socket.bind(([127, 0, 0, 2], 0).into()).map_err(|e| e.to_string())?;
            socket.connect(addr).await.map_err(|e| e.to_string())?
        }
    };
    stream.write_all(bytes).await.map_err(|e| e.to_string())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"}}") {
        if stream.read_buf(&mut answer).await.map_err(|e| e.to_string())? == 0 {
            return Err("closed".to_owned());
        }
    }
    let text = String::from_utf8_lossy(&answer);
    if text.starts_with("HTTP/1.1 200") && text.contains("\"result\"") {
        Ok(stream)
    } else {
        Err(text.into_owned())
    }
}

/// A hundred gets a second, each when it is due, and a probe of liveness with each hundredth.
async fn use_calmly(target: Target) -> Seen {
    let params = json!({"name": "up__p", "arguments": {"who": "ann"}});
    let text = String::from_utf8(modern_bytes("HTTP/1.1", "prompts/get", params)).unwrap();
    let bytes: Arc<[u8]> =
        text.replacen("\r\n", "\r\nX-API-Key: pg_calm\r\n", 1).into_bytes().into();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let mut gets = JoinSet::new();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..DURATION.as_millis() / PERIOD.as_millis() {
        let due = ticks.tick().await;
        let (kept, bytes, Target { addr, admin, .. }) =
            (kept.clone(), bytes.clone(), target.clone());
        gets.spawn(async move {
            let connection = kept.lock().unwrap().pop();
            let got = timeout(PATIENCE, get(connection, addr, &bytes)).await;
            let got = got.map_err(|_| "too late".to_owned()).and_then(|got| got);
            let time = due.elapsed();
            (time, got.map(|connection| kept.lock().unwrap().push(connection)))
        });
        if number % 100 == 0 {
            gets.spawn(async move {
                let probe = Client::new(admin);
                let answer = timeout(PATIENCE, probe.try_send("GET", "/livez", &[], b"")).await;
                let is_good = matches!(answer, Ok(Some(reply)) if reply.status == 200);
                (due.elapsed(), is_good.then_some(()).ok_or_else(|| "no probe".to_owned()))
            });
        }
    }
    let mut seen = Seen { times: Vec::new(), errors: 0 };
    while let Some(got) = gets.join_next().await {
        let (time, outcome) = got.expect("a get does not panic");
        seen.times.push(time);
        if let Err(why) = outcome {
            if seen.errors == 0 {
                println!("    first error: {}", why.chars().take(300).collect::<String>());
            }
            seen.errors += 1;
        }
    }
    seen.times.sort_unstable();
    seen
}

fn current_thread() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// The upstream of the caller, on a thread of its own, and its table.
fn well() -> String {
    let (table, tables) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        current_thread().block_on(async {
            let upstream = Upstream::start(good_modern).await;
            table.send(upstream.table("up")).expect("it is waited for");
            std::future::pending::<()>().await;
        });
    });
    tables.recv().expect("it starts")
}

async fn measure(target: &Target, name: &str, flood: Option<Flood>) -> usize {
    target.goes_on.store(true, Ordering::Relaxed);
    target.sent.store(0, Ordering::Relaxed);
    let mut flooders = JoinSet::new();
    for _ in 0..FLOODERS {
        let (Some(flood), target) = (flood, target.clone()) else { break };
        flooders.spawn(async move {
            while target.goes_on.load(Ordering::Relaxed) {
                // In a task of its own: a client that panics because it is refused begins anew.
                let mut one = JoinSet::new();
                one.spawn(flood(target.clone()));
                one.join_next().await;
            }
        });
    }
    let calm = target.clone();
    // On a thread of its own, which the flooders' tasks do not keep waiting.
    let seen = tokio::task::spawn_blocking(move || current_thread().block_on(use_calmly(calm)));
    let seen = seen.await.expect("the caller does not panic");
    target.goes_on.store(false, Ordering::Relaxed);
    flooders.shutdown().await;
    let at = |part: f64| seen.times[((seen.times.len() - 1) as f64 * part) as usize];
    let sent = target.sent.load(Ordering::Relaxed);
    println!(
        "{name:44} {:5} gets  {:3} errors  median {:8.2?}  p99 {:8.2?}  {sent:9} sent",
        seen.times.len(),
        seen.errors,
        at(0.5),
        at(0.99)
    );
    // Connections that the flood has left open are closed before the next one.
    sleep(Duration::from_secs(1)).await;
    seen.errors
}

#[tokio::main]
async fn main() {
    // `cargo test` runs benches, too: this one only by itself.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let slow = Upstream::modern(|asked| (asked.method() == "prompts/get").then_some(HANG)).await;
    let folder = tempfile::tempdir().unwrap();
    let toml = format!(
        "[server.limits]\nconnections = 256\nin_flight = 256\nstreams = 128\n[audit]\nbuffer = \"1MiB\"\n\
         [telemetry]\nlog = \"{LOG_WARNINGS}\"\n{}{}{}{}\
         [[limits]]\nname = \"few\"\nper = [\"caller\"]\nmethods = [\"completion/complete\"]\nrate = \"1/h\"\n",
        well(),
        slow.table("slow"),
        api_key("calm", "pg_calm"),
        api_key("flood", "pg_flood"),
    );
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let target = Target {
        addr: process.client().addr,
        admin: admin.addr,
        goes_on: Arc::default(),
        sent: Arc::default(),
    };
    let mut errors = measure(&target, "without a flood", None).await;
    for (name, flood) in FLOODS {
        errors += measure(&target, name, Some(flood)).await;
    }
    errors += measure(&target, "without a flood, again", None).await;
    process.stop().await;
    if errors > 0 {
        println!("{errors} errors");
        std::process::exit(1);
    }
}
