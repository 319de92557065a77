//! The composition root: a configuration becomes a running gateway, and another one takes over from it.

mod edition;
mod observe;
mod reload;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::admin::{self, Admin, Reloads};
use crate::audit::Audit;
use crate::audit::record::Event;
use crate::config::{ClientProof, Config, Tls, Transport};
use crate::domain::server_request::ClientCapabilities;
use crate::downstream::{Endpoint, Listener, Streams, TlsServer};
use crate::router::{UpstreamDeps, UpstreamStatus};
use crate::session::Sessions;
use crate::shutdown::Shutdown;
use crate::telemetry::Telemetry;
use edition::Edition;

pub(crate) use reload::Source;

/// A gateway whose upstreams are being asked.
pub struct App {
    edition: Arc<ArcSwap<Edition>>,
    /// Those of the newest edition, for connections that last.
    sessions: Arc<ArcSwap<Sessions>>,
    /// Absent while it does not listen.
    served: Option<Served<Endpoint>>,
    shown: Option<Served<Admin>>,
    reloads: Arc<Reloads>,
    /// One at a time.
    reloading: Mutex<()>,
    /// Held while what a configuration needs is made, however long nobody waits for that any more.
    preparing: Arc<Mutex<()>>,
    audit: Audit,
    telemetry: Telemetry,
    shutdown: Shutdown,
}

/// What is served at an address.
struct Served<S> {
    addr: SocketAddr,
    endpoint: Arc<ArcSwap<S>>,
}

impl App {
    /// Starts the drivers; nobody is served yet. `shares` says that other gateways may run with the
    /// same configuration.
    ///
    /// # Errors
    /// When the audit log cannot be opened, or there is no way to the collector.
    pub fn new(config: Config, shares: bool) -> io::Result<Self> {
        let telemetry = Telemetry::new(&config.telemetry).map_err(io::Error::other)?;
        let audit = Audit::open(config.audit.as_ref(), shares)?;
        audit.note(loaded(&config, "config_loaded"));
        let shutdown = Shutdown::default();
        warn_of_config(&config);
        let (tasks, stop) = (shutdown.background.clone(), shutdown.stop.clone());
        tasks.spawn(telemetry.clone().push(stop.clone()));
        let (audit_log, measured) = (audit.clone(), telemetry.clone());
        let upstream_deps = UpstreamDeps::new(audit_log, measured, tasks, stop);
        let edition = Edition::first(config, upstream_deps, shutdown.drain.clone());
        let sessions = Arc::new(ArcSwap::new(edition.sessions.clone()));
        let edition = Arc::new(ArcSwap::from_pointee(edition));
        observe::gateway(&telemetry, &edition, &audit);
        Ok(Self {
            edition,
            sessions,
            served: None,
            shown: None,
            reloads: Arc::default(),
            reloading: Mutex::default(),
            preparing: Arc::default(),
            audit,
            telemetry,
            shutdown,
        })
    }

    /// Starts a gateway that serves over HTTP.
    ///
    /// # Errors
    /// When an address cannot be bound, or the certificates cannot be used.
    pub async fn start(mut config: Config) -> io::Result<Self> {
        let socket = bind(config.server.listen, "server.listen").await?;
        let addr = socket.local_addr()?;
        config.server.name_resource(addr);
        let mut app = Self::new(config, false)?;
        let (edition, drain) = (app.edition.load_full(), app.shutdown.drain.clone());
        let secure = app.secure(&edition.config, None)?;
        let endpoint = Endpoint::new(&edition.config, app.sessions.clone(), secure, drain.clone());
        let endpoint = Arc::new(ArcSwap::from_pointee(endpoint));
        let connections = app.shutdown.connections.clone();
        let listener = Listener::new(socket, endpoint.clone());
        observe::endpoint(&app.telemetry, &endpoint, &listener.open());
        connections.spawn(listener.run(connections.clone(), drain));
        app.served = Some(Served { addr, endpoint });
        app.show(&edition).await?;
        Ok(app)
    }

    /// Serves the admin side, if it is wanted, to the very end.
    async fn show(&mut self, edition: &Edition) -> io::Result<()> {
        let Some(admin) = &edition.config.admin else {
            return Ok(());
        };
        let socket = bind(admin.listen, "admin.listen, or \"\" for no admin side").await?;
        let addr = socket.local_addr()?;
        info!(%addr, "admin side");
        let endpoint = Admin::new(admin, &edition.config, self.state(edition));
        let endpoint = Arc::new(ArcSwap::from_pointee(endpoint));
        let listener = Listener::new(socket, endpoint.clone());
        let (tasks, stop) = (self.shutdown.background.clone(), self.shutdown.stop.clone());
        tasks.spawn(listener.run(tasks.clone(), stop));
        self.shown = Some(Served { addr, endpoint });
        Ok(())
    }

    /// What the admin side shows of an edition.
    fn state(&self, edition: &Edition) -> admin::State {
        admin::State {
            router: edition.router.clone(),
            gate: edition.gate.clone(),
            audit: self.audit.clone(),
            telemetry: self.telemetry.clone(),
            leaving: self.shutdown.leaving.clone(),
            config_digest: edition.config.digest.clone(),
            reloads: self.reloads.clone(),
        }
    }

