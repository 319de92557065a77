//! What the gateway says about itself.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::{LogFormat, Telemetry};

/// Sends logs to standard error: text on a terminal, JSON elsewhere, unless told otherwise.
pub fn init(telemetry: &Telemetry) {
    // The configuration has checked the filter; INFO is what it stands for by default.
    let default = || Targets::new().with_default(tracing::Level::INFO);
    let filter = telemetry.log.parse::<Targets>().unwrap_or_else(|_| default());
    let terminal = io::stderr().is_terminal();
    let json = match telemetry.log_format {
        LogFormat::Auto => !terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let layer = fmt::layer().with_writer(io::stderr).with_target(false);
    let layer = match json {
        true => {
            layer.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
        false => layer.with_ansi(terminal).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
}
