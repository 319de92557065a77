//! The cost of rate limits over all replicas: a get through one gateway that counts alone, through
//! one that counts in a store (exact, leased), and through three that share the store. Needs
//! redis-server.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use super::Options;
use super::client::{Prepared, closed_loop};
use super::gateway::{Gateway, Requests, Upstreams};
use super::process::cpu_time;
use super::report::{Samples, Table, with_ratio};
use super::upstreams::UpstreamOptions;

/// Connections at once, of all replicas together, where it is not one.
const CONNECTIONS: usize = 30;

/// A server in memory, which is killed on drop.
struct Store {
    child: Child,
    addr: SocketAddr,
}

impl Store {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let addr = free.expect("a free port");
        let child = Command::new("redis-server")
            .args(["--port", &addr.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        while TcpStream::connect(addr).is_err() {
            std::thread::yield_now();
        }
        Self { child, addr }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gateways with the same configuration.
struct System {
    name: &'static str,
    gateways: Vec<Gateway>,
    cpu: Samples,
    store_cpu: Samples,
    median: Samples,
    alone: Samples,
    rate: Samples,
}

/// Measures all systems and prints them.
pub async fn run(options: &Options) {
    let scripted = Upstreams::start(&UpstreamOptions::usual(1_000));
    let store = Store::start();
    let limits = "[[limits]]\nper = [\"caller\"]\nrate = \"1000000/s\"\n[[limits]]\nper = [\"upstream\"]\nrate = \"1000000/s\"\n";
    let cluster = |more: &str| {
        // Patient: the harness takes the processor from the store.
        format!("[cluster]\nstore = \"redis://{}\"\ntimeout = \"5s\"\n{more}", store.addr)
    };
    let mut systems = Vec::new();
    for (name, replicas, shared) in [
        ("no limit", 1, String::new()),
        ("local", 1, limits.to_owned()),
        ("exact", 1, limits.to_owned() + &cluster("prefix = \"a:\"\n")),
        ("leased", 1, limits.to_owned() + &cluster("prefix = \"b:\"\nlimits = \"leased\"\n")),
        ("exact, three replicas", 3, limits.to_owned() + &cluster("prefix = \"c:\"\n")),
    ] {
        let quiet = "[telemetry]\nlog = \"error\"\n[audit]\npath = \"\"\n";
        let toml = format!("{quiet}{}{shared}", scripted.tables());
        let mut gateways = Vec::new();
        for _ in 0..replicas {
            let binary = options.binary.as_deref();
            gateways.push(Gateway::start(binary, &toml, scripted.prompts, None).await);
        }
        systems.push(System {
            name,
            gateways,
            cpu: Samples::default(),
            store_cpu: Samples::default(),
            median: Samples::default(),
            alone: Samples::default(),
            rate: Samples::default(),
        });
    }
    let count = systems.len();
    for round in 0..options.rounds {
        for place in 0..count {
            systems[(place + round) % count].measure(options, store.child.id()).await;
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    report(&systems);
}

impl System {
    async fn measure(&mut self, options: &Options, store: u32) {
        let mut requests: Vec<(SocketAddr, Prepared)> = Vec::new();
        for gateway in &self.gateways {
            let client = Requests::new(gateway.addr, None, "2025-06-18").await;
            requests.push((gateway.addr, client.get("u3__p-00007")));
        }
        let each = CONNECTIONS / requests.len();
        let cpu = || self.gateways.iter().map(|gateway| cpu_time(gateway.process.pid())).sum();
        let (before, store_before): (std::time::Duration, _) = (cpu(), cpu_time(store));
        let loops = requests.iter().map(|(addr, prepared)| {
            let (addr, prepared, time) = (*addr, prepared.clone(), options.duration());
            tokio::spawn(async move { closed_loop(addr, &prepared, each, time).await })
        });
        let (mut calls, mut latencies, mut rate) = (0, Vec::new(), 0.);
        for done in loops.collect::<Vec<_>>() {
            let done = done.await.expect("it ends");
            calls += done.calls;
            rate += done.calls as f64 / done.took.as_secs_f64();
            latencies.extend(done.latencies);
        }
        let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6 / calls as f64;
        self.cpu.push(micros(cpu() - before));
        self.store_cpu.push(micros(cpu_time(store) - store_before));
        latencies.sort_unstable();
        self.median.push(latencies[latencies.len() / 2].as_secs_f64() * 1e6);
        self.rate.push(rate);
        let (addr, prepared) = &requests[0];
        let mut alone = closed_loop(*addr, prepared, 1, options.duration()).await.latencies;
        alone.sort_unstable();
        self.alone.push(alone[alone.len() / 2].as_secs_f64() * 1e6);
    }
}

fn report(systems: &[System]) {
    let head =
        ["system", "CPU, µs", "of the store, µs", "median, µs", "one connection, µs", "calls/s"];
    let mut table = Table::new(&head);
    // Compared with the gateway that counts alone.
    let unit = systems.iter().find(|system| system.name == "local");
    for system in systems {
        let compared = |figure: fn(&System) -> &Samples, digits| {
            with_ratio(figure(system).median(), unit.and_then(|unit| figure(unit).median()), digits)
        };
        table.row([
            system.name.to_owned(),
            compared(|system| &system.cpu, 1),
            with_ratio(system.store_cpu.median(), None, 1),
            compared(|system| &system.median, 0),
            compared(|system| &system.alone, 0),
            compared(|system| &system.rate, 0),
        ]);
    }
    table.print();
}
