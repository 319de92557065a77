//! The session layer: turns frames into calls and results into frames, so that past it nobody
//! asks which era a client speaks.

pub(crate) mod connection;
pub(crate) mod dialect;
pub(crate) mod headers;
mod read;
mod legacy;
mod modern;
mod message;
pub(crate) mod call;
pub(crate) mod notify;
mod token;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Limits};
use crate::domain::caller::Caller;
use crate::domain::fault::TransportFault;
use crate::policy::{Credentials, Gate};
use crate::router::Router;
use crate::seal::Sealer;
use crate::telemetry::Telemetry;
use call::in_flight::InFlightCalls;
use call::server_requests::PendingServerRequests;
use dialect::Identity;
use notify::streams::Streams;
use notify::terminated::TerminatedSessions;
use notify::url_elicitations::PendingUrlElicitations;

pub(crate) use message::PreparedCall;
pub use message::{
    CallOutcome, CallPermit, CallPermits, Dispatch, Refusal, RequestContext, TransportContext,
};
pub(crate) use notify::streams::StreamEnd;

/// Speaks with clients of all revisions.
pub struct Sessions {
    gate: Arc<Gate>,
    router: Arc<Router>,
    sealer: Arc<Sealer>,
    identity: Identity,
    limits: Limits,
    discover_ttl: Duration,
    shared: Arc<SharedState>,
}

/// What all sessions of one gateway share, whatever its configuration is by now.
pub struct SharedState {
    terminated: Arc<TerminatedSessions>,
    in_flight: InFlightCalls,
    server_requests: PendingServerRequests,
    url_elicitations: PendingUrlElicitations,
    streams: Streams,
    /// Calls that go on without their client.
    tasks: TaskTracker,
    /// Ends streams when the gateway is about to end.
    drain: CancellationToken,
    /// Ends what still runs then.
    stop: CancellationToken,
}

impl SharedState {
    pub fn new(tasks: TaskTracker, drain: CancellationToken, stop: CancellationToken) -> Self {
        Self {
            terminated: Arc::default(),
            in_flight: InFlightCalls::default(),
            server_requests: PendingServerRequests::default(),
            url_elicitations: PendingUrlElicitations::default(),
            streams: Streams::default(),
            tasks,
            drain,
            stop,
        }
    }
}

impl Sessions {
    pub fn new(
        config: &Config,
        gate: Arc<Gate>,
        router: Arc<Router>,
        sealer: Arc<Sealer>,
        shared: Arc<SharedState>,
    ) -> Self {
        let server = &config.server;
        Self {
            gate,
            router,
            sealer,
            identity: Identity::new(&server.name, server.instructions.as_deref()),
            limits: server.limits.clone(),
            discover_ttl: config.listing.ttl_max,
            shared,
        }
    }

    /// Who a request comes from; asked before its body is read.
    pub async fn authenticate(
        &self,
        credentials: &Credentials<'_>,
        audience: &str,
        address: IpAddr,
        now_secs: u64,
    ) -> Result<Caller, TransportFault> {
        self.gate.authenticate(credentials, audience, address, now_secs).await
    }

    /// Counts a request before anything is known of it but where it comes from.
    pub fn check_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        self.gate.check_address(address)
    }

    /// How many calls are performed that can be cancelled by their ids.
    pub fn in_flight_calls(&self) -> usize {
        self.shared.in_flight.count()
    }

    /// What is measured.
    pub fn telemetry(&self) -> &Telemetry {
        self.gate.telemetry()
    }

    /// Who calls over standard streams.
    pub fn stdio_caller(&self) -> Caller {
        self.gate.stdio_caller()
    }

    /// When a stream must end: after `lifetime`, if there is one, and once its caller is not known any
    /// more.
    pub fn end_of_stream(
        &self,
        caller: &Caller,
        lifetime: Option<Duration>,
        now_secs: u64,
    ) -> StreamEnd {
        let known = caller.expires().map(|at| Duration::from_secs(at.saturating_sub(now_secs)));
        let longest = lifetime.into_iter().chain(known).min();
        let at = longest.and_then(|longest| Instant::now().checked_add(longest));
        StreamEnd { at, revocation: Some(self.gate.revocation(caller)) }
    }
}
