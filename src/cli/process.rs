//! The process itself: what other processes may read of it, and how many files it may open.

use tracing::warn;

/// Prevents other processes of the same user from reading the memory and the environment of this one through
/// procfs or ptrace, as child processes of upstreams could; it also prevents core dumps, which would have the
/// secrets. An executed program starts without this protection, so it is set at the start of each command.
///
/// Root can read them all the same (`CAP_SYS_PTRACE`).
pub(super) fn protect_memory() {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        eprintln!("warning: the memory of this process cannot be protected: {error}");
    }
}

/// Raises the soft limit of open files to the hard one: each connection needs a file, and the usual soft limit
/// of 1,024 exists for programs that use `select`.
pub(super) fn raise_open_file_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(rlimit::INFINITY) {
        warn!(%error, "the soft limit of open files could not be raised to the hard one");
    }
}
