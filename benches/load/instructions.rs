//! Instruction counts of a get, a list, a call of a tool and a merge, by callgrind: they do not
//! depend on what else the machine does.
//!
//! The gateway runs with one worker thread under callgrind. What a number of requests costs is
//! counted once it has served others and is idle.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use domain::json::Json;
use domain::name::{Naming, Prefix};
use domain::prompts::merge;
use domain::prompts::prompt::Prompt;
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::client::{Connection, NUMBER, Prepared};
use super::gateway::{Configured, KEY, Requests, Upstreams, command, settings, spawn};
use super::process::{Process, address, cpu_time};
use super::upstreams::UpstreamOptions;

#[derive(Clone, Debug, clap::Args)]
pub struct InstructionOptions {
    /// Writes the counts as those of this version.
    #[arg(long)]
    renew: bool,
    /// The file of the counts.
    #[arg(long, default_value = "benches/instructions.json")]
    file: PathBuf,
}

/// More instructions than in the last version by this part are a failure: small steps add up.
const TOLERATED: f64 = 0.05;

/// The file of the counts.
#[derive(Default, Deserialize, Serialize)]
struct KnownCounts {
    /// The version that was counted.
    version: String,
    /// Rows that take more since then, for a reason.
    allowed: BTreeMap<String, Allowed>,
    /// By toolchain and CPU, then by row.
    counts: BTreeMap<String, BTreeMap<String, u64>>,
}

/// An increase that a change is worth. The commit that adds it says so, too.
#[derive(Deserialize, Serialize)]
struct Allowed {
    /// The part by which the row takes more.
    more: f64,
    why: String,
}

impl KnownCounts {
    fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).expect("the file of the counts can be read");
        serde_json::from_str(&text).expect("the file has the form of the counts")
    }

    /// Takes the counts as those of the version of this build. The counts of a version are taken
    /// once for each machine.
    fn renew(&mut self, machine: &str, counts: &BTreeMap<String, u64>) {
        let version = env!("CARGO_PKG_VERSION");
        if self.version != version {
            *self = Self { version: version.to_owned(), ..Self::default() };
        }
        let known = self.counts.insert(machine.to_owned(), counts.clone());
        assert!(
            known.is_none(),
            "the counts of {version} are known; name the rows that may take more in `allowed`, with the reason"
        );
    }

    /// The rows that take more than they may, each with its count in the last version.
    fn beyond(&self, machine: &str, counts: &BTreeMap<String, u64>) -> Vec<String> {
        let mut beyond = Vec::new();
        for (name, count) in counts {
            let known = self.counts.get(machine).and_then(|known| known.get(name));
            let Some(known) = known else {
                println!("  {name}: {count} (nothing to compare with on this toolchain and CPU)");
                continue;
            };
            let more = *count as f64 / *known as f64 - 1.;
            let allowed = self.allowed.get(name);
            let why = allowed.map_or_else(String::new, |allowed| {
                format!("; {:+.1} % allowed: {}", allowed.more * 100., allowed.why)
            });
            println!("  {name}: {count} ({:+.1} %{why})", more * 100.);
            if more > TOLERATED + allowed.map_or(0., |allowed| allowed.more) {
                beyond.push(name.clone());
            }
        }
        beyond
    }
}

/// Requests that are counted.
const REQUESTS: usize = 800;

/// Requests that are counted for pages, which take half of what a get takes.
const PAGES: usize = 8_000;

/// Prompts on a page of ten thousand: how often a list of megabytes is written on depends on its
/// reader.
const PAGE: usize = 100;

/// Limits on the cost of approvals, of guards and of what is passed through: a count, that of a
/// call without them, and the fraction by which it may be higher.
const LIMITED: [(&str, &str, f64); 6] = [
    ("tool call, bare", "get, bare", 0.3),
    ("get, guarded arguments", "get, bare", 0.05),
    ("get, guarded, approved text", "get, approved text", 0.05),
    ("get, approved text", "get, bare", 0.05),
    ("get, approved template", "get, bare", 0.06),
    ("page of 10,000, approved", "page of 10,000, bare", 0.05),
];

/// Counts, prints, and compares where the counts of this toolchain and CPU are known.
///
/// # Panics
/// If a count is beyond what is tolerated.
pub async fn run(options: &InstructionOptions) {
    let machine = machine();
    let counts = count().await;
    let mut known = KnownCounts::read(&options.file);
    if options.renew {
        known.renew(&machine, &counts);
        let text = serde_json::to_string_pretty(&known).expect("numbers and texts");
        fs::write(&options.file, text + "\n").expect("the file can be written");
    }
    println!("instructions on {machine}, compared with {}", known.version);
    let beyond = known.beyond(&machine, &counts);
    for (limited, without, tolerated) in LIMITED {
        let more = counts[limited] as f64 / counts[without] as f64 - 1.;
        println!("  {limited}: {:+.1} % of {without}", more * 100.);
        assert!(more <= tolerated, "{limited} costs more than {} % more", tolerated * 100.);
    }
    assert!(
        beyond.is_empty(),
        "{beyond:?} take over {} % more instructions than in {}; if that is meant, say why in `allowed` of {}",
        TOLERATED * 100.,
        known.version,
        options.file.display()
    );
}

