//! `promptgate serve`: runs the gateway until SIGTERM or SIGINT, or, over standard streams, until
//! its client disconnects.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::app::{App, ConfigSource};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::{load, load_supervised};
use crate::cli::shared::output::{print, printable, prompts};
use crate::cli::shared::process::raise_open_file_limit;
use crate::cli::shared::running::Running;
use crate::cli::shared::runtime::runtime;
use base::platform::processes::gateway_depth;
use base::platform::service_manager::{self, ServiceState};
use calls::UpstreamStatus;
use config::{Config, from_here};
use front::downstream::StdioStreams;
use telemetry::log::Logging;

/// Serves over HTTP.
pub(crate) fn http(path: &Path) -> Result<(), Failure> {
    check_depth()?;
    let config = load(path)?;
    run(async {
        let logging = telemetry::log::init(&config.telemetry).map_err(Failure::new)?;
        shutdown::handle_file_size_signal();
        raise_open_file_limit();
        let terminated = shutdown::termination_signal();
        let protections = config.protections();
        let app = App::start(config).await.map_err(|error| Failure::new(error.to_string()))?;
        let url = app.url().unwrap_or_default();
        let admin = app.admin_addr().map(|addr| format!("http://{}", from_here(addr)));
        let record = Mutex::new(Running::record(path, url.clone(), admin.clone(), protections));
        let source = source(path, &logging, move |config| {
            record.lock().unwrap_or_else(PoisonError::into_inner).renew(config.protections());
        });
        let hang_up = Notify::new();
        let hang_ups = shutdown::reload_signals(&hang_up);
        let reloads = app.watch_config(&source, &hang_up);
        service_manager::notify(ServiceState::Ready("serving"));
        // Errors of standard output are ignored: serving does not depend on it.
        let _ = print(&format!("promptgate {} listens on {url}", env!("CARGO_PKG_VERSION")));
        let summary = async {
            let upstreams = app.summary().await;
            if upstreams.is_empty() {
                let _ = print(NO_UPSTREAMS);
            }
            for upstream in upstreams {
                let _ = print(&summary_line(&upstream));
            }
            if io::stdout().is_terminal() {
                let _ = print(&next_steps(admin.as_deref()));
            }
            std::future::pending().await
        };
        tokio::select! {
            () = terminated => {}
            () = hang_ups => {}
            () = reloads => {}
            () = summary => {}
            () = app.failed() => {}
        }
        drain(&app).await;
        logging.end().await;
        verdict(&app)
    })
}

/// Serves one client over standard streams (MCP 2025-11-25, stdio). Standard output carries MCP
/// messages only.
pub(crate) fn stdio(path: &Path) -> Result<(), Failure> {
    check_depth()?;
    let config = load(path)?;
    run(async {
        let logging = telemetry::log::init(&config.telemetry).map_err(Failure::new)?;
        shutdown::handle_file_size_signal();
        raise_open_file_limit();
        let terminated = shutdown::termination_signal();
        let app = App::new(config).map_err(|error| Failure::new(error.to_string()))?;
        let streams = StdioStreams { input: tokio::io::stdin(), output: tokio::io::stdout() };
        let source = source(path, &logging, |_| {});
        let hang_up = Notify::new();
        let hang_ups = shutdown::reload_signals(&hang_up);
        let reloads = app.watch_config(&source, &hang_up);
        let mut served = std::pin::pin!(app.serve(streams));
        tokio::select! {
            () = hang_ups => {}
            () = reloads => {}
            () = served.as_mut() => {
                // The client disconnected: there is nothing to drain.
                tokio::select! {
                    () = app.stop() => {}
                    () = shutdown::termination_signal() => app.abort().await,
                }
                logging.end().await;
                return verdict(&app);
            }
            () = terminated => {}
            () = app.failed() => {}
        }
        // Requests in flight are still served during the drain, which waits for them.
        tokio::select! {
            () = drain(&app) => {}
            () = async {
                served.await;
                std::future::pending().await
            } => {}
        }
        logging.end().await;
        verdict(&app)
    })
}

/// Gateways that may start one another: an upstream can be a gateway that has upstreams.
const MAX_DEPTH: u32 = 3;

/// Refuses to serve where gateways start one another without end.
fn check_depth() -> Result<(), Failure> {
    match gateway_depth() {
        0..MAX_DEPTH => Ok(()),
        depth => Err(Failure::usage(format!(
            "{depth} gateways have started one another: an upstream starts the gateway whose upstream it is; remove it"
        ))),
    }
}

/// Returns the source of reloads; `in_use` gets each configuration that has come into use.
fn source(
    path: &Path,
    logging: &Logging,
    in_use: impl Fn(&Config) + Send + Sync + 'static,
) -> ConfigSource {
    let logs = logging.control().clone();
    ConfigSource { path: path.to_owned(), load: load_supervised, logs, in_use: Arc::new(in_use) }
}

/// Returns how the process ends: with a failure if a task has failed, so that the service manager
/// starts the gateway again.
fn verdict(app: &App) -> Result<(), Failure> {
    match app.failure() {
        Some(failure) => Err(Failure::new(format!("{failure}; the gateway has ended in order"))),
        None => Ok(()),
    }
}

/// Drains the gateway. A second signal ends the drain at once.
async fn drain(app: &App) {
    tokio::select! {
        () = app.drain() => {}
        () = shutdown::termination_signal() => app.abort().await,
    }
}

fn run(serving: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = runtime()?;
    let served = runtime.block_on(serving);
    // The remaining tasks had their time in the drain.
    runtime.shutdown_background();
    served
}

const NO_UPSTREAMS: &str = "  No upstreams are configured, so there are no prompts. Add an [upstreams.NAME] table to the \
    configuration, or convert the configuration of a host with `promptgate import FILE`.";

/// Returns hints on the next steps, for a person at a terminal.
fn next_steps(admin: Option<&str>) -> String {
    let admin = match admin {
        Some(url) => format!("Console and admin API: {url}/ (`promptgate status`)\n"),
        None => String::new(),
    };
    format!(
        "{admin}Use it: `promptgate list`, or `promptgate connect HOST` for the entry of a host such as \
         claude-code.\nStop it with Ctrl+C."
    )
}

fn summary_line(upstream: &UpstreamStatus) -> String {
    let UpstreamStatus { id, listed, failure, .. } = upstream;
    let prompts = prompts(*listed);
    let waiting = upstream.waiting().map(|waiting| format!("; {waiting}")).unwrap_or_default();
    match (failure, upstream.note()) {
        (Some(kind), _) => format!("  {id}: {prompts}; {}{waiting}", printable(&kind.diagnosis())),
        (None, Some(note)) => format!("  {id}: {note}{waiting}"),
        (None, None) => format!("  {id}: {prompts}{waiting}"),
    }
}
