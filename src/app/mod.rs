//! The composition root: builds a running gateway from a configuration, and reloads it.

mod config_watcher;
mod edition;
mod observe;
mod reload;
mod replicas;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use admin::{self, AdminServer, Reloads};
use approvals::Approvals;
use approvals::notify::keep_notifying;
use audit::Audit;
use audit::export::Destination;
use audit::question::Evidence;
use audit::record::AuditEvent;
use audit::usage::GatewayUsage;
use audit::verify::regular::RegularVerification;
use base::platform::service_manager::{self, ServiceState};
use base::platform::{Acceptor, blocking, platform};
use base::seal::Sealer;
use calls::{Router, UpstreamDeps, UpstreamStatus};
use cluster::{ClusterMember, SharedLogins};
use config::lock::NO_FILE;
use config::{ClientProof, Config, TelemetrySettings, Tls, TokenCredential};
use domain::calls::fair_share::Share;
use domain::protocol::server_request::ClientCapabilities;
use edition::{Edition, seal_keys};
use front::downstream::{Endpoint, Listener, StdioStreams, TlsServer};
use front::session::Sessions;
use shutdown::{Shutdown, TaskFailure};
use telemetry::Telemetry;

pub(crate) use reload::ConfigSource;

/// A running gateway.
pub struct App {
    edition: Arc<ArcSwap<Edition>>,
    /// The sessions of the newest edition, for long-lived connections.
    sessions: Arc<ArcSwap<Sessions>>,
    /// `None` if the gateway does not listen.
    endpoint: Option<Listening<Endpoint>>,
    /// `None` if there is no admin API.
    admin: Option<Listening<AdminServer>>,
    reloads: Arc<Reloads>,
    regular_verification: Arc<RegularVerification>,
    /// Held during a reload, so that reloads do not overlap.
    reloading: Mutex<()>,
    /// Held while the blocking part of a reload runs, also after the reload has timed out.
    preparing: Arc<Mutex<()>>,
    /// `None` if this replica stands alone.
    cluster: Option<Arc<ClusterMember>>,
    audit: Audit,
    usage: Arc<GatewayUsage>,
    telemetry: Telemetry,
    shutdown: Shutdown,
}

/// The parts of a gateway that all others use.
struct Foundation {
    telemetry: Telemetry,
    audit: Audit,
    shutdown: Shutdown,
}

/// A service that listens at an address. A reload replaces the service.
struct Listening<S> {
    addr: SocketAddr,
    service: Arc<ArcSwap<S>>,
}

/// The number of gateways that may run with one configuration file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Instances {
    One,
    /// Several: clients start gateways themselves. Each writes a separate audit log.
    Several,
}

impl App {
    /// Starts a gateway without a listener, for [`App::serve`]. Other gateways may run with the
    /// same configuration file.
    ///
    /// # Errors
    /// The audit log cannot be opened, or the exporter of telemetry cannot be built.
    pub fn new(mut config: Config) -> io::Result<Self> {
        let cluster = config.cluster.take();
        disable_sharing(&mut config);
        let foundation = Foundation::open(&config, Instances::Several)?;
        let sealer = Arc::new(Sealer::new(&seal_keys(&config)));
        let supervisor = &foundation.shutdown.supervisor;
        // This process is no replica, but uses the sign-ins of the replicas.
        let logins = cluster.map(|cluster| SharedLogins::alone(cluster, supervisor));
        let logins = logins.transpose().map_err(io::Error::other)?;
        Ok(Self::build(config, foundation, sealer, None, logins))
    }

