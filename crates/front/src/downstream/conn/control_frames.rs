//! The control frames of an HTTP/2 connection: settings, pings, window updates, resets, empty data,
//! and frames of unknown types (RFC 9113, section 10.5). Control frames cost a client nothing and
//! the gateway time, and no limit on requests counts them.

use std::time::Duration;

use tokio::time::Instant;

/// Counts the control frames that a client sends. Pure: it reads bytes as they pass, and the clock
/// is an argument.
pub(crate) struct ControlFrames {
    /// Frames that are allowed in each [`WINDOW`].
    limit: usize,
    window: Instant,
    count: usize,
    /// Bytes that were sent, for which the client may still open windows.
    sent: usize,
    /// Bytes of the preface or of a payload before the next frame header.
    skip: usize,
    header: [u8; HEADER],
    filled: usize,
}

const WINDOW: Duration = Duration::from_secs(1);

/// Bytes of the client's connection preface (RFC 9113, section 3.4).
const PREFACE: usize = 24;

/// Bytes of a frame header (RFC 9113, section 4.1).
const HEADER: usize = 9;

/// Bytes sent for which one window update is not counted: a client that reads fast sends many.
const BYTES_PER_UPDATE: usize = 1 << 10;

/// The most bytes sent that are remembered for window updates.
const MAX_SENT: usize = 16 << 20;

const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;

impl ControlFrames {
    /// Starts to count at the first byte of a connection. `limit` is in frames per second.
    pub(crate) fn new(limit: usize, now: Instant) -> Self {
        Self {
            limit,
            window: now,
            count: 0,
            sent: 0,
            skip: PREFACE,
            header: [0; HEADER],
            filled: 0,
        }
    }

    /// Records that bytes were sent to the client.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes).min(MAX_SENT);
    }

    /// Reads the bytes that were received; returns whether the client has exceeded its limit.
    pub(crate) fn is_flood(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        if now.duration_since(self.window) >= WINDOW {
            self.window = now;
            self.count = 0;
        }
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEADER - self.filled).min(bytes.len());
            self.header[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEADER {
                self.filled = 0;
                self.frame();
            }
        }
        self.count > self.limit
    }

    fn frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
        let is_counted = match kind {
            HEADERS => false,
            // An empty frame may end a body.
            DATA => self.skip == 0 && flags & END_STREAM == 0,
            WINDOW_UPDATE if self.sent >= BYTES_PER_UPDATE => {
                self.sent -= BYTES_PER_UPDATE;
                false
            }
            _ => true,
        };
        self.count += usize::from(is_counted);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 0];
        bytes.resize(HEADER + payload, 0xff);
        bytes
    }

    fn connection(frames: &[(u8, usize)]) -> Vec<u8> {
        let frames = frames.iter().flat_map(|(kind, payload)| frame(*kind, *payload));
        vec![b'p'; PREFACE].into_iter().chain(frames).collect()
    }

    #[tokio::test]
    async fn f22_one_more_control_frame_than_the_limit_within_a_second_is_a_flood() {
        let now = Instant::now();
        let mut frames = ControlFrames::new(10, now);
        let mut first = vec![(HEADERS, 50), (DATA, 1000), (0xfa, 0), (4, 0), (DATA, 0)];
        first.extend([(PING, 8); 7]);
        assert!(!frames.is_flood(&connection(&first), now), "ten are counted");
        assert!(frames.is_flood(&frame(PING, 8), now));
        let later = now + WINDOW;
        let mut frames = ControlFrames::new(1, now);
        assert!(!frames.is_flood(&connection(&[(PING, 8)]), now));
        assert!(!frames.is_flood(&frame(PING, 8), later), "another second");
    }

    #[tokio::test]
    async fn window_updates_for_what_was_sent_are_not_counted() {
        let now = Instant::now();
        let mut frames = ControlFrames::new(1, now);
        frames.sent(3 * BYTES_PER_UPDATE);
        let updates = [(WINDOW_UPDATE, 4); 4];
        assert!(!frames.is_flood(&connection(&updates), now));
        assert!(frames.is_flood(&frame(WINDOW_UPDATE, 4), now));
    }

    proptest! {
        #[test]
        fn the_count_does_not_depend_on_how_the_bytes_arrive(
            frames in prop::collection::vec((any::<u8>(), 0..40_usize), 0..40),
            cuts in prop::collection::vec(1..20_usize, 1..40),
        ) {
            let now = Instant::now();
            let bytes = connection(&frames);
            let mut whole = ControlFrames::new(usize::MAX, now);
            whole.is_flood(&bytes, now);
            let mut pieces = ControlFrames::new(usize::MAX, now);
            let mut rest = &bytes[..];
            for cut in cuts.into_iter().cycle() {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.is_flood(piece, now);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            let is_counted = |(kind, payload): &&(u8, usize)| {
                *kind != HEADERS && (*kind != DATA || *payload == 0)
            };
            let expected = frames.iter().filter(is_counted).count();
            prop_assert_eq!((whole.count, pieces.count), (expected, expected));
        }
    }
}
