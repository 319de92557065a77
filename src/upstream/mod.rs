//! The upstream side: one driver per upstream keeps a connection and a list; calls go through a
//! handle that shares the connection.

pub(crate) mod driver;
pub(crate) mod connection;
pub(crate) mod call;
pub(crate) mod guard;
pub(crate) mod auth;
pub(crate) mod transport;
pub(crate) mod library;
pub(crate) mod prompt_list;
pub(crate) mod stderr_tail;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::audit::Audit;
use crate::config::{self, Transport};
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::method::Method;
use crate::domain::revision::Revision;
use crate::domain::server_request::ClientCapabilities;
use crate::policy::{Authorized, Pass};
use crate::telemetry::{self, ClientOperation, Telemetry, TransportKind};
use call::correlator::{InterimSender, NotificationSinks, UrlElicitationComplete};
use call::exchange::{ConcurrencyPermit, Exchange};
use call::request::UpstreamRequest;
use connection::Connection;
use connection::connect::{Connector, DriverSignals};
use connection::dedicated::DedicatedPool;
use driver::{ConnectionState, Driver, DriverId, DriverReport};
use guard::breaker::Breaker;
use guard::concurrency::ConcurrencyLimit;
use stderr_tail::StderrTail;

/// What everything that works for upstreams stands on.
#[derive(Clone)]
pub struct UpstreamDeps {
    pub audit: Audit,
    pub telemetry: Telemetry,
    pub tasks: TaskTracker,
    pub shutdown: CancellationToken,
    /// Leave to start a child.
    pub starting: Arc<Semaphore>,
}

/// Children that are started at once, until each has answered its first question: more would only make all of them late.
const STARTING: usize = 16;

impl UpstreamDeps {
    pub fn new(
        audit: Audit,
        telemetry: Telemetry,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Self {
        let starting = Arc::new(Semaphore::new(STARTING));
        Self { audit, telemetry, tasks, shutdown, starting }
    }
}

/// The router's handle on one upstream. Its driver ends with the last one who holds it: an upstream that
/// is taken out of the configuration still finishes what it was asked.
pub struct Upstream {
    config: Arc<config::Upstream>,
    driver: DriverId,
    connection_state: watch::Receiver<ConnectionState>,
    signals: DriverSignals,
    /// Calls at once.
    concurrency: Arc<ConcurrencyLimit>,
    breaker: Arc<Breaker>,
    /// Absent if the upstream can never be reached as it is configured.
    dedicated: Option<Arc<DedicatedPool>>,
    telemetry: Telemetry,
    stderr_tail: Arc<StderrTail>,
    _needed: DropGuard,
}

/// How long a call waits for a connection on which it may be asked while others are at it; then it
/// goes on without being asked, since a user may think for minutes.
const TURN: Duration = Duration::from_secs(2);

impl Upstream {
    /// Starts a driver that reports by this name, and returns its handle.
    pub(crate) fn start(
        driver: DriverId,
        config: config::Upstream,
        reports: mpsc::Sender<DriverReport>,
        pages: broadcast::Sender<UrlElicitationComplete>,
        deps: &UpstreamDeps,
    ) -> Self {
        let UpstreamDeps { audit, telemetry, tasks, shutdown, starting } = deps.clone();
        let (config, shutdown) = (Arc::new(config), shutdown.child_token());
        let needed = shutdown.clone().drop_guard();
        let (sender, connection_state) = watch::channel(ConnectionState::Connecting);
        let signals = DriverSignals::default();
        let upstream = config.id.as_str().into();
        let stderr_tail: Arc<StderrTail> = Arc::default();
        let (measured, kept) = (telemetry.clone(), stderr_tail.clone());
        let sinks = NotificationSinks {
            upstream,
            list_changed: Some(signals.list_changed.clone()),
            url_completions: pages,
            audit,
            telemetry: measured,
            stderr_tail: kept,
        };
        let connector = Connector::new(config.clone(), sinks, tasks.clone(), starting);
        let connector = connector.map(Arc::new);
        let dedicated = connector.as_ref().ok().map(|connector| {
            DedicatedPool::new(connector.clone(), config.clone(), tasks.clone(), shutdown.clone())
        });
        let settings = &config.settings;
        let breaker = Breaker::new(settings.breaker);
        let concurrency =
            ConcurrencyLimit::new(settings.in_flight, settings.queue, settings.queue_wait);
        let driving = Driver {
            telemetry: telemetry.clone(),
            breaker: breaker.clone(),
            id: driver,
            upstream: config.clone(),
            connector,
            connection_state: sender,
            signals: signals.clone(),
            reports,
            shutdown,
            listening: AtomicBool::new(false),
        };
        let span = tracing::info_span!("upstream", id = %config.id);
        tasks.spawn(driving.run().instrument(span));
        Self {
            config,
            driver,
            connection_state,
            signals,
            concurrency,
            breaker,
            dedicated,
            telemetry,
            stderr_tail,
            _needed: needed,
        }
    }

