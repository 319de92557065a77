//! The trace of a run: what happened, when, one line for each event. Its digest decides whether two
//! runs are the same.

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

struct Trace {
    began: Instant,
    is_printed: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    digest: Sha256,
    lines: u64,
}

static TRACE: OnceLock<Trace> = OnceLock::new();

/// Starts the trace of this process, in the runtime whose clock it shows.
pub fn begin(is_printed: bool) {
    let trace = Trace { began: Instant::now(), is_printed, state: Mutex::default() };
    assert!(TRACE.set(trace).is_ok(), "a process runs one seed");
}

/// Adds a line: `who` does or sees `what`.
pub fn note(who: &str, what: &str) {
    let Some(trace) = TRACE.get() else { return };
    let line = format!("{:>12.6} {who:<12} {what}\n", trace.began.elapsed().as_secs_f64());
    let mut state = trace.state.lock().unwrap_or_else(PoisonError::into_inner);
    state.digest.update(line.as_bytes());
    state.lines += 1;
    if trace.is_printed {
        print!("{line}");
    }
}

/// The number of lines so far, and the digest of all of them.
pub fn summary() -> (u64, String) {
    let Some(trace) = TRACE.get() else { return (0, String::new()) };
    let state = trace.state.lock().unwrap_or_else(PoisonError::into_inner);
    let digest = state.digest.clone().finalize();
    (
        state.lines,
        digest.iter().take(8).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    )
}

/// Adds the log of the gateway to the trace.
pub struct GatewayLog;

impl Subscriber for GatewayLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= Level::DEBUG
            && metadata.target().starts_with("promptgate")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        note("gateway", &line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, ": {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
