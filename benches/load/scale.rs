//! How cost grows with prompts, callers, upstreams and streams.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Options;
use super::client::Connection;
use super::gateway::{Gateway, Requests, Upstreams, api_key};
use super::process::{anonymous_memory, cpu_time};
use super::report::{Figures, Table};
use super::upstreams::UpstreamOptions;

/// Which rows are measured.
#[derive(Clone, Debug, clap::Args)]
pub struct ScaleOptions {
    /// Prompts in all.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    prompts: Vec<usize>,
    /// Upstreams in all, for the rows by prompts.
    #[arg(long, default_value_t = 100)]
    upstreams: usize,
    /// Callers that each have rights of their own, for the rows by prompts.
    #[arg(long, default_value_t = 20)]
    callers: usize,
    /// Open streams.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    streams: Vec<usize>,
    /// Classes of rights among the callers of the streams.
    #[arg(long, default_value_t = 1_000)]
    classes: usize,
    /// Changes of one upstream's list, one every ten seconds, while the streams are open.
    #[arg(long, default_value_t = 2)]
    changes: u64,
}

/// Time between two changes.
const BETWEEN_CHANGES: Duration = Duration::from_secs(10);

/// `listing.debounce` of the gateway under test.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Measures and prints all rows.
pub async fn run(options: &Options, scale: &ScaleOptions) {
    let mut figures = Figures::default();
    by_prompts(options, scale, &mut figures).await;
    by_upstreams(options, scale, &mut figures).await;
    by_streams(options, scale, &mut figures).await;
    if let Some(path) = &options.json {
        figures.write(path);
    }
}

/// The configuration: each caller is in a group of its own class, whose rights are by upstream and
/// by prompt.
fn settings(callers: usize, classes: usize, upstreams: usize) -> String {
    let mut toml = "[telemetry]\nlog = \"error\"\n[audit]\npath = \"\"\n[listing]\npage_size = 100000\n\
        debounce = \"200ms\"\n[server.limits]\nstreams = 20000\nstreams_per_caller = 100\nconnections = 30000\nshare = 1.0\n"
        .to_owned();
    toml += &api_key("admin", "pg_admin", "admins");
    toml += "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ngroups = [\"admins\"]\n";
    for caller in 0..callers {
        toml += &api_key(
            &format!("caller-{caller}"),
            &format!("pg_caller_{caller}"),
            &format!("team-{}", caller % classes),
        );
    }
    for class in 0..classes.min(callers) {
        // Half of the prompts of every tenth upstream, and all of one.
        let some: Vec<_> = (0..upstreams)
            .filter(|upstream| upstream % 10 == class % 10)
            .map(|upstream| format!("\"u{upstream}\""))
            .collect();
        let _ = writeln!(
            toml,
            "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"team-{class}\"]\n\
             upstreams = [{}]\nprompts = [\"p-*{}\", \"p-*{}\"]\n\
             [[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"team-{class}\"]\nupstreams = [\"u{}\"]",
            some.join(", "),
            class % 10,
            (class + 5) % 10,
            class % upstreams,
        );
    }
    toml
}

/// The gateway with these numbers, and the CPU time until it had listed everything.
async fn start(
    options: &Options,
    upstreams: usize,
    prompts: usize,
    callers: usize,
    classes: usize,
) -> (Upstreams, Gateway) {
    let scripted = Upstreams::start(&UpstreamOptions {
        upstreams,
        prompts: prompts / upstreams,
        text: 1_000,
        big: 1_000,
        slow: 0,
    });
    let toml = settings(callers, classes, upstreams) + &scripted.tables();
    let gateway =
        Gateway::start(options.binary.as_deref(), &toml, scripted.prompts, Some("pg_admin")).await;
    (scripted, gateway)
}

/// CPU time that the gateway takes for the work, in microseconds.
async fn cpu_of<T>(gateway: &Gateway, work: impl Future<Output = T>) -> (f64, T) {
    let before = cpu_time(gateway.process.pid());
    let done = work.await;
    let took = cpu_time(gateway.process.pid()).saturating_sub(before);
    (took.as_secs_f64() * 1e6, done)
}

async fn list(addr: SocketAddr, key: &str) {
    let requests = Requests::new(addr, Some(key), "2025-06-18").await;
    Connection::open(addr).await.ask(&requests.list().bytes()).await;
}

