//! The state of the gateway as JSON documents.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::upstream_row::UpstreamRow;
use super::{Reloads, readiness};
use approvals::Approvals;
use audit::Audit;
use audit::usage::GatewayUsage;
use audit::verify::regular::{RegularOutcome, RegularVerification};
use base::platform::wall_clock;
use calls::Router;
use catalog::listed_item::ListedItem;
use catalog::snapshot::Catalog;
use cluster::{ClusterMember, Replica};
use config::Config;
use domain::millis::whole_millis;
use domain::overlay;
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
    pub(super) fn status(&self) -> Value {
        let why = self.unready_reasons();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "startedAt": humantime::format_rfc3339_seconds(self.reloads.started_at).to_string(),
            "uptimeSecs": self.reloads.started.elapsed().as_secs(),
            "configDigest": self.config.digest,
            "lockDigest": self.approvals.lock_digest(),
            "reloads": self.reloads.to_json(),
            "ready": why.is_empty(),
            "why": why,
            "audit": match (self.audit.is_on(), self.audit.is_up()) {
                (false, _) => "off",
                (true, true) => "written",
                (true, false) => "failing",
            },
            "auditVerified": self.regular_verification.last().as_ref().map(verified_json),
            "certificates": self.certificates(),
        })
    }

    /// Returns the certificates of the gateway and of the servers that it has called, and when they
    /// end.
    fn certificates(&self) -> Value {
        let now = wall_clock();
        let endpoint = self.endpoint.as_ref().map(|endpoint| endpoint.load());
        let own = endpoint.map(|endpoint| endpoint.certificate_ends()).unwrap_or_default();
        let servers = CertificateEnd::of_servers(now);
        let row = |certificate: &CertificateEnd| {
            let end = SystemTime::from(certificate.end.writable());
            json!({
                "owner": certificate.owner.as_str(),
                "name": certificate.name,
                "end": humantime::format_rfc3339_seconds(end).to_string(),
                "warning": certificate.warning(now),
            })
        };
        own.iter().chain(&servers).map(row).collect()
    }

    /// Returns the document of `/api/v1/replicas`: the replicas that lived at the last heartbeat,
    /// this one among them; empty if this replica stands alone.
    pub(super) fn replicas(&self) -> Value {
        let Some(cluster) = &self.cluster else {
            return json!({ "store": "none", "replicas": [] });
        };
        let failure = cluster.failure();
        let started = |at: u64| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at));
        let now = wall_clock();
        let since = |at| now.duration_since(at).ok();
        let uptime = |at| started(at).and_then(since).map(|up| up.as_secs());
        let row = |replica: &Replica| {
            let Replica { id, presence, seen } = replica;
            json!({
                "id": id.to_string(),
                "name": presence.name,
                "self": *id == cluster.id(),
                "version": presence.version,
                "configDigest": presence.config,
                "catalogDigest": presence.catalog,
                "uptimeSecs": uptime(presence.started),
                "seenMs": whole_millis(seen.elapsed()),
            })
        };
        json!({
            "store": if failure.is_some() { "unavailable" } else { "available" },
            "error": failure,
            "differing": cluster.differing(),
            "unreadable": cluster.unreadable(),
            "replicas": cluster.replicas().iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// Returns the document of `/api/v1/upstreams`, in the order of their ids.
    pub(super) fn upstreams(&self) -> Value {
        let rows: Vec<_> = self.router.status().into_iter().map(UpstreamRow::of).collect();
        json!({ "upstreams": rows })
    }

    /// The endpoints that serve a prompt: the main one, and views.
    pub(super) fn endpoints(&self, item: &ListedItem) -> impl Iterator<Item = String> {
        let server = &self.config.server;
        let views = self.config.views.iter().map(|view| server.view_path(&view.name));
        let all = std::iter::once(server.path.clone()).chain(views);
        all.filter(|path| self.router.serves(path, item))
    }

    /// Returns the document of `/api/v1/catalog`.
    pub(super) fn catalog(&self) -> Value {
        let catalog = self.router.catalog();
        let skill = |item: &ListedItem| {
            json!({"name": item.public_name, "upstream": item.upstream.as_str(),
                "rawName": item.raw_name, "digest": item.digest,
                "state": item.approval.state.as_str()})
        };
        let prompt = |item: &ListedItem| {
            let overlays = item.overlay.iter().flat_map(|overlay| &overlay.numbers);
            let overlays: Vec<_> = overlays.map(|number| overlay::key(*number)).collect();
            let mut prompt = skill(item);
            prompt["overlays"] = json!(overlays);
            prompt
        };
        let prompts: Vec<_> = catalog.content.items().map(prompt).collect();
        let skills: Vec<_> = catalog.skills.content.items().map(skill).collect();
        let left_out = &catalog.content.left_out;
        let look_alikes = &catalog.content.look_alikes;
        json!({"prompts": prompts, "skills": skills, "leftOut": left_out, "lookAlikes": look_alikes})
    }
}

/// Returns the outcome of the regular verification of the audit log.
fn verified_json(outcome: &RegularOutcome) -> Value {
    let RegularOutcome { at, records, segments, problems } = outcome;
    json!({
        "at": humantime::format_rfc3339_seconds(*at).to_string(),
        "ageSecs": wall_clock().duration_since(*at).unwrap_or_default().as_secs(),
        "records": records,
        "segments": segments,
        "problems": problems,
    })
}