    /// Builds the parts and starts the drivers of the upstreams. No client is served yet.
    fn build(
        config: Config,
        foundation: Foundation,
        sealer: Arc<Sealer>,
        cluster: Option<Arc<ClusterMember>>,
        logins: Option<Arc<SharedLogins>>,
    ) -> Self {
        let Foundation { telemetry, audit, shutdown } = foundation;
        let Shutdown { supervisor, stop, .. } = &shutdown;
        supervisor.supervise("telemetry_push", telemetry.clone().push(stop.clone()));
        let usage = Arc::new(GatewayUsage::default());
        let following = usage.clone().follow(audit.clone(), stop.clone());
        supervisor.supervise("usage", following);
        let regular_verification = Arc::<RegularVerification>::default();
        let verifying = regular_verification.clone().run(audit.clone(), stop.clone());
        supervisor.supervise("regular_verification", verifying);
        audit.export().configure(export_destination(&config));
        let log = audit.clone();
        let exporting = audit.export().clone().run(move || log.ledger(), stop.clone());
        supervisor.supervise("audit_export", exporting);
        let upstream_deps = UpstreamDeps::new(audit.clone(), telemetry.clone(), supervisor.clone());
        let upstream_deps = UpstreamDeps { logins, ..upstream_deps };
        let drain = shutdown.drain.clone();
        let edition = Edition::first(config, sealer, cluster.clone(), upstream_deps, drain);
        let sessions = Arc::new(ArcSwap::new(edition.sessions.clone()));
        let edition = Arc::new(ArcSwap::from_pointee(edition));
        observe::gateway(&telemetry, &edition, &audit);
        observe::verification(&telemetry, &regular_verification);
        if let Some(cluster) = &cluster {
            observe::cluster(&telemetry, cluster);
        }
        Self {
            edition,
            sessions,
            endpoint: None,
            admin: None,
            reloads: Arc::default(),
            regular_verification,
            reloading: Mutex::default(),
            preparing: Arc::default(),
            cluster,
            audit,
            usage,
            telemetry,
            shutdown,
        }
    }

    /// Starts a gateway that serves over HTTP, with its admin API.
    ///
    /// # Errors
    /// As [`App::new`]; or an address cannot be bound, the TLS certificates cannot be used, or the
    /// store of the cluster cannot be used and `cluster.on_missing` is `refuse`.
    pub async fn start(mut config: Config) -> io::Result<Self> {
        let socket = bind(config.server.listen, "server.listen").await?;
        let addr = socket.address()?;
        config.server.name_resource(addr);
        let foundation = Foundation::open(&config, Instances::One)?;
        let sealer = Arc::new(Sealer::new(&seal_keys(&config)));
        let (cluster, relayed) =
            replicas::join(&config, &foundation, sealer.clone()).await?.unzip();
        let logins = cluster.as_ref().map(|cluster| cluster.logins().clone());
        let mut app = Self::build(config, foundation, sealer, cluster.clone(), logins);
        let edition = app.edition.load_full();
        app.usage.configure(edition.config.admin.as_ref().map(|admin| &admin.usage));
        let drain = app.shutdown.drain.clone();
        let tls = app.tls_server(&edition.config, None)?;
        let people = edition.people();
        let sessions = app.sessions.clone();
        let endpoint = Endpoint::new(&edition.config, sessions, tls, people, drain.clone());
        let endpoint = Arc::new(ArcSwap::from_pointee(endpoint));
        let connections = app.shutdown.connections.clone();
        let listener = Listener::new(socket, endpoint.clone());
        observe::endpoint(&app.telemetry, &endpoint, &listener.open());
        let accepting = listener.run(connections.clone(), drain.clone());
        // The drain waits for the connections that it still accepts.
        let supervisor = app.shutdown.supervisor.tracked_by(&connections);
        supervisor.supervise_until(&drain, "listener", accepting);
        if let Some((cluster, relayed)) = cluster.zip(relayed) {
            let evidence = Evidence { audit: app.audit.clone(), usage: app.usage.clone() };
            let edition = &app.edition;
            let shutdown = &app.shutdown;
            replicas::take_part(&cluster, relayed, edition, endpoint.clone(), evidence, shutdown);
        }
        app.endpoint = Some(Listening { addr, service: endpoint });
        app.serve_admin(&edition).await?;
        app.notify_of_approvals();
        app.report_alive();
        Ok(app)
    }

