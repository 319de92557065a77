//! `promptgate health`: asks a running gateway whether it is ready, for container checks.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use http::{Request, Uri};
use http_body_util::Full;
use tokio::time::timeout;

use crate::cli::shared::admin_api::egress;
use crate::cli::shared::args::Health;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::print;
use crate::cli::shared::reach::Reach;
use crate::cli::shared::runtime::runtime;

/// Longest wait for the answer: checks of containers give up after a few seconds, too.
const TIMEOUT: Duration = Duration::from_secs(4);

pub(crate) fn run(health: &Health) -> Result<(), Failure> {
    let reach = Reach::find(&health.file);
    let path = if health.live { "/livez" } else { "/readyz" };
    let Ok(admin) = reach.admin(health.url.as_deref()) else {
        return accepts_connections(&reach.endpoint(None)?);
    };
    let url = format!("{admin}{path}");
    let uri: Uri = url.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    let answer = runtime()?.block_on(async {
        let egress = egress()?;
        let mut request = Request::new(Full::default());
        *request.uri_mut() = uri;
        let answer = timeout(TIMEOUT, egress.json(request)).await;
        answer.map_err(|_| Failure::new(format!("{url}: no answer within {} s", TIMEOUT.as_secs())))
    })?;
    answer.map_err(|error| Failure::new(format!("{url}: {error}")))?;
    print("healthy")
}

/// Without an admin API: whether the endpoint accepts connections. Its certificate is for its
/// public name.
fn accepts_connections(url: &str) -> Result<(), Failure> {
    let uri: Uri = url.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let failed = |error: io::Error| Failure::new(format!("{authority}: {error}"));
    let addr =
        authority.parse().map_err(|_| Failure::usage(format!("{url} has no address and port")))?;
    TcpStream::connect_timeout(&addr, TIMEOUT).map_err(failed)?;
    print("healthy")
}
