//! The composition root: a configuration becomes a running gateway.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::time::Instant;
use tracing::warn;

use crate::config::Config;
use crate::downstream::{Endpoint, Listener};
use crate::policy::Gate;
use crate::router::{Router, UpstreamSummary};
use crate::seal::{SealKeys, Sealer};
use crate::session::Sessions;
use crate::shutdown::Shutdown;

/// A gateway whose sockets are bound and whose upstreams are being asked.
pub struct App {
    config: Config,
    local_addr: SocketAddr,
    router: Arc<Router>,
    shutdown: Shutdown,
}

impl App {
    /// Binds the sockets, starts the drivers and accepts.
    ///
    /// # Errors
    /// When an address cannot be bound.
    pub async fn start(config: Config) -> io::Result<Self> {
        let socket = TcpListener::bind(config.server.listen).await?;
        let local_addr = socket.local_addr()?;
        let shutdown = Shutdown::default();
        let sealer = Arc::new(Sealer::new(&seal_keys(&config)));
        let tasks = &shutdown.background;
        let router = Arc::new(Router::start(&config, sealer.clone(), tasks, &shutdown.stop));
        let sessions = Sessions::new(
            &config,
            Gate,
            router.clone(),
            sealer,
            tasks.clone(),
            shutdown.drain.clone(),
        );
        let listener = Listener {
            socket,
            endpoint: Arc::new(Endpoint::new(&config.server, Arc::new(sessions))),
            limits: config.server.limits.clone(),
        };
        let connections = shutdown.connections.clone();
        connections.spawn(listener.run(connections.clone(), shutdown.drain.clone()));
        Ok(Self { config, local_addr, router, shutdown })
    }

    /// Where the gateway listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The URL of the endpoint.
    pub fn url(&self) -> String {
        self.config.server.url_at(self.local_addr)
    }

    /// What the upstreams serve, once every one was heard of or had its time.
    pub async fn summary(&self) -> Vec<UpstreamSummary> {
        self.router.settled(Instant::now() + self.config.listing.deadline).await;
        self.router.summary()
    }

    /// Lets what is in flight finish, and ends.
    pub async fn drain(self) {
        self.shutdown.run(&self.config.server.limits).await;
    }
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