/// The toolchain and the CPU, on which the counts depend.
fn machine() -> String {
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find(|line| line.starts_with("model name"));
    let cpu = cpu.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown CPU");
    format!("{}, {cpu}", rustc.unwrap_or_else(|_| "unknown toolchain".to_owned()))
}

async fn count() -> BTreeMap<String, u64> {
    let scripted = Upstreams::start(&UpstreamOptions::usual(1_000));
    let mut collector = Process::role(&["collector"]);
    let collector = address(&collector.line());
    let mut counts = BTreeMap::new();
    for (name, configured) in [("bare", Configured::Bare), ("everything", Configured::Everything)] {
        let toml = settings(configured, collector) + &scripted.tables();
        let key = configured.has_key().then_some(KEY);
        for (row, counted) in [("get", Counted::Get), ("list of 500", Counted::List)] {
            let run = Run {
                toml: &toml,
                key,
                upstreams: &scripted,
                listed: scripted.prompts,
                probes: 0,
                counted,
                requests: REQUESTS,
            };
            counts.insert(format!("{row}, {name}"), run.count().await);
        }
    }
    let toml = settings(Configured::Bare, collector) + "[passthrough]\nupstream = \"u3\"\n";
    let call = Run {
        toml: &(toml + &scripted.tables()),
        key: None,
        upstreams: &scripted,
        listed: scripted.prompts,
        probes: 0,
        counted: Counted::Call,
        requests: REQUESTS,
    };
    counts.insert("tool call, bare".to_owned(), call.count().await);
    count_approved(collector, &scripted, &mut counts).await;
    let totals = [1, 2].map(|times| {
        let folder = tempfile::tempdir().expect("a folder");
        let own = std::env::current_exe().expect("a path");
        let mut callgrind = callgrind(&folder.path().join("out"));
        let done = callgrind.arg(own).args(["merge", &times.to_string()]).status();
        assert!(done.expect("valgrind is installed").success());
        total(&folder.path().join("out"))
    });
    counts.insert("merge of 10 × 100".to_owned(), totals[1] - totals[0]);
    counts
}

/// Counts gets of approved texts and with guards, and lists of ten thousand prompts with approvals
/// and without.
async fn count_approved(
    collector: SocketAddr,
    scripted: &Upstreams,
    counts: &mut BTreeMap<String, u64>,
) {
    let bare = settings(Configured::Bare, collector);
    let many = Upstreams::start(&UpstreamOptions { prompts: 1_000, ..UpstreamOptions::usual(1) });
    let enforced = "[approvals]\nmode = \"enforce\"\n";
    // The arguments of the get that is counted.
    let approved_text = format!(
        "{enforced}[[approvals.probes]]\nprompt = \"u3__p-00007\"\narguments = {{ text = \"{NUMBER}\" }}\n"
    );
    let guards = "[[guards]]\nname = \"secrets\"\non = [\"arguments\", \"results\"]\nmode = \"enforce\"\n\
                  deny = [\"private_key\", \"cloud_token\", \"code_token\"]\n";
    let guarded_text = format!("{approved_text}{guards}");
    let guarded = guards.replace(", \"results\"", "");
    // A prompt that needs an argument is not asked for its text here: forty thousand gets under
    // callgrind would take half an hour. Both lists are the same, byte for byte.
    let mut overlaid = "[defaults]\napproval_probes = false\n".to_owned();
    for upstream in 0..10 {
        let _ = writeln!(
            overlaid,
            "[[overlays]]\nupstream = \"u{upstream}\"\nprompt = \"*\"\narguments.text = {{ required = true }}"
        );
    }
    let approved = format!("{enforced}{overlaid}");
    // Each prompt with every set of its two optional arguments, and the one of the probe, twice.
    let probes = 2 * 4 * scripted.prompts as u64;
    for (row, upstreams, approvals, probes, counted) in [
        ("get, approved text", scripted, &*approved_text, probes + 2, Counted::Get),
        ("get, approved template", scripted, enforced, probes, Counted::Get),
        ("get, guarded arguments", scripted, &*guarded, 0, Counted::Get),
        ("get, guarded, approved text", scripted, &*guarded_text, probes + 2, Counted::Get),
        ("page of 10,000, bare", &many, &*overlaid, 0, Counted::List),
        ("page of 10,000, approved", &many, &*approved, 0, Counted::List),
    ] {
        let is_list = counted == Counted::List;
        let paged = bare.replace("page_size = 100000", &format!("page_size = {PAGE}"));
        let settings = if is_list { &paged } else { &bare };
        let requests = if is_list { PAGES } else { REQUESTS };
        let toml = [settings.as_str(), approvals, &upstreams.tables()].concat();
        let listed = if is_list { PAGE } else { upstreams.prompts };
        let run = Run { toml: &toml, key: None, upstreams, listed, probes, counted, requests };
        counts.insert(row.to_owned(), run.count().await);
    }
}

/// Requests at once before others are counted: more than probes of one upstream.
const AT_ONCE: usize = 16;

