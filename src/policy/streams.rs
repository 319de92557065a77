//! The audit records of notification streams: their start and their end.

use tokio::time::Instant;

use super::record::with_caller;
use crate::audit::Audit;
use crate::audit::record::Event;
use crate::domain::caller::Caller;

/// The record of an open stream; dropping it records the end.
pub struct StreamRecord {
    audit: Audit,
    number: u64,
    started: Instant,
}

impl StreamRecord {
    pub(super) fn open(audit: &Audit, caller: &Caller, endpoint: &str) -> Self {
        let number = audit.next_call();
        let event = with_caller(Event::new("stream_started").number("call", number), caller);
        audit.note(event.text("endpoint", endpoint));
        Self { audit: audit.clone(), number, started: Instant::now() }
    }
}

impl Drop for StreamRecord {
    fn drop(&mut self) {
        let open_for = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let event = Event::new("stream_ended").number("call", self.number);
        self.audit.note(event.number("duration_ms", open_for));
    }
}