    pub(crate) fn config(&self) -> &config::Upstream {
        &self.config
    }

    /// Who reports of it.
    pub(crate) fn driver(&self) -> DriverId {
        self.driver
    }

    /// What its children said last on standard error.
    pub(crate) fn stderr_tail(&self) -> &Arc<StderrTail> {
        &self.stderr_tail
    }

    /// Its list is to be walked again soon.
    pub(crate) fn request_walk(&self) {
        self.signals.list_changed.notify_one();
    }

    /// When it is tried again, if it is being left alone after a row of failures.
    pub(crate) fn breaker_open_until(&self) -> Option<Instant> {
        self.breaker.open_until()
    }

    /// Calls that run, and calls that wait for one to end.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.config.settings.in_flight - self.concurrency.free(), self.concurrency.waiting())
    }

    /// How its connection is.
    pub(crate) fn connection_state(&self) -> ConnectionState {
        self.connection_state.borrow().clone()
    }

    /// Starts an authorized call, to end before `deadline` and within the upstream's `timeout`.
    ///
    /// # Panics
    /// If the proof is for another prompt than the request: a bug of the caller, which ends its own call
    /// only.
    pub fn call(
        self: &Arc<Self>,
        authorized: &Authorized<'_>,
        mut request: UpstreamRequest,
        deadline: Instant,
    ) -> Exchange {
        let (id, params) = (self.config.id.as_str(), &request.params);
        assert!(authorized.covers(id, params.method(), params.prompt()), "a proof of another call");
        let wants = !request.capabilities.is_none() || request.progress;
        let (interim, heard) =
            wants.then(|| InterimSender::channel(request.capabilities, request.progress)).unzip();
        let (place, now) = (ConcurrencyPermit::new(self.concurrency.clone()), Instant::now());
        let (upstream, pass, taken) = (self.clone(), authorized.pass(), place.clone());
        let (permit, breaker_open) = match self.breaker.admit(now) {
            Ok(permit) => (Some(permit), None),
            Err(until) => (None, Some(breaker_open(until.duration_since(now)))),
        };
        let operation = permit.is_some().then(|| self.operation(&mut request)).flatten();
        let call = async move {
            match breaker_open {
                Some(kind) => Err(kind),
                None => upstream.perform(&pass, &request, interim, &taken).await,
            }
        };
        let deadline = deadline.min(now + self.config.settings.timeout);
        let id = self.config.id.to_string();
        let exchange = Exchange::new(id, Box::pin(call), heard, place, permit, deadline);
        exchange.measured(operation)
    }

    /// A call as it is measured; nothing where nobody else is asked.
    fn operation(&self, request: &mut UpstreamRequest) -> Option<ClientOperation> {
        let method = request.params.method();
        let prompt = Some(request.params.prompt());
        let revision = match &*self.connection_state.borrow() {
            ConnectionState::Up(connection) => connection.describe().0.map(Revision::as_str),
            ConnectionState::Connecting | ConnectionState::Down(_) => None,
        };
        let attributes = client_attributes(&self.config, method, revision, prompt)?;
        Some(ClientOperation::begin(&self.telemetry, attributes, &mut request.forwarded.trace))
    }

    /// What the upstream may ask. Where nothing tells which call a question belongs to, it may only
    /// if the configuration says so.
    pub(crate) fn allowed_server_requests(&self) -> ClientCapabilities {
        let settings = &self.config.settings;
        let is_shared = matches!(&*self.connection_state.borrow(), ConnectionState::Up(connection) if connection.is_shared());
        match is_shared && settings.questions_by_default {
            true => ClientCapabilities::NONE,
            false => settings.questions,
        }
    }

    /// Whether the upstream is told with each call what it may ask.
    pub(crate) fn declares_capabilities_per_request(&self) -> bool {
        matches!(&*self.connection_state.borrow(), ConnectionState::Up(connection) if !connection.declares_at_open())
    }

