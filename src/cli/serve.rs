//! `promptgate serve`: runs the gateway until it is told to stop.

use std::path::Path;

use tokio::sync::Notify;

use super::text::{print, printable};
use super::{Failure, load, load_config, runtime};
use crate::app::{App, Source};
use crate::downstream::Streams;
use crate::router::UpstreamStatus;
use crate::telemetry::log::Logging;
use crate::{shutdown, telemetry};

pub(super) fn http(path: &Path) -> Result<(), Failure> {
    let config = load(path)?;
    run(async {
        let logging = telemetry::log::init(&config.telemetry).map_err(Failure::new)?;
        shutdown::survive_large_files();
        let ended = shutdown::signal();
        let app = App::start(config).await.map_err(|error| Failure::new(error.to_string()))?;
        let (source, hang_up) = (source(path, &logging), Notify::new());
        let (hearing, following) = (shutdown::hang_ups(&hang_up), app.follow(&source, &hang_up));
        // A reader that has gone away is no reason to stop serving.
        let url = app.url().unwrap_or_default();
        let _ = print(&format!("promptgate {} listens on {url}", env!("CARGO_PKG_VERSION")));
        let greeting = async {
            for upstream in app.summary().await {
                let _ = print(&line(&upstream));
            }
            std::future::pending().await
        };
        tokio::select! {
            () = ended => {}
            () = hearing => {}
            () = following => {}
            () = greeting => {}
        }
        drain(&app).await;
        logging.end().await;
        Ok(())
    })
}

/// Nothing but messages goes to standard output; the log goes to standard error.
pub(super) fn stdio(path: &Path) -> Result<(), Failure> {
    let config = load(path)?;
    run(async {
        let logging = telemetry::log::init(&config.telemetry).map_err(Failure::new)?;
        shutdown::survive_large_files();
        let ended = shutdown::signal();
        let app = App::new(config, true).map_err(|error| Failure::new(error.to_string()))?;
        let streams = Streams { input: tokio::io::stdin(), output: tokio::io::stdout() };
        let (source, hang_up) = (source(path, &logging), Notify::new());
        let (hearing, following) = (shutdown::hang_ups(&hang_up), app.follow(&source, &hang_up));
        let mut served = std::pin::pin!(app.serve(streams));
        tokio::select! {
            () = hearing => {}
            () = following => {}
            () = served.as_mut() => {
                // The client has gone: nobody needs to be waited for.
                tokio::select! {
                    () = app.stop() => {}
                    () = shutdown::signal() => app.abort().await,
                }
                logging.end().await;
                return Ok(());
            }
            () = ended => {}
        }
        // What is under way is answered while the gateway drains, which waits for it.
        tokio::select! {
            () = drain(&app) => {}
            () = async { (served.await, std::future::pending::<()>().await).1 } => {}
        }
        logging.end().await;
        Ok(())
    })
}

/// Where the configuration is read again.
fn source(path: &Path, logging: &Logging) -> Source {
    Source { path: path.to_owned(), load: load_config, logs: logging.control().clone() }
}

/// Drains, unless asked to end a second time: whoever asks twice does not want to wait.
async fn drain(app: &App) {
    tokio::select! {
        () = app.drain() => {}
        () = shutdown::signal() => app.abort().await,
    }
}

fn run(serving: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = runtime()?;
    let served = runtime.block_on(serving);
    // What is still running was given its time; nobody waits for it any longer.
    runtime.shutdown_background();
    served
}

fn line(upstream: &UpstreamStatus) -> String {
    let UpstreamStatus { id, listed: prompts, failure, .. } = upstream;
    let noun = if *prompts == 1 { "prompt" } else { "prompts" };
    match failure {
        None => format!("  {id}: {prompts} {noun}"),
        Some(kind) => format!("  {id}: {prompts} {noun}, {}", printable(&kind.to_string())),
    }
}