    /// How connections are encrypted; in the same way as `before`, if that is about the same files.
    fn secure(
        &self,
        config: &Config,
        before: Option<&Arc<TlsServer>>,
    ) -> io::Result<Option<Arc<TlsServer>>> {
        let handshake = config.server.limits.tls_handshake;
        let make = |tls: &Tls| {
            if let Some(before) = before.filter(|before| before.is_for(tls, handshake)) {
                return Ok(before.clone());
            }
            let secure = Arc::new(TlsServer::new(tls, handshake)?);
            let stop = self.shutdown.stop.clone();
            self.shutdown.background.spawn(TlsServer::watch(Arc::downgrade(&secure), stop));
            Ok(secure)
        };
        config.server.tls.as_ref().map(make).transpose()
    }

    /// Serves one client over these streams until its input ends, or until the gateway drains.
    pub async fn serve<R, W>(&self, streams: Streams<R, W>)
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (server, drain) = (self.edition.load().config.server.clone(), &self.shutdown.drain);
        let serving = streams.serve(&server, self.sessions.clone(), drain);
        self.shutdown.connections.track_future(serving).await;
    }

    /// Where the gateway listens; nowhere if it does not.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.served.as_ref().map(|served| served.addr)
    }

    /// Where the admin side listens; nowhere if it does not.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.shown.as_ref().map(|shown| shown.addr)
    }

    /// The URL of the endpoint, if there is one.
    pub fn url(&self) -> Option<String> {
        self.local_addr().map(|addr| self.edition.load().config.server.url_at(addr))
    }

    /// What the upstreams serve, once every one was heard of or had its time.
    pub async fn summary(&self) -> Vec<UpstreamStatus> {
        let edition = self.edition.load_full();
        edition.router.settled(Instant::now() + edition.config.listing.deadline).await;
        edition.router.status()
    }

    /// Ends at once, as far as there is nobody left to serve.
    pub async fn stop(&self) {
        self.shutdown.stop().await;
        // Neither waits for the other; what is left of spans is sent while the last records are written.
        tokio::join!(self.end_record(), self.telemetry.end());
    }

    /// Ends without waiting for anybody: calls are told so, children are killed as the process goes, and
    /// the record is brought to the disk.
    pub async fn abort(&self) {
        let _ = timeout(ABORT, self.shutdown.stop()).await;
        let ending = async { tokio::join!(self.end_record(), self.telemetry.end()) };
        let _ = timeout(ABORT, ending).await;
    }

    /// Lets what is in flight finish, and ends.
    pub async fn drain(&self) {
        let limits = self.edition.load().config.server.limits.clone();
        self.shutdown.wind_down(&limits).await;
        self.stop().await;
    }

    /// The last records, off the threads that serve: the disk may be slow.
    async fn end_record(&self) {
        let audit = self.audit.clone();
        let _ = tokio::task::spawn_blocking(move || audit.close()).await;
    }
}

/// How long calls, and then the last records, may hold up an end that is not to be waited for.
const ABORT: Duration = Duration::from_millis(500);

async fn bind(addr: SocketAddr, key: &str) -> io::Result<TcpListener> {
    TcpListener::bind(addr).await.map_err(|error| {
        let what = format!("cannot listen on {addr}: {error}; set {key}");
        io::Error::new(error.kind(), what)
    })
}

/// What is allowed, and should be known.
fn warn_of_config(config: &Config) {
    warn_of_shared_credentials(config);
    warn_of_named_issuers(config);
}

/// A page that one caller visits may authorise what all the others then use.
fn warn_of_shared_credentials(config: &Config) {
    for upstream in &config.upstreams {
        if upstream.settings.questions.contains(ClientCapabilities::URL) {
            warn!(
                upstream = %upstream.id,
                "may send users to pages (questions: elicitation-url), but is asked with one \
                 credential for all callers: what one user authorises there, others may use"
            );
        }
    }
}

/// Whoever an upstream names gets the secret that is meant for the one who gives out its tokens.
fn warn_of_named_issuers(config: &Config) {
    for upstream in &config.upstreams {
        if let Transport::Http(http) | Transport::Sse(http) = &upstream.transport
            && let Some(oauth) = &http.oauth
            && oauth.token_url.is_none()
            && matches!(oauth.proof, ClientProof::Secret(_))
        {
            warn!(
                upstream = %upstream.id,
                "sends its client_secret to the authorization server that it names itself: set token_url, or use \
                 a private_key, which proves nothing elsewhere"
            );
        }
    }
}

/// What is recorded of the configuration: which it is, and how it bears on who may do what.
fn loaded(config: &Config, kind: &'static str) -> Event {
    let auth = if config.auth.required { "required" } else { "optional" };
    let event = Event::new(kind).text("digest", &config.digest);
    let event = event.text("auth", if config.auth.has_method() { auth } else { "none" });
    let count = |event: Event, name, count: usize| event.number(name, count as u64);
    let event = count(event, "upstreams", config.upstreams.len());
    let event = count(event, "limits", config.limits.len());
    event.json("access", if config.access.is_some() { "true" } else { "false" })
}
