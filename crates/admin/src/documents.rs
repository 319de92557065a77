//! The documents of the admin API that show the state of the gateway.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use super::upstream_row::UpstreamRow;
use audit::export::ExportStatus;
use audit::verify::regular::RegularOutcome;
use base::platform::wall_clock;
use catalog::listed_item::ListedItem;
use catalog::snapshot::{LeftOut, LookAlike};
use domain::prompts::overlay;
use net::certificates::CertificateEnd;

/// Whether the process answers.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Liveness {
    #[cfg_attr(test, schemars(extend("const" = "ok")))]
    pub status: &'static str,
}

/// Whether requests should come to this replica.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Readiness {
    pub ready: bool,
    /// Why requests should go to another replica; empty if the gateway is ready.
    pub why: Vec<String>,
}

/// The document of `/api/v1/status`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub version: &'static str,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    pub started_at: String,
    /// Seconds.
    pub uptime_secs: u64,
    pub config_digest: String,
    /// Digest of the lock file; `none` without one.
    pub lock_digest: String,
    pub reloads: ReloadCounts,
    #[serde(flatten)]
    pub readiness: Readiness,
    #[cfg_attr(test, schemars(extend("enum" = ["off", "written", "failing"])))]
    pub audit: &'static str,
    /// The last regular verification of the audit log; null before the first.
    pub audit_verified: Option<VerifiedLogRow>,
    /// The export of the audit log (`audit.export`); null without one.
    pub audit_export: Option<ExportRow>,
    /// Of `server.tls`, and of the servers that were called within eight days.
    pub certificates: Vec<CertificateRow>,
}

/// The reloads of the configuration since the start.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReloadCounts {
    pub applied: u64,
    pub rejected: u64,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    pub last_at: Option<String>,
    /// Mistakes of the file, if it is rejected at present.
    pub mistakes: Vec<String>,
    /// Digest of a file that looks as if it had lost its end, and is held back until it is
    /// accepted.
    pub held: Option<String>,
    /// Keys that were changed in the file and need a restart.
    pub needs_restart: Vec<&'static str>,
    /// Protections that the last applied configuration has removed explicitly.
    pub removed: Vec<&'static str>,
}

/// The outcome of a regular verification of the audit log.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct VerifiedLogRow {
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    at: String,
    /// Seconds.
    age_secs: u64,
    /// Records that were read.
    records: u64,
    /// Segments that were read.
    segments: usize,
    /// Empty if all is intact.
    problems: Vec<String>,
}

/// A certificate, and when it ends.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CertificateRow {
    #[cfg_attr(test, schemars(extend("enum" = ["gateway", "client_authority", "server"])))]
    owner: &'static str,
    name: String,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    end: String,
    /// If it ends within 30 days, or has ended.
    warning: Option<String>,
}

/// The document of `/api/v1/replicas`. It is empty without `[cluster]`.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Replicas {
    #[cfg_attr(test, schemars(extend("enum" = ["none", "available", "unavailable"])))]
    pub store: &'static str,
    /// Why the store is not available.
    pub error: Option<String>,
    /// Replicas with another configuration or catalog than this one.
    pub differing: usize,
    /// Replicas whose presence this one cannot read.
    pub unreadable: usize,
    pub replicas: Vec<ReplicaRow>,
}

/// A replica that lived at the last heartbeat.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Replica"))]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplicaRow {
    /// Of its process.
    pub id: String,
    pub name: String,
    /// Whether it is the one that answers.
    #[serde(rename = "self")]
    pub is_self: bool,
    pub version: String,
    pub config_digest: String,
    pub catalog_digest: String,
    /// Seconds.
    pub uptime_secs: Option<u64>,
    /// Milliseconds since its last heartbeat was seen.
    pub seen_ms: u64,
}

/// The document of `/api/v1/upstreams`, in the order of their ids.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct UpstreamsDocument {
    pub upstreams: Vec<UpstreamRow>,
}

/// The document of `/api/v1/catalog`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct CatalogDocument {
    pub prompts: Vec<CatalogPrompt>,
    pub skills: Vec<CatalogSkill>,
    pub left_out: Vec<LeftOut>,
    pub look_alikes: Vec<LookAlike>,
}

/// A prompt that is served.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct CatalogPrompt {
    /// Public name.
    name: Arc<str>,
    upstream: String,
    /// Name at the upstream.
    raw_name: Arc<str>,
    /// Digest of the definition as listed.
    digest: Arc<str>,
    #[cfg_attr(test, schemars(extend("enum" = approvals::json::APPROVAL_STATES)))]
    state: &'static str,
    /// Keys of the overlays that change it.
    overlays: Vec<String>,
}

/// A skill that is served.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct CatalogSkill {
    /// URI of its `SKILL.md`.
    name: Arc<str>,
    upstream: String,
    /// Path of its folder at the upstream.
    raw_name: Arc<str>,
    /// Digest of the entry as listed.
    digest: Arc<str>,
    #[cfg_attr(test, schemars(extend("enum" = approvals::json::APPROVAL_STATES)))]
    state: &'static str,
}

impl Readiness {
    pub(super) fn of(why: Vec<String>) -> Self {
        Self { ready: why.is_empty(), why }
    }
}

/// The export of the audit log to a collector.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct ExportRow {
    /// Records on the disk that the collector has not accepted.
    pub waiting: u64,
    /// Age of the oldest of these records; 0 where none waits.
    pub lag_secs: u64,
    /// When the collector accepted records last; null since the start.
    pub last_success: Option<String>,
    /// Why records wait; null after a success.
    pub error: Option<String>,
    /// Records that the collector has refused for good since the start.
    pub refused: u64,
}

impl ExportRow {
    pub(super) fn of(status: ExportStatus) -> Self {
        let ExportStatus { waiting, lag, last_success, failure, refused, .. } = status;
        let last_success = last_success.map(|at| humantime::format_rfc3339_seconds(at).to_string());
        Self { waiting, lag_secs: lag.as_secs(), last_success, error: failure, refused }
    }
}

impl VerifiedLogRow {
    pub(super) fn of(outcome: &RegularOutcome) -> Self {
        let RegularOutcome { at, records, segments, problems } = outcome;
        Self {
            at: humantime::format_rfc3339_seconds(*at).to_string(),
            age_secs: wall_clock().duration_since(*at).unwrap_or_default().as_secs(),
            records: *records,
            segments: *segments,
            problems: problems.clone(),
        }
    }
}

impl CertificateRow {
    pub(super) fn of(certificate: &CertificateEnd, now: SystemTime) -> Self {
        let end = SystemTime::from(certificate.end.writable());
        Self {
            owner: certificate.owner.as_str(),
            name: certificate.name.clone(),
            end: humantime::format_rfc3339_seconds(end).to_string(),
            warning: certificate.warning(now),
        }
    }
}

impl CatalogPrompt {
    pub(super) fn of(item: &ListedItem) -> Self {
        let overlays = item.overlay.iter().flat_map(|overlay| &overlay.numbers);
        Self {
            name: item.public_name.clone(),
            upstream: item.upstream.as_str().to_owned(),
            raw_name: item.raw_name.clone(),
            digest: item.digest.clone(),
            state: item.approval.state.as_str(),
            overlays: overlays.map(|number| overlay::key(*number)).collect(),
        }
    }
}

impl CatalogSkill {
    pub(super) fn of(item: &ListedItem) -> Self {
        Self {
            name: item.public_name.clone(),
            upstream: item.upstream.as_str().to_owned(),
            raw_name: item.raw_name.clone(),
            digest: item.digest.clone(),
            state: item.approval.state.as_str(),
        }
    }
}
