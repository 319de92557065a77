//! The composition root: a configuration becomes a running gateway.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::admin::{self, Admin};
use crate::audit::Audit;
use crate::audit::record::Event;
use crate::config::{ClientProof, Config, Limits, Transport};
use crate::domain::question::Asks;
use crate::downstream::{Endpoint, Listener, Secure, Streams};
use crate::policy::{self, Gate};
use crate::router::{Router, UpstreamStatus};
use crate::seal::{SealKeys, Sealer};
use crate::session::Sessions;
use crate::shutdown::Shutdown;

/// A gateway whose upstreams are being asked.
pub struct App {
    config: Config,
    router: Arc<Router>,
    sessions: Arc<Sessions>,
    audit: Audit,
    shutdown: Shutdown,
    gate: Arc<Gate>,
    /// Absent while it does not listen.
    local_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
}

impl App {
    /// Starts the drivers; nobody is served yet. `shares` says that other gateways may run with the
    /// same configuration.
    ///
    /// # Errors
    /// When the audit log cannot be opened.
    pub fn new(config: Config, shares: bool) -> io::Result<Self> {
        let audit = Audit::open(config.audit.as_ref(), shares)?;
        audit.note(loaded(&config));
        let shutdown = Shutdown::default();
        let sealer = Arc::new(Sealer::new(&seal_keys(&config)));
        let tasks = &shutdown.background;
        let router = Arc::new(Router::start(
            &config,
            policy::rights(&config),
            sealer.clone(),
            audit.clone(),
            tasks,
            &shutdown.stop,
        ));
        let (tasks, ends) = (tasks.clone(), (shutdown.drain.clone(), shutdown.stop.clone()));
        let gate = Arc::new(Gate::new(&config, audit.clone()));
        tasks.spawn(gate.clone().watch_refusals(shutdown.stop.clone()));
        tasks.spawn(gate.clone().keep_keys(shutdown.stop.clone()));
        let sessions = Sessions::new(&config, gate.clone(), router.clone(), sealer, tasks, ends);
        warn_of_shared_credentials(&config);
        warn_of_named_issuers(&config);
        let sessions = Arc::new(sessions);
        let (local_addr, admin_addr) = (None, None);
        Ok(Self { config, router, sessions, gate, audit, shutdown, local_addr, admin_addr })
    }

    /// Starts a gateway that serves over HTTP.
    ///
    /// # Errors
    /// When an address cannot be bound, or the certificates cannot be used.
    pub async fn start(mut config: Config) -> io::Result<Self> {
        let listen = config.server.listen;
        let socket = bind(listen, "server.listen").await?;
        let addr = socket.local_addr()?;
        if config.server.public_url.is_none() {
            config.server.resource = config.server.url_at(addr);
        }
        let mut app = Self::new(config, false)?;
        app.local_addr = Some(addr);
        let (server, drain) = (&app.config.server, &app.shutdown.drain);
        let endpoint = Endpoint::new(&app.config, app.sessions.clone(), drain.clone());
        let (endpoint, limits) = (Arc::new(endpoint), server.limits.clone());
        let secure = server.tls.as_ref().map(|tls| Secure::new(tls, limits.tls_handshake));
        let secure = secure.transpose()?.map(Arc::new);
        if let Some(secure) = &secure {
            app.shutdown.background.spawn(secure.clone().watch(app.shutdown.stop.clone()));
        }
        let listener = Arc::new(Listener { socket, endpoint, limits, secure });
        let connections = app.shutdown.connections.clone();
        connections.spawn(listener.run(connections.clone(), drain.clone()));
        app.show().await?;
        Ok(app)
    }