    /// A session that is lost is so before any processing: the request is safe to repeat, once.
    async fn perform(
        &self,
        pass: &Pass,
        request: &UpstreamRequest,
        mut interim: Option<InterimSender>,
        place: &ConcurrencyPermit,
    ) -> Result<Document, Kind> {
        let connection = self.connected().await?;
        if let Some(dedicated) = &self.dedicated
            && connection.declares_at_open()
            && !request.capabilities.is_none()
        {
            let lease = async || {
                let lease = timeout(
                    TURN,
                    dedicated.lease(pass.caller(), request.capabilities, &connection),
                )
                .await;
                lease.ok().transpose().map_err(unreachable_because)
            };
            if let Some(first) = lease().await? {
                place.acquire().await?;
                match first.connection.perform(pass, request, interim.clone()).await {
                    Err(Kind::SessionLost) => first.discard(),
                    answer => return answer,
                }
                place.release();
                if let Some(second) = lease().await? {
                    place.acquire().await?;
                    return second.connection.perform(pass, request, interim).await;
                }
            }
            // Another user thinks: this one is served, if nothing needs to be asked.
            interim = interim.map(InterimSender::without_server_requests);
        }
        place.acquire().await?;
        match connection.perform(pass, request, interim.clone()).await {
            Err(Kind::SessionLost) => {
                self.reconnected(&connection).await?.perform(pass, request, interim).await
            }
            answer => answer,
        }
    }

    /// The peer, once it is known whether there is one.
    async fn connected(&self) -> Result<Arc<Connection>, Kind> {
        self.wait_for_connection(|connection_state| {
            !matches!(connection_state, ConnectionState::Connecting)
        })
        .await
    }

    /// The peer of the next connection, which is asked for.
    async fn reconnected(&self, lost: &Arc<Connection>) -> Result<Arc<Connection>, Kind> {
        let is_lost = |connection_state: &ConnectionState| matches!(connection_state, ConnectionState::Up(connection) if Arc::ptr_eq(connection, lost));
        if is_lost(&self.connection_state.borrow()) {
            self.signals.session_lost.notify_one();
        }
        self.wait_for_connection(|connection_state| !is_lost(connection_state)).await
    }

    async fn wait_for_connection(
        &self,
        params: impl Fn(&ConnectionState) -> bool,
    ) -> Result<Arc<Connection>, Kind> {
        let mut connection_state = self.connection_state.clone();
        let found = connection_state
            .wait_for(params)
            .await
            .map(|connection_state| connection_state.clone());
        match found {
            Ok(ConnectionState::Up(connection)) => Ok(connection),
            Ok(ConnectionState::Down(kind)) => Err(unreachable_because(kind)),
            Ok(ConnectionState::Connecting) | Err(_) => {
                Err(Kind::Unavailable("the gateway is shutting down".to_owned()))
            }
        }
    }
}

/// What an upstream is asked, as it is measured; nothing of a library, which is asked in here.
fn client_attributes<'a>(
    upstream: &'a config::Upstream,
    method: Method,
    revision: Option<&'static str>,
    prompt: Option<&'a str>,
) -> Option<telemetry::ClientAttributes<'a>> {
    let (transport, server) = match &upstream.transport {
        Transport::Library(_) => return None,
        Transport::Stdio(_) => (TransportKind::Pipe, None),
        Transport::Http(http) | Transport::Sse(http) => {
            let port = if http.url.scheme_str() == Some("https") { 443 } else { 80 };
            let port = http.url.port_u16().unwrap_or(port);
            (TransportKind::Http, http.url.host().map(|host| (host, port)))
        }
    };
    let (method, id) = (method.as_str(), upstream.id.as_str());
    Some(telemetry::ClientAttributes { method, upstream: id, revision, transport, server, prompt })
}

/// Why an upstream is not asked for this long.
fn breaker_open(wait: Duration) -> Kind {
    Kind::Unavailable(format!(
        "several calls in a row have failed; it is tried again in {} ms (breaker)",
        wait.as_millis().max(1)
    ))
}

/// Why a call cannot be made: what kept the driver from connecting.
fn unreachable_because(kind: Kind) -> Kind {
    match kind {
        Kind::Unavailable(_)
        | Kind::AuthFailed { .. }
        | Kind::NoToken(_)
        | Kind::RateLimited { .. } => kind,
        other => Kind::Unavailable(other.to_string()),
    }
}
