//! Construction of upstreams: a handle, its driver, and the accounts of callers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore, broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, warn};

use super::Upstream;
use super::accounts::{Accounts, UpstreamAccounts};
use super::call::correlator::{NotificationSinks, UrlElicitationComplete};
use super::connection::connect::{Connector, DriverSignals};
use super::connection::dedicated::DedicatedPool;
use super::driver::{ConnectionState, Driver, DriverId, DriverReport, Outage};
use super::guard::circuit_breaker::CircuitBreaker;
use super::guard::concurrency::ConcurrencyLimit;
use super::passthrough_signals::PassthroughSignals;
use super::recent_calls::RecentCalls;
use super::repairs::Repairs;
use super::stderr_tail::StderrTail;
use super::upstream_secrets::UpstreamSecrets;
use audit::Audit;
use base::platform::disk::{self, Watch};
use cluster::SharedLogins;
use domain::calls::passthrough::PassthroughCapabilities;
use domain::name::UpstreamId;
use domain::protocol::via::Via;
use logins::store::Folder;
use shutdown::Supervisor;
use telemetry::Telemetry;

/// Shared dependencies of all upstreams.
#[derive(Clone)]
pub struct UpstreamDeps {
    pub audit: Audit,
    pub telemetry: Telemetry,
    pub supervisor: Supervisor,
    /// The tasks of calls and connections; a shutdown waits for these tasks.
    pub tasks: TaskTracker,
    /// Cancelled when the gateway shuts down.
    pub shutdown: CancellationToken,
    /// Permits to start a child process.
    pub starting: Arc<Semaphore>,
    /// The accounts of callers at upstreams.
    pub accounts: Arc<Accounts>,
    /// The operator's sign-ins in a cluster.
    pub logins: Option<Arc<SharedLogins>>,
    /// The announcements of the upstreams that `[passthrough]` has named, by id. Kept across
    /// reloads.
    pub passthrough: Arc<Mutex<HashMap<UpstreamId, Arc<PassthroughSignals>>>>,
    /// The identity of this gateway towards other gateways, fixed at the start.
    pub own: Via,
}

/// Most child processes in the handshake at once, until each has answered its first request: more
/// would only delay all of them.
const STARTING: usize = 16;

impl UpstreamDeps {
    /// Returns the dependencies outside of a cluster, with all permits to start a child process
    /// free.
    pub fn new(audit: Audit, telemetry: Telemetry, supervisor: Supervisor) -> Self {
        let tasks = supervisor.tasks().clone();
        let shutdown = supervisor.stop().clone();
        let starting = Arc::new(Semaphore::new(STARTING));
        let accounts = Arc::default();
        let passthrough = Arc::default();
        let own = Via::NONE;
        let logins = None;
        Self {
            audit,
            telemetry,
            supervisor,
            tasks,
            shutdown,
            starting,
            accounts,
            logins,
            passthrough,
            own,
        }
    }
}

