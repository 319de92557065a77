//! Processes under test: their start, their CPU time and their memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A child process that prints where it listens. It is terminated on drop.
pub struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the process starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdout }
    }

    /// Starts this harness in another role.
    pub fn role(arguments: &[&str]) -> Self {
        let own = std::env::current_exe().expect("a path");
        Self::start(Command::new(own).args(arguments))
    }

    /// The next line of its standard output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it prints text");
        assert!(!line.is_empty(), "the process has ended");
        line.trim_end().to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    /// Ends it as an operator would, and waits for that: callgrind and instrumented binaries write
    /// their files at the end.
    fn drop(&mut self) {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("a process id");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The CPU time of all threads of a process so far, user and kernel. It advances in hundredths of a
/// second.
pub fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything: state is field 3, utime and stime are 14 and 15.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// How often the threads of a process were switched so far.
pub fn switches(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .map(|task| fs::read_to_string(task.path().join("status")).unwrap_or_default())
        .flat_map(|status| {
            let lines = status.lines().filter(|line| line.contains("ctxt_switches:"));
            lines
                .filter_map(|line| line.split_whitespace().nth(1)?.parse().ok())
                .collect::<Vec<u64>>()
        })
        .sum()
}

/// Anonymous memory of a process in KiB.
pub fn anonymous_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Reads `address` lines that a role prints.
pub fn address(line: &str) -> SocketAddr {
    line.parse().expect("an address")
}
