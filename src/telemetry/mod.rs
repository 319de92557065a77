//! What the gateway says about itself.

use std::io::{self, IsTerminal};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{LogFormat, Telemetry};

/// Lines that may wait to be read. Beyond that they are left out: whoever does not read the log
/// must not stop calls.
const WAITING_LINES: usize = 16_384;

/// Sends logs to standard error: text on a terminal, JSON elsewhere, unless told otherwise. They
/// are written by a thread of its own as long as what is returned lives, which writes the last ones
/// when it is dropped.
pub fn init(telemetry: &Telemetry) -> WorkerGuard {
    // The configuration has checked the filter; INFO is what it stands for by default.
    let default = || Targets::new().with_default(tracing::Level::INFO);
    let filter = telemetry.log.parse::<Targets>().unwrap_or_else(|_| default());
    let terminal = io::stderr().is_terminal();
    let json = match telemetry.log_format {
        LogFormat::Auto => !terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let lines = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES);
    let (writer, guard) = lines.finish(io::stderr());
    let layer = fmt::layer().with_writer(writer).with_target(false);
    let layer = match json {
        true => {
            layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
        false => layer.with_ansi(terminal).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    guard
}
