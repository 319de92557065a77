//! The process itself: the protection of its memory, and its limit of open files.

use tracing::warn;

#[cfg(target_os = "linux")]
use config::variables::ALLOW_PTRACE;

/// Prevents other processes of the same user from reading the memory and the environment of this
/// one through procfs or ptrace, as child processes of upstreams could; it also prevents core
/// dumps, which would have the secrets. An executed program starts without this protection, so it
/// is set at the start of each command.
///
/// Root can read both all the same (`CAP_SYS_PTRACE`). [`ALLOW_PTRACE`] switches the protection
/// off, for debuggers and profilers.
pub(crate) fn protect_memory() {
    #[cfg(target_os = "linux")]
    if std::env::var_os(ALLOW_PTRACE).is_none_or(|value| value != "true") {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            eprintln!("warning: the memory of this process cannot be protected: {error}");
        }
    }
}

/// Raises the soft limit of open files to the hard one: each connection needs a file, and the usual
/// soft limit of 1,024 exists for programs that use `select`.
pub(crate) fn raise_open_file_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        warn!(%error, "the soft limit of open files could not be raised to the hard one");
    }
}
