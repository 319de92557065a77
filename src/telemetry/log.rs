//! Logs: to standard error, and to the collector if there is one.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::logs::SdkLoggerProvider;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use super::exporter::Exporter;
use super::{SCOPE, resource};
use crate::config::{LogFormat, Telemetry};

/// Lines that may wait to be read. Beyond that they are left out: whoever does not read the log
/// must not stop calls.
const WAITING_LINES: usize = 16_384;

/// How long the last lines may take to be sent.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Logs are written as long as this lives, and the last ones when it is dropped.
pub struct Logging {
    _lines: WorkerGuard,
    sent: Option<SdkLoggerProvider>,
}

/// Writes logs to standard error, by a thread of its own: text on a terminal, JSON elsewhere, unless told
/// otherwise. Where a collector is named they are sent to it, too, which needs a tokio runtime.
///
/// # Errors
/// When there is no way to the collector.
pub fn init(telemetry: &Telemetry) -> Result<Logging, String> {
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
    let sent = telemetry.otlp.as_ref().map(|otlp| sender(telemetry, otlp)).transpose()?;
    // What libraries say while something is sent must not be sent in its turn.
    let ours = filter_fn(|metadata| metadata.target().starts_with(SCOPE));
    let bridge = sent.as_ref().map(OpenTelemetryTracingBridge::new);
    let bridge = bridge.map(|bridge| bridge.with_filter(filter.clone().and(ours)));
    tracing_subscriber::registry().with(layer.with_filter(filter)).with(bridge).init();
    Ok(Logging { _lines: guard, sent })
}

fn sender(telemetry: &Telemetry, otlp: &str) -> Result<SdkLoggerProvider, String> {
    let exporter = LogExporter::builder().with_http();
    let exporter = exporter.with_shared_http_client(Arc::new(Exporter::new()?));
    let exporter = exporter.with_endpoint(format!("{otlp}/v1/logs")).build();
    let exporter = exporter.map_err(|error| error.to_string())?;
    let provider = SdkLoggerProvider::builder().with_batch_exporter(exporter);
    Ok(provider.with_resource(resource(telemetry)).build())
}

impl Logging {
    /// Sends the last lines to the collector, within a few seconds.
    pub async fn end(&self) {
        if let Some(sent) = self.sent.clone() {
            let _ = timeout(LAST_LINES, spawn_blocking(move || sent.shutdown())).await;
        }
    }
}
