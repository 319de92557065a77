//! What a child says on standard error: read away so that it never blocks on it, and its last words kept for whoever
//! looks after it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::domain::fault::excerpt;

/// The last words, of all children of one upstream.
#[derive(Default)]
pub struct StderrTail(Mutex<VecDeque<u8>>);

/// Bytes that are kept: a stack trace, and what came before it.
const KEPT: usize = 64 << 10;

/// How long somebody else who holds standard error open may still be heard.
const LATE: Duration = Duration::from_millis(500);

/// Lines that are shown.
const SHOWN: usize = 50;

impl StderrTail {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&bytes[bytes.len().saturating_sub(KEPT)..]);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }

    /// The last lines, each cut and safe to show.
    pub fn lines(&self) -> Vec<String> {
        let kept: Vec<u8> = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter().copied().collect()
        };
        let text = String::from_utf8_lossy(&kept);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(SHOWN)..].iter().map(|line| excerpt(line)).collect()
    }

    /// Reads standard error to its end: what is said on the way out counts most. Once the child and all that
    /// it started have `ended`, a moment is enough for what is still on the way.
    pub async fn drain(&self, stderr: impl AsyncRead + Unpin, ended: CancellationToken) {
        let late = async {
            ended.cancelled().await;
            sleep(LATE).await;
        };
        tokio::select! {
            () = self.read(stderr) => {}
            () = late => {}
        }
    }

    async fn read(&self, mut stderr: impl AsyncRead + Unpin) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
            self.push(&buffer[..length]);
            let text = excerpt(&String::from_utf8_lossy(&buffer[..length]));
            debug!(text, "standard error");
        }
    }
}

impl fmt::Debug for StderrTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastWords")
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn s4_what_is_said_on_the_way_out_is_heard_and_nobody_is_listened_to_for_ever() {
        let (words, ended) = (StderrTail::default(), CancellationToken::new());
        let (stderr, mut child) = tokio::io::duplex(64);
        ended.cancel();
        let says = async {
            child.write_all(b"no such table\n").await.unwrap();
            // It stays open.
            child
        };
        tokio::join!(words.drain(stderr, ended), says);
        assert_eq!(words.lines(), ["no such table"]);
    }

    #[test]
    fn s4_u13_as_much_is_kept_as_fits_and_nothing_reaches_a_terminal() {
        let words = StderrTail::default();
        words.push(&b"x".repeat(3 * KEPT));
        words.push(b"\nfirst\n\n\x1b[31mred\xff\n");
        assert_eq!(words.lines()[1..], ["first", " [31mred\u{fffd}"]);
        assert!(words.lines()[0].len() <= 256);
        for n in 0..60 {
            words.push(format!("line {n}\n").as_bytes());
        }
        assert_eq!((words.lines().len(), words.lines()[49].as_str()), (SHOWN, "line 59"));
        assert!(words.0.lock().unwrap().len() <= KEPT);
    }
}
