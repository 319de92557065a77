//! Files that git tracks.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time for an answer of git: a repository on a slow disk must not stop `check`.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether git tracks a file, or files in a folder. `false` without git, or without a repository.
pub(super) fn tracks(path: &Path) -> bool {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut git = Command::new("git");
    // A repository may name a program that git runs for each look at its files.
    git.arg("-C").arg(folder).args(["-c", "core.fsmonitor=false", "ls-files", "--"]).arg(name);
    git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = git.spawn() else { return false };
    let until = Instant::now() + PATIENCE;
    // One name is enough; a git that has more waits for a reader, and is ended.
    let mut first = [0];
    let mut is_tracked = false;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(_)) => {
                let read = child.stdout.as_mut().map(|out| out.read(&mut first));
                is_tracked = matches!(read, Some(Ok(1)));
                break;
            }
            Ok(None) => sleep(Duration::from_millis(5)),
            Err(_) => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    is_tracked
}
