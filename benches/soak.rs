//! The gateway under mixed load for as long as one likes, with one upstream that flaps, one that is
//! slow and one that talks garbage: `cargo bench --bench soak`, two minutes, or
//! `PROMPTGATE_SOAK=8h cargo bench --bench soak`.
//!
//! It prints what only grows if something is forgotten: memory, descriptors, tasks, open calls and
//! streams. A call to the upstream that is well must not fail, and at the end all that is counted
//! must be what it was at the start. The audit log is full after some minutes: it stays within its
//! size and is intact whenever it is verified, while the configuration is read again and again.

#![allow(
    dead_code,
    unused_imports,
    reason = "the tests' support is shared, not all of it is needed here"
)]

#[path = "../tests/gateway/support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::seal::hex::hex;
use base::seal::random;
use serde_json::json;
use support::client::request;
use support::process::{LOG_WARNINGS, run};
use support::upstream::good_modern;
use support::{Client, Process, Scripted, Upstream};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

/// How long, unless `PROMPTGATE_SOAK` says otherwise.
const DEFAULT: Duration = Duration::from_secs(120);

/// Before the first look: what is kept for good is there by then.
const WARM_UP: Duration = Duration::from_secs(15);

/// Behind the last call: what was cut off has ended by then.
const COOL_DOWN: Duration = Duration::from_secs(20);

/// Bytes that the audit log may have (`audit.keep_size`).
const KEEP: u64 = 64 << 20;

/// The time between two looks at its size, and between two reloads with a verification.
const LOOK: Duration = Duration::from_secs(1);
const VERIFY: Duration = Duration::from_secs(20);

/// Users of each kind.
const USERS: usize = 4;

/// Allowed growth from the start to the end: the measurement itself, and memory that an allocator
/// keeps.
const MORE_DESCRIPTORS: f64 = 20.;
const MORE_TASKS: f64 = 20.;
const MORE_MEMORY: f64 = 1.25;

/// The outcomes so far.
#[derive(Default)]
struct Tally {
    good: AtomicU64,
    /// Of upstreams that are not well: however they end, they end.
    others: AtomicU64,
    stop: AtomicBool,
}

