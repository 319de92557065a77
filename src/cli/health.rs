//! `promptgate health`: asks a running gateway whether it is ready, for container checks.

use std::time::Duration;

use http::{Request, Uri};
use http_body_util::Full;
use tokio::time::timeout;

use super::args::Health;
use super::failure::Failure;
use super::output::print;
use super::reach::Reach;
use super::runtime::runtime;
use crate::domain::address_policy::AddressPolicy;
use crate::net::egress::{CONNECT, Egress, FetchError};

/// Longest wait for the answer: checks of containers give up after a few seconds, too.
const TIMEOUT: Duration = Duration::from_secs(4);

/// # Errors
/// The gateway does not answer, or is not ready.
pub(super) fn run(health: &Health) -> Result<(), Failure> {
    let reach = Reach::find(&health.file);
    let path = if health.live { "/livez" } else { "/readyz" };
    let url = match reach.admin(health.url.as_deref()) {
        Ok(admin) => format!("{admin}{path}"),
        // Without an admin API, any answer of the endpoint shows that it serves.
        Err(_) => reach.endpoint(None)?,
    };
    let uri: Uri = url.parse().map_err(|_| Failure::usage(format!("{url} is not a URL")))?;
    let answer = runtime()?.block_on(async {
        let egress =
            Egress::new(CONNECT, None, AddressPolicy::NotLinkLocal).map_err(Failure::new)?;
        let mut request = Request::new(Full::default());
        *request.uri_mut() = uri;
        let answer = timeout(TIMEOUT, egress.json(request)).await;
        answer.map_err(|_| Failure::new(format!("{url}: no answer within {} s", TIMEOUT.as_secs())))
    })?;
    match answer {
        Ok(_) => print("healthy"),
        Err(FetchError::Status { .. }) if !url.ends_with(path) => print("healthy"),
        Err(error) => Err(Failure::new(format!("{url}: {error}"))),
    }
}
