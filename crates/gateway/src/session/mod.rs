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

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::ClusterMember;
use crate::policy::Gate;
use crate::router::Router;
use audit::usage::GatewayUsage;
use base::seal::Sealer;
use call::failure_lines::FailureLines;
use call::in_flight::InFlightCalls;
use call::server_requests::PendingServerRequests;
use call::url_elicitations::PendingUrlElicitations;
use config::{Config, Limits};
use dialect::ServerIdentity;
use domain::caller::Caller;
use domain::fair_share::Share;
use domain::unix_time::UnixSeconds;
use notify::streams::NewestStreams;
use notify::terminated::TerminatedSessions;
use token::TokenOpener;

pub(crate) use call::run::RunningCall;
pub(crate) use message::PreparedCall;
pub use message::{
    CallOutcome, CallPermit, CallPermits, Dispatch, MessageRefusal, RequestContext,
    TransportContext,
};
pub(crate) use notify::streams::StreamEnd;
pub(crate) use relay::fault as relay_fault;

/// The session layer of one configuration. Serves clients of all revisions.
pub struct Sessions {
    gate: Arc<Gate>,
    router: Arc<Router>,
    tokens: TokenOpener,
    sealer: Arc<Sealer>,
    identity: ServerIdentity,
    limits: Limits,
    discover_ttl: Duration,
    /// `server.empty_lists`
    empty_lists: bool,
    shared: Arc<SessionSharedState>,
}

/// The state of the session layer that outlives a reload of the configuration.
pub struct SessionSharedState {
    terminated: Arc<TerminatedSessions>,
    in_flight: InFlightCalls,
    server_requests: PendingServerRequests,
    url_elicitations: PendingUrlElicitations,
    streams: NewestStreams,
    failure_lines: FailureLines,
    /// `None`: this replica stands alone.
    cluster: Option<Arc<ClusterMember>>,
    usage: Arc<GatewayUsage>,
    /// The tasks of calls. A call may outlive its connection.
    tasks: TaskTracker,
    /// Ends notification streams when the gateway drains.
    drain: CancellationToken,
    /// Ends the calls that still run at the end of the drain.
    stop: CancellationToken,
}

impl SessionSharedState {
    pub fn new(tasks: TaskTracker, drain: CancellationToken, stop: CancellationToken) -> Self {
        Self {
            // Each configuration sets its size.
            terminated: Arc::new(TerminatedSessions::new(0, Share::WHOLE)),
            in_flight: InFlightCalls::default(),
            server_requests: PendingServerRequests::new(),
            url_elicitations: PendingUrlElicitations::default(),
            streams: NewestStreams::default(),
            failure_lines: FailureLines::default(),
            cluster: None,
            usage: Arc::default(),
            tasks,
            drain,
            stop,
        }
    }

    /// Counts calls there.
    pub fn counted_by(self, usage: Arc<GatewayUsage>) -> Self {
        Self { usage, ..self }
    }

    /// The state of one of several replicas.
    pub fn in_cluster(self, cluster: Arc<ClusterMember>) -> Self {
        let server_requests = PendingServerRequests::of_replica(cluster.id());
        Self { server_requests, cluster: Some(cluster), ..self }
    }
}

/// Nesting of JSON in a message: more than prompts need, and the recursive scan fits on the stack
/// of a worker thread.
pub(crate) const MAX_DEPTH: usize = 64;

impl Sessions {
    pub fn new(
        config: &Config,
        gate: Arc<Gate>,
        router: Arc<Router>,
        sealer: Arc<Sealer>,
        shared: Arc<SessionSharedState>,
    ) -> Self {
        let server = &config.server;
        shared.terminated.resize(server.limits.terminated_sessions, server.limits.share);
        Self {
            gate,
            router,
            tokens: TokenOpener::new(sealer.clone()),
            sealer,
            identity: ServerIdentity::new(&server.name, server.instructions.as_deref()),
            limits: server.limits.clone(),
            discover_ttl: config.listing.ttl_max,
            empty_lists: server.empty_lists,
            shared,
        }
    }

    /// Returns the gate of this configuration.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Returns the cluster of this replica; `None` if it stands alone.
    pub fn cluster(&self) -> Option<&Arc<ClusterMember>> {
        self.shared.cluster.as_ref()
    }

    /// Returns the number of requests in flight that a client can cancel by their ids.
    pub fn in_flight_calls(&self) -> usize {
        self.shared.in_flight.count()
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