/// Growth since the row before, for twice as much.
fn growth(before: Option<(f64, f64)>, now: (f64, f64)) -> String {
    before.map_or(String::new(), |(size, cost)| {
        let doublings = (now.0 / size).log2();
        format!("× {:.2}", (now.1 / cost.max(f64::MIN_POSITIVE)).powf(1. / doublings))
    })
}

async fn by_prompts(options: &Options, scale: &ScaleOptions, figures: &mut Figures) {
    let mut table = Table::new(&[
        "prompts",
        "all listed, CPU µs/prompt",
        "per doubling",
        "memory",
        "first list of a caller, CPU µs/prompt",
        "again after a change",
        "change until announced, beyond debounce",
    ]);
    let mut before = None;
    for &prompts in &scale.prompts {
        let callers = scale.callers;
        let (scripted, gateway) = start(options, scale.upstreams, prompts, callers, callers).await;
        let pid = gateway.process.pid();
        let listed = cpu_time(pid).as_secs_f64() * 1e6;
        let memory = anonymous_memory(pid);
        let keys: Vec<String> = (0..callers).map(|n| format!("pg_caller_{n}")).collect();
        let lists = async || {
            for key in &keys {
                list(gateway.addr, key).await;
            }
        };
        let (first, ()) = cpu_of(&gateway, lists()).await;
        // The cost of a list whose view exists.
        let (warm, ()) = cpu_of(&gateway, lists()).await;
        let mut stream = Stream::open(gateway.addr, "pg_admin").await;
        // An upstream is walked at most once a second, and was walked again when its stream was
        // opened.
        tokio::time::sleep(Duration::from_millis(2_200)).await;
        let changed = Instant::now();
        scripted.change(0).await;
        stream.event().await;
        let announced = changed.elapsed().saturating_sub(DEBOUNCE);
        let (again, ()) = cpu_of(&gateway, lists()).await;
        let per = |cpu: f64| (cpu - warm).max(0.) / (callers * prompts) as f64;
        let now = (prompts as f64, listed);
        table.row([
            prompts.to_string(),
            format!("{:.1}", listed / prompts as f64),
            growth(before.replace(now), now),
            format!("{} MiB", memory >> 10),
            format!("{:.3}", per(first)),
            format!("{:.3}", per(again)),
            format!("{:.0} ms", announced.as_secs_f64() * 1e3),
        ]);
        let row = format!("{prompts} prompts");
        figures.set(&row, "gateway", "listed_us_per_prompt", listed / prompts as f64);
        figures.set(&row, "gateway", "memory_kib", memory as f64);
        figures.set(&row, "gateway", "first_list_us_per_prompt", per(first));
        figures.set(&row, "gateway", "list_after_change_us_per_prompt", per(again));
        figures.set(&row, "gateway", "announced_ms", announced.as_secs_f64() * 1e3);
    }
    println!(
        "By prompts: {} upstreams, {} callers with rights of their own\n",
        scale.upstreams, scale.callers
    );
    table.print();
}

async fn by_upstreams(options: &Options, scale: &ScaleOptions, figures: &mut Figures) {
    let prompts = scale.prompts.iter().copied().min().unwrap_or(1_000);
    let mut table =
        Table::new(&["upstreams", "all listed, CPU ms", "per doubling", "ready after", "memory"]);
    let mut before = None;
    for upstreams in [1, 10, 100] {
        let (_scripted, gateway) = start(options, upstreams, prompts, 1, 1).await;
        let listed = cpu_time(gateway.process.pid()).as_secs_f64() * 1e3;
        let memory = anonymous_memory(gateway.process.pid());
        let now = (upstreams as f64, listed);
        table.row([
            upstreams.to_string(),
            format!("{listed:.0}"),
            growth(before.replace(now), now),
            format!("{:.0} ms", gateway.ready_after.as_secs_f64() * 1e3),
            format!("{:.1} MiB", memory as f64 / 1024.),
        ]);
        let row = format!("{upstreams} upstreams");
        figures.set(&row, "gateway", "listed_ms", listed);
    }
    println!("By upstreams: {prompts} prompts\n");
    table.print();
}