impl Upstream {
    /// Starts a driver that reports under the id `driver`, and returns the handle of its upstream.
    /// Completed URL elicitations go to `url_completions`.
    pub fn start(
        driver: DriverId,
        config: config::UpstreamSettings,
        reports: mpsc::Sender<DriverReport>,
        url_completions: broadcast::Sender<UrlElicitationComplete>,
        deps: &UpstreamDeps,
    ) -> Self {
        let deps = deps.clone();
        let UpstreamDeps { audit, telemetry, supervisor, tasks, shutdown, .. } = deps;
        let UpstreamDeps { starting, accounts, logins: shared, passthrough, own, .. } = deps;
        let config = Arc::new(config);
        let shutdown = shutdown.child_token();
        let needed = shutdown.clone().drop_guard();
        let (sender, connection_state) = watch::channel(ConnectionState::Connecting);
        let mut signals = DriverSignals::default();
        if config.is_passthrough {
            signals.passthrough = passthrough_signals(&passthrough, &config.id);
        }
        let upstream = config.id.as_str().into();
        let stderr_tail: Arc<StderrTail> = Arc::default();
        let measured = telemetry.clone();
        let kept = stderr_tail.clone();
        let repairs = Repairs::new(config.id.as_str(), telemetry.clone());
        let noted = audit.clone();
        let sinks = NotificationSinks {
            upstream,
            list_changed: Some(signals.list_changed.clone()),
            passthrough: config.is_passthrough.then(|| signals.passthrough.clone()),
            url_completions,
            audit,
            telemetry: measured,
            stderr_tail: kept,
            repairs: repairs.clone(),
        };
        let logins = config
            .login()
            .and_then(|login| watch_logins(login, shared.as_deref(), &signals.logins_changed));
        let sign_ins = shared.clone();
        let connector = Connector::new(config.clone(), sinks, tasks.clone(), starting, shared);
        let accounts = |connector: Arc<Connector>| {
            let audit = noted.clone();
            let tasks = tasks.clone();
            let shutdown = shutdown.clone();
            let own = UpstreamAccounts::new(
                accounts, driver, &connector, audit, sign_ins, tasks, shutdown,
            )?;
            Ok((connector, own))
        };
        let (connector, accounts) = match connector.map(Arc::new).and_then(accounts) {
            Ok((connector, accounts)) => (Ok(connector), accounts),
            Err(mistake) => (Err(mistake), None),
        };
        let secrets = UpstreamSecrets::new(&config, connector.as_ref().ok().cloned());
        let secrets = Arc::new(secrets);
        let dedicated = connector.as_ref().ok().map(|connector| {
            DedicatedPool::new(connector.clone(), config.clone(), tasks.clone(), shutdown.clone())
        });
        let removals = connector.as_ref().map(|own| own.removals().clone()).unwrap_or_default();
        let restarts: Arc<AtomicU64> = Arc::default();
        let walk_pause: Arc<AtomicU64> = Arc::default();
        let outage: Arc<Mutex<Option<Outage>>> = Arc::default();
        let settings = &config.settings;
        let has_checks = !config.lists_per_caller();
        let breaker = CircuitBreaker::new(config.id.as_str(), settings.breaker, has_checks);
        let concurrency =
            ConcurrencyLimit::new(settings.in_flight, settings.queue, settings.queue_wait);
        let driving = Driver {
            audit: noted,
            _logins: logins,
            telemetry: telemetry.clone(),
            breaker: breaker.clone(),
            id: driver,
            upstream: config.clone(),
            own: own.clone(),
            connector,
            connection_state: sender,
            signals: signals.clone(),
            reports,
            shutdown,
            listening: AtomicBool::new(false),
            restarts: restarts.clone(),
            outage: outage.clone(),
            walk_pause: walk_pause.clone(),
            secrets: secrets.clone(),
        };
        let span = tracing::info_span!("upstream", id = %config.id);
        let end = driving.shutdown.clone();
        supervisor.supervise_until(&end, "driver", driving.run().instrument(span));
        Self {
            config,
            own,
            driver,
            connection_state,
            signals,
            concurrency,
            breaker,
            dedicated,
            accounts,
            of_callers: Mutex::default(),
            passthrough_capabilities: Mutex::new(Arc::new(PassthroughCapabilities::assumed())),
            telemetry,
            stderr_tail,
            repairs,
            restarts,
            outage,
            walk_pause,
            removals,
            recent_calls: Arc::new(RecentCalls::new(Instant::now())),
            secrets,
            was_called: AtomicBool::new(false),
            _needed: needed,
        }
    }
}

/// Returns the announcements of an upstream; reuses existing announcements.
fn passthrough_signals(
    known: &Mutex<HashMap<UpstreamId, Arc<PassthroughSignals>>>,
    upstream: &UpstreamId,
) -> Arc<PassthroughSignals> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(upstream.clone()).or_default().clone()
}

/// Watches the sign-in of an upstream, in the store of the cluster if there is one, else in its
/// folder.
fn watch_logins(
    login: &config::Login,
    shared: Option<&SharedLogins>,
    changed: &Arc<Notify>,
) -> Option<Watch> {
    if let Some(shared) = shared {
        shared.watch(&login.upstream, changed);
        return None;
    }
    let folder = Folder::new(&login.kept.as_deref()?.path);
    let watch = folder
        .create()
        .map_err(|error| error.to_string())
        .and_then(|path| disk::watch(path, changed.clone()).map_err(|error| error.to_string()));
    watch
        .inspect_err(|error| {
            warn!(upstream = login.upstream, error,
                "the sign-ins cannot be watched; a new one is taken over when the token expires, or at a restart");
        })
        .ok()
}
