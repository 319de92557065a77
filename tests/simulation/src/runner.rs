//! Runs many seeds, each in a process of its own, and makes of a failure the shortest command that
//! shows it.

use std::collections::VecDeque;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::disk;
use crate::plan::FAULTS;
use crate::store;

/// A seed, and what its run leaves out.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Case {
    seed: u64,
    without: Vec<String>,
}

/// The report of a process on its seed.
struct Report {
    /// The steps of the actors.
    steps: u64,
    /// The lines and the digest of the trace.
    trace: String,
    /// Why the run has failed.
    failures: Vec<String>,
}

/// The seeds that have found bugs, one on each line, with what they leave out, and the bug.
const REGRESSIONS: &str = include_str!("regressions.txt");

/// The real time after which a process hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many seeds are run twice, to compare their traces.
const TWICE: usize = 3;

/// Runs the seeds of earlier failures and those that the environment asks for.
pub fn run_many() -> ExitCode {
    // The models of disk and store must be right before conclusions are drawn from them.
    for (name, check) in disk::tests::CHECKS.iter().chain(&store::tests::CHECKS) {
        if std::panic::catch_unwind(check).is_err() {
            println!("{name} does not hold");
            return ExitCode::FAILURE;
        }
    }
    let began = Instant::now();
    let regressions = REGRESSIONS.lines().filter_map(Case::parse);
    let (count, from) = (number("SEEDS", 20), number("FROM", 0));
    let fresh = (from..from + count).map(|seed| Case { seed, ..Case::default() });
    let cases: VecDeque<_> = regressions.chain(fresh).collect();
    let total = cases.len();
    let queue = Mutex::new(cases);
    let outcome = Mutex::new((0_u64, Vec::new()));
    let until_failure = number("UNTIL_FAILURE", 0) != 0;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(case) = { queue.lock().expect("no panic").pop_front() } {
                    let report = case.run();
                    let mut outcome = outcome.lock().expect("no panic");
                    outcome.0 += report.steps;
                    if !report.failures.is_empty() {
                        println!("seed {}: {}", case.seed, report.failures[0]);
                        outcome.1.push(case);
                        if until_failure {
                            queue.lock().expect("no panic").clear();
                        }
                    }
                }
            });
        }
    });
    let (steps, failed) = outcome.into_inner().expect("no panic");
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "simulation: {total} seeds, {steps} steps in {seconds:.1} s: {:.0} seeds a minute, {} failed",
        total as f64 / seconds * 60.0,
        failed.len()
    );
    if until_failure {
        return if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let same = (from..from + TWICE as u64).all(runs_the_same);
    failed.iter().take(3).for_each(Case::explain);
    if failed.is_empty() && same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(format!("PROMPTGATE_SIMULATION_{name}"));
    value.ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Whether a seed has the same trace, byte for byte, when it is run again.
fn runs_the_same(seed: u64) -> bool {
    let case = Case { seed, ..Case::default() };
    let (first, second) = (case.run().trace, case.run().trace);
    if first != second {
        println!("seed {seed} is not the same when it is run again: {first}, then {second}");
    }
    first == second
}

impl Case {
    /// Reads a line `SEED [NAME]... # the bug`; `None` for a comment.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split('#').next()?.split_whitespace();
        let seed = words.next()?.parse().ok()?;
        Some(Self { seed, without: words.map(str::to_owned).collect() })
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--seed".to_owned(), self.seed.to_string()];
        for name in &self.without {
            arguments.extend(["--without".to_owned(), name.clone()]);
        }
        arguments
    }

    fn run(&self) -> Report {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(self.arguments()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (out, error) = (child.stdout.take(), child.stderr.take());
        std::thread::scope(|scope| {
            let errors = scope.spawn(|| text(error));
            let output = scope.spawn(|| text(out));
            let ended = wait(&mut child);
            Report::read(ended, &output.join().expect("text"), &errors.join().expect("text"))
        })
    }

    /// Prints the command that shows the failure, shortened as long as it still fails.
    fn explain(&self) {
        let mut shortest = self.clone();
        let repeated = ["client", "client", "client", "client", "upstream", "half", "half"];
        for name in FAULTS.into_iter().chain(repeated) {
            let mut shorter = shortest.clone();
            shorter.without.push(name.to_owned());
            if !shorter.run().failures.is_empty() {
                shortest = shorter;
            }
        }
        println!(
            "\nseed {} fails; replay it with\n  cargo test --test simulation -- {} --trace",
            self.seed,
            shortest.arguments().join(" ")
        );
        for failure in shortest.run().failures {
            println!("  {failure}");
        }
    }
}

fn text(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for the end of a process; `None` if it hangs.
fn wait(child: &mut Child) -> Option<bool> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.success());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    None
}

impl Report {
    fn read(ended: Option<bool>, output: &str, errors: &str) -> Self {
        let summary = output.lines().find_map(|line| line.strip_prefix("steps "));
        let (steps, trace) = summary.and_then(|line| line.split_once(' ')).unwrap_or(("0", ""));
        let violations = output.lines().filter_map(|line| line.strip_prefix("violation: "));
        let mut failures: Vec<_> = violations.map(str::to_owned).collect();
        match ended {
            None => failures.push(format!("no end after {PATIENCE:?}")),
            Some(false) if failures.is_empty() => {
                let panic: Vec<_> =
                    errors.lines().take_while(|l| !l.starts_with("stack")).collect();
                failures.push(format!("it has panicked: {}", panic.join(" ")));
            }
            Some(_) => {}
        }
        Self { steps: steps.parse().unwrap_or_default(), trace: trace.to_owned(), failures }
    }
}
