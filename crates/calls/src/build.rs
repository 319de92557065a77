//! Construction of routers: the first one, and its successors after reloads.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::guards::Guards;
use super::rollouts::{RolloutStates, Rollouts};
use super::suspended_calls::SuspendedCalls;
use super::unapproved_texts::UnapprovedTexts;
use super::verified_texts::VerifiedTexts;
use super::{Router, RouterSharedState};
use base::seal::Sealer;
use catalog::announce::Announcer;
use catalog::announce::announcement_debounce::Debounce;
use catalog::announce::change_shares::ChangeShares;
use catalog::announce::label_moves::CommandedMoves;
use catalog::caller_lists::CallerLists;
use catalog::lists::Lists;
use catalog::refresh::{Inputs, Refresh, Renewal};
use catalog::search::{SEARCH_WAIT, SEARCHES, SEARCHES_QUEUED};
use catalog::snapshot::Catalog;
use catalog::source::UpstreamSource;
use catalog::view_cache::ViewCache;
use config::Config;
use domain::name::UpstreamId;
use domain::protocol::via::Via;
use policy::Gate;
use upstream::call::correlator::NotificationSinks;
use upstream::driver::DriverId;
use upstream::guard::concurrency::ConcurrencyLimit;
use upstream::{Upstream, UpstreamDeps};

/// Queue capacity for reports to the refresh. When the queue is full, drivers wait; each driver has
/// at most one report to send.
const REPORTS: usize = 64;

/// Dependencies of a router, apart from its configuration.
pub struct RouterDeps {
    pub gate: Arc<Gate>,
    pub sealer: Arc<Sealer>,
    /// Whether the store of a cluster has the rollbacks of rollouts.
    pub is_replica: bool,
}

/// The task that fills the catalog has ended, so no other configuration can take effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the task that merges the prompt lists has ended, and the configuration cannot be applied \
     without it; the gateway ends, and reads the file when it is started again"
)]
pub struct RefreshEnded;

