//! Reading the body of a request, within its limits of size, time and rate.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::downstream::admission::{Admission, BodyBudget, Upload};
use config::Limits;
use domain::calls::fair_share::Holder;
use domain::fault::TransportFault;

/// Reads a body to its end, within `body_size` bytes, the time `body` and the rate `body_rate`, and
/// reserves memory for it.
pub(crate) async fn read(
    body: impl Body<Data = Bytes> + Unpin,
    headers: &HeaderMap,
    limits: &Limits,
    admission: &Admission,
    holder: &Holder,
) -> Result<(Vec<u8>, BodyBudget), TransportFault> {
    let too_large = TransportFault::BodyTooLarge { limit: limits.body_size };
    let announced = content_length(headers);
    if announced.is_some_and(|length| length > limits.body_size) {
        return Err(too_large);
    }
    let capacity = announced.unwrap_or(0);
    let mut body = body;
    let mut upload = None;
    let mut bytes = Vec::with_capacity(capacity.min(MAX_FIRST_BUFFER));
    let started = Instant::now();
    let deadline = started + limits.body;
    let mut rate = UploadRate::new(limits.body_rate, started);
    loop {
        let frame = tokio::select! {
            biased;
            () = revoked(upload.as_ref()) => return Err(TransportFault::Overloaded),
            frame = timeout_at(deadline.min(rate.window_end()), body.frame()) => frame,
        };
        let now = Instant::now();
        // Before the window is judged: a busy gateway may read late what arrived in time.
        if let Ok(Some(Ok(frame))) = &frame {
            rate.received(frame.data_ref().map_or(0, Bytes::len));
        }
        let is_complete = matches!(frame, Ok(None));
        if now >= deadline || !(is_complete || rate.holds(now)) {
            return Err(TransportFault::BodyTimeout);
        }
        let Ok(frame) = frame else {
            continue;
        };
        let frame = frame.transpose().map_err(|_| TransportFault::BodyBroken)?;
        let is_complete = is_complete || body.is_end_stream();
        if let Some(piece) = frame.as_ref().and_then(Frame::data_ref) {
            if bytes.len() + piece.len() > limits.body_size {
                return Err(too_large);
            }
            // A body in one piece, as most are, is never revoked.
            if !is_complete || upload.is_some() {
                let upload = match &mut upload {
                    Some(upload) => upload,
                    none => none.insert(admission.upload(holder)?),
                };
                upload.grow_to(bytes.len() + piece.len())?;
            }
            if bytes.len() + piece.len() > bytes.capacity() {
                // Doubled, but not beyond the announced length: memory is bounded for large bodies.
                let more = bytes.len().min(capacity.saturating_sub(bytes.len()));
                bytes.reserve_exact(more.max(piece.len()));
            }
            bytes.extend_from_slice(piece);
        }
        if is_complete {
            let budget = match upload {
                Some(upload) => upload.received()?,
                None => admission.budget(holder, bytes.len())?,
            };
            return Ok((bytes, budget));
        }
    }
}

/// Waits until the memory of an upload is revoked.
async fn revoked(upload: Option<&Upload>) {
    match upload {
        Some(upload) => upload.revoked().await,
        None => std::future::pending().await,
    }
}

/// The rate of an upload, measured in windows of [`WINDOW`]: an average would let a client send
/// fast first and then hold its memory for long. Pure: the clock is an argument.
struct UploadRate {
    /// Bytes that must arrive in each window.
    least: usize,
    window: Instant,
    received: usize,
}

const WINDOW: Duration = Duration::from_secs(5);

impl UploadRate {
    /// Starts to measure. `least` is in bytes per second; 0 is no limit.
    fn new(least: usize, now: Instant) -> Self {
        let least = least.saturating_mul(WINDOW.as_secs() as usize);
        Self { least, window: now, received: 0 }
    }

    fn received(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes);
    }

    fn window_end(&self) -> Instant {
        self.window + WINDOW
    }

    /// Whether the window was fast enough; true until it has ended. Then the next one begins.
    fn holds(&mut self, now: Instant) -> bool {
        if now < self.window_end() {
            return true;
        }
        self.window = now;
        std::mem::take(&mut self.received) >= self.least
    }
}

