//! The export of the audit log: the cost of gets while the collector is dead, and how fast a long
//! log catches up beside gets.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::Options;
use super::client::closed_loop;
use super::gateway::{Configured, KEY, Requests, Upstreams, command, settings, spawn};
use super::open_loop::open_loop;
use super::process::{Process, address, cpu_time};
use super::report::{Samples, Table};
use super::upstreams::UpstreamOptions;

#[derive(Clone, Debug, clap::Args)]
pub struct ExportOptions {
    /// Records of the log that catches up.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Gets a second beside it.
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
}

/// A gateway with its folder.
struct Exporter {
    process: Process,
    addr: SocketAddr,
}

impl Exporter {
    async fn start(options: &Options, folder: &Path, toml: &str, prompts: usize) -> Self {
        fs::write(folder.join("gateway.toml"), toml).expect("a file");
        let (process, addr, _) = spawn(&mut command(options.binary.as_deref()), folder);
        Requests::new(addr, Some(KEY), "2025-06-18").await.until_listed(prompts).await;
        Self { process, addr }
    }

    /// The p50 and p95 of gets at a rate, in milliseconds, and the CPU time of a get in
    /// microseconds.
    async fn measure(&self, rate: f64, duration: Duration) -> [f64; 3] {
        let requests = Requests::new(self.addr, Some(KEY), "2025-06-18").await;
        let before = cpu_time(self.process.pid());
        let get = requests.get("u3__p-00007");
        let mut latencies = open_loop(self.addr, &get, rate, duration).await;
        let cpu = cpu_time(self.process.pid()).saturating_sub(before);
        latencies.sort_unstable();
        let at =
            |part: f64| latencies[(latencies.len() as f64 * part) as usize].as_secs_f64() * 1e3;
        [at(0.5), at(0.95), cpu.as_secs_f64() * 1e6 / latencies.len() as f64]
    }
}

/// Measures and prints both.
pub async fn run(options: &Options, export: &ExportOptions) {
    let scripted = Upstreams::start(&UpstreamOptions {
        upstreams: 10,
        prompts: 50,
        text: 1_000,
        big: 1 << 10,
        slow: 1_000,
    });
    let mut collector = Process::role(&["collector"]);
    let collector = address(&collector.line());
    // A port at which nothing listens.
    let dead = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let base = settings(Configured::Everything, collector) + &scripted.tables();
    let to = |to: SocketAddr| format!("{base}[audit.export]\nendpoint = \"http://{to}\"\n");
    let systems =
        [("no export", base.clone()), ("dead collector", to(dead)), ("collector", to(collector))];
    let mut figures: Vec<[Samples; 3]> = systems.iter().map(|_| Default::default()).collect();
    for round in 0..options.rounds {
        // The first system of a round finds another machine than the last.
        for at in 0..systems.len() {
            let at = (at + round) % systems.len();
            let (_, toml) = &systems[at];
            let folder = tempfile::tempdir().expect("a folder");
            let gateway = Exporter::start(options, folder.path(), toml, scripted.prompts).await;
            let measured = gateway.measure(export.rate, options.duration() * 5).await;
            figures[at].iter_mut().zip(measured).for_each(|(figure, value)| figure.push(value));
        }
    }
    let mut table = Table::new(&["system", "p50 ms", "p95 ms", "CPU µs"]);
    for ((name, _), figures) in systems.iter().zip(&figures) {
        let cells = figures.iter().map(|f| format!("{:.3}", f.median().unwrap_or_default()));
        table.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    table.print();
    let folder = tempfile::tempdir().expect("a folder");
    let written = fill(options, export, &folder, &to(dead), scripted.prompts).await;
    let began = Instant::now();
    let gateway = Exporter::start(options, folder.path(), &to(collector), scripted.prompts).await;
    let mut beside = Samples::default();
    let mut cpu = Samples::default();
    let took = loop {
        let [_, p95, cpu_of_get] = gateway.measure(export.rate, Duration::from_secs(2)).await;
        if exported(&folder) >= written {
            break began.elapsed();
        }
        beside.push(p95);
        cpu.push(cpu_of_get);
    };
    let rate = written as f64 / took.as_secs_f64();
    println!(
        "{written} records caught up within {:.1} s, {rate:.0} a second or more; beside that p95 {:.3} ms, CPU {:.0} µs",
        took.as_secs_f64(),
        beside.median().unwrap_or_default(),
        cpu.median().unwrap_or_default(),
    );
    let [_, p95, _] = gateway.measure(export.rate, options.duration() * 5).await;
    println!("p95 after that: {p95:.3} ms");
}

/// Fills a log whose collector is dead; returns its last record, approximately.
async fn fill(
    options: &Options,
    export: &ExportOptions,
    folder: &TempDir,
    toml: &str,
    prompts: usize,
) -> u64 {
    let gateway = Exporter::start(options, folder.path(), toml, prompts).await;
    let requests = Requests::new(gateway.addr, Some(KEY), "2025-06-18").await;
    let get = requests.get("u3__p-00007");
    let mut written = 0;
    while written < export.records {
        let second = Duration::from_secs(1);
        written += 2 * closed_loop(gateway.addr, &get, options.connections, second).await.calls;
    }
    drop(gateway);
    // The cursor moves behind the records that were synced.
    sleep(Duration::from_secs(1)).await;
    written
}

/// The last record that the collector has accepted.
fn exported(folder: &TempDir) -> u64 {
    let text = fs::read_to_string(folder.path().join("audit/export.json")).unwrap_or_default();
    let cursor: Value = serde_json::from_str(&text).unwrap_or_default();
    cursor["seq"].as_u64().unwrap_or_default()
}