/// The request that is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Counted {
    Get,
    List,
    /// Of a tool, through `[passthrough]`.
    Call,
}

/// A gateway that serves a number of requests under callgrind.
struct Run<'a> {
    toml: &'a str,
    key: Option<&'a str>,
    upstreams: &'a Upstreams,
    /// Prompts on the first page.
    listed: usize,
    /// Gets that it sends by itself after its start.
    probes: u64,
    counted: Counted,
    /// Requests that are counted; half as many come before.
    requests: usize,
}

impl Run<'_> {
    /// The instructions of one request.
    async fn count(&self) -> u64 {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("gateway.toml"), self.toml).expect("a file");
        if self.toml.contains("[approvals]") {
            for upstream in 0..10 {
                let upstream = format!("u{upstream}");
                let mut approve = command(None);
                approve.args([
                    "approvals",
                    "approve",
                    "--upstream",
                    &upstream,
                    "--yes",
                    "--unseen",
                ]);
                let done = approve.current_dir(folder.path()).output().expect("it runs");
                assert!(done.status.success(), "{done:?}");
            }
        }
        let before = self.upstreams.calls().await;
        let out = folder.path().join("out");
        let mut callgrind = callgrind(&out);
        callgrind.arg(command(None).get_program()).env("TOKIO_WORKER_THREADS", "1");
        let (process, addr, _) = spawn(&mut callgrind, folder.path());
        let client = Requests::new(addr, self.key, "2025-06-18").await;
        client.until_listed(self.listed).await;
        while self.upstreams.calls().await < before + self.probes {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let prepared: Prepared = match self.counted {
            Counted::Get => client.get("u3__p-00007"),
            Counted::List => client.list(),
            Counted::Call => client.call(),
        };
        let bytes = prepared.bytes();
        // So that the pools of connections to upstreams are alike, even where probes filled them.
        let mut others = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let other = Requests::new(addr, self.key, "2025-06-18").await;
            others.spawn(async move {
                let mut connection = Connection::open(addr).await;
                connection.ask(&other.get("u3__p-00007").bytes()).await;
            });
        }
        others.join_all().await;
        let mut connection = Connection::open(addr).await;
        for _ in 0..self.requests / 2 {
            let response = connection.ask(&bytes).await;
            // What is refused costs something else.
            assert!(
                memmem::find(response, b"\"result\":").is_some(),
                "{}",
                String::from_utf8_lossy(response)
            );
        }
        // The instructions of the start vary from run to run by more than those of many requests.
        until_idle(process.pid());
        control(&process, "--zero");
        for _ in 0..self.requests {
            connection.ask(&bytes).await;
        }
        control(&process, "--dump");
        total(&out.with_extension("1")) / self.requests as u64
    }
}

/// Commands the callgrind that runs a process.
fn control(process: &Process, command: &str) {
    let id = process.pid().to_string();
    let done = Command::new("callgrind_control").args([command, &id]).output();
    assert!(done.expect("valgrind is installed").status.success(), "{command}");
}

/// Waits until a process does no more than look after its files.
fn until_idle(pid: u32) {
    let mut before = cpu_time(pid);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = cpu_time(pid);
        if now - before <= IDLE {
            return;
        }
        before = now;
    }
}

/// CPU time of an idle gateway under callgrind in each second.
const IDLE: Duration = Duration::from_millis(20);

fn callgrind(out: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet"]);
    // At its end the gateway reads memory that valgrind does not show it, which ends it: the counts
    // are written all the same.
    command.args(["--log-file=/dev/null"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    // A first list that waits for the upstreams longer than this would be sent as an event stream.
    command.env("PROMPTGATE__SERVER__LIMITS__KEEP_ALIVE", "5m");
    // Copies beyond a threshold are one instruction that callgrind counts once a byte: a future
    // that grows over the threshold would look like thousands of instructions.
    command.env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=1073741824");
    command
}

/// The sum at the end of a file of callgrind.
fn total(out: &Path) -> u64 {
    let text = fs::read_to_string(out).expect("callgrind has written it");
    let line = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")));
    line.and_then(|line| line.trim().parse().ok()).expect("a sum")
}

/// Merges the lists of ten upstreams this often, for callgrind.
pub fn merge(times: usize) {
    let prompts: Vec<_> = (0..100)
        .map(|n| {
            format!(
                r#"{{"name":"prompt-{n:05}","title":"Prompt {n}","arguments":[{{"name":"text"}}]}}"#
            )
        })
        .map(|text| Prompt::read(Json::parse(text.as_bytes(), 8).expect("JSON")).expect("a prompt"))
        .collect();
    let prefixes: Vec<_> =
        (0..10).map(|n| Prefix::parse(&format!("u{n}")).expect("a prefix")).collect();
    let sources: Vec<_> =
        prefixes.iter().map(|prefix| merge::MergeSource { prefix, prompts: &prompts }).collect();
    let names: HashSet<&str> = prefixes.iter().map(Prefix::as_str).collect();
    let naming = Naming::new("__", 128);
    for _ in 0..times {
        black_box(merge::merge(&sources, &names, &naming, |name| Cow::Borrowed(name)));
    }
}
