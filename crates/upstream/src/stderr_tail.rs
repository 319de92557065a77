//! Standard error of child processes: it is always read, so that no child process blocks on it, and
//! the last lines are kept for the operator (`stderr` in `/api/v1/upstreams`), together with lines
//! on standard output that are no messages.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use domain::fault::excerpt;

/// The last bytes that the child processes of one upstream wrote to standard error.
#[derive(Default)]
pub struct StderrTail(Mutex<VecDeque<u8>>);

/// Bytes of standard error that are kept: enough for a stack trace and the lines before it.
const MAX_BYTES: usize = 64 << 10;

/// Longest time to read standard error after the end of the child process, in case a process
/// outside of its process group keeps it open.
const DRAIN: Duration = Duration::from_millis(500);

/// Most lines that are returned: an operator reads no more at once.
const MAX_LINES: usize = 50;

impl StderrTail {
    /// Keeps bytes that follow those before.
    pub(super) fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&bytes[bytes.len().saturating_sub(MAX_BYTES)..]);
        let surplus = kept.len().saturating_sub(MAX_BYTES);
        kept.drain(..surplus);
    }

    /// Returns the last lines that are not blank, at most 50, each cut to 256 bytes and without
    /// control characters.
    pub fn lines(&self) -> Vec<String> {
        let kept: Vec<u8> = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter().copied().collect()
        };
        let text = String::from_utf8_lossy(&kept);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(MAX_LINES)..].iter().map(|line| excerpt(line)).collect()
    }
}

/// Reads standard error to its end into `tails`: the last lines before an exit matter most. Stops
/// half a second after `terminated`, which is cancelled when the child process and its descendants
/// have ended.
pub(super) async fn drain(
    stderr: impl AsyncRead + Unpin,
    tails: &[Arc<StderrTail>],
    terminated: CancellationToken,
) {
    let late = async {
        terminated.cancelled().await;
        sleep(DRAIN).await;
    };
    tokio::select! {
        () = read(stderr, tails) => {}
        () = late => {}
    }
}

async fn read(mut stderr: impl AsyncRead + Unpin, tails: &[Arc<StderrTail>]) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        tails.iter().for_each(|tail| tail.push(&buffer[..length]));
        let text = excerpt(&String::from_utf8_lossy(&buffer[..length]));
        debug!(text, "the child process wrote to standard error");
    }
}

impl fmt::Debug for StderrTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StderrTail")
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn s4_stderr_is_drained_after_the_end_of_the_child_for_a_bounded_time() {
        let tail: Arc<StderrTail> = Arc::default();
        let tails = [tail.clone()];
        let terminated = CancellationToken::new();
        let (stderr, mut child) = tokio::io::duplex(64);
        terminated.cancel();
        let writing = async {
            child.write_all(b"no such table\n").await.unwrap();
            // Standard error stays open.
            child
        };
        tokio::join!(drain(stderr, &tails, terminated), writing);
        assert_eq!(tail.lines(), ["no such table"]);
    }

    #[test]
    fn s4_u13_the_tail_is_bounded_and_has_no_control_characters() {
        let tail = StderrTail::default();
        tail.push(&b"x".repeat(3 * MAX_BYTES));
        tail.push(b"\nfirst\n\n\x1b[31mred\xff\n");
        assert_eq!(tail.lines()[1..], ["first", " [31mred\u{fffd}"]);
        assert!(tail.lines()[0].len() <= 256);
        for n in 0..60 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        assert_eq!((tail.lines().len(), tail.lines()[49].as_str()), (MAX_LINES, "line 59"));
        assert!(tail.0.lock().unwrap().len() <= MAX_BYTES);
    }
}