async fn by_streams(options: &Options, scale: &ScaleOptions, figures: &mut Figures) {
    let mut table = Table::new(&[
        "streams and callers",
        "classes",
        "KiB per stream",
        "last one notified, beyond debounce",
        "per doubling",
        "CPU with one change every 10 s",
        "memory after changes",
    ]);
    let mut before = None;
    for &streams in &scale.streams {
        let (scripted, gateway) = start(options, 100, 10_000, streams, scale.classes).await;
        let pid = gateway.process.pid();
        // The views of all classes are there before memory is read.
        for class in 0..scale.classes.min(streams) {
            list(gateway.addr, &format!("pg_caller_{class}")).await;
        }
        let memory = anonymous_memory(pid);
        let mut open = Vec::new();
        for stream in 0..streams {
            open.push(Stream::open(gateway.addr, &format!("pg_caller_{stream}")).await);
        }
        let per_stream = anonymous_memory(pid).saturating_sub(memory) as f64 / streams as f64;
        let began = Instant::now();
        let cpu = cpu_time(pid);
        let mut last = Duration::ZERO;
        for change in 0..scale.changes {
            let due = began + BETWEEN_CHANGES * u32::try_from(change).expect("few changes");
            sleep_until(due).await;
            let changed = Instant::now();
            let mut tasks = JoinSet::new();
            // The streams of callers whose rights include the changed prompt: u0 belongs to the
            // classes 0, 10, 20, …
            let (told, others): (Vec<_>, Vec<_>) =
                open.into_iter().enumerate().partition(|(at, _)| {
                    let class = at % scale.classes;
                    class.is_multiple_of(10)
                });
            for (at, mut stream) in told {
                tasks.spawn(async move {
                    stream.event().await;
                    (at, stream, Instant::now())
                });
            }
            scripted.change(0).await;
            open = others.into_iter().map(|(_, stream)| stream).collect();
            let mut back = Vec::new();
            while let Some(told) = tasks.join_next().await {
                let (at, stream, when) = told.expect("it was notified");
                last = last.max(when.duration_since(changed).saturating_sub(DEBOUNCE));
                back.push((at, stream));
            }
            back.sort_by_key(|(at, _)| *at);
            back.into_iter().for_each(|(at, stream)| open.insert(at.min(open.len()), stream));
        }
        let end = began + BETWEEN_CHANGES * u32::try_from(scale.changes).expect("few changes");
        sleep_until(end).await;
        let busy = (cpu_time(pid) - cpu).as_secs_f64() / began.elapsed().as_secs_f64() * 100.;
        let after = anonymous_memory(pid);
        let now = (streams as f64, last.as_secs_f64().max(1e-3));
        table.row([
            streams.to_string(),
            scale.classes.min(streams).to_string(),
            format!("{per_stream:.1}"),
            format!("{:.0} ms", last.as_secs_f64() * 1e3),
            growth(before.replace(now), now),
            format!("{busy:.1} %"),
            format!("{} MiB", after >> 10),
        ]);
        let row = format!("{streams} streams");
        figures.set(&row, "gateway", "kib_per_stream", per_stream);
        figures.set(&row, "gateway", "last_notified_ms", last.as_secs_f64() * 1e3);
        figures.set(&row, "gateway", "cpu_percent", busy);
        figures.set(&row, "gateway", "memory_kib", after as f64);
    }
    println!("By streams: 10,000 prompts of 100 upstreams\n");
    table.print();
}

/// A notification stream of a client.
struct Stream {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Stream {
    /// Subscribes to changes of the list; returns once that is acknowledged.
    async fn open(addr: SocketAddr, key: &str) -> Self {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"promptsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: subscriptions/listen\r\nX-API-Key: {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(addr).await.expect("it listens");
        stream.write_all(head.as_bytes()).await.expect("it reads");
        let mut opened = Self { stream, buffer: Vec::with_capacity(1_024) };
        opened.until("subscriptions/acknowledged").await;
        opened
    }

    /// Waits for the notification of a change.
    async fn event(&mut self) {
        self.until("list_changed").await;
    }

    async fn until(&mut self, text: &str) {
        while memchr::memmem::find(&self.buffer, text.as_bytes()).is_none() {
            let read = self.stream.read_buf(&mut self.buffer).await.expect("it is open");
            assert!(read > 0, "closed: {}", String::from_utf8_lossy(&self.buffer));
        }
        self.buffer.clear();
    }
}
