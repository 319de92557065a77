//! The edition: everything that is built from one configuration. A request uses one edition from
//! its first byte to its last, also when a reload publishes the next one meanwhile.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use admin::ConsolePeople;
use approvals::Approvals;
use approvals::prober::Prober;
use base::seal::{SealKeys, Sealer};
use calls::{RefreshEnded, Router, RouterDeps, UpstreamDeps};
use cluster::ClusterMember;
use config::Config;
use front::session::{self, Sessions};
use logins::caller::PersonCheck;
use logins::idle;
use logins::store::LoginBackend;
use policy::{self, Gate};

/// The parts of the gateway that depend on the configuration.
pub(super) struct Edition {
    pub config: Config,
    pub gate: Arc<Gate>,
    pub router: Arc<Router>,
    pub approvals: Arc<Approvals>,
    pub sessions: Arc<Sessions>,
    pub sealer: Arc<Sealer>,
    pub shared: Arc<session::SessionSharedState>,
    upstream_deps: UpstreamDeps,
    /// Ends the tasks of this edition when it is dropped.
    _current: DropGuard,
}

impl Edition {
    /// Builds the first edition. `drain` is cancelled when streams must end.
    pub(crate) fn first(
        config: Config,
        sealer: Arc<Sealer>,
        cluster: Option<Arc<ClusterMember>>,
        upstream_deps: UpstreamDeps,
        drain: CancellationToken,
    ) -> Self {
        let UpstreamDeps { audit, telemetry, supervisor, tasks, shutdown: stop, .. } =
            upstream_deps.clone();
        let rights = policy::rights(&config);
        let is_replica = cluster.is_some();
        let mut gate = Gate::new(&config, rights, audit.clone(), telemetry);
        let mut shared = session::SessionSharedState::new(tasks, drain, stop.clone());
        if let Some(cluster) = cluster {
            gate = gate.in_cluster(cluster.clone());
            shared = shared.in_cluster(cluster);
        }
        let gate = Arc::new(gate);
        let shared = Arc::new(shared);
        let deps = RouterDeps { gate: gate.clone(), sealer: sealer.clone(), is_replica };
        let router = Arc::new(Router::start(&config, deps, upstream_deps.clone()));
        let approvals = Approvals::start(&config, router.clone(), &upstream_deps);
        supervisor.supervise("tallies", gate.tallies().watch(audit, stop));
        Self::new(config, gate, approvals, router, sealer, shared, upstream_deps)
    }

    /// Names the people in the browsers of callers, if the console has a provider.
    pub(super) fn people(&self) -> Option<Arc<dyn PersonCheck>> {
        let oidc = self.config.admin.as_ref()?.oidc.as_ref()?;
        let page = self.config.server.sign_in_page()?;
        Some(Arc::new(ConsolePeople::new(oidc, self.sealer.clone(), &page)))
    }

    /// Builds the next edition, which keeps running calls, open streams, counts, and the upstreams
    /// whose configuration is the same. Use the sender once the new edition serves.
    pub(crate) async fn renew(
        &self,
        config: Config,
    ) -> Result<(Self, oneshot::Sender<()>), RefreshEnded> {
        let sealer = if self.config.server.seal_keys == config.server.seal_keys {
            self.sealer.clone()
        } else {
            Arc::new(Sealer::new(&seal_keys(&config)))
        };
        let gate = Arc::new(self.gate.renew(&config));
        let deps = RouterDeps {
            gate: gate.clone(),
            sealer: sealer.clone(),
            is_replica: self.sessions.cluster().is_some(),
        };
        let (router, serves) = self.router.renew(&config, deps).await?;
        let router = Arc::new(router);
        let approvals = self.approvals.renew(&config, router.clone());
        let shared = self.shared.clone();
        let upstream_deps = self.upstream_deps.clone();
        if let Some(cluster) = self.sessions.cluster() {
            cluster.renew(&config.server.limits, sealer.clone());
        }
        Ok((Self::new(config, gate, approvals, router, sealer, shared, upstream_deps), serves))
    }

    fn new(
        config: Config,
        gate: Arc<Gate>,
        approvals: Approvals,
        router: Arc<Router>,
        sealer: Arc<Sealer>,
        shared: Arc<session::SessionSharedState>,
        upstream_deps: UpstreamDeps,
    ) -> Self {
        let approvals = Arc::new(approvals);
        let UpstreamDeps { supervisor, shutdown: stop, .. } = &upstream_deps;
        let current = stop.child_token();
        let keeping = gate.clone().keep_keys(current.clone());
        supervisor.supervise_until(&current, "key_renewal", keeping);
        for upstream in approvals.probed_upstreams() {
            let probing = Prober::new(approvals.clone(), upstream.clone()).run(current.clone());
            supervisor.supervise_until(&current, "probing", probing);
        }
        if let Some(logins) = &upstream_deps.logins
            && config.upstreams.iter().any(|upstream| upstream.caller_logins().is_some())
        {
            let following = router.clone().follow_sign_ins(logins.clone(), current.clone());
            supervisor.supervise_until(&current, "caller_sign_ins", following);
        }
        if let Some(logins) = &config.logins {
            let store = LoginBackend::new(logins, upstream_deps.logins.clone());
            let upstreams = config.upstreams.iter().filter_map(config::UpstreamSettings::login);
            let upstreams = upstreams.map(|login| login.upstream.clone()).collect();
            let audit = upstream_deps.audit.clone();
            let keeping = idle::keep(store, upstreams, logins.idle, audit, current.clone());
            supervisor.supervise_until(&current, "idle_sign_ins", keeping);
        }
        let sessions =
            Sessions::new(&config, gate.clone(), router.clone(), sealer.clone(), shared.clone());
        let sessions = Arc::new(sessions);
        let _current = current.drop_guard();
        Self { config, gate, router, approvals, sessions, sealer, shared, upstream_deps, _current }
    }
}

/// Returns the configured seal keys, or an ephemeral key.
pub(super) fn seal_keys(config: &Config) -> SealKeys {
    config.server.seal_keys.clone().unwrap_or_else(|| {
        let what = "no seal key is set; sessions and cursors end with this process, and other replicas do \
             not accept them; set PROMPTGATE_SEAL_KEY (create one with `openssl rand -base64 32`)";
        // A gateway on a loopback address needs no seal key.
        if config.server.listen.ip().is_loopback() {
            info!("{what}");
        } else {
            warn!("{what}");
        }
        SealKeys::ephemeral()
    })
}
