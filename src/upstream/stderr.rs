//! What a child says on standard error: read away so that it never blocks on it, and its last words kept for whoever
//! looks after it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};
use tracing::debug;

use crate::domain::fault::excerpt;

/// The last words, of all children of one upstream.
#[derive(Default)]
pub struct LastWords(Mutex<VecDeque<u8>>);

/// Bytes that are kept: a stack trace, and what came before it.
const KEPT: usize = 64 << 10;

/// Lines that are shown.
const SHOWN: usize = 50;

impl LastWords {
    fn hear(&self, bytes: &[u8]) {
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

    /// Reads standard error to its end, which is not the end of the child.
    pub async fn drain(&self, stderr: Option<impl AsyncRead + Unpin>) {
        if let Some(mut stderr) = stderr {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
                self.hear(&buffer[..length]);
                let text = excerpt(&String::from_utf8_lossy(&buffer[..length]));
                debug!(text, "standard error");
            }
        }
        std::future::pending::<()>().await;
    }
}

impl fmt::Debug for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastWords")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s4_u13_as_much_is_kept_as_fits_and_nothing_reaches_a_terminal() {
        let words = LastWords::default();
        words.hear(&b"x".repeat(3 * KEPT));
        words.hear(b"\nfirst\n\n\x1b[31mred\xff\n");
        assert_eq!(words.lines()[1..], ["first", " [31mred\u{fffd}"]);
        assert!(words.lines()[0].len() <= 256);
        for n in 0..60 {
            words.hear(format!("line {n}\n").as_bytes());
        }
        assert_eq!((words.lines().len(), words.lines()[49].as_str()), (SHOWN, "line 59"));
        assert!(words.0.lock().unwrap().len() <= KEPT);
    }
}
