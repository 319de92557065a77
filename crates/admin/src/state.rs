//! The state of the gateway as JSON documents.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use super::documents::{
    self, CatalogPrompt, CatalogSkill, CertificateRow, ExportRow, Readiness, ReplicaRow, Replicas,
    Status, UpstreamsDocument, VerifiedLogRow,
};
use super::upstream_row::UpstreamRow;
use super::{Reloads, readiness};
use approvals::Approvals;
use audit::Audit;
use audit::usage::GatewayUsage;
use audit::verify::regular::RegularVerification;
use base::platform::wall_clock;
use calls::Router;
use catalog::listed_item::ListedItem;
use catalog::snapshot::Catalog;
use cluster::{ClusterMember, Replica};
use config::Config;
use domain::time::millis::whole_millis;
use front::downstream::Endpoint;
use front::session::Sessions;
use net::certificates::CertificateEnd;
use policy::Gate;
use shutdown::Supervisor;
use telemetry::Telemetry;

/// The parts of the gateway that the admin API shows.
pub struct AdminState {
    pub router: Arc<Router>,
    pub approvals: Arc<Approvals>,
    pub gate: Arc<Gate>,
    pub audit: Audit,
    /// Counts of uses, for the console.
    pub usage: Arc<GatewayUsage>,
    pub telemetry: Telemetry,
    /// `None` if this replica stands alone.
    pub cluster: Option<Arc<ClusterMember>>,
    /// Cancelled when a shutdown starts.
    pub pre_drain: CancellationToken,
    pub config: Arc<Config>,
    pub admin: config::Admin,
    pub sessions: Arc<Sessions>,
    pub regular_verification: Arc<RegularVerification>,
    /// Supervises tasks that last as long as a request of the admin API.
    pub supervisor: Supervisor,
    pub reloads: Arc<Reloads>,
    /// `None` over standard streams.
    pub endpoint: Option<Arc<ArcSwap<Endpoint>>>,
}

impl AdminState {
    /// Returns why requests should go to another replica at present; empty if the gateway is ready.
    pub(super) fn unready_reasons(&self) -> Vec<String> {
        self.unready_reasons_in(&self.router.catalog())
    }

    /// Returns the reasons of [`AdminState::unready_reasons`] for one snapshot of the lists.
    pub(super) fn unready_reasons_in(&self, catalog: &Catalog) -> Vec<String> {
        let Self { pre_drain, supervisor, audit, cluster, .. } = self;
        readiness::unready_reasons(pre_drain, supervisor, audit, cluster.as_deref(), catalog)
    }

    /// Returns the document of `/api/v1/status`.
    pub(super) fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION"),
            started_at: humantime::format_rfc3339_seconds(self.reloads.started_at).to_string(),
            uptime_secs: self.reloads.started.elapsed().as_secs(),
            config_digest: self.config.digest.to_string(),
            lock_digest: self.approvals.lock_digest().to_owned(),
            reloads: self.reloads.counts(),
            readiness: Readiness::of(self.unready_reasons()),
            audit: match (self.audit.is_on(), self.audit.is_up()) {
                (false, _) => "off",
                (true, true) => "written",
                (true, false) => "failing",
            },
            audit_verified: self.regular_verification.last().as_ref().map(VerifiedLogRow::of),
            audit_export: self.audit.export_status().map(ExportRow::of),
            certificates: self.certificates(),
        }
    }

    /// Returns the certificates of the gateway and of the servers that it has called, and when they
    /// end.
    fn certificates(&self) -> Vec<CertificateRow> {
        let now = wall_clock();
        let endpoint = self.endpoint.as_ref().map(|endpoint| endpoint.load());
        let own = endpoint.map(|endpoint| endpoint.certificate_ends()).unwrap_or_default();
        let servers = CertificateEnd::of_servers(now);
        own.iter().chain(&servers).map(|end| CertificateRow::of(end, now)).collect()
    }

    /// Returns the document of `/api/v1/replicas`: the replicas that lived at the last heartbeat,
    /// this one among them; empty if this replica stands alone.
    pub(super) fn replicas(&self) -> Replicas {
        let Some(cluster) = &self.cluster else {
            return Replicas { store: "none", ..Replicas::default() };
        };
        let failure = cluster.failure();
        let started = |at: u64| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at));
        let now = wall_clock();
        let since = |at| now.duration_since(at).ok();
        let uptime = |at| started(at).and_then(since).map(|up| up.as_secs());
        let row = |replica: &Replica| {
            let Replica { id, presence, seen } = replica;
            ReplicaRow {
                id: id.to_string(),
                name: presence.name.clone(),
                is_self: *id == cluster.id(),
                version: presence.version.clone(),
                config_digest: presence.config.clone(),
                catalog_digest: presence.catalog.clone(),
                uptime_secs: uptime(presence.started),
                seen_ms: whole_millis(seen.elapsed()),
            }
        };
        Replicas {
            store: if failure.is_some() { "unavailable" } else { "available" },
            error: failure,
            differing: cluster.differing(),
            unreadable: cluster.unreadable(),
            replicas: cluster.replicas().iter().map(row).collect(),
        }
    }

    /// Returns the document of `/api/v1/upstreams`, in the order of their ids.
    pub(super) fn upstreams(&self) -> UpstreamsDocument {
        let upstreams = self.router.status().into_iter().map(UpstreamRow::of).collect();
        UpstreamsDocument { upstreams }
    }

    /// The endpoints that serve a prompt: the main one, and views.
    pub(super) fn endpoints(&self, item: &ListedItem) -> impl Iterator<Item = String> {
        let server = &self.config.server;
        let views = self.config.views.iter().map(|view| server.view_path(&view.name));
        let all = std::iter::once(server.path.clone()).chain(views);
        all.filter(|path| self.router.serves(path, item))
    }

    /// Returns the document of `/api/v1/catalog`.
    pub(super) fn catalog(&self) -> documents::CatalogDocument {
        let catalog = self.router.catalog();
        documents::CatalogDocument {
            prompts: catalog.content.items().map(CatalogPrompt::of).collect(),
            skills: catalog.skills.content.items().map(CatalogSkill::of).collect(),
            left_out: catalog.content.left_out.to_vec(),
            look_alikes: catalog.content.look_alikes.to_vec(),
        }
    }
}