    /// Notifies the webhook of prompts that wait for approval. A gateway that does not listen sends
    /// no notifications: each client and command may start such a gateway.
    fn notify_of_approvals(&self) {
        let edition = Arc::downgrade(&self.edition);
        let newest = move || Some(edition.upgrade()?.load().approvals.clone());
        let Shutdown { stop, supervisor, .. } = &self.shutdown;
        supervisor.supervise("approval_notifications", keep_notifying(newest, stop.clone()));
    }

    /// Tells a service manager that watches the process that its tasks still run.
    fn report_alive(&self) {
        let Some(interval) = service_manager::watchdog_interval() else { return };
        let stop = self.shutdown.stop.clone();
        let reporting = async move {
            while stop.run_until_cancelled(sleep(interval)).await.is_some() {
                service_manager::notify(ServiceState::Alive);
            }
        };
        self.shutdown.supervisor.supervise("watchdog", reporting);
    }

    /// Serves the admin API, if it is configured, until the end of the shutdown.
    async fn serve_admin(&mut self, edition: &Edition) -> io::Result<()> {
        let Some(admin) = &edition.config.admin else {
            return Ok(());
        };
        let key = "admin.listen, or set it to \"\" to disable the admin API";
        let socket = match bind(admin.listen, key).await {
            Err(error) if admin.is_default && error.kind() == io::ErrorKind::AddrInUse => {
                let free = SocketAddr::new(admin.listen.ip(), 0);
                warn!(taken = %admin.listen, "the default address of the admin API is taken; using a free port");
                bind(free, key).await?
            }
            socket => socket?,
        };
        let addr = socket.address()?;
        info!(%addr, "admin API listens");
        let state = self.admin_state(edition, admin);
        let service = AdminServer::new(admin, &edition.config, state, edition.sealer.clone());
        let service = Arc::new(ArcSwap::from_pointee(service));
        let listener = Listener::new(socket, service.clone());
        let Shutdown { background, stop, supervisor, .. } = &self.shutdown;
        supervisor.supervise("admin_listener", listener.run(background.clone(), stop.clone()));
        self.admin = Some(Listening { addr, service });
        Ok(())
    }

    /// Returns the state of an edition that the admin API shows.
    fn admin_state(&self, edition: &Edition, admin: &config::Admin) -> admin::AdminState {
        admin::AdminState {
            router: edition.router.clone(),
            approvals: edition.approvals.clone(),
            gate: edition.gate.clone(),
            audit: self.audit.clone(),
            usage: self.usage.clone(),
            telemetry: self.telemetry.clone(),
            cluster: self.cluster.clone(),
            pre_drain: self.shutdown.pre_drain.clone(),
            config: Arc::new(edition.config.clone()),
            admin: admin.clone(),
            sessions: edition.sessions.clone(),
            regular_verification: self.regular_verification.clone(),
            supervisor: self.shutdown.supervisor.clone(),
            reloads: self.reloads.clone(),
            endpoint: self.endpoint.as_ref().map(|endpoint| endpoint.service.clone()),
        }
    }

    /// Returns the TLS server of a configuration, if TLS is configured: `before` if it uses the
    /// same files, else a new one that watches its files.
    fn tls_server(
        &self,
        config: &Config,
        before: Option<&Arc<TlsServer>>,
    ) -> io::Result<Option<Arc<TlsServer>>> {
        let handshake = config.server.limits.tls_handshake;
        let server = |tls: &Tls| {
            if let Some(before) = before.filter(|before| before.is_for(tls, handshake)) {
                return Ok(before.clone());
            }
            let server = Arc::new(TlsServer::new(tls, handshake)?);
            let stop = self.shutdown.stop.clone();
            // The watch ends with its TLS server.
            let watching = TlsServer::watch(Arc::downgrade(&server), stop);
            self.shutdown.supervisor.supervise_job("tls_watch", watching);
            Ok(server)
        };
        config.server.tls.as_ref().map(server).transpose()
    }

