//! `promptgate serve`: runs the gateway until it is told to stop.

use std::path::Path;

use super::text::{print, printable};
use super::{Failure, load, runtime};
use crate::app::App;
use crate::router::UpstreamSummary;
use crate::{shutdown, telemetry};

pub(super) fn run(path: &Path) -> Result<(), Failure> {
    let config = load(path)?;
    telemetry::init(&config.telemetry);
    let listen = config.server.listen;
    let runtime = runtime()?;
    let served = runtime.block_on(async {
        let app = App::start(config).await.map_err(|error| {
            Failure::new(format!("cannot listen on {listen}: {error}; set server.listen"))
        })?;
        // A reader that has gone away is no reason to stop serving.
        let _ =
            print(&format!("promptgate {} listens on {}", env!("CARGO_PKG_VERSION"), app.url()));
        let greeting = async {
            for upstream in app.summary().await {
                let _ = print(&line(&upstream));
            }
            std::future::pending().await
        };
        tokio::select! {
            () = shutdown::signal() => {}
            () = greeting => {}
        }
        // Whoever asks twice does not want to wait.
        tokio::select! {
            () = app.drain() => {}
            () = shutdown::signal() => {}
        }
        Ok(())
    });
    // What is still running was given its time; nobody waits for it any longer.
    runtime.shutdown_background();
    served
}

fn line(upstream: &UpstreamSummary) -> String {
    let UpstreamSummary { id, prompts, failure } = upstream;
    let noun = if *prompts == 1 { "prompt" } else { "prompts" };
    match failure {
        None => format!("  {id}: {prompts} {noun}"),
        Some(kind) => format!("  {id}: {prompts} {noun}, {}", printable(&kind.to_string())),
    }
}
