//! The session layer: turns frames into calls and results into frames, so that past it nobody
//! asks which era a client speaks.

pub mod dialect;
mod ended;
pub mod headers;
mod legacy;
mod modern;
pub mod notices;
mod running;
mod streams;
mod token;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Limits};
use crate::domain::call::{Call, Request};
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, RequestFault, TransportFault, UpstreamFaultKind};
use crate::domain::json::{Json, Kind as JsonKind};
use crate::domain::jsonrpc::{Frame, Id};
use crate::domain::method::{DISCOVER, INITIALIZE, LISTEN, Method};
use crate::domain::revision::{Era, Revision};
use crate::policy::Gate;
use crate::router::Router;
use crate::seal::Sealer;
use dialect::{Dialect, Identity, result_message};
use ended::Ended;
use headers::Headers;
use notices::{Audience, Notices};
use running::{Running, RunningCall};
use streams::Streams;
use token::{Nonce, Token};

/// Speaks with clients of all revisions.
pub struct Sessions {
    gate: Gate,
    router: Arc<Router>,
    sealer: Arc<Sealer>,
    identity: Identity,
    limits: Limits,
    discover_ttl: Duration,
    ended: Arc<Ended>,
    running: Running,
    streams: Streams,
    /// Calls that go on without their client.
    tasks: TaskTracker,
    /// Ends streams when the gateway is about to end.
    drain: CancellationToken,
}

/// What a message asks of the transport.
pub enum Turn {
    /// Nothing comes back but the acceptance.
    Accepted,
    /// The answer is there already.
    Answer {
        message: String,
        /// The id of the session that this answer opens.
        session: Option<String>,
    },
    /// A call that is to be performed.
    Pending(Pending),
    /// A subscription that was opened.
    Listen(Notices),
    /// Several messages that are answered together (2025-03-26 only).
    Batch(Vec<Result<Turn, Refusal>>),
}

/// A call, and how its answer is written.
pub struct Pending {
    pub id: Id,
    pub dialect: Dialect,
    call: Call,
    running: Option<RunningCall>,
}

/// A message that is refused.
#[derive(Debug)]
pub struct Refusal {
    pub fault: Fault,
    /// The request, where it could be read.
    pub id: Option<Id>,
    pub dialect: Dialect,
}

/// What a call holds as long as it runs: its places among all that run.
pub struct Slot {
    pub call: OwnedSemaphorePermit,
    pub bytes: Arc<OwnedSemaphorePermit>,
}

/// How a call ended.
pub enum Ending {
    Result(String),
    Fault(Fault),
    /// The client asked for no answer any more.
    Cancelled,
}

impl Sessions {
    pub fn new(
        config: &Config,
        gate: Gate,
        router: Arc<Router>,
        sealer: Arc<Sealer>,
        tasks: TaskTracker,
        drain: CancellationToken,
    ) -> Self {
        let server = &config.server;
        Self {
            gate,
            router,
            sealer,
            identity: Identity::new(&server.name, server.instructions.as_deref()),
            limits: server.limits.clone(),
            discover_ttl: config.listing.ttl_max,
            ended: Arc::new(Ended::new(server.limits.deleted_sessions)),
            running: Running::default(),
            streams: Streams::default(),
            tasks,
            drain,
        }
    }

    /// Who a request comes from; asked before its body is read.
    pub fn authenticate(&self) -> Result<Caller, TransportFault> {
        self.gate.authenticate()
    }

