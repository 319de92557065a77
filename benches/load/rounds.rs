//! The main table: what a call costs, in interleaved rounds.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::Options;
use super::client::{Done, NUMBER, Prepared, closed_loop, closed_loop_http2};
use super::gateway::{Configured, Gateway, KEY, Requests, Upstreams, settings};
use super::process::{Process, address, anonymous_memory, cpu_time, switches};
use super::report::{Figures, Samples, Table, with_ratio};
use super::upstreams::UpstreamOptions;

/// Before each measurement.
const WARM_UP: Duration = Duration::from_millis(150);

/// The measured operations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Row {
    Get,
    GetBig,
    List,
    GetAlone,
    GetModern,
    GetHttp2,
    BatchItem,
    Completion,
    /// Refused, because the circuit breaker of the upstream is open.
    Refused,
}

const ROWS: [(Row, &str); 9] = [
    (Row::Get, "get 1.3 KB"),
    (Row::GetBig, "get 1 MiB"),
    (Row::List, "list of 500"),
    (Row::GetAlone, "get, one connection"),
    (Row::GetModern, "modern get"),
    (Row::GetHttp2, "get over HTTP/2"),
    (Row::BatchItem, "batch item"),
    (Row::Completion, "completion"),
    (Row::Refused, "get, breaker open"),
];

/// One of the compared systems.
struct System {
    name: String,
    addr: SocketAddr,
    path: String,
    key: Option<&'static str>,
    /// The process whose CPU time is measured.
    pid: Option<u32>,
    /// Speaks MCP: a proxy forwards bytes only.
    is_gateway: bool,
    /// Memory before the first measurement, in KiB, and the time until it was ready.
    start: Option<(u64, Duration)>,
}

/// The figures, by row and system.
type Measured = BTreeMap<(usize, usize), Figure>;

#[derive(Default)]
struct Figure {
    cpu: Samples,
    median: Samples,
    rate: Samples,
    switches: Samples,
}

/// Measures all rows and prints them.
pub async fn run(options: &Options) {
    let scripted = Upstreams::start(&UpstreamOptions::usual(1 << 20));
    let mut collector = Process::role(&["collector"]);
    let collector_address = address(&collector.line());
    let mut hop = Process::role(&["hop", &scripted.addresses[0].to_string()]);
    let hop_address = address(&hop.line());
    let straight = scripted.addresses[0];
    let system = |name: &str, addr, pid| System {
        name: name.to_owned(),
        addr,
        path: "/all".to_owned(),
        key: None,
        pid,
        is_gateway: false,
        start: None,
    };
    let mut systems =
        vec![system("straight", straight, None), system("bare hop", hop_address, Some(hop.pid()))];
    let nginx = nginx::start(straight);
    systems.extend(nginx.as_ref().map(|nginx| system("nginx", nginx.addr, Some(nginx.worker))));
    let mut gateways = Vec::new();
    for (name, configured, binary) in gateways_of(options) {
        let toml = settings(configured, collector_address) + &scripted.tables();
        let key = configured.has_key().then_some(KEY);
        let gateway = Gateway::start(binary, &toml, scripted.prompts, key).await;
        let pid = gateway.process.pid();
        systems.push(System {
            name,
            addr: gateway.addr,
            path: "/mcp".to_owned(),
            key,
            pid: Some(pid),
            is_gateway: true,
            start: Some((anonymous_memory(pid), gateway.ready_after)),
        });
        gateways.push(gateway);
    }
    systems.extend(options.other.iter().map(|other| other_system(other)));
    let is_chosen = |name: &str, chosen: &[String]| {
        chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()))
    };
    systems.retain(|system| system.name == "bare hop" || is_chosen(&system.name, &options.systems));
    let rows: Vec<_> =
        ROWS.into_iter().filter(|(_, name)| is_chosen(name, &options.only)).collect();
    let measured = measure(options, &systems, &rows).await;
    report(options, &systems, &rows, &measured);
    if systems.iter().any(|system| system.name == "bare") {
        count_upstream_calls(options, &systems, &scripted).await;
    }
}

/// The gateways to start: names, configurations and binaries.
fn gateways_of(options: &Options) -> Vec<(String, Configured, Option<&Path>)> {
    let configured = [
        ("everything", Configured::Everything),
        ("bare", Configured::Bare),
        ("key", Configured::Key),
        ("traces", Configured::Traces),
        ("strict", Configured::Strict),
    ];
    configured
        .into_iter()
        .flat_map(|(name, configured)| {
            let own = (name.to_owned(), configured, options.binary.as_deref());
            let further = options.beside.iter().map(move |(other, file)| {
                (format!("{name} {other}"), configured, Some(file.as_path()))
            });
            std::iter::once(own).chain(further)
        })
        .collect()
}

