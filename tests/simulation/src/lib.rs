//! The whole gateway under simulation: one seed decides everything (tests/simulation/README.md).
//!
//! Each seed runs in a process of its own, since a process has one machine. Without arguments, this
//! program runs the seeds of earlier failures, then `PROMPTGATE_SIMULATION_SEEDS` more, as many at
//! once as there are cores.

mod admin;
mod client;
mod collector;
mod disk;
mod machine;
mod plan;
mod rollouts;
mod run;
mod runner;
mod skills;
mod store;
mod upstream;
mod vault;
mod versions;
mod world;

use std::process::ExitCode;

use fastrand::Rng;
use machine::{Machine, entropy, trace};
use plan::{GATEWAY, Scenario};

/// Runs the seeds that the command line asks for.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--seed") => match OneRun::parse(&arguments) {
            Ok(one) => one.run(),
            Err(why) => {
                eprintln!("{why}\n{USAGE}");
                ExitCode::from(2)
            }
        },
        Some("--compare-store") => match arguments.get(1) {
            Some(address) => store::against_real::compare(address),
            None => {
                eprintln!("--compare-store needs an address\n{USAGE}");
                ExitCode::from(2)
            }
        },
        Some("--help") => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        // The filter of `cargo test NAME` is meant for other tests, unless it is about this one.
        Some(filter) if !filter.starts_with('-') && !"simulation".contains(filter) => {
            ExitCode::SUCCESS
        }
        _ => runner::run_many(),
    }
}

const USAGE: &str = "usage: cargo test --test simulation -- --seed NUMBER [--trace] [--without NAME]...
  --trace           prints what happens, one line for each event
  --without NAME    leaves out a kind of fault (network, moods, disk, crashes, restarts, reloads, changes, clock,
                    intruders, floods, store, approvals, panics, authors, collector, skills, links,
                    rollouts, versions), the last client or upstream, or half of the
                    time (half); can be repeated
or: cargo test --test simulation -- --compare-store ADDRESS
  compares the model of the store with a Redis or Valkey server, whose database 9 and scripts are lost
without --seed: runs PROMPTGATE_SIMULATION_SEEDS seeds (default 20) from PROMPTGATE_SIMULATION_FROM (default 0) on";

/// One seed, as the command line asks for it.
struct OneRun {
    seed: u64,
    is_traced: bool,
    without: Vec<String>,
}

impl OneRun {
    /// # Errors
    /// The mistake in the arguments.
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut one = Self { seed: 0, is_traced: false, without: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--seed" => {
                    one.seed = value()?.parse().map_err(|_| "a seed is a number".to_owned())?;
                }
                "--without" => one.without.push(value()?.clone()),
                "--trace" => one.is_traced = true,
                other => return Err(format!("unknown argument {other}")),
            }
        }
        Ok(one)
    }

    fn run(&self) -> ExitCode {
        entropy::begin(self.seed);
        fastrand::seed(self.seed);
        let mut rng = Rng::with_seed(self.seed);
        let mut scenario = Scenario::draw(&mut rng);
        for name in &self.without {
            if let Err(why) = scenario.without(name) {
                eprintln!("{why}\n{USAGE}");
                return ExitCode::from(2);
            }
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        let world = runtime.block_on(async {
            trace::begin(self.is_traced);
            trace::note("scenario", &format!("seed {} without {:?}", self.seed, self.without));
            trace::note("scenario", &format!("{scenario:?}"));
            let _ = tracing::subscriber::set_global_default(trace::GatewayLog);
            let machine = Machine::install(&mut rng, GATEWAY);
            run::run(rng, scenario, machine).await
        });
        let (lines, digest) = trace::summary();
        let violations = world.violations();
        println!("steps {} lines {lines} digest {digest}", world.steps());
        for violation in &violations {
            println!("violation: {violation}");
        }
        // The threads of the gateway may wait for their turn for ever.
        std::process::exit(i32::from(!violations.is_empty()));
    }
}