    /// Serves one client over standard streams until its input ends, or until the gateway drains.
    pub async fn serve<R, W>(&self, streams: StdioStreams<R, W>)
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let server = self.edition.load().config.server.clone();
        let serving = streams.serve(&server, self.sessions.clone(), &self.shutdown.drain);
        self.shutdown.connections.track_future(serving).await;
    }

    /// Returns the router of the newest edition.
    pub(crate) fn router(&self) -> Arc<Router> {
        self.edition.load().router.clone()
    }

    /// Returns the approvals of the newest edition.
    pub(crate) fn approvals(&self) -> Arc<Approvals> {
        self.edition.load().approvals.clone()
    }

    /// Returns the address of the endpoint, if the gateway listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(|endpoint| endpoint.addr)
    }

    /// Returns the address of the admin API, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.addr)
    }

    /// Returns the URL of the endpoint, if the gateway listens.
    pub fn url(&self) -> Option<String> {
        self.local_addr().map(|addr| self.edition.load().config.server.url_at(addr))
    }

    /// Returns the status of the upstreams, once each has reported its list or `listing.deadline`
    /// has passed.
    pub async fn summary(&self) -> Vec<UpstreamStatus> {
        let edition = self.edition.load_full();
        edition.router.lists().settled(Instant::now() + edition.config.listing.deadline).await;
        edition.router.status()
    }

    /// Resolves once a task that lives as long as the gateway has failed. The caller must then end
    /// the gateway, so that another process takes its place.
    pub async fn failed(&self) {
        self.shutdown.supervisor.failed().await;
    }

    /// Returns which tasks have failed, in words for operators; `None` while no task has failed.
    pub fn failure(&self) -> Option<String> {
        let failures = self.shutdown.supervisor.failures();
        let failures: Vec<_> = failures.iter().map(ToString::to_string).collect();
        (!failures.is_empty()).then(|| failures.join("; "))
    }

    /// Returns the current values of all metrics in the Prometheus text exposition format.
    pub fn metrics(&self) -> String {
        self.telemetry.prometheus()
    }

    /// Ends the gateway without a drain, when there are no clients left.
    ///
    /// # Cancel safety
    /// Cancel safe if [`App::abort`] follows.
    pub async fn stop(&self) {
        self.shutdown.stop().await;
        // At the same time: the last spans are sent while the last records are written.
        tokio::join!(self.close_audit(), self.telemetry.end());
    }

    /// Ends the gateway without waiting: calls get `shutting_down`, the audit log is written to the
    /// disk, and child processes are killed when the process exits.
    pub async fn abort(&self) {
        let _ = timeout(ABORT_TIMEOUT, self.shutdown.stop()).await;
        let ending = async { tokio::join!(self.close_audit(), self.telemetry.end()) };
        let _ = timeout(ABORT_TIMEOUT, ending).await;
    }

    /// Drains the gateway and ends it: requests in flight finish within `server.limits.grace`.
    ///
    /// # Cancel safety
    /// Cancel safe if [`App::abort`] follows.
    pub async fn drain(&self) {
        service_manager::notify(ServiceState::Stopping);
        let limits = self.edition.load().config.server.limits.clone();
        self.shutdown.drain_connections(&limits).await;
        self.stop().await;
    }

    /// Writes the last records and closes the audit log, on a blocking thread: the disk may be
    /// slow.
    async fn close_audit(&self) {
        let audit = self.audit.clone();
        let _ = blocking(move || audit.close()).await;
    }
}

