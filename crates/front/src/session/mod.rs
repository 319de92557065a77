//! The session layer: translates messages into calls and results into messages. The layers behind
//! it do not depend on the client's era.

pub(crate) mod connection;
pub mod dialect;
pub mod headers;
mod endpoints;
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

use quick_cache::sync::Cache;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use base::seal::Sealer;
use call::failure_lines::FailureLines;
use call::in_flight::InFlightCalls;
use call::run::Calls;
use call::server_requests::PendingServerRequests;
use call::url_elicitations::PendingUrlElicitations;
use calls::Router;
use cluster::{ClusterMember, Handling, RelayMessage};
use config::Config;
use dialect::ServerIdentity;
use domain::calls::fair_share::{Holder, Share};
use domain::json::Json;
use domain::json::jsonrpc::{Frame, Id};
use domain::protocol::log_level::LogLevel;
use endpoints::MethodTable;
use notify::streams::NewestStreams;
use notify::terminated::TerminatedSessions;
use policy::Gate;
use token::{Nonce, TokenOpener};

pub use call::console::perform_for_console;
pub use call::run::RunningCall;
pub use legacy::LegacySessions;
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
    endpoints: Arc<MethodTable>,
    legacy: LegacySessions,
    calls: Calls,
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
    /// The levels that `logging/setLevel` has set, by session or connection. If a level is evicted,
    /// the client gets no log messages.
    log_levels: Cache<Nonce, LogLevel>,
    /// `None`: this replica stands alone.
    cluster: Option<Arc<ClusterMember>>,
    /// The tasks of calls. A call may outlive its connection.
    tasks: TaskTracker,
    /// Ends notification streams when the gateway drains.
    drain: CancellationToken,
    /// Ends the calls that still run at the end of the drain.
    stop: CancellationToken,
}

/// Most sessions whose log levels are remembered.
const MAX_LOG_LEVELS: usize = 10_000;

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
            log_levels: Cache::new(MAX_LOG_LEVELS),
            cluster: None,
            tasks,
            drain,
            stop,
        }
    }

    /// Adds the cluster, for a replica among several.
    pub fn in_cluster(self, cluster: Arc<ClusterMember>) -> Self {
        let server_requests = PendingServerRequests::of_replica(cluster.id());
        Self { server_requests, cluster: Some(cluster), ..self }
    }

    /// Terminates a session, as another replica was asked to.
    pub fn terminated_elsewhere(&self, holder: &Holder, session: [u8; 16]) {
        self.terminated.insert(holder, Nonce::from_bytes(session));
    }

    /// Takes a message that another replica hands over: a response, or the cancellation of a call.
    pub fn receive(&self, message: &RelayMessage) -> Handling {
        let is_found = match message {
            RelayMessage::Response { session, body } => {
                self.resolve(Nonce::from_bytes(*session), body)
            }
            RelayMessage::Cancelled { session, request } => {
                let request = Json::parse(request.as_bytes(), 1).ok();
                let id = request.and_then(Id::read);
                let cancel = |id| self.in_flight.cancel(Nonce::from_bytes(*session), id);
                id.is_some_and(cancel)
            }
            // The transport holds the connection to which a post belongs.
            RelayMessage::Post { .. }
            | RelayMessage::Question { .. }
            | RelayMessage::Hint { .. }
            | RelayMessage::Rollback { .. } => false,
        };
        if is_found { Handling::Handled } else { Handling::NotFound }
    }

    fn resolve(&self, session: Nonce, body: &[u8]) -> bool {
        let message = Json::parse(body, MAX_DEPTH).ok();
        match message.map(Frame::read_strict) {
            Some(Ok(Frame::Response { id: Some(id), outcome })) => {
                self.server_requests.resolve(session, id, outcome)
            }
            _ => false,
        }
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
        let identity = ServerIdentity::new(&server.name, server.instructions.as_deref());
        let identity = Arc::new(identity);
        let endpoints = Arc::new(MethodTable {
            gate: gate.clone(),
            router: router.clone(),
            identity: identity.clone(),
            pseudonym: sealer.pseudonym(),
            discover_ttl: config.listing.ttl_max,
            empty_lists: server.empty_lists,
            shared: shared.clone(),
        });
        let legacy = LegacySessions {
            endpoints: endpoints.clone(),
            tokens: TokenOpener::new(sealer.clone()),
            sealer,
            lifetime: server.limits.session_lifetime,
            stream_lifetime: server.limits.stream_lifetime,
        };
        let timeout = server.limits.request;
        let calls = Calls { gate: gate.clone(), router, identity, timeout, shared: shared.clone() };
        Self { gate, endpoints, legacy, calls, shared }
    }

    /// Returns the sessions of legacy clients.
    pub fn legacy(&self) -> &LegacySessions {
        &self.legacy
    }

    /// Returns the gate of this configuration.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Returns the router of this configuration.
    pub(crate) fn router(&self) -> &Arc<Router> {
        &self.calls.router
    }

    /// Returns the cluster of this replica; `None` if it stands alone.
    pub fn cluster(&self) -> Option<&Arc<ClusterMember>> {
        self.shared.cluster.as_ref()
    }

    /// Schedules an early read of an upstream, here and on the other replicas, after a hint that it
    /// has changed. A replica that misses the message finds the change by polling.
    pub(crate) fn hint(&self, upstream: &str) {
        self.calls.router.hint(upstream, None);
        if let Some(cluster) = self.cluster().cloned() {
            let message = RelayMessage::Hint { upstream: upstream.to_owned(), accepted: None };
            self.shared.tasks.spawn(async move { cluster.relay().tell_all(message).await });
        }
    }

    /// Returns the number of requests in flight that a client can cancel by their ids.
    pub fn in_flight_calls(&self) -> usize {
        self.shared.in_flight.count()
    }
}