impl Tally {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

async fn upstreams() -> [(&'static str, Upstream); 4] {
    let (count, breaks) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let well = Upstream::start(good_modern).await;
    // Well for two hundred requests, gone for two hundred.
    let flapping =
        Upstream::start(move |asked| match count.fetch_add(1, Ordering::Relaxed) / 200 % 2 {
            0 => good_modern(asked),
            _ => Scripted::Break(Vec::new()),
        })
        .await;
    let slow = Upstream::modern(|asked| {
        (asked.method() == "prompts/get").then(|| Scripted::Stall(b"HTTP/1.1 200 OK\r\n".to_vec()))
    })
    .await;
    let garbage = Upstream::modern(move |asked| {
        let texts: [&[u8]; 4] = [b"not json", b"{\"jsonrpc\":\"2.0\"", b"[[[[", b"\xff\xfe"];
        let text = texts[breaks.fetch_add(1, Ordering::Relaxed) % texts.len()];
        let json = vec![("Content-Type", "application/json".to_owned())];
        (asked.method() == "prompts/get").then(|| Scripted::Http(200, json, text.to_vec()))
    })
    .await;
    [("well", well), ("flaps", flapping), ("slow", slow), ("garbage", garbage)]
}

/// Lists and gets of the upstream that is well, none of which may fail.
async fn use_well(client: Client, tally: Arc<Tally>) {
    while tally.goes_on() {
        assert!(client.names().await.0.contains(&"well__p".to_owned()));
        for _ in 0..10 {
            let params = json!({"name": "well__p", "arguments": {"n": noise()}});
            client.ask("prompts/get", params).await;
            tally.good.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A long text that cannot be compressed well: it fills the log, which records it.
fn noise() -> String {
    hex(&random::<800>())
}

/// Gets of those that are not, some of which are left before their end.
async fn use_others(client: Client, tally: Arc<Tally>) {
    let names = ["flaps__p", "slow__p", "garbage__p", "nobody__p"];
    for n in 0_u64.. {
        if !tally.goes_on() {
            return;
        }
        let name = names[usize::try_from(n % 4).unwrap_or_default()];
        let getting = client.try_modern("prompts/get", json!({"name": name}));
        let _ = timeout(Duration::from_millis(20 + n % 7 * 40), getting).await;
        tally.others.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sessions and streams that come and go, ended or left.
async fn come_and_go(client: Client, tally: Arc<Tally>) {
    for n in 0_u64.. {
        if !tally.goes_on() {
            return;
        }
        let legacy = client.clone().legacy("2025-06-18").await;
        let mut stream = legacy.stream("GET", &[("Accept", "text/event-stream")], b"").await;
        legacy.post(&request(1, "prompts/get", json!({"name": "well__p"}))).await;
        client.listen().await;
        if n.is_multiple_of(2) {
            legacy.send("DELETE", "/mcp", &[], b"").await;
            // It ends with its session, whatever list changes it carried.
            while stream.event().await.is_some() {}
        }
        tally.good.fetch_add(1, Ordering::Relaxed);
    }
}

/// Users of all kinds, until they are told to stop.
fn start(client: &Client, tally: &Arc<Tally>) -> JoinSet<()> {
    let mut users = JoinSet::new();
    for _ in 0..USERS {
        users.spawn(use_well(client.clone(), tally.clone()));
        users.spawn(use_others(client.clone(), tally.clone()));
        users.spawn(come_and_go(client.clone(), tally.clone()));
    }
    users
}

/// A reading of the resources of the process.
struct Look {
    memory: f64,
    descriptors: f64,
    tasks: f64,
    connections: f64,
    streams: f64,
    calls: f64,
}

/// The audit log under load: never larger than it may be, and intact. Returns how many segments
/// have left.
async fn watch_log(process: Arc<Process>, folder: PathBuf, tally: Arc<Tally>) -> u64 {
    let (mut verified, mut removed) = (Instant::now(), 0);
    while tally.goes_on() {
        sleep(LOOK).await;
        let files = fs::read_dir(folder.join("audit")).expect("the log").flatten();
        let size: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        assert!(size <= KEEP, "the log has {size} bytes");
        if verified.elapsed() < VERIFY {
            continue;
        }
        verified = Instant::now();
        process.signal(rustix::process::Signal::HUP);
        let verifying = folder.clone();
        let verify = move || run(&verifying, &["audit", "verify"]);
        let output = tokio::task::spawn_blocking(verify).await.expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        removed = said.lines().find_map(removed_through).unwrap_or(removed);
        println!(
            "           the log has {} KiB, and is intact; {removed} records have left",
            size >> 10
        );
    }
    removed
}

/// The last record of those that have left, as `audit verify` says it.
fn removed_through(line: &str) -> Option<u64> {
    line.strip_prefix("records 1 to ")?.split_once(" have left")?.0.parse().ok()
}

async fn look(admin: &Client) -> Look {
    let text = admin.send("GET", "/metrics", &[], b"").await.body;
    let text = String::from_utf8(text).expect("text");
    let value = |name: &str| {
        let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(f64::NAN)
    };
    Look {
        memory: value("process_memory_usage_bytes") / (1 << 20) as f64,
        descriptors: value("process_open_fds"),
        tasks: value("promptgate_tasks"),
        connections: value("promptgate_connections"),
        streams: value("promptgate_streams"),
        calls: value("promptgate_in_flight"),
    }
}

fn show(what: &str, tally: &Tally, now: &Look) {
    println!(
        "{what:>10} {:>9} {:>9} {:>9.1} {:>6} {:>6} {:>6} {:>8} {:>6}",
        tally.good.load(Ordering::Relaxed),
        tally.others.load(Ordering::Relaxed),
        now.memory,
        now.descriptors,
        now.tasks,
        now.connections,
        now.streams,
        now.calls,
    );
}

/// Lets the users end, and shows what is still there once all has cooled down.
async fn quiet(mut users: JoinSet<()>, tally: &Tally, admin: &Client) -> Look {
    tally.stop.store(true, Ordering::Relaxed);
    while let Some(user) = users.join_next().await {
        user.expect("calls that may not fail do not");
    }
    sleep(COOL_DOWN).await;
    let now = look(admin).await;
    show("quiet", tally, &now);
    now
}

#[tokio::main]
async fn main() {
    let asked = std::env::var("PROMPTGATE_SOAK").ok();
    let lasts = asked.map_or(DEFAULT, |text| {
        humantime::parse_duration(&text).expect("PROMPTGATE_SOAK is a duration, such as 8h")
    });
    let upstreams = upstreams().await;
    let folder = tempfile::tempdir().expect("a folder");
    let tables: String = upstreams.iter().map(|(id, upstream)| upstream.table(id)).collect();
    let toml = format!(
        "[server.limits]\nidle = \"5s\"\nkeep_alive = \"2s\"\n[telemetry]\nlog = \"{LOG_WARNINGS}\"\n\
         [audit]\nkeep_size = \"64MiB\"\nverify_every = \"30s\"\nraw_arguments = [\"well__*\"]\n{tables}"
    );
    fs::write(folder.path().join("gateway.toml"), toml).expect("the file");
    let (process, admin) = Process::serve_admin(folder.path(), &[]).await;
    let process = Arc::new(process);
    let (client, tally) = (process.client(), Arc::new(Tally::default()));
    let watching = watch_log(process.clone(), folder.path().to_owned(), tally.clone());
    let watching = tokio::spawn(watching);
    println!("        at  good ends    others    RSS MiB     fd  tasks  conns  streams  calls");
    let users = start(&client, &tally);
    sleep(WARM_UP).await;
    let (begun, mut ticks) = (Instant::now(), interval(lasts / 8));
    while begun.elapsed() < lasts {
        ticks.tick().await;
        show(&format!("{} s", begun.elapsed().as_secs()), &tally, &look(&admin).await);
        assert!(!watching.is_finished(), "the log is well");
    }
    let verified = admin.send("GET", "/api/v1/status", &[], b"").await.json();
    assert_eq!(verified["auditVerified"]["problems"], json!([]), "{verified}");
    let loaded = look(&admin).await;
    let first = quiet(users, &tally, &admin).await;
    // The same again, shorter: what is still there then is forgotten for good.
    tally.stop.store(false, Ordering::Relaxed);
    let users = start(&client, &tally);
    sleep((lasts / 4).max(WARM_UP)).await;
    let last = quiet(users, &tally, &admin).await;
    println!("{} records have left the log", watching.await.expect("the log is well"));
    Arc::into_inner(process).expect("nobody else has it").stop().await;
    assert!(last.descriptors <= first.descriptors + MORE_DESCRIPTORS, "descriptors are left open");
    assert!(last.tasks <= first.tasks + MORE_TASKS, "tasks are left behind");
    assert!(last.memory <= loaded.memory.max(first.memory) * MORE_MEMORY, "memory grows");
    assert!(last.streams == 0. && last.calls == 0., "streams or calls are left open");
    println!("nothing was left behind");
}
