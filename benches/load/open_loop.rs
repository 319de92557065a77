//! Latency in an open loop: requests come at their times, whether or not those before are answered.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Options;
use super::client::{Connection, Prepared, closed_loop};
use super::gateway::{Configured, Gateway, KEY, Requests, Upstreams, settings};
use super::process::{Process, address};
use super::report::Table;
use super::upstreams::UpstreamOptions;

/// Connections over which the requests of a loop go.
const CONNECTIONS: usize = 64;

/// The part of the highest rate at which requests come.
const PART: f64 = 0.7;

/// The disturbance of the gateway meanwhile.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Disturbance {
    None,
    /// The configuration is applied anew each second.
    Reload,
    /// The list of an upstream changes each second.
    Change,
    /// One upstream takes a second, and gets calls of its own.
    SlowUpstream,
}

/// Measures and prints all disturbances, beside the bare proxy.
pub async fn run(options: &Options) {
    let scripted = Upstreams::start(&UpstreamOptions {
        upstreams: 10,
        prompts: 50,
        text: 1_000,
        big: 1 << 10,
        slow: 1_000,
    });
    let mut collector = Process::role(&["collector"]);
    let collector = address(&collector.line());
    let mut hop = Process::role(&["hop", &scripted.addresses[0].to_string()]);
    let hop_address = address(&hop.line());
    let mut table = Table::new(&["system", "meanwhile", "requests/s", "p50", "p99", "p99.9"]);
    let straight = Requests::at(hop_address, "/all", None, "2025-06-18").await;
    measure(options, "bare hop", "nothing", hop_address, straight.get("u3__p-00007"), &mut table)
        .await;
    for (name, configured) in [("bare", Configured::Bare), ("everything", Configured::Everything)] {
        let toml = settings(configured, collector) + &scripted.tables();
        let key = configured.has_key().then_some(KEY);
        let gateway = Gateway::start(options.binary.as_deref(), &toml, scripted.prompts, key).await;
        for (meanwhile, disturbance) in [
            ("nothing", Disturbance::None),
            ("a reload each second", Disturbance::Reload),
            ("a change each second", Disturbance::Change),
            ("an upstream takes 1 s", Disturbance::SlowUpstream),
        ] {
            let requests = Requests::new(gateway.addr, key, "2025-06-18").await;
            // Its own session: requests of one session that run at once must not share ids.
            let others = Requests::new(gateway.addr, key, "2025-06-18").await;
            let disturbing = disturb(disturbance, &gateway, &scripted, &others);
            let get = requests.get("u3__p-00007");
            tokio::select! {
                () = measure(options, name, meanwhile, gateway.addr, get, &mut table) => {}
                () = disturbing => {}
            }
        }
    }
    table.print();
}

async fn disturb(
    disturbance: Disturbance,
    gateway: &Gateway,
    scripted: &Upstreams,
    requests: &Requests,
) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    if disturbance == Disturbance::SlowUpstream {
        let slow = requests.get("u9__p-00007");
        closed_loop(gateway.addr, &slow, 16, Duration::from_secs(3_600)).await;
    }
    loop {
        ticks.tick().await;
        match disturbance {
            Disturbance::Change => scripted.change(3).await,
            Disturbance::Reload => {
                let pid = i32::try_from(gateway.process.pid()).expect("a process id");
                let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
                rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it runs");
            }
            Disturbance::None | Disturbance::SlowUpstream => {}
        }
    }
}

async fn measure(
    options: &Options,
    system: &str,
    meanwhile: &str,
    addr: SocketAddr,
    prepared: Prepared,
    table: &mut Table,
) {
    let highest = closed_loop(addr, &prepared, CONNECTIONS, options.duration()).await;
    let rate = highest.calls as f64 / highest.took.as_secs_f64() * PART;
    let mut latencies = open_loop(addr, &prepared, rate, options.duration() * 5).await;
    latencies.sort_unstable();
    let quantile = |part: f64| {
        let at = (latencies.len() as f64 * part) as usize;
        let latency = latencies.get(at.min(latencies.len().saturating_sub(1)));
        format!("{:.2} ms", latency.copied().unwrap_or_default().as_secs_f64() * 1e3)
    };
    let cells = [quantile(0.5), quantile(0.99), quantile(0.999)];
    let head = [system.to_owned(), meanwhile.to_owned(), format!("{rate:.0}")];
    table.row(head.into_iter().chain(cells));
}

/// Sends requests at a rate. A latency counts from the time at which the request was due, so that
/// waiting for a free connection counts too.
pub async fn open_loop(
    addr: SocketAddr,
    prepared: &Prepared,
    rate: f64,
    duration: Duration,
) -> Vec<Duration> {
    let (sender, due) = mpsc::unbounded_channel::<Instant>();
    let due = Arc::new(tokio::sync::Mutex::new(due));
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let bytes = prepared.numbered(connection).bytes();
        let (due, latencies) = (due.clone(), latencies.clone());
        tasks.spawn(async move {
            let mut connection = Connection::open(addr).await;
            loop {
                let Some(at) = due.lock().await.recv().await else {
                    return;
                };
                connection.ask(&bytes).await;
                latencies.lock().expect("nobody panics").push(at.elapsed());
            }
        });
    }
    let began = Instant::now();
    let total = (rate * duration.as_secs_f64()) as u64;
    for number in 0..total {
        let at = began + Duration::from_secs_f64(number as f64 / rate);
        if at > Instant::now() {
            sleep_until(at).await;
        }
        sender.send(at).expect("the tasks wait");
    }
    drop(sender);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no request failed");
    }
    Arc::into_inner(latencies).expect("all tasks have ended").into_inner().expect("nobody panics")
}