/// Returns the value of `Content-Length` in bytes.
fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Bytes allocated at most because of `Content-Length`. Beyond that the buffer grows with the bytes
/// received.
const MAX_FIRST_BUFFER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::sync::mpsc;
    use tokio::time::{advance, sleep};

    use super::*;
    use config::Config;
    use domain::calls::caller::Caller;

    /// A body of the pieces that a test sends.
    struct Pieces(mpsc::Receiver<usize>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let piece = self.0.poll_recv(context);
            piece.map(|size| size.map(|size| Ok(Frame::data(vec![b'x'; size].into()))))
        }
    }

    fn limits(toml: &str, body_rate: usize) -> Limits {
        let toml = format!("[server.limits]\n{toml}");
        let config = Config::parse("g", &toml, Path::new(""), &[]).unwrap();
        Limits { body_rate, ..config.server.limits }
    }

    /// Reads a body of which a piece of this size arrives after each of these seconds.
    async fn upload(
        limits: &Limits,
        pieces: &[(u64, usize)],
    ) -> (Result<usize, TransportFault>, u64) {
        let (sender, body) = mpsc::channel(1);
        let pieces = pieces.to_vec();
        tokio::spawn(async move {
            for (seconds, size) in pieces {
                sleep(Duration::from_secs(seconds)).await;
                let _ = sender.send(size).await;
            }
        });
        let admission = Admission::new(limits);
        let holder = Holder::of(&Caller::new("ci"), None);
        let start = Instant::now();
        let read = read(Pieces(body), &HeaderMap::new(), limits, &admission, &holder).await;
        (read.map(|(bytes, _)| bytes.len()), start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn f3_the_least_rate_holds_in_each_window_of_five_seconds_and_not_on_average() {
        let limits = limits("body = \"60s\"\n", 1 << 10);
        let slow = Err(TransportFault::BodyTimeout);
        // Exactly the rate: 5 KiB in each window. One byte less in the second is too slow.
        let enough = [(1, 5 << 10), (5, 5 << 10), (5, 5 << 10), (3, 0)];
        assert_eq!(upload(&limits, &enough).await, (Ok(15 << 10), 14));
        let less = [(1, 5 << 10), (5, (5 << 10) - 1), (5, 5 << 10)];
        assert_eq!(upload(&limits, &less).await, (slow.clone(), 10));
        // Fast at first, then ten bytes are missing.
        assert_eq!(upload(&limits, &[(1, 1 << 20), (60, 10)]).await, (slow.clone(), 10));
        // Small pieces all the time do not help.
        let drips = [(1, 1); 30];
        assert_eq!(upload(&limits, &drips).await, (slow, 5));
        // A body that is complete within the first window has no rate.
        assert_eq!(upload(&limits, &[(4, 1)]).await, (Ok(1), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn m5_what_has_arrived_while_the_gateway_was_busy_counts_for_the_window() {
        let limits = limits("body = \"60s\"\n", 1 << 10);
        let (sender, body) = mpsc::channel(1);
        let reading = tokio::spawn(async move {
            let admission = Admission::new(&limits);
            let holder = Holder::of(&Caller::new("ci"), None);
            let read = read(Pieces(body), &HeaderMap::new(), &limits, &admission, &holder).await;
            read.map(|(bytes, _)| bytes.len())
        });
        tokio::task::yield_now().await;
        // Both are there before the task runs again, which is after the end of a window.
        sender.try_send(5 << 10).unwrap();
        advance(WINDOW + Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
        drop(sender);
        advance(WINDOW).await;
        assert_eq!(reading.await.unwrap(), Ok(5 << 10));
    }

    #[tokio::test(start_paused = true)]
    async fn w4_without_a_rate_a_body_has_its_time_alone() {
        let limits = limits("body = \"30s\"\n", 0);
        assert_eq!(upload(&limits, &[(29, 1)]).await, (Ok(1), 29));
        assert_eq!(upload(&limits, &[(30, 1)]).await, (Err(TransportFault::BodyTimeout), 30));
    }

    #[tokio::test(start_paused = true)]
    async fn f3_a_stalled_upload_beyond_its_share_ends_for_a_caller_who_has_less() {
        let limits = limits("in_flight_bytes = \"8MiB\"\nbody_size = \"1MiB\"\nshare = 0.25\n", 0);
        let admission = Admission::new(&limits);
        let stalled = |id: &str| {
            let (sender, body) = mpsc::channel(1);
            let (limits, admission) = (limits.clone(), admission.renew(&limits));
            let holder = Holder::of(&Caller::new(id), None);
            let reading = tokio::spawn(async move {
                let headers = HeaderMap::new();
                read(Pieces(body), &headers, &limits, &admission, &holder).await.map(drop)
            });
            (sender, reading)
        };
        let mut uploads = Vec::new();
        for _ in 0..3 {
            let (sender, reading) = stalled("large");
            sender.send(1 << 20).await.unwrap();
            advance(Duration::from_millis(1)).await;
            uploads.push((sender, reading));
        }
        let (sender, reading) = stalled("small");
        sender.send(1 << 20).await.unwrap();
        drop(sender);
        assert_eq!(reading.await.unwrap(), Ok(()));
        let (_open, first) = uploads.remove(0);
        assert_eq!(first.await.unwrap(), Err(TransportFault::Overloaded));
        assert!(!uploads[0].1.is_finished() && !uploads[1].1.is_finished());
    }
}
