//! `promptgate serve`: runs the gateway until it is told to stop.

use std::path::Path;

use super::text::printable;
use super::{Failure, load, runtime};
use crate::app::App;
use crate::router::UpstreamSummary;
use crate::{shutdown, telemetry};

pub(super) fn run(path: &Path) -> Result<(), Failure> {
    let config = load(path)?;
    telemetry::init(&config.telemetry);
    let listen = config.server.listen;
    runtime()?.block_on(async {
        let app = App::start(config).await.map_err(|error| {
            Failure::new(format!("cannot listen on {listen}: {error}; set server.listen"))
        })?;
        println!("promptgate {} listens on {}", env!("CARGO_PKG_VERSION"), app.url());
        let greeting = async {
            for upstream in app.summary().await {
                println!("{}", line(&upstream));
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
    })
}

fn line(upstream: &UpstreamSummary) -> String {
    let UpstreamSummary { id, prompts, failure } = upstream;
    let noun = if *prompts == 1 { "prompt" } else { "prompts" };
    match failure {
        None => format!("  {id}: {prompts} {noun}"),
        Some(kind) => format!("  {id}: {prompts} {noun}, {}", printable(&kind.to_string())),
    }
}
