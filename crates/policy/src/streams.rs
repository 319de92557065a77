//! The audit records of notification streams: their start and their end.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;
use tokio::time::Instant;

use super::record::with_caller;
use super::tallies::WINDOW;
use audit::record::AuditEvent;
use audit::{Audit, Unrecorded};
use domain::calls::caller::Caller;
use domain::calls::fair_share::Holder;
use domain::time::millis::whole_millis;

/// The record of an open stream; dropping it records the end.
pub struct StreamRecord {
    /// `None` for a stream that is only counted.
    _started: Option<Started>,
}

struct Started {
    audit: Audit,
    number: u64,
    at: Instant,
    /// Whether the start is on record, or will be.
    is_recorded: bool,
}

impl StreamRecord {
    /// The record of a stream that is only counted.
    pub(super) fn none() -> Self {
        Self { _started: None }
    }

    /// Records the start of a stream, and waits until that is written.
    pub(super) async fn open(
        audit: &Audit,
        caller: &Caller,
        holder: &Holder,
        endpoint: &str,
    ) -> Result<Self, Unrecorded> {
        let Some(ledger) = audit.ledger() else {
            return Ok(Self::none());
        };
        let number = audit.next_call();
        let event = with_caller(AuditEvent::new("stream_started").number("call", number), caller);
        // Created before the record is written: if the client leaves meanwhile, the end of the
        // stream is still recorded.
        let mut started =
            Started { audit: audit.clone(), number, at: Instant::now(), is_recorded: true };
        let recorded = ledger.record(holder, event.text("endpoint", endpoint)).await;
        started.is_recorded = recorded != Err(Unrecorded::Refused);
        recorded.map(|()| Self { _started: Some(started) })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.is_recorded {
            return;
        }
        let open_for = whole_millis(self.at.elapsed());
        let event = AuditEvent::new("stream_ended").number("call", self.number);
        self.audit.end(event.number("duration_ms", open_for));
    }
}

/// Counts the recorded streams of each holder by window. Pure: the clock is an argument.
pub(super) struct RecordedStreams(Mutex<LruCache<Holder, RecordedCount>>);

struct RecordedCount {
    window: Instant,
    streams: u32,
}

/// Streams of one holder that are recorded in each window, before further streams are only counted:
/// hosts open a few at their start.
const STREAMS: u32 = 16;

/// Holders that are counted. Beyond that the least recent holder starts a new window.
const HOLDERS: usize = 4096;

impl Default for RecordedStreams {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(NonZeroUsize::new(HOLDERS).unwrap_or(NonZeroUsize::MIN))))
    }
}

impl RecordedStreams {
    /// Whether the next stream of the holder is recorded, not only counted.
    pub(super) fn takes(&self, holder: &Holder, now: Instant) -> bool {
        let mut holders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded =
            holders.get_or_insert_mut(holder.clone(), || RecordedCount { window: now, streams: 0 });
        if now.duration_since(recorded.window) >= WINDOW {
            *recorded = RecordedCount { window: now, streams: 0 };
        }
        let takes = recorded.streams < STREAMS;
        recorded.streams += u32::from(takes);
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn f1_streams_in_quick_succession_have_no_records_of_their_own() {
        let recorded = RecordedStreams::default();
        let (flood, other) =
            (Holder::Caller(Caller::new("flood")), Holder::Caller(Caller::new("other")));
        let start = Instant::now();
        let taken = (0..100_000).filter(|_| recorded.takes(&flood, start)).count();
        assert_eq!(taken, STREAMS as usize);
        assert!(recorded.takes(&other, start));
        assert!(!recorded.takes(&flood, start + WINDOW - std::time::Duration::from_nanos(1)));
        assert!(recorded.takes(&flood, start + WINDOW));
    }
}
