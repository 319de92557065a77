//! The session layer: translates messages into calls and results into messages. The layers behind
//! it do not depend on the client's era.

pub(crate) mod connection;
pub mod dialect;
pub mod headers;
mod read;
mod legacy;
mod modern;
mod tools;
mod message;
mod relay;
pub(crate) mod call;
pub(crate) mod notify;
mod token;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::Cluster;
use crate::policy::{Authenticated, Credentials, Gate, StreamRecord};
use crate::router::Router;
use crate::telemetry::Telemetry;
use audit::usage::Usage;
use base::seal::Sealer;
use call::in_flight::InFlightCalls;
use call::server_requests::PendingServerRequests;
use call::url_elicitations::PendingUrlElicitations;
use config::{Config, Limits};
use dialect::Identity;
use domain::caller::Caller;
use domain::fair_share::Share;
use domain::fault::TransportFault;
use domain::method::Countable;
use domain::unix_time::UnixSeconds;
use notify::streams::Streams;
use notify::terminated::TerminatedSessions;
use token::TokenOpener;

pub(crate) use call::run::RunningCall;
pub(crate) use message::PreparedCall;
pub use message::{
    CallOutcome, CallPermit, CallPermits, Dispatch, Refusal, RequestContext, TransportContext,
};
pub(crate) use notify::streams::StreamEnd;
pub(crate) use relay::fault as relay_fault;

/// The session layer of one configuration. Serves clients of all revisions.
pub struct Sessions {
    gate: Arc<Gate>,
    router: Arc<Router>,
    tokens: TokenOpener,
    sealer: Arc<Sealer>,
    identity: Identity,
    limits: Limits,
    discover_ttl: Duration,
    /// `server.empty_lists`
    empty_lists: bool,
    shared: Arc<SharedState>,
}

/// The state of the session layer that outlives a reload of the configuration.
pub struct SharedState {
    terminated: Arc<TerminatedSessions>,
    in_flight: InFlightCalls,
    server_requests: PendingServerRequests,
    url_elicitations: PendingUrlElicitations,
    streams: Streams,
    /// `None`: this replica stands alone.
    cluster: Option<Arc<Cluster>>,
    usage: Arc<Usage>,
    /// The tasks of calls. A call may outlive its connection.
    tasks: TaskTracker,
    /// Ends notification streams when the gateway drains.
    drain: CancellationToken,
    /// Ends the calls that still run at the end of the drain.
    stop: CancellationToken,
}

impl SharedState {
    pub fn new(tasks: TaskTracker, drain: CancellationToken, stop: CancellationToken) -> Self {
        Self {
            // Each configuration sets its size.
            terminated: Arc::new(TerminatedSessions::new(0, Share::WHOLE)),
            in_flight: InFlightCalls::default(),
            server_requests: PendingServerRequests::new(),
            url_elicitations: PendingUrlElicitations::default(),
            streams: Streams::default(),
            cluster: None,
            usage: Arc::default(),
            tasks,
            drain,
            stop,
        }
    }

    /// Counts calls there.
    pub fn counted_by(self, usage: Arc<Usage>) -> Self {
        Self { usage, ..self }
    }

    /// The state of one of several replicas.
    pub fn in_cluster(self, cluster: Arc<Cluster>) -> Self {
        let server_requests = PendingServerRequests::of_replica(cluster.id());
        Self { server_requests, cluster: Some(cluster), ..self }
    }
}

/// Nesting of JSON in a message: more than prompts need, and the recursive scan fits on the stack of a
/// worker thread.
pub(crate) const MAX_DEPTH: usize = 64;

impl Sessions {
    pub fn new(
        config: &Config,
        gate: Arc<Gate>,
        router: Arc<Router>,
        sealer: Arc<Sealer>,
        shared: Arc<SharedState>,
    ) -> Self {
        let server = &config.server;
        shared.terminated.resize(server.limits.terminated_sessions, server.limits.share);
        Self {
            gate,
            router,
            tokens: TokenOpener::new(sealer.clone()),
            sealer,
            identity: Identity::new(&server.name, server.instructions.as_deref()),
            limits: server.limits.clone(),
            discover_ttl: config.listing.ttl_max,
            empty_lists: server.empty_lists,
            shared,
        }
    }

    /// Authenticates the caller of a request, before the body is read. `now` is in seconds since
    /// the Unix epoch.
    ///
    /// # Errors
    /// The credentials are missing or not valid for `audience`, or cannot be checked at present.
    pub async fn authenticate(
        &self,
        credentials: &Credentials<'_>,
        audience: &str,
        address: IpAddr,
        now: UnixSeconds,
    ) -> Result<Authenticated, TransportFault> {
        self.gate.authenticate(credentials, audience, address, now).await
    }

    /// Counts a request of an address, before its caller is known.
    ///
    /// # Errors
    /// The address exceeds one of the rate limits by address.
    pub fn check_address(&self, address: IpAddr) -> Result<(), TransportFault> {
        self.gate.check_address(address)
    }

    /// Counts a request that concerns the session alone.
    ///
    /// # Errors
    /// [`TransportFault::RateLimited`].
    pub(crate) async fn take_request(
        &self,
        caller: &Caller,
        address: Option<IpAddr>,
        request: Countable,
    ) -> Result<(), TransportFault> {
        self.gate.take_session_request(caller, address, request).await
    }

    /// Records the start of an admitted notification stream. Dropping the record records its end.
    ///
    /// # Errors
    /// [`TransportFault::AuditUnavailable`] if the start cannot be recorded.
    pub(crate) async fn record_stream(
        &self,
        caller: &Caller,
        address: Option<IpAddr>,
        endpoint: &str,
    ) -> Result<StreamRecord, TransportFault> {
        self.gate.stream(caller, address, endpoint).await
    }

    /// Returns the cluster of this replica; `None` if it stands alone.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.shared.cluster.as_ref()
    }

    /// Returns the number of requests in flight that a client can cancel by their ids.
    pub fn in_flight_calls(&self) -> usize {
        self.shared.in_flight.count()
    }

    /// Returns the telemetry of the gateway.
    pub fn telemetry(&self) -> &Telemetry {
        self.gate.telemetry()
    }

    /// Returns the caller of all requests over standard streams.
    pub fn stdio_caller(&self) -> Caller {
        self.gate.stdio_caller()
    }

    /// Returns when a stream of this caller must end: after `lifetime`, when the caller's
    /// credential expires, or when the credential is revoked by a new configuration.
    pub fn end_of_stream(
        &self,
        caller: &Caller,
        lifetime: Option<Duration>,
        now: UnixSeconds,
    ) -> StreamEnd {
        let valid = caller.expires().map(|at| at.saturating_since(now));
        let longest = lifetime.into_iter().chain(valid).min();
        let at = longest.and_then(|longest| Instant::now().checked_add(longest));
        StreamEnd { at, revocation: Some(self.gate.revocation(caller)), displaced: None }
    }
}
