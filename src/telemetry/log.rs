//! Logs: to standard error, and to the collector if there is one.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::logs::SdkLoggerProvider;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, reload};

use super::exporter::Exporter;
use super::{SCOPE, resource};
use crate::config::{LogFormat, Telemetry};

/// Lines that may wait to be read. Beyond that they are left out: whoever does not read the log
/// must not stop calls.
const WAITING_LINES: usize = 16_384;

/// How long the last lines may take to be sent.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Logs are written as long as this lives, and the last ones when it is dropped.
pub(crate) struct Logging {
    _lines: WorkerGuard,
    control: Control,
}

/// Sets how logs are written while they are; cheap to copy.
#[derive(Clone)]
pub struct Control(Arc<Inner>);

struct Inner {
    filter: Box<dyn Fn(Targets) + Send + Sync>,
    is_json: Arc<AtomicBool>,
    bridge: Box<dyn Fn(Option<Bridge>) + Send + Sync>,
    sent: ArcSwapOption<SdkLoggerProvider>,
}

type Bridge = OpenTelemetryTracingBridge<SdkLoggerProvider, opentelemetry_sdk::logs::SdkLogger>;

/// What another configuration makes anew.
pub struct Renewed {
    filter: Targets,
    is_json: bool,
    /// Absent: lines go where they went.
    sent: Option<Option<SdkLoggerProvider>>,
}

/// Writes logs to standard error, by a thread of its own: text on a terminal, JSON elsewhere, unless told
/// otherwise. Where a collector is named they are sent to it, too, which needs a tokio runtime.
///
/// # Errors
/// When there is no way to the collector.
pub(crate) fn init(telemetry: &Telemetry) -> Result<Logging, String> {
    let lines = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES);
    let (writer, guard) = lines.finish(io::stderr());
    let is_json = Arc::new(AtomicBool::new(is_json(telemetry)));
    let layer = fmt::layer().with_writer(writer).with_ansi(io::stderr().is_terminal());
    let layer = layer.event_format(Lines::new(is_json.clone()));
    let sent = telemetry.otlp.as_ref().map(|otlp| sender(telemetry, otlp)).transpose()?;
    let (bridge, bridged) = reload::Layer::new(sent.as_ref().map(OpenTelemetryTracingBridge::new));
    let (of_lines, lines_filtered) = reload::Layer::new(filter(telemetry));
    let (of_sent, sent_filtered) = reload::Layer::new(filter(telemetry));
    // What libraries say while something is sent must not be sent in its turn.
    let ours = filter_fn(|metadata| metadata.target().starts_with(SCOPE));
    let bridge = bridge.with_filter(of_sent.and(ours));
    tracing_subscriber::registry().with(layer.with_filter(of_lines)).with(bridge).init();
    // They fail only when there are no logs any more.
    let filter = move |filter: Targets| {
        let _ = lines_filtered.reload(filter.clone());
        let _ = sent_filtered.reload(filter);
    };
    let bridge = move |bridge| drop(bridged.reload(bridge));
    let sent = ArcSwapOption::from(sent.map(Arc::new));
    let (filter, bridge) = (Box::new(filter), Box::new(bridge));
    Ok(Logging {
        _lines: guard,
        control: Control(Arc::new(Inner { filter, is_json, bridge, sent })),
    })
}

/// The configuration has checked it; INFO is what it stands for by default.
fn filter(telemetry: &Telemetry) -> Targets {
    telemetry.log.parse().unwrap_or_else(|_| Targets::new().with_default(Level::INFO))
}

fn is_json(telemetry: &Telemetry) -> bool {
    match telemetry.log_format {
        LogFormat::Auto => !io::stderr().is_terminal(),
        LogFormat::Json => true,
        LogFormat::Text => false,
    }
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
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// Sends the last lines to the collector, within a few seconds.
    pub(crate) async fn end(&self) {
        if let Some(sent) = self.control.0.sent.load_full() {
            end(sent).await;
        }
    }
}

async fn end(sent: Arc<SdkLoggerProvider>) {
    let _ = timeout(LAST_LINES, spawn_blocking(move || sent.shutdown())).await;
}

impl Control {
    /// Makes what is another one under this configuration than under the one before;
    /// [`Control::go_on`] then uses it.
    ///
    /// # Errors
    /// As [`init`].
    pub fn prepare(&self, config: &Telemetry, before: &Telemetry) -> Result<Renewed, String> {
        let is_same = config.otlp == before.otlp && config.service_name == before.service_name;
        let sender = || config.otlp.as_ref().map(|otlp| sender(config, otlp)).transpose();
        let sent = (!is_same).then(sender).transpose()?;
        Ok(Renewed { filter: filter(config), is_json: is_json(config), sent })
    }

    /// From now on logs are written in this way; what waits to be sent goes where it would have gone before.
    pub async fn go_on(&self, Renewed { filter, is_json, sent }: Renewed) {
        self.0.is_json.store(is_json, Ordering::Relaxed);
        (self.0.filter)(filter);
        let Some(sent) = sent else {
            return;
        };
        (self.0.bridge)(sent.as_ref().map(OpenTelemetryTracingBridge::new));
        if let Some(before) = self.0.sent.swap(sent.map(Arc::new)) {
            end(before).await;
        }
    }
}

/// Lines as people or as programs read them.
struct Lines {
    is_json: Arc<AtomicBool>,
    text: Format,
    json: Format<Json>,
}

impl Lines {
    fn new(is_json: Arc<AtomicBool>) -> Self {
        let text = fmt::format().with_target(false);
        let json = text.clone().json().flatten_event(true);
        Self { is_json, text, json: json.with_current_span(false).with_span_list(false) }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
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
        match self.is_json.load(Ordering::Relaxed) {
            true => self.json.format_event(context, writer, event),
            false => self.text.format_event(context, writer, event),
        }
    }
}
