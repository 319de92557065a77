//! Logs: to standard error and, if one is configured, to a collector.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{Compression, LogExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::logs::SdkLoggerProvider;
use tokio::time::timeout;
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, reload};

use super::exporter::Exporter;
use super::{SCOPE, resource};
use base::platform::blocking;
use config::{LogFormat, TelemetrySettings};

/// The limit of lines that wait for the reader of standard error. Further lines are dropped: a
/// reader that stalls must not stop calls.
const MAX_BUFFERED_LINES: usize = 16_384;

/// The timeout of the last export of lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The running log. When it is dropped, the remaining lines are written.
#[must_use = "the log ends when this is dropped"]
pub struct Logging {
    _lines: WorkerGuard,
    control: Control,
}

/// A handle that changes the settings of the running log; cheap to clone.
#[derive(Clone)]
pub struct Control(Arc<LogControls>);

struct LogControls {
    filter: Box<dyn Fn(Targets) + Send + Sync>,
    is_json: Arc<AtomicBool>,
    bridge: Box<dyn Fn(Option<Bridge>) + Send + Sync>,
    dropped: ErrorCounter,
    otlp: ArcSwapOption<SdkLoggerProvider>,
}

type Bridge = OpenTelemetryTracingBridge<SdkLoggerProvider, opentelemetry_sdk::logs::SdkLogger>;

/// The settings and parts that a changed configuration replaces.
pub struct RenewedLog {
    filter: Targets,
    is_json: bool,
    /// `None`: the export continues; `Some(None)`: it ends.
    otlp: Option<Option<SdkLoggerProvider>>,
}

/// Whether the log has colours: on a terminal, unless `NO_COLOR` is set (no-color.org).
fn is_styled() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// Starts the log. A separate thread writes lines to standard error: by default as text on a
/// terminal and as JSON elsewhere. With a collector they are exported, too, which needs a tokio
/// runtime.
///
/// # Errors
/// When the exporter cannot be created.
pub fn init(telemetry: &TelemetrySettings) -> Result<Logging, String> {
    let lines = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MAX_BUFFERED_LINES);
    let (writer, guard) = lines.finish(io::stderr());
    let dropped = writer.error_counter();
    let is_json = Arc::new(AtomicBool::new(is_json(telemetry)));
    let layer = fmt::layer().with_writer(writer).with_ansi(is_styled());
    let layer = layer.event_format(LineFormat::new(is_json.clone()));
    let otlp = telemetry.otlp.as_ref().map(|otlp| otlp_provider(telemetry, otlp)).transpose()?;
    let (bridge, bridge_handle) =
        reload::Layer::new(otlp.as_ref().map(OpenTelemetryTracingBridge::new));
    let (line_filter, line_filter_handle) = reload::Layer::new(filter(telemetry));
    let (otlp_filter, otlp_filter_handle) = reload::Layer::new(filter(telemetry));
    // Lines of libraries are not exported: an export would cause the next one.
    let is_own = filter_fn(|metadata| metadata.target().starts_with(SCOPE));
    let bridge = bridge.with_filter(otlp_filter.and(is_own));
    let lines = layer.with_filter(line_filter);
    tracing_subscriber::registry().with(lines).with(bridge).init();
    // Reloading fails only after the subscriber is gone.
    let filter = move |filter: Targets| {
        let _ = line_filter_handle.reload(filter.clone());
        let _ = otlp_filter_handle.reload(filter);
    };
    let bridge = move |bridge| drop(bridge_handle.reload(bridge));
    let otlp = ArcSwapOption::from(otlp.map(Arc::new));
    let filter = Box::new(filter);
    let bridge = Box::new(bridge);
    Ok(Logging {
        _lines: guard,
        control: Control(Arc::new(LogControls { filter, is_json, bridge, dropped, otlp })),
    })
}

/// Returns the filter. The configuration has validated it, so the fallback, INFO as by default, is
/// not reached.
fn filter(telemetry: &TelemetrySettings) -> Targets {
    telemetry.log.parse().unwrap_or_else(|_| Targets::new().with_default(Level::INFO))
}

fn is_json(telemetry: &TelemetrySettings) -> bool {
    match telemetry.log_format {
        LogFormat::Auto => !io::stderr().is_terminal(),
        LogFormat::Json => true,
        LogFormat::Text => false,
    }
}

/// Creates the exporter of lines to a collector.
fn otlp_provider(telemetry: &TelemetrySettings, otlp: &str) -> Result<SdkLoggerProvider, String> {
    let exporter = LogExporter::builder().with_http().with_compression(Compression::Gzip);
    let exporter = exporter.with_shared_http_client(Arc::new(Exporter::new(&telemetry.proxies)?));
    let exporter = exporter.with_endpoint(format!("{otlp}/v1/logs")).build();
    let exporter = exporter.map_err(|error| error.to_string())?;
    let provider = SdkLoggerProvider::builder().with_batch_exporter(exporter);
    Ok(provider.with_resource(resource(telemetry)).build())
}

impl Logging {
    /// Returns the handle that changes the settings.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Exports the remaining lines to the collector, within [`FLUSH_TIMEOUT`].
    pub async fn end(&self) {
        if let Some(otlp) = self.control.0.otlp.load_full() {
            end(otlp).await;
        }
    }
}

async fn end(otlp: Arc<SdkLoggerProvider>) {
    let _ = timeout(FLUSH_TIMEOUT, blocking(move || otlp.shutdown())).await;
}

impl Control {
    /// Creates the parts that differ between two configurations; [`Control::apply`] switches to
    /// them.
    ///
    /// # Errors
    /// As [`init`].
    pub fn prepare(
        &self,
        config: &TelemetrySettings,
        before: &TelemetrySettings,
    ) -> Result<RenewedLog, String> {
        let is_same = config.otlp == before.otlp
            && config.service_name == before.service_name
            && config.proxies == before.proxies;
        let open = || config.otlp.as_ref().map(|otlp| otlp_provider(config, otlp)).transpose();
        let otlp = (!is_same).then(open).transpose()?;
        Ok(RenewedLog { filter: filter(config), is_json: is_json(config), otlp })
    }

    /// Returns how many lines were dropped, because the reader of standard error is too slow.
    pub fn dropped_lines(&self) -> usize {
        self.0.dropped.dropped_lines()
    }

    /// Switches to the renewed settings at once, then exports the remaining lines to the previous
    /// collector. When the future is dropped, they are lost.
    pub async fn apply(&self, RenewedLog { filter, is_json, otlp }: RenewedLog) {
        self.0.is_json.store(is_json, Ordering::Relaxed);
        (self.0.filter)(filter);
        let Some(otlp) = otlp else {
            return;
        };
        (self.0.bridge)(otlp.as_ref().map(OpenTelemetryTracingBridge::new));
        if let Some(before) = self.0.otlp.swap(otlp.map(Arc::new)) {
            end(before).await;
        }
    }
}

/// The format of lines, text or JSON, which can change while the log runs.
struct LineFormat {
    is_json: Arc<AtomicBool>,
    text: Format,
    json: Format<Json>,
}

impl LineFormat {
    fn new(is_json: Arc<AtomicBool>) -> Self {
        let text = fmt::format().with_target(false);
        let json = text.clone().json().flatten_event(true);
        Self { is_json, text, json: json.with_current_span(false).with_span_list(false) }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        if self.is_json.load(Ordering::Relaxed) {
            self.json.format_event(context, writer, event)
        } else {
            self.text.format_event(context, writer, event)
        }
    }
}