async fn measure(options: &Options, systems: &[System], rows: &[(Row, &str)]) -> Measured {
    let mut measured = Measured::new();
    for round in 0..options.rounds {
        for (row_at, (row, _)) in rows.iter().enumerate() {
            for place in 0..systems.len() {
                // Each round begins with another system, so that none is always first.
                let at = (place + round) % systems.len();
                let system = &systems[at];
                let Some(prepared) = prepare(*row, system).await else {
                    continue;
                };
                let connections = if *row == Row::GetAlone { 1 } else { options.connections };
                drop(drive(*row, system, &prepared, connections, WARM_UP).await);
                let before = system.pid.map(|pid| (cpu_time(pid), switches(pid)));
                let done = drive(*row, system, &prepared, connections, options.duration()).await;
                let figure = measured.entry((row_at, at)).or_default();
                if let (Some(pid), Some((cpu, switched))) = (system.pid, before) {
                    let cpu = cpu_time(pid).saturating_sub(cpu).as_secs_f64() * 1e6;
                    figure.cpu.push(cpu / done.calls as f64);
                    let switched = switches(pid).saturating_sub(switched);
                    figure.switches.push(switched as f64 / done.calls as f64);
                }
                let mut latencies = done.latencies;
                latencies.sort_unstable();
                let median = latencies.get(latencies.len() / 2).copied().unwrap_or_default();
                figure.median.push(median.as_secs_f64() * 1e6);
                figure.rate.push(done.calls as f64 / done.took.as_secs_f64());
            }
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    measured
}

async fn drive(
    row: Row,
    system: &System,
    prepared: &Prepared,
    connections: usize,
    duration: Duration,
) -> Done {
    if row == Row::GetHttp2 {
        closed_loop_http2(system.addr, prepared, connections, duration).await
    } else {
        closed_loop(system.addr, prepared, connections, duration).await
    }
}

/// The request of a row; `None` where the system has no such row.
async fn prepare(row: Row, system: &System) -> Option<Prepared> {
    let needs_gateway = !matches!(row, Row::Get | Row::GetBig | Row::List | Row::GetAlone);
    if needs_gateway && !system.is_gateway {
        return None;
    }
    let revision = if row == Row::BatchItem { "2025-03-26" } else { "2025-06-18" };
    let requests = Requests::at(system.addr, &system.path, system.key, revision).await;
    let name = "u3__p-00007";
    let params = format!(r#"{{"name":"{name}","arguments":{{"text":"{NUMBER}"}}}}"#);
    Some(match row {
        Row::Get | Row::GetAlone | Row::GetHttp2 => requests.get(name),
        Row::GetBig => requests.get("u0__big"),
        Row::List => requests.list(),
        Row::Refused => {
            // The first failures open the breaker.
            let refused = Prepared { fails: true, ..requests.get("u9__p-00049") };
            drop(drive(Row::Get, system, &refused, 1, WARM_UP).await);
            refused
        }
        Row::GetModern => requests.modern("prompts/get", name),
        Row::BatchItem => requests.batch("prompts/get", &params),
        Row::Completion => requests.legacy(
            "completion/complete",
            &format!(
                r#"{{"ref":{{"type":"ref/prompt","name":"{name}"}},"argument":{{"name":"tone","value":"f"}}}}"#
            ),
        ),
    })
}

fn report(options: &Options, systems: &[System], rows: &[(Row, &str)], measured: &Measured) {
    let unit_at = systems.iter().position(|system| system.name == "bare hop");
    let mut figures = Figures::default();
    let names: Vec<&str> = systems.iter().map(|system| system.name.as_str()).collect();
    for (title, figure, digits) in [
        ("CPU of the process, µs per call", "cpu_us", 1),
        ("median latency, µs", "median_us", 0),
        ("calls per second", "rate", 0),
        ("thread switches per call", "switches", 2),
    ] {
        println!("{title}\n");
        let head: Vec<&str> = ["row"].into_iter().chain(names.iter().copied()).collect();
        let mut table = Table::new(&head);
        for (row_at, (row, name)) in rows.iter().enumerate() {
            let value = |row_at, at| {
                let found: &Figure = measured.get(&(row_at, at))?;
                match figure {
                    "cpu_us" => found.cpu.median(),
                    "median_us" => found.median.median(),
                    "switches" => found.switches.median(),
                    _ => found.rate.median(),
                }
            };
            // Other forms of the get are compared with the plain one over the bare proxy.
            let plain = rows.iter().position(|(row, _)| *row == Row::Get);
            let unit_row = match row {
                Row::Get | Row::GetBig | Row::List | Row::GetAlone => Some(row_at),
                _ => plain,
            };
            let unit = unit_row.zip(unit_at).and_then(|(row, at)| value(row, at));
            let cells = (0..systems.len()).map(|at| with_ratio(value(row_at, at), unit, digits));
            table.row([(*name).to_owned()].into_iter().chain(cells));
            for (at, system) in names.iter().enumerate() {
                if let Some(value) = value(row_at, at) {
                    figures.set(name, system, figure, value);
                }
            }
        }
        table.print();
    }
    println!("One fdatasync of {RECORD} bytes, median: {} µs\n", sync_time().as_micros());
    println!("Memory and start\n");
    let mut table = Table::new(&["system", "ready after", "anonymous at start", "after the run"]);
    for system in systems {
        if let (Some((memory, ready)), Some(pid)) = (system.start, system.pid) {
            let after = anonymous_memory(pid);
            let ready = ready.as_secs_f64() * 1e3;
            let mebibytes = |kibibytes: u64| format!("{:.1} MiB", kibibytes as f64 / 1024.);
            let cells = [format!("{ready:.0} ms"), mebibytes(memory), mebibytes(after)];
            table.row([system.name.clone()].into_iter().chain(cells));
            figures.set("start", &system.name, "ready_ms", ready);
            figures.set("start", &system.name, "memory_kib", memory as f64);
            figures.set("start", &system.name, "memory_after_kib", after as f64);
        }
    }
    table.print();
    if let Some(path) = &options.json {
        figures.write(path);
    }
}

/// About the bytes of a record of the audit log.
const RECORD: usize = 700;

/// The median time in which the disk has a record, as `durability = "strict"` asks for.
fn sync_time() -> Duration {
    let file = tempfile::tempfile().expect("a file");
    let mut times: Vec<Duration> = (0..101)
        .map(|_| {
            (&file).write_all(&[b'x'; RECORD]).expect("there is room");
            let begin = Instant::now();
            file.sync_data().expect("a disk");
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Prints how many requests an upstream gets for each get and list.
async fn count_upstream_calls(options: &Options, systems: &[System], scripted: &Upstreams) {
    let time = Duration::from_millis(200);
    let mut table = Table::new(&["system", "upstream calls per get"]);
    for system in systems.iter().filter(|system| system.is_gateway) {
        let requests = Requests::at(system.addr, &system.path, system.key, "2025-06-18").await;
        let before = scripted.calls().await;
        let get = requests.get("u3__p-00007");
        let done = closed_loop(system.addr, &get, options.connections, time).await;
        let calls = scripted.calls().await - before;
        let per_call = calls as f64 / done.calls as f64;
        table.row([system.name.clone(), format!("{per_call:.3}")]);
    }
    table.print();
}

/// Reads `NAME=URL` or `NAME=URL=PID`.
fn other_system(text: &str) -> System {
    let mut parts = text.split('=');
    let name = parts.next().unwrap_or_default().to_owned();
    let url = parts.next().and_then(|url| url.parse::<hyper::Uri>().ok());
    let url = url
        .expect("--other takes NAME=URL or NAME=URL=PID, such as other=http://127.0.0.1:9000/mcp");
    let authority = url.authority().expect("the URL has a host and a port").to_string();
    System {
        name,
        addr: address(&authority),
        path: url.path().to_owned(),
        key: None,
        pid: parts.next().map(|pid| pid.parse().expect("the PID is a number")),
        is_gateway: true,
        start: None,
    }
}

/// nginx as a reverse proxy, where it is installed.
mod nginx {
    use std::fs;
    use std::net::{SocketAddr, TcpListener};
    use std::process::{Child, Command};

    use tempfile::TempDir;

    pub struct Nginx {
        pub addr: SocketAddr,
        /// The process that serves.
        pub worker: u32,
        child: Child,
        _folder: TempDir,
    }

    /// Starts nginx with one worker and connections that stay open.
    pub fn start(target: SocketAddr) -> Option<Nginx> {
        let folder = tempfile::tempdir().ok()?;
        let addr = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?;
        let config = format!(
            "daemon off; master_process off; worker_processes 1; error_log stderr crit; pid {0}/pid;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; client_body_temp_path {0}/a; proxy_temp_path {0}/b; fastcgi_temp_path {0}/c;\n\
             uwsgi_temp_path {0}/d; scgi_temp_path {0}/e; keepalive_requests 100000000;\n\
             upstream target {{ server {target}; keepalive 64; keepalive_requests 100000000; }}\n\
             server {{ listen {addr}; location / {{ proxy_pass http://target; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; proxy_buffers 16 64k; }} }} }}\n",
            folder.path().display()
        );
        let path = folder.path().join("nginx.conf");
        fs::write(&path, config).ok()?;
        let child = Command::new("nginx").arg("-c").arg(&path).spawn().ok()?;
        let worker = child.id();
        // It listens once a connection is accepted.
        while std::net::TcpStream::connect(addr).is_err() {
            std::thread::yield_now();
        }
        Some(Nginx { addr, worker, child, _folder: folder })
    }

    impl Drop for Nginx {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