impl Foundation {
    fn open(config: &Config, instances: Instances) -> io::Result<Self> {
        let telemetry = Telemetry::new(&config.telemetry).map_err(io::Error::other)?;
        let audit = match instances {
            Instances::One => Audit::open(config.audit.as_ref())?,
            Instances::Several => Audit::open_shared(config.audit.as_ref())?,
        };
        audit.note(config_event(config, "config_loaded"));
        warn_about_config(config);
        let counted = telemetry.clone();
        let recorded = audit.clone();
        let shutdown = Shutdown::reporting(move |TaskFailure { task, how }| {
            counted.metrics().task_failed(task, how.as_str());
            recorded
                .note(AuditEvent::new("task_failed").text("task", task).text("how", how.as_str()));
        });
        Ok(Self { telemetry, audit, shutdown })
    }
}

/// A gateway that does not listen has one client, which shares nothing with others, and stands
/// alone.
fn disable_sharing(config: &mut Config) {
    config.cluster = None;
    config.server.limits.share = Share::WHOLE;
    if let Some(audit) = &mut config.audit {
        audit.share = Share::WHOLE;
    }
}

/// The time for calls, and then for the last records, of a shutdown that must not wait.
const ABORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Binds a listener to the address of the configuration key `key`.
async fn bind(addr: SocketAddr, key: &str) -> io::Result<Box<dyn Acceptor>> {
    platform().network.bind(addr).await.map_err(|error| {
        let message = format!("cannot listen on {addr}: {error}; set {key}");
        io::Error::new(error.kind(), message)
    })
}

/// Warns about settings that are valid but risky.
fn warn_about_config(config: &Config) {
    for name in &config.unused_variables {
        warn!("{}", config::variables::hint(name));
    }
    warn_about_shared_credentials(config);
    warn_about_chosen_issuers(config);
}

/// Warns of a credential that all callers share: a user who authorizes an upstream at a URL then
/// does so for all callers.
fn warn_about_shared_credentials(config: &Config) {
    for upstream in &config.upstreams {
        let is_shared = !upstream.acts_as_caller();
        if is_shared && upstream.settings.server_requests.contains(ClientCapabilities::URL) {
            warn!(
                upstream = %upstream.id,
                "may send users to URLs (server_requests: elicitation-url), but is called with one credential \
                 for all callers; what one user authorizes there, other callers can use"
            );
        }
    }
}

/// Warns of a missing `token_url`: the upstream then chooses which server gets the client secret.
fn warn_about_chosen_issuers(config: &Config) {
    for upstream in &config.upstreams {
        if let Some(http) = upstream.http()
            && let Some(TokenCredential::OAuth(oauth)) = &http.credentials.token
            && oauth.token_url.is_none()
            && matches!(oauth.proof, ClientProof::Secret(_))
        {
            warn!(
                upstream = %upstream.id,
                "client_secret is sent to the authorization server that the upstream names; set token_url, \
                 or use private_key, whose proof is of no use elsewhere"
            );
        }
    }
}

/// Returns the collector of the audit log of a configuration.
pub(crate) fn export_destination(config: &Config) -> Option<Destination> {
    let export = config.audit.as_ref()?.export.clone()?;
    let TelemetrySettings { proxies, service_name, .. } = &config.telemetry;
    Some(Destination { config: export, proxies: proxies.clone(), service: service_name.clone() })
}

/// Returns the audit event of a configuration: its digest, and how it restricts callers.
fn config_event(config: &Config, kind: &'static str) -> AuditEvent {
    let auth = if config.auth.required { "required" } else { "optional" };
    let event = AuditEvent::new(kind).text("digest", &config.digest);
    let lock = &config.approvals.lock.digest;
    let event = event.optional_text("lock", (lock != NO_FILE).then_some(lock));
    let event = event.text("auth", if config.auth.has_method() { auth } else { "none" });
    let count = |event: AuditEvent, name, count: usize| event.number(name, count as u64);
    let event = count(event, "upstreams", config.upstreams.len());
    let event = count(event, "limits", config.limits.len());
    event.json("access", if config.access.is_some() { "true" } else { "false" })
}