impl Router {
    /// Starts a driver for every upstream, and the refresh task.
    pub fn start(config: &Config, deps: RouterDeps, upstream_deps: UpstreamDeps) -> Self {
        let own = Via::of_gateway(&deps.sealer.pseudonym(), []);
        let upstream_deps = UpstreamDeps { own, ..upstream_deps };
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog {
            pending: !config.upstreams.is_empty(),
            ..Catalog::default()
        }));
        let views = Arc::new(ViewCache::new(config, deps.gate.rights().clone()));
        let sources: Vec<_> = config
            .upstreams
            .iter()
            .map(|u| UpstreamSource::new(DriverId::fresh(), u, config))
            .collect();
        let caller_lists = caller_lists(config, &sources, None, &upstream_deps);
        let (publish, published) = watch::channel(());
        let (change, changes) = watch::channel(None);
        let commanded = Arc::new(CommandedMoves::default());
        let announce = Announcer {
            published: publish,
            changes: change,
            views: views.clone(),
            caller_lists: caller_lists.clone(),
            debounce: debounce(config),
            beyond_tools_max: Vec::new(),
            beyond_hosts: Vec::new(),
            audit: upstream_deps.audit.clone(),
            shares: ChangeShares::default(),
            commanded: commanded.clone(),
            telemetry: upstream_deps.telemetry.clone(),
        };
        let (reports, reported) = mpsc::channel(REPORTS);
        let (texts, learned) = mpsc::channel(REPORTS);
        let (renewals, renewed) = mpsc::channel(1);
        let inputs = Inputs { reports: reported, texts: learned, renewals: renewed };
        let supervisor = upstream_deps.supervisor.clone();
        let shutdown = upstream_deps.shutdown.clone();
        let shared = Arc::new(RouterSharedState {
            published,
            changes,
            url_completions: NotificationSinks::url_completions(),
            suspended: SuspendedCalls::new(supervisor.tasks().clone(), shutdown.clone()),
            searches: ConcurrencyLimit::new(SEARCHES, SEARCHES_QUEUED, SEARCH_WAIT),
            telemetry: upstream_deps.telemetry.clone(),
            reports,
            unapproved_texts: UnapprovedTexts::default(),
            verified: VerifiedTexts::default(),
            rollouts: RolloutStates::new(deps.is_replica),
            commanded,
            texts,
            renewals,
            upstream_deps,
        });
        let start = |(source, upstream): (&UpstreamSource, &config::UpstreamSettings)| {
            shared.upstream(source.driver, upstream)
        };
        let upstreams = sources.iter().zip(&config.upstreams).map(start).collect();
        let refresh = Refresh::new(sources, config.naming.clone());
        let deadline = Instant::now() + config.listing.deadline;
        let refreshing = refresh.run(inputs, catalog.clone(), announce, deadline, shutdown);
        supervisor.supervise("refresh", refreshing);
        Self::new(config, catalog, views, caller_lists, upstreams, deps, shared)
    }

    /// Checks that another configuration can take effect.
    ///
    /// # Errors
    /// [`RefreshEnded`] if nothing would fill its catalog.
    pub fn check_refresh(&self) -> Result<(), RefreshEnded> {
        if self.shared.renewals.is_closed() { Err(RefreshEnded) } else { Ok(()) }
    }

    /// Makes the router of another configuration. Upstreams whose configuration is unchanged keep
    /// their drivers, connections and lists; the others get new drivers. Drivers of removed
    /// upstreams end when the last router that holds them is dropped. The sender is to be signalled
    /// once the new router serves.
    ///
    /// # Errors
    /// [`RefreshEnded`]; then this router goes on as it is.
    pub async fn renew(
        &self,
        config: &Config,
        deps: RouterDeps,
    ) -> Result<(Self, oneshot::Sender<()>), RefreshEnded> {
        let views = Arc::new(ViewCache::new(config, deps.gate.rights().clone()));
        let kept = |upstream: &config::UpstreamSettings| {
            let kept = self.upstreams.get(&upstream.id);
            kept.filter(|kept| kept.config() == upstream)
        };
        let driver = |upstream| kept(upstream).map_or_else(DriverId::fresh, |kept| kept.driver());
        let sources: Vec<_> =
            config.upstreams.iter().map(|u| UpstreamSource::new(driver(u), u, config)).collect();
        let drivers: Vec<_> = sources.iter().map(|source| source.driver).collect();
        let before = self.lists.caller_lists.as_ref();
        let caller_lists = caller_lists(config, &sources, before, &self.shared.upstream_deps);
        let (catalog, (done, ready)) =
            (Arc::new(ArcSwap::from_pointee(Catalog::default())), oneshot::channel());
        let (serves, serving) = oneshot::channel();
        let renewal = Renewal {
            serves: serving,
            sources,
            naming: config.naming.clone(),
            debounce: debounce(config),
            views: views.clone(),
            caller_lists: caller_lists.clone(),
            catalog: catalog.clone(),
            deadline: Instant::now() + config.listing.deadline,
            done,
        };
        // Without a refresh the new catalog would stay empty, and would be served as if it were
        // complete.
        self.shared.renewals.send(renewal).await.map_err(|_| RefreshEnded)?;
        ready.await.map_err(|_| RefreshEnded)?;
        let upstreams = drivers.into_iter().zip(&config.upstreams).map(|(driver, upstream)| {
            let Some(kept) = kept(upstream) else {
                return self.shared.upstream(driver, upstream);
            };
            (upstream.id.clone(), kept.clone())
        });
        let upstreams = upstreams.collect();
        let shared = self.shared.clone();
        let renewed = Self::new(config, catalog, views, caller_lists, upstreams, deps, shared);
        Ok((renewed, serves))
    }

    fn new(
        config: &Config,
        catalog: Arc<ArcSwap<Catalog>>,
        views: Arc<ViewCache>,
        caller_lists: Option<Arc<CallerLists>>,
        upstreams: BTreeMap<UpstreamId, Arc<Upstream>>,
        deps: RouterDeps,
        shared: Arc<RouterSharedState>,
    ) -> Self {
        let limits = config.server.limits.clone();
        upstreams.values().for_each(|upstream| upstream.set_share(limits.share));
        shared.searches.set_share(limits.share);
        shared.upstream_deps.accounts.set_limits(config.accounts);
        if let Some(lists) = &caller_lists {
            lists.connect(upstreams.iter());
        }
        let RouterDeps { gate, sealer, .. } = deps;
        let prefix =
            |upstream: &config::UpstreamSettings| (upstream.id.clone(), upstream.prefix.clone());
        let poll = |upstream: &config::UpstreamSettings| {
            let poll = upstream.settings.poll;
            (!poll.is_zero()).then(|| (upstream.id.clone(), poll))
        };
        let rollouts = Rollouts::new(config, &upstreams, sealer.clone(), shared.clone());
        let lists = Lists {
            catalog,
            published: shared.published.clone(),
            views,
            caller_lists,
            naming: config.naming.clone(),
            prefixes: config.upstreams.iter().map(prefix).collect(),
            polls: config.upstreams.iter().filter_map(poll).collect(),
            sealer: sealer.clone(),
            listing: config.listing.clone(),
            searches: shared.searches.clone(),
            has_callers: config.auth.has_method(),
            needs_credential: config.auth.required,
        };
        Self {
            gate,
            lists,
            upstreams,
            sealer,
            limits,
            approval_rules: config.approvals.clone(),
            overlays: config.overlays.clone(),
            rollouts,
            guards: Guards::new(config, &shared.telemetry),
            shared,
        }
    }
}

impl RouterSharedState {
    /// Starts a driver.
    fn upstream(
        &self,
        driver: DriverId,
        upstream: &config::UpstreamSettings,
    ) -> (UpstreamId, Arc<Upstream>) {
        let config = upstream.clone();
        let reports = self.reports.clone();
        let url_completions = self.url_completions.clone();
        let started =
            Upstream::start(driver, config, reports, url_completions, &self.upstream_deps);
        (upstream.id.clone(), Arc::new(started))
    }
}

fn caller_lists(
    config: &Config,
    sources: &[UpstreamSource],
    before: Option<&Arc<CallerLists>>,
    deps: &UpstreamDeps,
) -> Option<Arc<CallerLists>> {
    CallerLists::new(config, sources, before, deps.tasks.clone(), deps.shutdown.clone())
}

fn debounce(config: &Config) -> Debounce {
    Debounce::new(config.listing.debounce, config.listing.debounce_max)
}
