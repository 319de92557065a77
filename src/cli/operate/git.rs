//! Files that git tracks.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// How often and in which intervals git is polled for its end: for two seconds, so that a
/// repository on a slow disk does not stop `check`.
const LOOKS: usize = 400;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Whether git tracks a file, or files in a folder. `false` without git, or without a repository.
pub(crate) fn tracks(path: &Path) -> bool {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut git = Command::new("git");
    // A repository may name a program that git runs for each look at its files.
    git.arg("-C").arg(folder).args(["-c", "core.fsmonitor=false", "ls-files", "--"]).arg(name);
    git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = git.spawn() else { return false };
    // One name is enough; a git that writes more names waits for a reader, and is ended.
    let mut first = [0];
    let mut is_tracked = false;
    for _ in 0..LOOKS {
        match child.try_wait() {
            Ok(Some(_)) => {
                let read = child.stdout.as_mut().map(|out| out.read(&mut first));
                is_tracked = matches!(read, Some(Ok(1)));
                break;
            }
            Ok(None) => sleep(LOOK_EVERY),
            Err(_) => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    is_tracked
}
