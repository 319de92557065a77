//! The cost of a call through the gateway, compared in one run with a bare reverse proxy:
//! `cargo bench --bench load`, about five minutes. benches/README.md describes the options, the
//! rows and how to read them.
//!
//! The harness starts everything as a process of its own (scripted upstreams, the proxy, the
//! gateway in several configurations), measures them in interleaved rounds, and prints medians as a
//! table, or as JSON too. Linux only: CPU time and memory are read from `/proc`.

mod client;
mod collector;
mod export;
mod gateway;
mod hop;
mod instructions;
mod open_loop;
mod process;
mod replicas;
mod report;
mod rounds;
mod scale;
mod upstreams;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

// As the gateway has it: the proxy is compared with the gateway, not with another allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the gateway against a bare reverse proxy.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Given by `cargo bench`.
    #[arg(long, hide = true, global = true)]
    bench: bool,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// Interleaved rounds; the median of each figure is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 1_000)]
    millis: u64,
    /// Connections at once, where a row does not say one.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Only rows whose name contains one of these texts, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only systems whose name contains one of these texts, separated by commas.
    #[arg(long, value_delimiter = ',')]
    systems: Vec<String>,
    /// Another gateway that already runs, as NAME=URL or NAME=URL=PID; the PID gives its CPU time.
    #[arg(long)]
    other: Vec<String>,
    /// Also writes the figures as JSON to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measures another binary of the gateway, such as that of an earlier commit.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// A further binary of the gateway in the same rounds, as NAME=FILE.
    #[arg(long, value_parser = named_file)]
    beside: Vec<(String, PathBuf)>,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

impl Options {
    fn duration(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

#[derive(Debug, Subcommand)]
enum Role {
    /// How cost grows with prompts, callers, upstreams and streams.
    Scale(scale::ScaleOptions),
    /// Latency at 70 % of the highest rate, with correction for coordinated omission.
    Open,
    /// The export of the audit log: a dead collector, and a long log that catches up.
    Export(export::ExportOptions),
    /// The cost of rate limits over several replicas (needs redis-server).
    Replicas,
    /// Counts instructions with callgrind, and compares them with benches/instructions.json.
    Instructions(instructions::InstructionOptions),
    /// The scripted upstreams (started by the harness).
    #[command(hide = true)]
    Upstreams(upstreams::UpstreamOptions),
    /// The bare reverse proxy (started by the harness).
    #[command(hide = true)]
    Hop { target: String },
    /// A collector that takes everything (started by the harness).
    #[command(hide = true)]
    Collector,
    /// The merge, by itself (started by the harness).
    #[command(hide = true)]
    Merge { times: usize },
}

fn main() {
    let Arguments { role, options, .. } = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match role {
        None => runtime.block_on(rounds::run(&options)),
        Some(Role::Scale(scale)) => runtime.block_on(scale::run(&options, &scale)),
        Some(Role::Open) => runtime.block_on(open_loop::run(&options)),
        Some(Role::Export(export)) => runtime.block_on(export::run(&options, &export)),
        Some(Role::Replicas) => runtime.block_on(replicas::run(&options)),
        Some(Role::Instructions(chosen)) => runtime.block_on(instructions::run(&chosen)),
        Some(Role::Upstreams(upstreams)) => runtime.block_on(upstreams::serve(upstreams)),
        Some(Role::Hop { target }) => runtime.block_on(hop::serve(&target)),
        Some(Role::Collector) => runtime.block_on(collector::serve()),
        Some(Role::Merge { times }) => instructions::merge(times),
    }
}
