//! How a router is made of a configuration: the first one, and those that take over from another.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::Router;
use super::announce::Announcer;
use super::catalog::Catalog;
use super::debounce::Debounce;
use super::refresh::{Refresh, Renewal, Source};
use super::suspended_calls::SuspendedCalls;
use super::view_cache::{Published, ViewCache};
use crate::config;
use crate::config::{Config, OnChangedDefinition};
use crate::domain::name::UpstreamId;
use crate::policy::Gate;
use crate::seal::Sealer;
use crate::telemetry::Telemetry;
use crate::upstream::call::correlator::{NotificationSinks, UrlElicitationComplete};
use crate::upstream::driver::{DriverId, Report};
use crate::upstream::{Upstream, UpstreamDeps};

/// What all routers of one gateway share, one after another.
pub(super) struct SharedState {
    /// Marked whenever a snapshot is published.
    pub published: watch::Receiver<()>,
    pub changes: watch::Receiver<Option<Published>>,
    /// Told of pages that users have visited, by all upstreams.
    pub pages: broadcast::Sender<UrlElicitationComplete>,
    pub suspended: SuspendedCalls,
    pub telemetry: Telemetry,
    reports: mpsc::Sender<Report>,
    renewals: mpsc::Sender<Renewal>,
    upstream_deps: UpstreamDeps,
}

/// Reports that may wait for the refresh at once. Drivers wait their turn beyond that: each has
/// only one to make.
const REPORTS: usize = 64;

/// What a router is made with beside its configuration.
pub struct RouterDeps {
    pub gate: Arc<Gate>,
    pub sealer: Arc<Sealer>,
}

impl Router {
    /// Starts a driver for every upstream, and the task that keeps the catalog.
    pub fn start(config: &Config, deps: RouterDeps, upstream_deps: UpstreamDeps) -> Self {
        let catalog = Arc::new(ArcSwap::from_pointee(Catalog {
            pending: !config.upstreams.is_empty(),
            ..Catalog::default()
        }));
        let views = Arc::new(ViewCache::new(config, deps.gate.rights().clone()));
        let (publish, published) = watch::channel(());
        let (change, changes) = watch::channel(None);
        let announce = Announcer {
            published: publish,
            changes: change,
            views: views.clone(),
            debounce: debounce(config),
            audit: upstream_deps.audit.clone(),
            telemetry: upstream_deps.telemetry.clone(),
        };
        let (reports, reported) = mpsc::channel(REPORTS);
        let (renewals, renewed) = mpsc::channel(1);
        let (tasks, shutdown) = (upstream_deps.tasks.clone(), upstream_deps.shutdown.clone());
        let shared = Arc::new(SharedState {
            published,
            changes,
            pages: NotificationSinks::pages(),
            suspended: SuspendedCalls::new(tasks.clone(), shutdown.clone()),
            telemetry: upstream_deps.telemetry.clone(),
            reports,
            renewals,
            upstream_deps,
        });
        let sources: Vec<_> =
            config.upstreams.iter().map(|u| Source::new(DriverId::fresh(), u)).collect();
        let start = |(source, upstream): (&Source, &config::Upstream)| {
            shared.upstream(source.driver, upstream)
        };
        let upstreams = sources.iter().zip(&config.upstreams).map(start).collect();
        let refresh = Refresh::new(sources, config.naming.clone(), config.listing.on_failure);
        let deadline = Instant::now() + config.listing.deadline;
        let refreshing =
            refresh.run(reported, renewed, catalog.clone(), announce, deadline, shutdown);
        tasks.spawn(refreshing);
        Self::new(config, catalog, views, upstreams, deps, shared)
    }

    /// The router of another configuration. Upstreams that are configured as before go on as they
    /// are, and what is known of them is in its first snapshot; the others are driven anew. Those that
    /// are missing end once nobody uses this router any more. What comes beside it is to be told once the router is
    /// the one that serves.
    pub async fn renew(&self, config: &Config, deps: RouterDeps) -> (Self, oneshot::Sender<()>) {
        let views = Arc::new(ViewCache::new(config, deps.gate.rights().clone()));
        let kept = |upstream: &config::Upstream| {
            let kept = self.upstreams.get(&upstream.id);
            kept.filter(|kept| kept.config() == upstream)
        };
        let driver = |upstream| kept(upstream).map_or_else(DriverId::fresh, |kept| kept.driver());
        let sources: Vec<_> = config.upstreams.iter().map(|u| Source::new(driver(u), u)).collect();
        let drivers: Vec<_> = sources.iter().map(|source| source.driver).collect();
        let (catalog, (done, ready)) =
            (Arc::new(ArcSwap::from_pointee(Catalog::default())), oneshot::channel());
        let (serves, serving) = oneshot::channel();
        let renewal = Renewal {
            serves: serving,
            sources,
            naming: config.naming.clone(),
            on_failure: config.listing.on_failure,
            debounce: debounce(config),
            views: views.clone(),
            catalog: catalog.clone(),
            deadline: Instant::now() + config.listing.deadline,
            done,
        };
        // Both fail only when the gateway ends, which needs no catalog.
        let _ = self.shared.renewals.send(renewal).await;
        let _ = ready.await;
        let upstreams = drivers.into_iter().zip(&config.upstreams).map(|(driver, upstream)| {
            let Some(kept) = kept(upstream) else {
                return self.shared.upstream(driver, upstream);
            };
            if upstream.settings.on_changed_definition != OnChangedDefinition::Allow {
                // What it was held to counts no more.
                kept.request_walk();
            }
            (upstream.id.clone(), kept.clone())
        });
        let (upstreams, shared) = (upstreams.collect(), self.shared.clone());
        (Self::new(config, catalog, views, upstreams, deps, shared), serves)
    }

    fn new(
        config: &Config,
        catalog: Arc<ArcSwap<Catalog>>,
        views: Arc<ViewCache>,
        upstreams: BTreeMap<UpstreamId, Arc<Upstream>>,
        deps: RouterDeps,
        shared: Arc<SharedState>,
    ) -> Self {
        let (naming, listing) = (config.naming.clone(), config.listing.clone());
        let limits = config.server.limits.clone();
        let RouterDeps { gate, sealer } = deps;
        Self { gate, catalog, views, upstreams, sealer, naming, listing, limits, shared }
    }
}

impl SharedState {
    /// Starts a driver.
    fn upstream(
        &self,
        driver: DriverId,
        upstream: &config::Upstream,
    ) -> (UpstreamId, Arc<Upstream>) {
        let (config, reports, pages) = (upstream.clone(), self.reports.clone(), self.pages.clone());
        let started = Upstream::start(driver, config, reports, pages, &self.upstream_deps);
        (upstream.id.clone(), Arc::new(started))
    }
}

fn debounce(config: &Config) -> Debounce {
    Debounce::new(config.listing.settle, config.listing.settle_max)
}
