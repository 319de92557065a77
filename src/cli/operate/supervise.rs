//! Supervisor of a child process, between the gateway and the child (Linux only). It ends the child
//! and all its descendants when the gateway ends, also when the gateway is killed, and also
//! descendants that left the child's process group.

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

use crate::cli::shared::failure::Failure;

/// Time between SIGTERM and SIGKILL. Shorter than the three seconds that the gateway waits for the
/// supervisor after SIGTERM.
const AFTER_TERM: Duration = Duration::from_millis(2_000);

/// Rounds of SIGKILL to the remaining descendants. A round catches processes that were being forked
/// in the round before, or that take a moment to exit: half a second in all.
const KILL_ROUNDS: usize = 50;

/// Time between two rounds.
const KILL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs `command` under supervision until it exits or `parent`, a process id, has exited. Returns
/// the exit code of the command.
pub(crate) fn run(parent: i32, command: &[String]) -> Result<ExitCode, Failure> {
    end_with_parent(parent, Signal::TERM)?;
    // Descendants that lose their parent become children of this process, which can then find them.
    set_child_subreaper(Some(getpid())).map_err(|error| failure(error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime.map_err(failure)?.block_on(supervise(command)).map_err(failure)?;
    kill_descendants();
    Ok(exit_code(status))
}

/// Replaces this process, a child of the supervisor, by `command`. The process is killed when the
/// supervisor dies: a dead supervisor cannot send SIGTERM first.
pub(crate) fn exec(parent: i32, command: &[String]) -> Result<ExitCode, Failure> {
    end_with_parent(parent, Signal::KILL)?;
    let [program, arguments @ ..] = command else {
        return Err(Failure::usage("a command is required"));
    };
    Err(failure(std::process::Command::new(program).args(arguments).exec()))
}

/// Makes the system send `signal` to this process when its parent dies.
fn end_with_parent(parent: i32, signal: Signal) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(signal)).map_err(|error| failure(error.into()))?;
    // The parent may have died before that, and the signal would never come.
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(Failure::new("the parent process has exited"))
    }
}

fn failure(error: std::io::Error) -> Failure {
    Failure::new(format!("cannot run the child process: {error}"))
}

/// Starts `command` in a separate process group, and waits until it exits. On SIGTERM, forwards the
/// signal to the group, and kills the group after [`AFTER_TERM`].
async fn supervise(command: &[String]) -> std::io::Result<ExitStatus> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut child_exits = signal(SignalKind::child())?;
    let own_pid = getpid().as_raw_pid().to_string();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["supervise", "--exec", "--parent", &own_pid, "--"])
        .args(command)
        .process_group(0)
        .spawn()?;
    let group = child.id();
    // Only the child keeps its standard streams open, so that the gateway sees end of file when it
    // exits.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            _ = child_exits.recv() => reap_adopted(group),
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

/// Reaps adopted descendants that have exited, so that they do not stay as zombies. `child` itself
/// is reaped by its own `wait`.
fn reap_adopted(child: Option<u32>) {
    let child = child.and_then(|pid| i32::try_from(pid).ok());
    for pid in children_of(getpid()) {
        if Some(pid.as_raw_pid()) != child {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn signal_group(group: Option<u32>, signal: Signal) {
    let pid = group.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // An error means that the group has ended already.
        let _ = kill_process_group(pid, signal);
    }
}

/// Kills and reaps all remaining descendants, which are children of this process by now. Blocks.
fn kill_descendants() {
    for _ in 0..KILL_ROUNDS {
        let children = children_of(getpid());
        if children.is_empty() {
            return;
        }
        for child in children {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        std::thread::sleep(KILL_INTERVAL);
    }
}

/// Returns the children of a process, from procfs.
fn children_of(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `pid (name) state ppid …` (proc(5)), where the name may contain parentheses.
        let ppid = stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        ppid == Some(parent.as_raw_pid())
    };
    pids.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// Returns the exit code as a shell does: 128 plus the number of the signal that ended the process.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
