//! What is made of one configuration. A request sees one edition from its first byte to its last;
//! what is in flight when another takes over finishes in its own.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::config::Config;
use crate::policy::{self, Gate};
use crate::router::{Router, RouterDeps, UpstreamDeps};
use crate::seal::{SealKeys, Sealer};
use crate::session::{self, Sessions};
use crate::shutdown::Shutdown;

pub(super) struct Edition {
    pub config: Config,
    pub gate: Arc<Gate>,
    pub router: Arc<Router>,
    pub sessions: Arc<Sessions>,
    sealer: Arc<Sealer>,
    shared: Arc<session::SharedState>,
    /// Ends the tasks that are this edition's own.
    _current: DropGuard,
}

impl Edition {
    /// The one that a gateway starts with.
    pub(crate) fn first(
        config: Config,
        upstream_deps: UpstreamDeps,
        drain: CancellationToken,
    ) -> Self {
        let UpstreamDeps { audit, telemetry, tasks, shutdown: stop, .. } = upstream_deps.clone();
        let sealer = Arc::new(Sealer::new(&seal_keys(&config)));
        let rights = policy::rights(&config);
        let gate = Arc::new(Gate::new(&config, rights, audit.clone(), telemetry));
        let deps = RouterDeps { gate: gate.clone(), sealer: sealer.clone() };
        let router = Router::start(&config, deps, upstream_deps);
        tasks.spawn(gate.refusals().watch(audit, stop.clone()));
        let shared = Arc::new(session::SharedState::new(tasks.clone(), drain, stop.clone()));
        Self::new(config, gate, router, sealer, shared, (&tasks, &stop))
    }

    /// The one that takes over from this one, and whom to tell once it serves.
    pub(crate) async fn renew(
        &self,
        config: Config,
        shutdown: &Shutdown,
    ) -> (Self, oneshot::Sender<()>) {
        let is_same = self.config.server.seal_keys == config.server.seal_keys;
        let sealer = match is_same {
            true => self.sealer.clone(),
            false => Arc::new(Sealer::new(&seal_keys(&config))),
        };
        let gate = Arc::new(self.gate.renew(&config));
        let deps = RouterDeps { gate: gate.clone(), sealer: sealer.clone() };
        let (router, serves) = self.router.renew(&config, deps).await;
        let shared = self.shared.clone();
        let tasks = (&shutdown.background, &shutdown.stop);
        (Self::new(config, gate, router, sealer, shared, tasks), serves)
    }

    fn new(
        config: Config,
        gate: Arc<Gate>,
        router: Router,
        sealer: Arc<Sealer>,
        shared: Arc<session::SharedState>,
        (tasks, stop): (&TaskTracker, &CancellationToken),
    ) -> Self {
        let (router, current) = (Arc::new(router), stop.child_token());
        tasks.spawn(gate.clone().keep_keys(current.clone()));
        let sessions =
            Sessions::new(&config, gate.clone(), router.clone(), sealer.clone(), shared.clone());
        let sessions = Arc::new(sessions);
        Self { config, gate, router, sessions, sealer, shared, _current: current.drop_guard() }
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