    /// Serves the admin side, if it is wanted, to the very end.
    async fn show(&mut self) -> io::Result<()> {
        let Some(admin) = &self.config.admin else {
            return Ok(());
        };
        let socket = bind(admin.listen, "admin.listen, or \"\" for no admin side").await?;
        let addr = socket.local_addr()?;
        info!(%addr, "admin side");
        let state = admin::State {
            router: self.router.clone(),
            gate: self.gate.clone(),
            audit: self.audit.clone(),
            leaving: self.shutdown.leaving.clone(),
            config_digest: self.config.digest.clone(),
            started: Instant::now(),
            started_at: SystemTime::now(),
        };
        let endpoint = Arc::new(Admin::new(admin, &self.config, Arc::new(state)));
        let limits = Limits { connections: ADMIN_CONNECTIONS, ..self.config.server.limits.clone() };
        let listener = Arc::new(Listener { socket, endpoint, limits, secure: None });
        let (tasks, stop) = (self.shutdown.background.clone(), self.shutdown.stop.clone());
        tasks.spawn(listener.run(tasks.clone(), stop));
        self.admin_addr = Some(addr);
        Ok(())
    }

    /// Serves one client over these streams until its input ends, or until the gateway drains.
    pub async fn serve<R, W>(&self, streams: Streams<R, W>)
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let (server, drain) = (&self.config.server, &self.shutdown.drain);
        let serving = streams.serve(server, self.sessions.clone(), drain);
        self.shutdown.connections.track_future(serving).await;
    }

    /// Where the gateway listens; nowhere if it does not.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// Where the admin side listens; nowhere if it does not.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// The URL of the endpoint, if there is one.
    pub fn url(&self) -> Option<String> {
        self.local_addr.map(|addr| self.config.server.url_at(addr))
    }

    /// What the upstreams serve, once every one was heard of or had its time.
    pub async fn summary(&self) -> Vec<UpstreamStatus> {
        self.router.settled(Instant::now() + self.config.listing.deadline).await;
        self.router.status()
    }

    /// Ends at once, as far as there is nobody left to serve.
    pub async fn stop(&self) {
        self.shutdown.clone().stop().await;
        self.end_record().await;
    }

    /// Lets what is in flight finish, and ends.
    pub async fn drain(&self) {
        self.shutdown.clone().run(&self.config.server.limits).await;
        self.end_record().await;
    }

    /// The last records, off the threads that serve: the disk may be slow.
    async fn end_record(&self) {
        let audit = self.audit.clone();
        let _ = tokio::task::spawn_blocking(move || audit.close()).await;
    }

    /// Starts another segment of the audit log.
    pub fn rotate_audit(&self) {
        self.audit.rotate();
    }
}

/// Connections of those who watch: few, and the same ones again and again.
const ADMIN_CONNECTIONS: usize = 64;

async fn bind(addr: SocketAddr, key: &str) -> io::Result<TcpListener> {
    TcpListener::bind(addr).await.map_err(|error| {
        let what = format!("cannot listen on {addr}: {error}; set {key}");
        io::Error::new(error.kind(), what)
    })
}

/// A page that one caller visits may authorise what all the others then use.
fn warn_of_shared_credentials(config: &Config) {
    for upstream in &config.upstreams {
        if upstream.settings.questions.contains(Asks::URL) {
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
fn loaded(config: &Config) -> Event {
    let auth = if config.auth.required { "required" } else { "optional" };
    let event = Event::new("config_loaded").text("digest", &config.digest);
    let event = event.text("auth", if config.auth.has_method() { auth } else { "none" });
    let count = |event: Event, name, count: usize| event.number(name, count as u64);
    let event = count(event, "upstreams", config.upstreams.len());
    let event = count(event, "limits", config.limits.len());
    event.json("access", if config.access.is_some() { "true" } else { "false" })
}

fn seal_keys(config: &Config) -> SealKeys {
    config.server.seal_keys.clone().unwrap_or_else(|| {
        warn!(
            "no seal key is set: sessions and cursors end with this process and are unknown to \
             other replicas; set PROMPTGATE_SEAL_KEY (make one with `openssl rand -base64 32`)"
        );
        SealKeys::ephemeral()
    })
}
