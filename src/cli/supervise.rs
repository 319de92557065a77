//! Stands between the gateway and a child process, so that nothing of the child is ever left behind:
//! not when the gateway is killed, nor what the child has started and let go.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, waitpid,
};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::Failure;

/// How long a child may take to end once it is asked to; shorter than the gateway's own patience with
/// both.
const AFTER_TERM: Duration = Duration::from_millis(2_000);

/// Rounds of killing what a child has left, and the time between two: each finds what the round before
/// was still starting, or what takes a moment to go.
const ROUNDS: usize = 50;
const ROUND: Duration = Duration::from_millis(10);

/// Runs `command`, and ends with it, or when the process `parent` has gone.
pub(super) fn run(parent: i32, is_last: bool, command: &[String]) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("cannot supervise: {error}"));
    let os = |error: rustix::io::Errno| failed(error.into());
    // The child dies with its supervisor, which has no time for a request.
    let signal = if is_last { Signal::KILL } else { Signal::TERM };
    set_parent_process_death_signal(Some(signal)).map_err(os)?;
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(Failure::new("the process that started this has gone"));
    }
    if is_last {
        let [program, arguments @ ..] = command else {
            return Err(Failure::usage("a command is needed"));
        };
        return Err(failed(std::process::Command::new(program).args(arguments).exec()));
    }
    // Whoever loses its parent below becomes our child, and is found here.
    set_child_subreaper(Some(getpid())).map_err(os)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime.map_err(failed)?.block_on(supervise(command)).map_err(failed)?;
    end_descendants();
    Ok(exit_code(status))
}

async fn supervise(command: &[String]) -> std::io::Result<ExitStatus> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut adopted = signal(SignalKind::child())?;
    let own = getpid().as_raw_pid().to_string();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["supervise", "--last", "--parent", &own, "--"])
        .args(command)
        .process_group(0)
        .spawn()?;
    let group = child.id();
    // The streams are the child's alone: their ends are its ends.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            _ = adopted.recv() => reap_adopted(group),
            _ = terminate.recv() => break,
        }
    }
    signal_group(group, Signal::TERM);
    match timeout(AFTER_TERM, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            signal_group(group, Signal::KILL);
            child.wait().await
        }
    }
}

/// Takes note of the ends of those that were let go, lest they stay as zombies. The child itself is
/// waited for elsewhere.
fn reap_adopted(child: Option<u32>) {
    let own = child.and_then(|id| i32::try_from(id).ok());
    for pid in children_of(getpid()) {
        if Some(pid.as_raw_pid()) != own {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn signal_group(group: Option<u32>, signal: Signal) {
    let pid = group.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The group may be gone already, which is what we want.
        let _ = kill_process_group(pid, signal);
    }
}

/// Kills what is left, however far it has gone from the child that started it.
fn end_descendants() {
    for _ in 0..ROUNDS {
        let children = children_of(getpid());
        if children.is_empty() {
            return;
        }
        for child in children {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        std::thread::sleep(ROUND);
    }
}

/// The children of a process, as procfs tells.
fn children_of(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before it may hold anything, closing parentheses too.
        let ppid = stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        ppid == Some(parent.as_raw_pid())
    };
    pids.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// As a shell tells it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