    /// Reads a body. `now_secs` is the time since the Unix epoch, `guess` what [`Sessions::dialect_of`]
    /// makes of the headers.
    pub fn read(
        &self,
        headers: &Headers<'_>,
        body: &[u8],
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
        guess: Dialect,
    ) -> Result<Turn, Refusal> {
        let refuse = |id, fault| Refusal { fault, id, dialect: guess };
        let message = Json::parse(body, self.limits.json_depth);
        let message = message.map_err(|e| refuse(None, e.into()))?;
        if message.kind() != JsonKind::Array {
            return self.read_one(headers, message, caller, endpoint, now_secs, guess);
        }
        let count = message.elements().take(self.limits.batch_items + 1).count();
        if !guess.takes_batches() || count == 0 || count > self.limits.batch_items {
            return Err(refuse(None, RequestFault::BatchUnsupported.into()));
        }
        let initializes = |m: Json<'_>| m.get("method").is_some_and(|m| m.is(INITIALIZE));
        if message.elements().any(initializes) {
            return Err(refuse(None, RequestFault::BatchUnsupported.into()));
        }
        self.session(headers, caller, endpoint, now_secs).map_err(|fault| refuse(None, fault))?;
        let read = |item| self.read_one(headers, item, caller, endpoint, now_secs, guess);
        Ok(Turn::Batch(message.elements().map(read).collect()))
    }

    /// Reads one message, alone or of a batch.
    fn read_one(
        &self,
        headers: &Headers<'_>,
        message: Json<'_>,
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
        guess: Dialect,
    ) -> Result<Turn, Refusal> {
        let refuse = |id, fault| Refusal { fault, id, dialect: guess };
        let frame = Frame::read_strict(message).map_err(|e| refuse(e.id.clone(), e.into()))?;
        let (id, method, params) = match frame {
            Frame::Request { id, method, params } => (Some(id), method, params),
            Frame::Notification { method, params } => (None, method, params),
            Frame::Response { .. } => (None, "".into(), None),
        };
        let caller = caller.clone();
        let method = &*method;
        let incoming = Incoming { headers, caller, endpoint, now_secs, guess, method, params };
        let turn = match era(headers, method, params) {
            Some(Era::Modern) => self.modern(&incoming, id.clone()),
            Some(Era::Legacy) => self.legacy(&incoming, id.clone()),
            None => Err((RequestFault::EraUnknown.into(), guess)),
        };
        turn.map_err(|(fault, dialect)| Refusal { fault, id, dialect })
    }

    /// Performs a call. In the eras where going away is not cancelling, the call goes on by itself
    /// when this future is dropped. `slot` is held as long as the call runs.
    pub fn perform(
        self: Arc<Self>,
        pending: Pending,
        slot: Slot,
        now_secs: u64,
    ) -> impl Future<Output = Ending> + Send + 'static {
        let cancels = pending.dialect.cancels_on_disconnect();
        let tasks = self.tasks.clone();
        let running = async move {
            let _slot = slot;
            self.run(pending, now_secs).await
        };
        // Spawned here and not when it is first awaited, so that the calls of a batch run at once.
        let call = match cancels {
            true => Place::Here(running),
            false => Place::Apart(tasks.spawn(running)),
        };
        async move {
            match call {
                Place::Here(call) => call.await,
                Place::Apart(task) => task.await.unwrap_or(Ending::Fault(Fault::Internal)),
            }
        }
    }

    /// How a client is written to that said no more than its headers.
    pub fn dialect_of(&self, headers: &Headers<'_>, endpoint: &str) -> Dialect {
        let session = headers.session.value();
        let session = session.and_then(|id| Token::open(&self.sealer, endpoint, id));
        let version = headers.version.value().and_then(Revision::parse);
        let revision = session.map(|token| token.revision).or(version);
        Dialect::new(revision.unwrap_or(Revision::NEWEST_MODERN))
    }

    fn modern(&self, incoming: &Incoming<'_>, id: Option<Id>) -> Result<Turn, Fallen> {
        let dialect = Dialect::new(Revision::NEWEST_MODERN);
        let Some(id) = id else {
            return Ok(Turn::Accepted);
        };
        let revision = modern::check(incoming.headers, incoming.method, incoming.params);
        let dialect = Dialect::new(revision.map_err(|fault| (fault, dialect))?);
        if incoming.method == DISCOVER {
            let result = dialect.discover(&self.identity, self.discover_ttl.as_millis());
            return Ok(Turn::Answer { message: result_message(&id, &result), session: None });
        }
        if incoming.method == LISTEN {
            return Ok(Turn::Listen(self.listen(incoming, id, dialect)?));
        }
        self.pending(incoming, id, dialect, None)
    }

    /// A subscription to what we have of what was asked for (2026-07-28, subscriptions).
    fn listen(&self, incoming: &Incoming<'_>, id: Id, dialect: Dialect) -> Result<Notices, Fallen> {
        let filter = incoming.params.and_then(|p| p.get("notifications")).filter(|f| f.is_object());
        let Some(filter) = filter else {
            let fault = Fault::invalid_params("`notifications` must be an object");
            return Err((fault, dialect));
        };
        let wants = filter.get("promptsListChanged").and_then(Json::as_bool) == Some(true);
        let result = dialect.listen_result(&id, &self.identity);
        let result = result_message(&id, &result);
        let audience = Audience::Subscription { id, wants, result };
        let (changes, drain) = (self.router.changes(), self.drain.clone());
        Ok(Notices::new(changes, None, dialect, audience, drain, None))
    }

    /// A call that is known and well formed.
    fn pending(
        &self,
        incoming: &Incoming<'_>,
        id: Id,
        dialect: Dialect,
        session: Option<Nonce>,
    ) -> Result<Turn, Fallen> {
        let request = Method::parse(incoming.method)
            .ok_or_else(|| RequestFault::MethodNotFound.into())
            .and_then(|method| Request::read(method, incoming.params));
        let request = request.map_err(|fault| (fault, dialect))?;
        let running = match session {
            None => None,
            Some(nonce) => {
                let running = self.running.start(nonce, id.clone());
                Some(running.ok_or((RequestFault::IdInUse.into(), dialect))?)
            }
        };
        let caller = incoming.caller.clone();
        let call = Call { caller, endpoint: incoming.endpoint.to_owned(), request };
        Ok(Turn::Pending(Pending { id, dialect, call, running }))
    }

    async fn run(&self, pending: Pending, now_secs: u64) -> Ending {
        let Pending { dialect, call, running, .. } = pending;
        let deadline = Instant::now() + self.limits.request;
        let answer = async {
            let permitted = self.gate.admit(call)?;
            let routed = timeout_at(deadline, self.router.route(permitted, deadline, now_secs));
            let late = |_| Fault::upstream("", UpstreamFaultKind::Timeout);
            let reply = routed.await.map_err(late)??;
            Ok(dialect.reply(&reply, &self.identity))
        };
        let cancelled = async {
            match &running {
                Some(running) => running.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = answer => answer.map_or_else(Ending::Fault, Ending::Result),
            () = cancelled => Ending::Cancelled,
        }
    }
}

/// Where a call runs: in the future of its client, or in a task of its own.
enum Place<F> {
    Here(F),
    Apart(JoinHandle<Ending>),
}

/// A fault, and how it is written.
type Fallen = (Fault, Dialect);

/// One message with all that came with it.
struct Incoming<'a> {
    headers: &'a Headers<'a>,
    caller: Caller,
    endpoint: &'a str,
    now_secs: u64,
    /// How the client is written to as long as no more is known than its headers.
    guess: Dialect,
    method: &'a str,
    params: Option<Json<'a>>,
}

/// Which era a message belongs to; the first sign counts.
fn era(headers: &Headers<'_>, method: &str, params: Option<Json<'_>>) -> Option<Era> {
    if modern::is_modern(params) {
        Some(Era::Modern)
    } else if method == INITIALIZE || !headers.session.is_absent() {
        Some(Era::Legacy)
    } else if is_modern_version(headers) {
        Some(Era::Modern)
    } else {
        None
    }
}

/// Whether the version header names a modern revision, or one that nobody knows.
fn is_modern_version(headers: &Headers<'_>) -> bool {
    let version = headers.version.value().map(Revision::parse);
    match version {
        Some(Some(revision)) => revision.era() == Era::Modern,
        Some(None) => true,
        None => !headers.version.is_absent(),
    }
}
